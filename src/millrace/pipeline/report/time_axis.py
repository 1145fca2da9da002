"""The time axis: the width of its steps, and the step of a given time."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

MINUTE: Final = 60
HOUR: Final = 3600
DAY: Final = 86_400
_WIDTHS: Final = (MINUTE, 5 * MINUTE, 15 * MINUTE, HOUR, 2 * HOUR, 6 * HOUR, 12 * HOUR, DAY)
#: Maximum number of steps that are legible on a screen and in a table.
MOST: Final = 200
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Axis(msgspec.Struct, frozen=True):
    """Steps of `width` seconds. The first starts at `start`, in seconds since 1970."""

    start: int
    width: int
    count: int

    @property
    def at(self) -> list[datetime]:
        return [moment(self.start + index * self.width) for index in range(self.count)]

    def step_of(self, times: Any) -> Any:
        """Return the step of each time in an Arrow column of timestamps."""
        since = pc.subtract(pc.cast(times, pa.int64()), self.start * 1_000_000)
        return pc.cast(pc.divide(since, self.width * 1_000_000), pa.int32())


NOTHING: Final = Axis(0, MINUTE, 0)


def axis(times: Any, *, narrowest: int = MINUTE, most: int = MOST) -> Axis:
    """Return the axis with the narrowest steps that covers all times with at most `most` steps."""
    ends = pc.min_max(times)
    if not ends["min"].is_valid:
        return NOTHING
    first, last = (int(ends[end].cast(pa.int64()).as_py() // 1_000_000) for end in ("min", "max"))
    for width in _WIDTHS:
        if width >= narrowest and _steps(first, last, width) <= most:
            break
    else:
        width = DAY * -(-_steps(first, last, DAY) // most)
        while _steps(first, last, width) > most:
            width += DAY
    return Axis(first // width * width, width, _steps(first, last, width))


def moment(seconds: int) -> datetime:
    return _EPOCH + timedelta(seconds=seconds)


def _steps(first: int, last: int, width: int) -> int:
    return last // width - first // width + 1

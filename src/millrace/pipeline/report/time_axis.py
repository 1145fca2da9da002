"""The time axis: the width of its steps, and the step of a given time."""

from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from millrace.pipeline.tables import Derived

from .rows import ReportRows

MINUTE: Final = 60
HOUR: Final = 3600
DAY: Final = 86_400
_WIDTHS: Final = (MINUTE, 5 * MINUTE, 15 * MINUTE, HOUR, 2 * HOUR, 6 * HOUR, 12 * HOUR, DAY)
#: Maximum number of steps that are legible on a screen and in a table.
MAX_STEPS: Final = 200
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Axis(msgspec.Struct, frozen=True):
    """Steps of `width` seconds. The first starts at `start`, in seconds since 1970."""

    start: int
    width: int
    count: int

    @property
    def at(self) -> list[datetime]:
        seconds = (self.start + index * self.width for index in range(self.count))
        return [_EPOCH + timedelta(seconds=each) for each in seconds]

    def step_of(self, time: str) -> str:
        """The step of a time, in SQL."""
        return f"(({micros(time)} - {self.start * 1_000_000}) / {self.width * 1_000_000})"


EMPTY: Final = Axis(0, MINUTE, 0)


def micros(time: str) -> str:
    return f"CAST(CAST({time} AS TIMESTAMP(6)) AS BIGINT)"


def axis_of(selection: ReportRows, table: Derived, time: str, *, narrowest: int = MINUTE) -> Axis:
    """The axis of the times of the selected rows of a table."""
    query = f"SELECT {micros(f'min({time})')} AS first, {micros(f'max({time})')} AS last"
    for row in selection.rows(table, f"{query} FROM selected"):
        if row["first"] is not None:
            return axis(row["first"] // 1_000_000, row["last"] // 1_000_000, narrowest=narrowest)
    return EMPTY


def axis(first: int, last: int, *, narrowest: int = MINUTE, max_steps: int = MAX_STEPS) -> Axis:
    """Return the axis with the narrowest steps that covers all times in at most `max_steps`."""
    for width in _WIDTHS:
        if width >= narrowest and _steps(first, last, width) <= max_steps:
            break
    else:
        width = DAY * -(-_steps(first, last, DAY) // max_steps)
        while _steps(first, last, width) > max_steps:
            width += DAY
    return Axis(first // width * width, width, _steps(first, last, width))


def _steps(first: int, last: int, width: int) -> int:
    return last // width - first // width + 1

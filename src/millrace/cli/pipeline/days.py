"""Which days a command is about: `--days 7`, `--days 2026-11-01..2026-11-07`, `--from`, `--to`."""

from datetime import date
from typing import NamedTuple

from millrace.pipeline.errors import PipelineError


class Days(NamedTuple):
    """The `latest` so many that there are, or those from `first` to `last`; None is open."""

    latest: int | None = None
    first: date | None = None
    last: date | None = None


def parse(days: str | None, first: str | None = None, last: str | None = None) -> Days:
    if days is not None and (first is not None or last is not None):
        raise PipelineError("--days says which days; --from and --to would say it again")
    if days is not None and days.isascii() and days.isdigit():
        count = int(days)
        if not 1 <= count <= 36_500:
            raise PipelineError(f"--days must be from 1 to 36500, not {days}")
        return Days(count)
    if days is not None:
        start, dots, end = days.partition("..")
        found = Days(None, _date("--days", start), _date("--days", end if dots else start))
    else:
        found = Days(None, _date("--from", first), _date("--to", last))
    if found.first and found.last and found.first > found.last:
        raise PipelineError(f"{found.first} is after {found.last}")
    return found


def _date(flag: str, text: str | None) -> date | None:
    if text is None:
        return None
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        example = " or 2026-11-01..2026-11-16, or a number" if flag == "--days" else ""
        raise PipelineError(f"{flag} must be a day, as 2026-11-16{example}, not {text}") from error

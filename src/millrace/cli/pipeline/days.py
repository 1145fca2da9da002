"""The options `--days 7`, `--days 2026-11-01..2026-11-07`, `--from` and `--to`."""

from datetime import date
from typing import NamedTuple

from millrace.pipeline.errors import PipelineError


class Days(NamedTuple):
    """The number of `latest` days, or the days from `first` to `last`; None is unbounded."""

    latest: int | None = None
    first: date | None = None
    last: date | None = None


def parse(days: str | None, first: str | None = None, last: str | None = None) -> Days:
    if days is not None and (first is not None or last is not None):
        raise PipelineError("Use either --days, or --from and --to.")
    if days is not None and days.isascii() and days.isdigit():
        count = int(days)
        if not 1 <= count <= 36_500:
            raise PipelineError(f"--days must be between 1 and 36500, not {days}.")
        return Days(count)
    if days is not None:
        start, dots, end = days.partition("..")
        found = Days(None, _date("--days", start), _date("--days", end if dots else start))
    else:
        found = Days(None, _date("--from", first), _date("--to", last))
    if found.first and found.last and found.first > found.last:
        raise PipelineError(f"The first day, {found.first}, is after the last day, {found.last}.")
    return found


def _date(flag: str, text: str | None) -> date | None:
    if text is None:
        return None
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        forms = ", a range such as 2026-11-01..2026-11-16, or a number" if flag == "--days" else ""
        raise PipelineError(
            f"{flag} must be a day such as 2026-11-16{forms}, not {text}."
        ) from error

"""The report of the pipeline's tables."""

from datetime import date

from msgspec import UNSET, UnsetType

from millrace.pipeline.report.model import Report
from millrace.web.analytics import Choice, Unable
from millrace.web.doors import Refusal, Visit

from .asked import AnalyticsAsked


async def analytics(visit: Visit, asked: AnalyticsAsked) -> Report:
    """What the page Analytics draws, and `millrace pipeline report --json` tells."""
    first, last = _date("first", asked.first), _date("last", asked.last)
    if first is not None and last is not None and last < first:
        raise Refusal(400, "`last` is before `first`")
    queue = None if asked.queue is UNSET else asked.queue
    try:
        made = await visit.room.analytics.made(
            visit.settings.lake, Choice(first, last, asked.days, queue)
        )
    except Unable as error:
        raise Refusal(409, str(error)) from None
    assert made is not None  # nobody was impatient
    return made.report


def _date(name: str, text: str | UnsetType) -> date | None:
    if text is UNSET:
        return None
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise Refusal(400, f"`{name}` is no day: {text}") from None

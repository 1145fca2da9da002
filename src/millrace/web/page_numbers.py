"""`?page=N` on the addresses of Faktory's web interface, beside the cursors of the pages."""

from typing import Final

import msgspec

from millrace.records import JobPage, SearchJobs

from .context import RequestContext
from .errors import HttpError
from .render import clean_text

#: Jobs that one request skips.
SKIP_BATCH_SIZE: Final = 500
#: Higher pages are refused: the server would examine all jobs before them.
MAX_PAGE: Final = 10_000


async def first_page(context: RequestContext, search: SearchJobs) -> tuple[JobPage, str]:
    """Return the requested page of jobs and its cursor; "end" if it is behind the last job."""
    cursor = await _first_cursor(context, search)
    if cursor is None:
        return JobPage([], 0, 0, ""), "end"
    search.cursor = cursor
    return await context.ask(JobPage, search=search), cursor


async def _first_cursor(context: RequestContext, search: SearchJobs) -> str | None:
    """Return the cursor of the requested page: `cursor`, or the one that `page` stands for. None:
    the page is behind the last job.
    """
    number = context.query("page")
    if context.query("cursor") or not number:
        return context.query("cursor")
    if not number.isascii() or not number.isdigit() or not 1 <= int(number[:9]) <= MAX_PAGE:
        raise HttpError(400, f"Invalid page {clean_text(number, 20)}. Pages are numbered from 1.")
    cursor, left = "", (int(number) - 1) * search.limit
    while left:
        step = msgspec.structs.replace(search, cursor=cursor, limit=min(left, SKIP_BATCH_SIZE))
        found = await context.ask(JobPage, search=step)
        left -= len(found.jobs)
        cursor = found.next
        if not cursor:
            return None
    return cursor

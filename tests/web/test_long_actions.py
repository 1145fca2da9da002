"""Actions that continue after their page is closed."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from millrace.admin.errors import AdminError
from millrace.records import ActionRequest, BulkProgress, JobFilter
from millrace.web.long_actions import MAX_RUNNING, BulkActions


class NeverDone:
    """A server on which actions do not end."""

    async def follow(self, _type: type[Any], **request: Any) -> AsyncIterator[BulkProgress]:
        await asyncio.Event().wait()
        yield BulkProgress(0, [])


def test_an_action_on_one_job_runs_during_bulk_actions() -> None:
    async def scenario() -> None:
        tasks = BulkActions(NeverDone())  # type: ignore[arg-type]
        every = ActionRequest("retry", query=JobFilter(state="dead"))
        for _ in range(MAX_RUNNING):
            tasks.begin("Retry all", "ann", act=every)
        with pytest.raises(AdminError, match="already running"):
            tasks.begin("Retry all", "ann", act=every)
        one = tasks.begin("Retry one", "ann", act=ActionRequest("retry", jobs=["a1"]))
        many = ActionRequest("retry", jobs=[f"a{n}" for n in range(1000)])
        with pytest.raises(AdminError, match="already running"):
            tasks.begin("Retry many", "ann", act=many)
        assert one in tasks.known.values()
        tasks.close()

    asyncio.run(scenario())

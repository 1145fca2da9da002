"""The rules of Masenko tasks and leases, and the factories."""

from random import Random
from typing import Final

from millrace.engine.job import BEFORE_ARRIVALS, SECOND, Job
from millrace.engine.policies import LeaseRights, RetryDecision, RetryPolicy
from millrace.engine.states import DEAD, SCHEDULED
from millrace.protocols.spec import HubContext, ProtocolSpec

from .connection import MasenkoConnection
from .hub import MasenkoHub
from .settings import MasenkoConfig


class MasenkoPolicy(RetryPolicy):
    """Retry `retries` times, after failures^4 seconds, with the due time rounded down to a whole
    second; then the job is dead, and so are the jobs that wait for it.

    Due tasks precede tasks without a delay, the earliest first.
    """

    fails_with_blocker = True
    removes_empty_queue = True

    def after_failure(self, job: Job, now: int, random: Random) -> RetryDecision:
        if job.failures > job.retries:
            return RetryDecision(DEAD)
        due = (now // SECOND + job.failures**4) * SECOND
        return RetryDecision(SCHEDULED, due, BEFORE_ARRIVALS + due)


def make_hub(settings: MasenkoConfig, context: HubContext) -> MasenkoHub:
    return MasenkoHub(
        context.engine,
        heartbeat=round(settings.heartbeat * SECOND),
        dialect=settings.dialect,
        max_connections=context.max_connections,
        rule=context.rule,
        max_line=min(settings.max_line, context.max_line),
    )


SPEC: Final = ProtocolSpec(
    MasenkoPolicy(),
    LeaseRights(bound=True, exclusive=True),
    make_hub=make_hub,
    make_connection=MasenkoConnection,
)

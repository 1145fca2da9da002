"""The rules for Faktory jobs and leases, and the factories for the hub and connections."""

from random import Random
from typing import Final

from millrace.engine.job import Job
from millrace.engine.policies import RetryDecision, RetryPolicy, retry_with_backoff
from millrace.engine.states import GONE
from millrace.protocols.spec import HubContext, ProtocolSpec

from .connection import FaktoryConnection
from .hub import FaktoryHub
from .settings import FaktoryConfig


class FaktoryPolicy(RetryPolicy):
    """Retry after count^4 + 15 + rand(0..29) * (count + 1) seconds, `retries` times; then the job
    is dead.

    With `retries` 0, the first failure discards the job; with a negative number, the job is dead
    immediately.
    """

    expiry_error = ("ReservationExpired", "Faktory job reservation expired")

    def after_failure(self, job: Job, now: int, random: Random) -> RetryDecision:
        if job.retries == 0:
            return RetryDecision(GONE)
        return retry_with_backoff(job, now, random)


def make_hub(settings: FaktoryConfig, context: HubContext) -> FaktoryHub:
    return FaktoryHub(
        context.engine,
        started_at=context.started_at,
        challenge=lambda: (4000 + context.random_bits(12), f"{context.random_bits(63):x}"),
        memory_mb=context.memory_mb,
        password=settings.password,
        max_connections=context.max_connections,
        rule=context.rule,
        max_line=context.max_line,
        recover_lost_workers=settings.recover_lost_workers,
    )


SPEC: Final = ProtocolSpec(FaktoryPolicy(), make_hub=make_hub, make_connection=FaktoryConnection)

"""The rules of Go Job Queue jobs and leases, and the factories."""

from random import Random
from typing import Final

from millrace.engine.job import Job
from millrace.engine.policies import RetryDecision, RetryPolicy
from millrace.engine.states import DEAD, READY, SCHEDULED
from millrace.protocols.spec import HubContext, ProtocolSpec

from .connection import GoqueueConnection
from .hub import GoqueueHub
from .settings import GoqueueConfig


class GoqueuePolicy(RetryPolicy):
    """A job is ready again at its old position when its time to process has ended, even if another
    protocol has reported a failure. After `max_attempts` leases it is dead.
    """

    expiry_error = ("LeaseExpired", "the time to process has expired")
    keeps_position = True

    def after_failure(self, job: Job, now: int, random: Random) -> RetryDecision:
        if 0 < job.max_attempts <= job.attempt:
            return RetryDecision(DEAD)
        due = job.leased_at + job.lease_duration
        return RetryDecision(SCHEDULED, due) if due > now else RetryDecision(READY)

    def after_expiry(self, job: Job, now: int, random: Random) -> RetryDecision:
        return RetryDecision(DEAD if 0 < job.max_attempts <= job.attempt else READY)


def make_hub(settings: GoqueueConfig, context: HubContext) -> GoqueueHub:
    return GoqueueHub(
        context.engine,
        max_connections=context.max_connections,
        rule=context.rule,
        max_data=min(settings.max_data, context.max_line),
        max_deliveries=settings.max_deliveries,
    )


SPEC: Final = ProtocolSpec(GoqueuePolicy(), make_hub=make_hub, make_connection=GoqueueConnection)

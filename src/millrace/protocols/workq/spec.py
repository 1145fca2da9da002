"""The rules of Workq jobs and leases, and the factories."""

from random import Random
from typing import Final

from millrace.engine.job import Job
from millrace.engine.policies import RetryDecision, RetryPolicy
from millrace.engine.states import DEAD, GONE, READY
from millrace.protocols.spec import HubContext, ProtocolSpec

from .connection import WorkqConnection
from .hub import WorkqHub
from .settings import WorkqConfig


class WorkqPolicy(RetryPolicy):
    """A job is ready again immediately, at its old position. Failure number `retries` is the last
    one (0 and 1 both mean the first); after `max_attempts` leases, a failure or an expiry is final.

    A transient job has one attempt.
    """

    dead_retention = 0
    expiry_counts_as_failure = False

    def after_failure(self, job: Job, now: int, random: Random) -> RetryDecision:
        if job.failures >= job.retries:
            return self._end(job)
        return self.after_expiry(job, now, random)

    def after_expiry(self, job: Job, now: int, random: Random) -> RetryDecision:
        transient = job.extra is not None and job.extra.transient
        if transient or 0 < job.max_attempts <= job.attempt:
            return self._end(job)
        return RetryDecision(READY)

    def _end(self, job: Job) -> RetryDecision:
        transient = job.extra is not None and job.extra.transient
        return RetryDecision(GONE if transient else DEAD)


def make_hub(settings: WorkqConfig, context: HubContext) -> WorkqHub:
    return WorkqHub(
        context.engine,
        started_at=context.started_at,
        dialect=settings.dialect,
        max_connections=context.max_connections,
        rule=context.rule,
        max_line=context.max_line,
    )


SPEC: Final = ProtocolSpec(WorkqPolicy(), make_hub=make_hub, make_connection=WorkqConnection)

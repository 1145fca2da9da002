"""The rules of jobs that are pushed and leased over HTTP."""

from random import Random
from typing import Final

from millrace.engine.job import Job
from millrace.engine.policies import LeaseRights, RetryDecision, RetryPolicy, retry_with_backoff
from millrace.protocols.spec import ProtocolSpec


class HttpPolicy(RetryPolicy):
    """Retry with the delays of Faktory, `retries` times; then the job is dead."""

    def after_failure(self, job: Job, now: int, random: Random) -> RetryDecision:
        return retry_with_backoff(job, now, random)


SPEC: Final = ProtocolSpec(HttpPolicy(), LeaseRights(exclusive=True))

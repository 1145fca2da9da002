"""Queues."""

from typing import Annotated

from .types import Cursor, Day, Doc, Duration, LatencySummary, Record, StateCounts, Time

#: Number of slots in a histogram: 60 seconds, 59 minutes, 23 hours, 6 days.
HISTOGRAM_SLOTS = 148


class QueueRecord(Record):
    """A queue."""

    name: Annotated[str, Doc("Name", "Name of the queue.")]
    paused: Annotated[bool, Doc("Paused", "True if no jobs are leased from it.")]
    counts: Annotated[StateCounts, Doc("Jobs", "Number of jobs by state.", name="jobs")]
    oldest: Annotated[
        Time,
        Doc(
            "Oldest ready",
            "Time at which its oldest ready job became ready.",
            name="oldest_ready_at",
        ),
    ]
    wait: Annotated[LatencySummary, Doc("Wait", "Time from ready to leased.")]
    run: Annotated[LatencySummary, Doc("Run", "Time from leased to the end of the attempt.")]
    limit: Annotated[int, Doc("Limit", "Maximum number of leased jobs; null for no limit.", null=0)]
    waiters: Annotated[int, Doc("Waiting workers", "Number of workers that wait for a job.")]
    last_fetch_at: Annotated[
        Time,
        Doc(
            "Last fetch",
            "Time of the last fetch by a worker.",
            name="asked_at",
            also="last_fetch_at",
        ),
    ]
    depths: Annotated[
        list[int], Doc("Depth", "Jobs that were not yet leased, every five seconds, newest last.")
    ]
    retention: Annotated[
        Duration | None,
        Doc(
            "Keep results",
            "Retention time of completed jobs in seconds; null if it is not set.",
            name="keep_results",
        ),
    ] = None


class QueuePage(Record):
    """Queues by name."""

    queues: Annotated[list[QueueRecord], Doc("Queues", "Queues of this page.")]
    count: Annotated[int, Doc("Count", "Number of queues that match.")]
    next: Cursor


class DurationSpread(Record, array_like=True):
    """Durations of one day, in seconds."""

    count: Annotated[int, Doc("Count", "Number of durations.")] = 0
    mean: Annotated[float, Doc("Mean", "Mean, in seconds.")] = 0.0
    vk: Annotated[
        float, Doc("Deviation", "Standard deviation, in seconds.", name="std", form="deviation")
    ] = 0.0
    histogram: Annotated[
        dict[int, int],
        Doc(
            "Histogram",
            "Counts of durations: 60 slots of a second, 59 of a minute, 23 of an hour, 6 of a day.",
            form="histogram",
        ),
    ] = {}

    @property
    def variance(self) -> float:
        return self.vk / (self.count - 1) if self.count > 1 else 0.0


class QueueStatistics(Record, array_like=True):
    """Statistics of a queue on one day (UTC)."""

    queue: Annotated[str, Doc("Queue", "Name of the queue.", internal=True)]
    day: Annotated[Day, Doc("Date", "Day of the statistics.", name="date")]
    wait: Annotated[DurationSpread, Doc("Wait", "Time from ready to leased.")]
    run: Annotated[DurationSpread, Doc("Run", "Time from leased to done.")]
    failures: Annotated[int, Doc("Failures", "Number of failed attempts.")] = 0
    failed: Annotated[int, Doc("Failed", "Number of jobs that are dead.")] = 0
    retries: Annotated[int, Doc("Retries", "Number of expired leases.")] = 0


class QueueDetail(Record):
    """A queue with its statistics of one day."""

    queue: Annotated[QueueRecord, Doc("Queue", "The queue.")]
    day: Annotated[QueueStatistics, Doc("Statistics", "Statistics of the day.", name="statistics")]
    days: Annotated[list[Day], Doc("Dates", "Days that have statistics.", name="dates")]
    stalled: Annotated[int, Doc("Stalled", "Number of Qless jobs with an expired lock.")]
    recurring: Annotated[int, Doc("Recurring", "Number of recurring jobs.")]
    throttled: Annotated[int, Doc("Throttled", "Number of jobs that wait for a limit.")]

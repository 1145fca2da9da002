"""Fields that only jobs with tags, limits, a log, a grace period or a client clock have.

The details are in `Extra.details`; a job without any uses no memory for them. Times are those of
the client's clock, in microseconds since 1970.
"""

from typing import Any

#: The type of a rank or priority. With `float` alone, compiled code would convert
#: integers to floats.
Number = int | float


class LastError:
    """The last error that a client reported. `when` is in seconds."""

    __slots__ = ("group", "message", "when", "worker")

    def __init__(self, group: str, message: str, when: Number, worker: str) -> None:
        self.group = group
        self.message = message
        self.when = when
        self.worker = worker


class LimitWait:
    """Why a ready job is parked: the key of the exhausted limit, the start of the wait, and the
    job's rank.
    """

    __slots__ = ("key", "rank", "since")

    def __init__(self, key: str, since: int, rank: Number) -> None:
        self.key = key
        self.since = since
        self.rank = rank


class JobDetails:
    """The details of one job."""

    __slots__ = (
        "clock_offset",
        "done_at",
        "front",
        "lapsed_at",
        "last_error",
        "lease_offset",
        "limits",
        "log",
        "lower_first",
        "parked",
        "priority",
        "released_limits",
        "spawned_from",
        "tags",
        "waiting_since",
    )

    def __init__(
        self,
        priority: Number = 0,
        log: list[Any] | None = None,
        tags: list[Any] | None = None,
        lapsed_at: int | None = None,
        front: bool = False,
        last_error: LastError | None = None,
        spawned_from: str = "",
        done_at: int = 0,
        limits: list[str] | None = None,
        waiting_since: int = 0,
        parked: LimitWait | None = None,
        released_limits: list[str] | None = None,
        lower_first: bool = False,
        clock_offset: int = 0,
        lease_offset: int = 0,
    ) -> None:
        self.priority = priority
        #: Entries of the job's log: time in whole seconds, event name, and fields or None.
        self.log = [] if log is None else log
        #: Each tag with the time at which it was added.
        self.tags = [] if tags is None else tags
        #: The time at which the lease expired, while its holder keeps it for a grace period.
        self.lapsed_at = lapsed_at
        #: Whether a command ended the job's lease, so that the job is ahead of all other ready
        #: jobs.
        self.front = front
        self.last_error = last_error
        #: The id of the recurring job that created it.
        self.spawned_from = spawned_from
        self.done_at = done_at
        #: The keys of its limits, without the key of its queue.
        self.limits = [] if limits is None else limits
        #: The time of the last push, lease, or move to another queue.
        self.waiting_since = waiting_since
        self.parked = parked
        #: Keys of limits that a client released while a worker held the job.
        self.released_limits = [] if released_limits is None else released_limits
        #: Whether a lower priority runs first.
        self.lower_first = lower_first
        #: How far the clock of the client that last changed the job is ahead of the server's. If
        #: the job uses a client's clock, its times are on this clock.
        self.clock_offset = clock_offset
        #: The same offset for the client that leased it. The lease ends by this clock.
        self.lease_offset = lease_offset

    @property
    def rank(self) -> Number:
        """The rank that corresponds to the priority: jobs with a higher rank run earlier."""
        return -self.priority if self.lower_first else self.priority

    def add_entry(
        self, event_name: str, when: int, limit: int, fields: dict[str, Any] | None = None
    ) -> None:
        """Append an entry. The log keeps its first entry and its newest ones, `limit` in all; 0
        means no limit.
        """
        self.log.append((when // 1_000_000, event_name, fields))
        if 0 < limit < len(self.log):
            self.log[1:] = self.log[len(self.log) - limit + 1 :] if limit > 1 else []

    def tag_names(self) -> list[Any]:
        return [tag for tag, _ in self.tags]

"""Counters of the engine."""


class Totals:
    """Counters since the first start or the last flush."""

    __slots__ = ("failures", "processed")

    def __init__(self) -> None:
        self.processed = 0
        self.failures = 0


class TimerCounts:
    """The number of transitions by timers since the server started."""

    __slots__ = ("evicted", "expired", "purged", "retried", "started")

    def __init__(self) -> None:
        self.started = 0
        self.retried = 0
        self.expired = 0
        self.purged = 0
        self.evicted = 0

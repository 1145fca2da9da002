"""Which days of which tables the events of some batches change. Nothing here needs Spark.

An event changes the tables of its own day, the attempts of the day of its lease and the jobs of the
day of their push. It changes how deep the queues are on every day after it, too, and how busy
workers were on all days of its lease. A FLUSH ends jobs and leases of any day. All of that is known
from the ledger, which tells the days of leases and pushes of every part of a batch; clocks may be
odd, so that none of it follows from the day of an event alone.
"""

from collections.abc import Collection, Iterator, Mapping
from datetime import date, timedelta
from typing import Final, NamedTuple

from .ledger import Ledger
from .tables import (
    ATTEMPTS,
    DEPTH_DAY,
    FAILURE_GROUPS,
    JOBS,
    LATENCY_HIST,
    PROTOCOL_DAY,
    QUEUE_DAY,
    THROUGHPUT_MINUTE,
    WORKER_HOUR,
)

#: The longest that a worker is busy with one attempt, in days; see transforms/workers.py.
LONGEST: Final = 31
#: The tables of which a day is made of the events of that day, and of nothing else.
OF_EVENTS: Final = (LATENCY_HIST, QUEUE_DAY, FAILURE_GROUPS, PROTOCOL_DAY)

#: Days by the name of their table, in order.
Days = Mapping[str, list[date]]


class Known(NamedTuple):
    """All days that the ledger knows."""

    events: list[date]
    leases: list[date]
    pushes: list[date]


def known(ledger: Ledger) -> Known:
    parts = [part for batch in ledger.batches() for part in batch.parts]
    return Known(
        ledger.days(),
        sorted({day for part in parts for day in part.leases}),
        sorted({day for part in parts for day in part.pushes}),
    )


def affected(ledger: Ledger, since: int, flushes: Collection[date] = ()) -> Days:
    """What the batches after `since` change; `flushes` are the days of all flushes."""
    touched, all_ = ledger.touched_since(since), known(ledger)
    leases = all_.leases if touched.flushed else touched.leases
    first = min(all_.events if touched.flushed else touched.events, default=date.max)
    return {
        **{table.name: touched.events for table in OF_EVENTS},
        DEPTH_DAY.name: all_.events if touched.flushed else touched.events,
        THROUGHPUT_MINUTE.name: [day for day in all_.events if day >= first],
        ATTEMPTS.name: leases,
        WORKER_HOUR.name: workdays(ledger, leases, flushes),
        JOBS.name: all_.pushes if touched.flushed else touched.pushes,
    }


def within(ledger: Ledger, first: date, last: date, flushes: Collection[date] = ()) -> Days:
    """Everything from a day to another, whether it changed or not."""
    all_ = known(ledger)
    days: Days = {
        **{table.name: all_.events for table in OF_EVENTS},
        DEPTH_DAY.name: all_.events,
        THROUGHPUT_MINUTE.name: all_.events,
        ATTEMPTS.name: all_.leases,
        WORKER_HOUR.name: workdays(ledger, all_.leases, flushes),
        JOBS.name: all_.pushes,
    }
    return {name: [day for day in each if first <= day <= last] for name, each in days.items()}


def workdays(ledger: Ledger, leases: Collection[date], flushes: Collection[date]) -> list[date]:
    """The days of which attempts of these leases are part."""
    wanted = set(leases)
    ends = {
        (lease, part.day)
        for batch in ledger.batches()
        for part in batch.parts
        for lease in wanted.intersection(part.leases)
    }
    ends |= {(lease, flush) for lease in wanted for flush in flushes}
    return sorted({day for lease, end in ends for day in _between(lease, end)})


def leases_of(ledger: Ledger, workdays: Collection[date], flushes: Collection[date]) -> list[date]:
    """The days of all leases that may be part of these."""
    wanted, leases = set(workdays), known(ledger).leases
    if not wanted.isdisjoint(flushes):
        return leases
    ended = {
        lease
        for batch in ledger.batches()
        for part in batch.parts
        if part.day in wanted
        for lease in part.leases
    }
    return [
        lease
        for lease in leases
        if lease in ended or any(lease <= day and (day - lease).days <= LONGEST for day in wanted)
    ]


def _between(lease: date, end: date) -> Iterator[date]:
    """The days of an attempt: if it is believable all from its lease to its end, else the last."""
    length = (end - lease).days
    if 0 <= length <= LONGEST:
        yield from (lease + timedelta(days=after) for after in range(length))
    yield end

"""Determines which days of which tables the events of some batches change. This module does not
need Spark.

An event changes the tables of its own day, the attempts on the day of its lease, and the jobs on
the day of their push. It also changes the queue depths of every later day, and the worker
utilisation on all days of its lease. A FLUSH ends jobs and leases of any day. The ledger has all
the necessary data: for every part of a batch, it lists the days of the leases and pushes. Clocks
may be wrong, so the day of an event alone is not sufficient.
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

#: Maximum duration of an attempt that counts as busy time, in days; see transforms/workers.py.
LONGEST: Final = 31
#: Tables in which each day depends only on the events of that day.
OF_EVENTS: Final = (LATENCY_HIST, QUEUE_DAY, FAILURE_GROUPS, PROTOCOL_DAY)

#: Sorted days by table name.
Days = Mapping[str, list[date]]


class Known(NamedTuple):
    """All days in the ledger."""

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
    """Return the days that batches after `since` change; `flushes` are all days with a flush."""
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
    """Return all days from `first` to `last`, changed or not."""
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
    """Return the days on which attempts of these leases count as busy time."""
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
    """Return the days of all leases that may contribute to these workdays."""
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
    """Yield the days of an attempt: lease to end if the length is plausible, else the end."""
    length = (end - lease).days
    if 0 <= length <= LONGEST:
        yield from (lease + timedelta(days=after) for after in range(length))
    yield end

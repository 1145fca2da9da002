"""Checks of the engine's events in any run: the events of a job have a possible order, the events
of a queue follow its order, and the events in the journal are numbered and complete.
"""

import sqlite3
from pathlib import Path
from typing import Any

from promises import BrokenPromise, Promises, TrackedJob, name

from millrace.engine.annotations import read_details
from millrace.engine.engine import Engine
from millrace.engine.events import Event
from millrace.engine.parked_jobs import parked_of
from millrace.engine.states import BLOCKED, GONE, STATE_NAMES, TRANSITIONS
from millrace.protocols.registry import QLESS
from millrace.store.records import decode_any


class Watch:
    """Reads an engine's events as they occur, including events that are undone later."""

    def __init__(self, engine: Engine, promises: Promises, seen: "Seen") -> None:
        self._engine = engine
        self._promises = promises
        self._seen = seen
        self._events = engine.change_set.events
        self._read = 0
        take = engine.take_changes

        def take_batch() -> Any:
            self.absorb()
            return take()

        engine.take_changes = take_batch  # type: ignore[method-assign]

    def absorb(self) -> None:
        events = self._engine.change_set.events
        if events is not self._events:
            self._events, self._read = events, 0
        while self._read < len(events):
            row = events[self._read]
            self._read += 1
            self._happened(Event(*row))

    def _happened(self, event: Event) -> None:
        if event.type == "flushed":
            self._seen.fresh.clear()
            return
        job = self._tracked(event)
        if job is None:
            return
        if event.type == "leased":
            job.times_leased += 1
            self._seen.check_order(job, event, self._engine)
        if event.type != "pushed":
            self._seen.fresh.get(event.queue, {}).pop(job.number, None)
        elif event.state != BLOCKED and not (job.work.due or job.work.after or job.work.limits):
            self._seen.fresh.setdefault(event.queue, {})[job.number] = job
            self._seen.pushed_at[job.number] = self._promises.stamp

    def _tracked(self, event: Event) -> TrackedJob | None:
        number = self._seen.numbers.get(event.seq)
        if number is None:
            job = self._engine.jobs.get(event.seq)
            found = None if job is None else self._promises.find(self._engine.payload(job), job.jid)
            if found is None:
                return None
            number = self._seen.numbers[event.seq] = found.number
        return self._promises.jobs[number]


class Seen:
    """The observations of all engines of a run."""

    def __init__(self) -> None:
        #: The job of each seq. After a crash, a seq that was never acknowledged may be reused.
        self.numbers: dict[int, int] = {}
        #: By queue, ready jobs that are unchanged since their push.
        self.fresh: dict[str, dict[int, TrackedJob]] = {}
        #: The stamp of each push, in the order of all requests and replies. A push that was
        #: repeated after a worker had the job creates a second, later job.
        self.pushed_at: dict[int, int] = {}

    def after_recovery(self, engine: Engine, promises: Promises) -> None:
        """An engine was restored. Jobs that it does not have were never acknowledged."""
        found = {
            seq: promises.find(engine.payload(job), job.jid) for seq, job in engine.jobs.items()
        }
        self.numbers = {seq: job.number for seq, job in found.items() if job is not None}
        there = set(self.numbers.values())
        for queue, jobs in self.fresh.items():
            self.fresh[queue] = {n: job for n, job in jobs.items() if n in there}

    def check_order(self, job: TrackedJob, event: Event, engine: Engine) -> None:
        """No job overtakes an earlier job of at least the same rank."""
        fresh = self.fresh.get(event.queue, {})
        if job.number not in fresh:
            return
        for other in fresh.values():
            first = 0 < other.accepted < job.sent_first and other.work.rank >= job.work.rank
            first = first and self.pushed_at[other.number] < job.sent_first
            first = first and not other.ended
            # Qless clients set the time of a job, which determines its position.
            if first and (other.protocol == "qless") == (event.origin == QLESS):
                if other.protocol == "qless" and self._was_parked(other, job, event, engine):
                    continue
                raise BrokenPromise(f"{name(job)} was leased before {name(other)}")

    def _was_parked(self, other: TrackedJob, job: TrackedJob, event: Event, engine: Engine) -> bool:
        """Whether a Qless job is behind a later one because it has waited for a limit: it is
        parked, or has the same rank and returned after the later one was pushed.

        A job does not keep its place in the original. `QlessThrottle:release` of reqless-core
        (throttle.lua) returns it with `queue.work.add(now, data.priority, jid)`. The score is
        `priority - now / 10000000000` with the time of the release, so the job returns behind all
        jobs of its priority that were put before the release.
        """
        leased = engine.jobs[event.seq]
        for seq, number in self.numbers.items():
            found = engine.jobs.get(seq) if number == other.number else None
            if found is None or all(row[1] != "throttled" for row in read_details(found).log):
                continue
            if parked_of(found) is not None:
                return True
            return other.work.rank == job.work.rank and found.position >= leased.position
        return False


def read_journal(folder: Path) -> list[tuple[int, Event]]:
    """All events in the store, with their ids."""
    db = sqlite3.connect(f"file:{folder / 'millrace.db'}?mode=ro", uri=True)
    try:
        rows = list(db.execute("SELECT first, count, events FROM outbox ORDER BY first"))
    finally:
        db.close()
    found: list[tuple[int, Event]] = []
    for first, count, blob in rows:
        events = [Event(*row) for row in decode_any(blob)]
        if len(events) != count:
            raise BrokenPromise(f"the journal records {count} events at {first}, but has others")
        found += [(first + n, event) for n, event in enumerate(events)]
    return found


def check_journal(folder: Path, engine: Engine) -> None:
    """The written events, followed by the pending events, must lead to the current state."""
    states: dict[int, int] = {}
    for expected, (number, event) in enumerate(read_journal(folder), 1):
        if number != expected:
            raise BrokenPromise(f"the journal goes on with event {number} after {expected - 1}")
        _follow(states, event)
    for row in engine.change_set.events:
        _follow(states, Event(*row))
    there = {seq: job.state for seq, job in engine.jobs.items()}
    recorded = {seq: state for seq, state in states.items() if state != GONE}
    if there != recorded:
        wrong = sorted(
            seq for seq in there.keys() | recorded.keys() if there.get(seq) != recorded.get(seq)
        )
        shown = ", ".join(
            f"job {seq} is {_state(there.get(seq))}, by the journal {_state(recorded.get(seq))}"
            for seq in wrong[:5]
        )
        raise BrokenPromise(f"the journal differs from the engine: {shown}")


def _follow(states: dict[int, int], event: Event) -> None:
    before = states.get(event.seq)
    if event.type == "flushed":
        states.update((seq, GONE) for seq in states if seq <= event.seq)
        return
    if event.type == "pushed":
        if before is not None:
            raise BrokenPromise(f"the journal has job {event.seq} pushed twice")
    elif before is None or event.state not in TRANSITIONS[event.type].get(before, ()):
        raise BrokenPromise(
            f"the journal has job {event.seq} {event.type} from {_state(before)} to "
            f"{_state(event.state)}"
        )
    states[event.seq] = event.state


def _state(state: int | None) -> str:
    return "not there" if state is None else STATE_NAMES[state]

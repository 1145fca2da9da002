"""What the engine's events must say, however the run went: each job's in a possible order, those of
a queue in the order of its rules, and all of them, as the journal has them, numbered and complete.
"""

import sqlite3
from pathlib import Path
from typing import Any

from promises import Booked, BrokenPromise, Promises, name

from millrace.engine.engine import Engine
from millrace.engine.events import Event
from millrace.engine.job import QLESS
from millrace.engine.states import GONE, STATE_NAMES, TRANSITIONS
from millrace.store.changes import decode_any


class Watch:
    """Reads an engine's events as they happen, also those that are undone later."""

    def __init__(self, engine: Engine, promises: Promises, seen: "Seen") -> None:
        self._engine = engine
        self._promises = promises
        self._seen = seen
        self._events = engine.batch.events
        self._read = 0
        take = engine.take_batch

        def take_batch() -> Any:
            self.absorb()
            return take()

        engine.take_batch = take_batch  # type: ignore[method-assign]

    def absorb(self) -> None:
        events = self._engine.batch.events
        if events is not self._events:
            self._events, self._read = events, 0
        while self._read < len(events):
            row = events[self._read]
            self._read += 1
            self._happened(Event(*row))

    def _happened(self, event: Event) -> None:
        job = self._booked(event)
        if job is None:
            return
        if event.type == "leased":
            job.times_leased += 1
            self._seen.check_order(job, event)
        if event.type != "pushed":
            self._seen.fresh.get(event.queue, {}).pop(job.number, None)
        elif not (job.work.due or job.work.after):
            self._seen.fresh.setdefault(event.queue, {})[job.number] = job

    def _booked(self, event: Event) -> Booked | None:
        number = self._seen.numbers.get(event.seq)
        if number is None:
            job = self._engine.jobs.get(event.seq)
            found = None if job is None else self._promises.find(job.payload)
            if found is None:
                return None
            number = self._seen.numbers[event.seq] = found.number
        return self._promises.jobs[number]


class Seen:
    """What was seen of all engines of a run, one after the other."""

    def __init__(self) -> None:
        #: Which seq is which job. After a crash a seq that nobody was told of may be another's.
        self.numbers: dict[int, int] = {}
        #: By queue, jobs to which nothing has happened since they were pushed to be run at once.
        self.fresh: dict[str, dict[int, Booked]] = {}

    def begin_anew(self, engine: Engine, promises: Promises) -> None:
        """An engine was read back: of what it does not have nobody was told."""
        found = {seq: promises.find(job.payload) for seq, job in engine.jobs.items()}
        self.numbers = {seq: job.number for seq, job in found.items() if job is not None}
        there = set(self.numbers.values())
        for queue, jobs in self.fresh.items():
            self.fresh[queue] = {n: job for n, job in jobs.items() if n in there}

    def check_order(self, job: Booked, event: Event) -> None:
        """Nobody may be passed over by one that came later and is worth no more."""
        fresh = self.fresh.get(event.queue, {})
        if job.number not in fresh:
            return
        for other in fresh.values():
            first = 0 < other.accepted < job.sent_first and other.work.rank >= job.work.rank
            first = first and not other.ended
            # Whoever brings its own time is where its time says.
            if first and (other.protocol == "qless") == (event.origin == QLESS):
                raise BrokenPromise(f"{name(job)} was leased before {name(other)}")


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
            raise BrokenPromise(f"the journal says {count} events at {first}: there are others")
        found += [(first + n, event) for n, event in enumerate(events)]
    return found


def check_journal(folder: Path, engine: Engine) -> None:
    """Do the events that are written, and then those that are not yet, lead to what is there?"""
    states: dict[int, int] = {}
    for expected, (number, event) in enumerate(read_journal(folder), 1):
        if number != expected:
            raise BrokenPromise(f"the journal goes on with event {number} after {expected - 1}")
        _follow(states, event)
    for row in engine.batch.events:
        _follow(states, Event(*row))
    there = {seq: job.state for seq, job in engine.jobs.items()}
    told = {seq: state for seq, state in states.items() if state != GONE}
    if there != told:
        wrong = sorted(seq for seq in there.keys() | told.keys() if there.get(seq) != told.get(seq))
        shown = ", ".join(
            f"job {seq} is {_state(there.get(seq))}, by the journal {_state(told.get(seq))}"
            for seq in wrong[:5]
        )
        raise BrokenPromise(f"the journal tells another story: {shown}")


def _follow(states: dict[int, int], event: Event) -> None:
    before = states.get(event.seq)
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

"""The keys of queues and of jobs, computed from the engine."""

from collections.abc import Generator, Iterable, Iterator
from operator import attrgetter
from typing import Final, TypeGuard

from millrace.engine.annotations import read_details
from millrace.engine.job import SECOND, Job
from millrace.engine.queues import Queue
from millrace.engine.states import BLOCKED, LEASED, READY, SCHEDULED
from millrace.engine.tables import MAX_COPIED, Index, jobs_to_examine, keys_to_examine
from millrace.protocols.slices import replace_in_slices, sort_in_slices

from . import fields, queries
from .computed_keys import Key, Scores, list_key, long_key, set_key, sorted_scores, zset_key
from .names import encode_name
from .state import QlessState
from .writable_keys import WritableKeys

#: Names of the sets of a queue, by the state of their jobs.
STATES: Final = {"work": READY, "locks": LEASED, "scheduled": SCHEDULED, "depends": BLOCKED}


class JobKeys:
    def __init__(self, qless: QlessState, writable: WritableKeys) -> None:
        self._qless = qless
        self._engine = qless.engine
        self._writable = writable

    # Queues

    def queues(self) -> Key:
        """Return the queues by the time of their first put."""
        seen, local, listed = (
            self._qless.first_seen,
            self._qless.client_name,
            self._qless.is_in_database,
        )

        def rows(_: bool) -> Iterator[tuple[bytes, float] | None]:
            queues = self._engine.tables.queues
            for name in keys_to_examine(queues):
                queue = queues.get(name)
                shown = queue is not None and queue.registered and listed(name)
                yield (encode_name(local(name)), seen.get(name, 0) / SECOND) if shown else None

        def score(name: str) -> float | None:
            queue = self._engine.queue(self._qless.engine_name(name))
            if queue is None or not queue.registered:
                return None
            return seen.get(queue.name, 0) / SECOND

        return long_key("zset", rows, score)

    def paused(self, at_once: bool) -> Iterator[bytes | None]:
        paused, queues = self._qless.paused_in_advance, self._engine.tables.queues
        names: Iterable[str] = keys_to_examine(queues)
        if at_once:  # of many queues, few are paused
            names = [each.name for each in filter(attrgetter("paused"), queues.values())]
        for name in names:
            queue = queues.get(name)
            is_paused = queue is not None and queue.paused and name not in paused
            shown = is_paused and self._qless.is_in_database(name)
            yield encode_name(self._qless.client_name(name)) if shown else None
        for name in sorted(paused):
            yield (
                encode_name(self._qless.client_name(name))
                if self._qless.is_in_database(name)
                else None
            )

    def queue(self, rest: str) -> Key | None:
        name, _, part = self._qless.engine_name(rest).rpartition("-")
        if part == "recur":
            return self._queue_recurring(name)
        queue = self._engine.queue(name)
        if queue is not None and part == "throttled":
            return zset_key(
                lambda: self._writable.waiting_for(self._qless.throttles.throttled(name))
            )
        if queue is None or part not in STATES:
            return None
        return self._jobs_of(queue, STATES[part])

    def _jobs_of(self, queue: Queue, state: int) -> Key:
        score = fields.SCORES[state]
        throttles = self._qless.throttles
        parked = throttles.throttled(queue.name) if state == READY and throttles else []
        excluded = {job.seq for job in parked}

        def read() -> Scores:
            if state == READY:  # popped from the highest score down
                jobs = list(queue.ready.first(queue.counts[READY]))[::-1]
                return [(self.jid(job), score(job)) for job in jobs if job.seq not in excluded]
            found = self._qless.queue_jobs(queue.name, state)
            return sorted_scores((self._qless.client_name(job.jid), score(job)) for job in found)

        def score_of(jid: str) -> float | None:
            first = self._qless.find(jid)
            found = [] if first is None else self._engine.find_all(first.jid)
            wanted = (job for job in found if job.state == state and job.queue == queue.name)
            return next((score(job) for job in wanted if job.seq not in excluded), None)

        def read_in_slices() -> Generator[None, None, Scores]:
            if state == READY:
                order = yield from sort_in_slices(
                    (job.rank, -job.position, -job.seq, job)
                    if _is_in(job, queue, state) and job.seq not in excluded
                    else None
                    for job in self._ready_jobs(queue)
                )
                return (yield from replace_in_slices(order, lambda row: member(row[3])))
            rows = yield from sort_in_slices(
                (score(job), self.jid(job)) if _is_in(job, queue, state) else None
                for job in self.examine(self._engine.tables.by_state(state))
            )
            return (yield from replace_in_slices(rows, lambda row: (row[1], row[0])))

        def member(job: Job) -> tuple[bytes, float]:
            return self.jid(job), score(job)

        length = lambda: queue.counts[state] - len(excluded)  # noqa: E731
        return Key("zset", length, read, score_of, read_in_slices, queue=queue)

    def _ready_jobs(self, queue: Queue) -> Iterator[Job | None]:
        """The ready jobs of a queue, and others."""
        if len(queue.ready) <= MAX_COPIED:
            return iter(list(queue.ready))
        return self.examine(self._engine.tables.jobs)

    def _queue_recurring(self, name: str) -> Key:
        known = self._qless.recurring

        def read() -> Scores:
            mine = (each for each in known.values() if each.queue == name)
            return sorted_scores(
                (self._qless.client_name(each.jid), each.next / SECOND) for each in mine
            )

        def score(jid: str) -> float | None:
            found = known.get(self._qless.engine_name(jid))
            return None if found is None or found.queue != name else found.next / SECOND

        return zset_key(read, score)

    # Jobs

    def job(self, rest: str) -> Key | None:
        job = self._qless.find(rest)
        if job is not None:
            return self._job_hash(job)
        jid, _, part = rest.rpartition("-")
        job = self._qless.find(jid)
        return None if job is None else self._job_part(job, part)

    def _job_hash(self, job: Job) -> Key:
        return Key("hash", lambda: 1, lambda: fields.of_job(self._qless, job))

    def _job_part(self, job: Job, part: str) -> Key | None:
        if part == "history":
            return list_key(lambda: [fields.stage_json(*stage) for stage in read_details(job).log])
        if part == "dependencies":
            return set_key(lambda: self.dependencies(job))
        if part == "dependents":
            return long_key("set", lambda at_once: self._dependents(job, at_once))
        return None

    def _dependents(self, job: Job, _: bool) -> Iterator[bytes | None]:
        seq = 0
        while seq := self._engine.next_dependent(job, seq):
            dependent = self._engine.job(seq)
            yield None if dependent is None else self.jid(dependent)

    def dependencies(self, job: Job) -> list[str]:
        return queries.dependencies(self._qless, job)

    def recurring(self, jid: str) -> Key | None:
        found = self._qless.recurring.get(self._qless.engine_name(jid))
        if found is None:
            return None
        return Key("hash", lambda: 1, lambda: fields.of_recurring(self._qless, found))

    def completed(self) -> Key:
        def rows(at_once: bool) -> Iterator[tuple[bytes, float] | None]:
            for job in self.examine(self._engine.tables.done_untrimmed, at_once=at_once):
                shown = job is not None and self._qless.is_in_database(job.queue)
                yield (
                    (self.jid(job), read_details(job).done_at / SECOND)
                    if job is not None and shown
                    else None
                )

        return long_key("zset", rows)

    def examine(self, index: Index, *, at_once: bool = False) -> Iterator[Job | None]:
        """Iterate over the jobs of an index, within one slice or across several."""
        return iter(index.values()) if at_once else jobs_to_examine(index, self._engine.tables.jobs)

    def jid(self, job: Job) -> bytes:
        return encode_name(self._qless.client_name(job.jid))


def _is_in(job: Job | None, queue: Queue, state: int) -> TypeGuard[Job]:
    return job is not None and job.state == state and job.queue == queue.name

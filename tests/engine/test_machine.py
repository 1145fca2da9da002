"""The engine and its stores under arbitrary sequences of commands, failures and crashes.
Hypothesis generates the sequences. After every step the engine must agree with a simple model, and
its indexes with each other. After a crash the engine must equal the last commit. MILLRACE_EXAMPLES
sets the number of sequences (default 150).
"""

import os
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from invariants import INVARIANTS
from model import Model

import millrace.store.sqlite.generations
from failing_stores import FailingMemoryStore, FailingSqliteStore
from millrace.engine.change_set import ChangeSet
from millrace.engine.engine import Engine
from millrace.engine.errors import NotLeased, WrongState
from millrace.engine.events import Event
from millrace.engine.job import AFTER_ARRIVALS, BEFORE_ARRIVALS, FOREVER, Job, NewJob
from millrace.engine.states import BLOCKED, DEAD, DONE, LEASED, READY, SCHEDULED
from millrace.engine.timers import UNAVAILABLE_RETRY
from millrace.engine.waiters import Waiter
from millrace.protocols.registry import FAKTORY, GOQUEUE, MASENKO, WORKQ
from millrace.protocols.spec import protocol_rules
from millrace.server import app
from millrace.store import Store, StoreWriteFailed
from millrace.store.records import decode_any, encode
from scene import SECOND, START, durable_state, undo, unit

QUEUES = ("a", "b", "c", "d")
DEAD_MAX = 3

jids = st.sampled_from([f"job-{n}" for n in range(6)])
queue_names = st.sampled_from(QUEUES)
queue_lists = st.permutations(QUEUES).map(tuple) | st.lists(queue_names, max_size=2).map(tuple)
spans = st.sampled_from([0, 1, 5, 20, 60, 600, 90_000])
anyone = st.integers(0, 1000)


class Machine(RuleBasedStateMachine):
    """Applies commands to the engine. `self.model` holds the expected state."""

    def __init__(self) -> None:
        super().__init__()
        self.now = START
        self.patch = pytest.MonkeyPatch()
        #: The connection that bound leases belong to. A new one replaces it after it closes.
        self.calls = 0
        self.store: Any = self.open_store()
        self.engine = self.recovered()
        self.model = Model(DEAD_MAX)
        self.waiting: list[tuple[Waiter, int]] = []
        self.not_offered: set[int] = set()
        #: Number of events of the batch that the model has read.
        self.read = 0
        #: The committed state: the model, and the engine's records.
        self.committed = (self.model.copy(), durable_state(self.engine))
        self.begun: tuple[ChangeSet, Model, dict[str, Any]] | None = None
        self.journal: list[list[Any]] = []
        #: Ready jobs that have not changed since they were loaded.
        self.restored: set[int] = set()
        #: Until this time jobs may be overdue, because the engine was halted.
        self.lenient_until = 0

    def open_store(self) -> Store:
        raise NotImplementedError

    def shipped(self) -> list[Any]:
        """Every event in the store, in order."""
        raise NotImplementedError

    def recovered(self) -> Engine:
        engine = Engine(Random(1), protocol_rules(), dead_max=DEAD_MAX)
        app.recover(engine, self.store, lambda: self.now)
        self.calls += 1
        engine.leases.holders.add(self.caller)
        return engine

    @property
    def caller(self) -> str:
        return f"caller-{self.calls}"

    # Reading events

    def absorb(self) -> list[str]:
        """Let the model follow the events, then check the deliveries."""
        rows = self.engine.change_set.events[self.read :]
        self.read = len(self.engine.change_set.events)
        self.restored -= {row[2] for row in rows}
        self.model.holders = self.engine.leases.holders
        for row in rows:
            assert row[0] <= self.now
            self.model.absorb(Event(*row))
        assert not self.model.moving, "a job was not moved to its dead queue"
        assert not self.model.doomed, "a job did not fail with its blocker"
        timeouts, self.engine.waiters.timeouts = self.engine.waiters.timeouts, []
        for waiter in timeouts:
            assert self.forget(waiter) <= self.now, "notified too early"
        deliveries, self.engine.waiters.deliveries = self.engine.waiters.deliveries, []
        evicted = {row[2] for row in rows if row[1] == "evicted"}
        for waiter, job in deliveries:
            # After a long pause a job may become due and expire in the same tick.
            assert job.state == LEASED or job.seq in evicted
            self.check_delivery(waiter, job)
        return [row[1] for row in rows]

    def check_delivery(self, waiter: Waiter, job: Job) -> None:
        assert job.holder == waiter.holder
        assert waiter.key not in self.not_offered
        entitled = [
            w for w, _ in self.waiting if job.queue in w.queues and w.key not in self.not_offered
        ]
        assert entitled[0] is waiter, "another client waited longer"
        self.forget(waiter)

    def forget(self, waiter: Waiter) -> int:
        """Remove a waiter from the list. Return the end of its wait."""
        found = [entry for entry in self.waiting if entry[0] is waiter]
        assert len(found) == 1
        self.waiting.remove(found[0])
        return found[0][1]

    def pick(self, number: int, *states: int) -> Job | None:
        seqs = self.model.of_state(*states)
        return self.engine.jobs[seqs[number % len(seqs)]] if seqs else None

    def running(self) -> bool:
        return not self.engine.unavailable_reason

    @initialize(
        counts=st.tuples(*[st.integers(0, 6)] * 3),
        chain=st.sampled_from([None, FAKTORY, MASENKO]),
        durable=st.booleans(),
    )
    def push_initial_jobs(self, counts, chain, durable):
        for queue, count, origin in zip("abc", counts, (FAKTORY, MASENKO, FAKTORY), strict=True):
            self.push_some(queue, count, 2, origin, "d")
        if chain:
            self.push_chain("a", chain, "d")
        if durable and self.engine.change_set:
            self.begin_and_commit()

    # Pushing

    @precondition(running)
    @rule(
        jid=jids,
        queue=queue_names,
        retries=st.sampled_from([25, 25, 2, 1, 0, -1]),
        rank=st.sampled_from([0, 0, 0, 0, 5, -5]),
        wait=st.sampled_from([0, 0, 0, 1, 60]),
        size=st.sampled_from([0, 10, 300]),
        tags=st.sampled_from([[], [], ["red"]]),
        blockers=st.sampled_from([(), (), (), (), (), (0,), (1, 2), (5, 5, 6)]),
        origin=st.sampled_from([FAKTORY, FAKTORY, WORKQ, WORKQ, MASENKO, MASENKO, GOQUEUE]),
        life=st.sampled_from([3, 100, 90_000]),
        attempt_limit=st.sampled_from([0, 0, 1, 2]),
        fixed=st.booleans(),
        dead_queue=st.sampled_from(["", *QUEUES]),
    )
    def push(
        self,
        jid,
        queue,
        retries,
        rank,
        wait,
        size,
        tags,
        blockers,
        origin,
        life,
        attempt_limit,
        fixed,
        dead_queue,
    ):
        """Each protocol sets fields that only it uses."""
        seqs = list(self.model.jobs)
        chosen = [seqs[number % len(seqs)] for number in blockers if seqs]
        due = self.now + wait * SECOND if wait else 0
        specific = {
            FAKTORY: {},
            WORKQ: {
                "expires_at": self.now + life * SECOND,
                "max_attempts": attempt_limit,
                "position": AFTER_ARRIVALS + due if fixed else 0,
            },
            MASENKO: {
                "dead_queue": dead_queue,
                "position": BEFORE_ARRIVALS + due if wait or fixed else 0,
            },
            GOQUEUE: {"max_attempts": attempt_limit},
        }[origin]
        push = unit(
            "" if origin in {MASENKO, GOQUEUE} and fixed else jid,
            queue,
            retries=min(max(0, retries), 1) if origin == MASENKO else retries,
            rank=rank,
            due_at=due,
            lease_duration=(60 + wait) * SECOND,
            payload=b"x" * size,
            tags=list(tags),
            blockers=chosen,
            origin=origin,
            **specific,
        )
        over = {DONE, DEAD} if origin == MASENKO else {DONE}
        self.expect_push(push, {b for b in chosen if self.model.jobs[b].state not in over})
        job = self.engine.push(push, self.now)
        assert self.absorb()[0] == "pushed"
        assert (job.inline_payload, job.retries) == (b"x" * size, push.retries)

    def expect_push(self, push: NewJob, blockers: set[int]) -> None:
        self.model.queues.setdefault(push.queue, False)
        self.model.pushing.append((push, blockers))

    @precondition(running)
    @rule(
        queue=queue_names,
        count=st.integers(3, 8),
        retries=st.sampled_from([25, 1, 0, -1]),
        origin=st.sampled_from([FAKTORY, FAKTORY, MASENKO, MASENKO, GOQUEUE]),
        dead_queue=st.sampled_from(["", "d"]),
    )
    def push_some(self, queue, count, retries, origin, dead_queue):
        for number in range(count):
            jid = f"job-{number % 6}"
            self.push(jid, queue, retries, 0, 0, 50, [], (), origin, 0, 0, False, dead_queue)

    def push_chain(self, queue, origin=FAKTORY, dead_queue=""):
        """Push three jobs, each waiting for the previous one."""
        specific = {}
        if origin == MASENKO:
            specific = {"origin": MASENKO, "retries": 1, "dead_queue": dead_queue}
        pushes = [unit(f"job-{n}", queue, blockers=[-1] if n else [], **specific) for n in range(3)]
        first = self.engine.next_seq
        for n, push in enumerate(pushes):
            self.expect_push(push, {first + n - 1} if n else set())
        jobs = self.engine.push_many(pushes, self.now)
        assert [job.seq for job in jobs] == [first, first + 1, first + 2]
        assert Counter(self.absorb())["pushed"] == 3

    def push_chain_that_fails_together(self, queue):
        """The permanent failure of one of these jobs fails all of them."""
        self.push_chain(queue, MASENKO, "" if queue == "a" else "d")

    # Leasing

    @rule(
        queues=queue_lists,
        wait=st.sampled_from([2, 0, 30, None]),
        count=st.integers(1, 4),
        bound=st.booleans(),
    )
    def fetch_some(self, queues, wait, count, bound):
        for holder in "uvwx"[:count]:
            if bound:
                self.fetch(queues, wait, self.caller, MASENKO)
            else:
                self.fetch(queues, wait, holder)

    def fetch(self, queues, wait, holder, actor=FAKTORY):
        """Lease the next job, or wait for it, with or without a timeout."""
        expected = None if self.engine.unavailable_reason else self.model.next_of(queues)
        job = self.engine.lease(queues, holder, actor, self.now)
        assert (job and job.seq) == (expected and expected.seq)
        self.absorb()
        if job is None and wait != 0:
            waiter = Waiter(queues, holder, actor, None)
            until = FOREVER if wait is None else self.now + wait * SECOND
            self.engine.add_waiter(waiter, until)
            self.waiting.append((waiter, until))

    @precondition(lambda self: self.running() and self.model.next_of(QUEUES))
    @rule(how=st.sampled_from(["complete", "fail", "hold", "kill"]), count=st.integers(1, 5))
    def work(self, how, count):
        """Apply one action to several jobs."""
        for _ in range(count):
            job = self.model.next_of(QUEUES)
            if job is None:
                return
            if how == "kill":
                self.engine.kill(self.engine.jobs[job.seq], self.now)
                self.absorb()
                continue
            self.fetch(QUEUES, 0, "u")
            which = self.model.of_state(LEASED).index(job.seq)
            if how == "complete":
                self.complete(which, 0)
            elif how == "fail":
                self.fail(which)

    @precondition(lambda self: self.waiting)
    @rule(who=anyone, only_stop_offers=st.booleans())
    def disconnect(self, who, only_stop_offers):
        waiter, _ = self.waiting[who % len(self.waiting)]
        if only_stop_offers:
            self.engine.stop_offering(waiter)
            self.not_offered.add(waiter.key)
        else:
            self.engine.cancel_wait(waiter)
            self.forget(waiter)

    @precondition(lambda self: any(self.model.jobs[s].bound for s in self.engine.leased))
    @rule()
    def close_connection(self):
        """A connection closes and its leases end; later, if the store fails."""
        closed = self.caller
        self.engine.leases.holders.discard(closed)
        self.calls += 1
        self.engine.leases.holders.add(self.caller)
        for waiter in [w for w, _ in self.waiting if w.holder == closed]:
            self.engine.cancel_wait(waiter)
            self.forget(waiter)
        held = [job for job in self.engine.leased.values() if job.holder == closed]
        for job in held:
            self.engine.leases.end_after_disconnect(job, self.now, "gone")
        causes = Counter(self.absorb())
        assert causes["expired"] == (0 if self.engine.unavailable_reason else len(held))

    @precondition(lambda self: self.running() and self.engine.leased)
    @rule(
        which=anyone,
        action=st.sampled_from(["complete", "keep", "fail", "release", "renew"]),
        span=st.sampled_from([0, 30, 3600]),
    )
    def end_lease(self, which, action, span):
        if action == "complete":
            self.complete(which, 0)
        elif action == "keep":
            self.complete(which, span)
        elif action == "fail":
            self.fail(which)
        elif action == "release":
            self.engine.release(self.pick(which, LEASED), self.now)
            assert self.absorb()[0] == "released"
        elif self.pick(which, LEASED).deadline != FOREVER:
            self.model.renewing = self.now + span * SECOND
            self.engine.renew(self.pick(which, LEASED), self.now + span * SECOND, self.now)
            assert self.absorb() == ["renewed"]

    def complete(self, which, keep):
        self.model.keeping = self.now + keep * SECOND
        job = self.pick(which, LEASED)
        self.engine.complete(job, self.now, FAKTORY, result=b"42", keep_until=self.model.keeping)
        assert self.absorb()[0] == "completed"

    def fail(self, which):
        job = self.pick(which, LEASED)
        self.engine.fail(job, self.now, FAKTORY, "Oops", f"number {job.seq}", ["line 1"])
        assert self.absorb()[0] == "failed"

    @precondition(lambda self: self.running() and self.model.of_state(READY, SCHEDULED))
    @rule(which=anyone, well=st.booleans())
    def end_without_a_lease(self, which, well):
        job = self.pick(which, READY, SCHEDULED)
        self.model.unleased = True
        if well:
            self.engine.complete(job, self.now, FAKTORY, allow_unleased=True)
        else:
            self.engine.fail(job, self.now, FAKTORY, "Oops", "", [], allow_unleased=True)
        assert self.absorb()[0] == ("completed" if well else "failed")

    @precondition(lambda self: self.running() and self.restored)
    @rule(jid=jids, holder=st.sampled_from("uvw"))
    def regain(self, jid, holder):
        """A client ends a lease that a crash or a failed commit may have reverted."""
        untouched = [
            seq
            for seq in sorted(self.restored & set(self.model.jobs))
            if self.model.jobs[seq].jid == jid and self.model.jobs[seq].state == READY
        ]
        self.model.regaining = True
        job = self.engine.reclaim_by_id(jid, holder, FAKTORY, self.now)
        assert self.absorb() == (["leased"] if untouched else [])
        self.model.regaining = False
        assert (job and job.seq) == (untouched[0] if untouched else None)

    @precondition(lambda self: self.running() and self.engine.revert_count and self.engine.jobs)
    @rule(which=anyone)
    def reclaim(self, which):
        """The same, for a client with bound leases."""
        job = self.pick(which, READY, LEASED) or self.pick(which, *range(6))
        known = self.model.jobs[job.seq]
        held = known.state == LEASED and known.bound and known.holder == self.caller
        untouched = job.seq in self.restored
        self.model.regaining = True
        reclaimed = self.engine.reclaim(job, self.caller, MASENKO, self.now)
        assert self.absorb() == (["leased"] if untouched else [])
        self.model.regaining = False
        assert reclaimed == (held or untouched)

    # Actions of operators

    @precondition(lambda self: self.running() and self.engine.jobs)
    @rule(which=anyone, action=st.sampled_from(["requeue", "kill", "complete", "cancel"]))
    def act_as_operator(self, which, action):
        job = self.pick(which, *range(6))
        allowed = {
            "requeue": {SCHEDULED, DEAD},
            "kill": {SCHEDULED, BLOCKED, READY, DEAD},
            "cancel": set(range(6)),
            "complete": {LEASED},
        }[action]
        commands = {
            "requeue": self.engine.retry_now,
            "kill": self.engine.kill,
            "cancel": self.engine.cancel,
            "complete": lambda job, now: self.engine.complete(job, now, FAKTORY),
        }
        if job.state in allowed:
            commands[action](job, self.now)
            assert self.absorb()
        else:
            with pytest.raises((WrongState, NotLeased)):
                commands[action](job, self.now)
            assert self.absorb() == []

    @precondition(running)
    @rule(queue=queue_names, paused=st.booleans())
    def pause(self, queue, paused):
        if queue in self.model.queues:
            self.model.queues[queue] = paused
        self.engine.pause(queue, paused=paused, now=self.now)
        self.absorb()

    def remove_queue(self, queue):
        known = self.model.queues.get(queue) is not None
        if known:
            self.model.queues[queue] = False
        ready = len(self.model.ready(queue))
        self.engine.remove_queue(queue, self.now)
        causes = self.absorb()
        assert causes.count("cancelled") >= ready
        if "unblocked" not in causes:
            self.model.queues.pop(queue, None)
            assert not self.model.ready(queue)
        elif queue not in self.engine.queues or not self.engine.queues[queue].registered:
            self.model.queues.pop(queue, None)  # the jobs that it unblocked are elsewhere

    def flush(self, _):
        self.engine.flush(self.now)
        self.model = Model(DEAD_MAX, position=self.model.position)
        assert self.engine.change_set.events[-1][1] == "flushed"
        self.read = len(self.engine.change_set.events)

    # Time

    @rule(span=spans)
    def advance(self, span):
        self.now += span * SECOND
        self.tick()

    @precondition(lambda self: self.engine.jobs)
    @rule(late=st.booleans())
    def advance_to_the_next_timer(self, late):
        time = self.engine.next_timer()
        if time is not None:
            self.now = max(self.now, time + (SECOND if late else 0))
            self.tick()

    def tick(self) -> None:
        while (time := self.engine.next_timer()) is not None and time <= self.now:
            self.engine.tick(self.now, limit=2)
        self.absorb()
        assert all(until > self.now for _, until in self.waiting), "a waiter was not notified"
        if self.running() and self.now >= self.lenient_until:
            for seq in self.model.of_state(SCHEDULED, DONE, DEAD):
                assert self.model.jobs[seq].due > self.now, "overdue"
            for seq in self.model.of_state(LEASED):
                assert self.model.jobs[seq].deadline > self.now, "overdue"
                assert not self.model.has_lost_its_connection(self.model.jobs[seq]), (
                    "its holder has disconnected"
                )
            for job in self.model.jobs.values():
                assert not 0 < job.push.expires_at <= self.now, "not expired in time"

    # The store

    def take_batch(self) -> ChangeSet:
        batch = self.engine.take_changes()
        self.read = 0
        return batch

    @precondition(lambda self: self.running() and self.begun is None and self.engine.change_set)
    @rule(then=st.sampled_from(["commit", "commit", "go on", "fail"]))
    def end_turn(self, then):
        if then == "fail":
            self.fail_to_begin()
            return
        self.begin()
        if then == "commit":
            self.commit()

    @precondition(lambda self: self.begun)
    @rule(well=st.booleans())
    def end_commit(self, well):
        if well:
            self.commit()
        else:
            self.fail_to_commit()

    def begin(self):
        batch = self.take_batch()
        self.store.prepare(batch, self.engine)
        self.begun = (batch, self.model.copy(), durable_state(self.engine))

    def commit(self):
        batch, model, state = self.begun
        self.store.commit()
        self.begun = None
        self.committed = (model, state)
        self.journal += decode_any(encode(batch.events))

    def begin_and_commit(self):
        self.begin()
        self.commit()

    def fail_to_commit(self):
        batch = self.begun[0]
        self.store.fail = "commit"
        with pytest.raises(StoreWriteFailed):
            self.store.commit()
        self.reverted([batch, self.engine.take_changes()])

    def fail_to_begin(self):
        batch = self.take_batch()
        self.store.fail = "begin"
        with pytest.raises(StoreWriteFailed):
            self.store.prepare(batch, self.engine)
        self.reverted([batch, self.engine.take_changes()])

    def reverted(self, batches: list[ChangeSet]) -> None:
        self.store.fail = ""
        self.begun = None
        undo(self.engine, self.store, batches, "disk full")
        self.read = 0
        self.model = self.committed[0].copy()
        self.model.position = self.engine.positions.last
        self.restored = set(self.model.of_state(READY))
        # Refused seqs are not used again while the engine runs.
        assert durable_state(self.engine) | {"next_seq": 0} == self.committed[1] | {"next_seq": 0}

    @precondition(lambda self: self.engine.unavailable_reason)
    @rule(crash=st.sampled_from([False, False, True]))
    def resume(self, crash):
        if crash:
            self.crash("")
            return
        self.lenient_until = self.now + UNAVAILABLE_RETRY
        self.engine.resume(self.now)
        self.absorb()

    def crash(self, _):
        """All connections and all uncommitted changes are lost."""
        self.store.close()
        self.store = self.open_store()
        self.engine = self.recovered()
        self.check_recovered()
        assert self.shipped() == self.journal
        self.begun, self.read = None, 0
        self.waiting.clear()
        self.not_offered.clear()
        self.model = self.committed[0].copy()
        self.model.position = self.engine.positions.last
        self.restored = set(self.model.of_state(READY))
        self.tick()

    def check_recovered(self) -> None:
        """The state is unchanged, except that leases bound to a connection have ended."""
        model, expected = self.committed
        ended = {s for s, job in model.jobs.items() if job.state == LEASED and job.bound}
        events = [(row[1], row[2]) for row in self.engine.change_set.events]
        assert sorted(events) == [("released", seq) for seq in sorted(ended)]
        opened = {model.jobs[seq].queue: False for seq in ended}
        found = durable_state(self.engine)
        expected = expected | {"queues": opened | expected["queues"]}
        for seq in ended:
            del found["jobs"][seq]
        jobs = {seq: job for seq, job in expected["jobs"].items() if seq not in ended}
        assert found == expected | {"jobs": jobs}

    def crash_after_a_commit(self, queue):
        if self.begun is not None:
            self.commit()
        if self.engine.change_set:
            self.begin_and_commit()
        self.crash(queue)

    rare = st.sampled_from(
        [
            crash_after_a_commit,
            push_chain,
            push_chain_that_fails_together,
            crash,
            remove_queue,
            flush,
        ]
    )

    @precondition(lambda self: self.running() and self.engine.jobs)
    @rule(action=rare, queue=queue_names)
    def do_a_rare_action(self, action, queue):
        """As separate rules these actions would occur too often."""
        action(self, queue)

    @invariant()
    def invariants_hold(self):
        for check in INVARIANTS:
            check(self)

    def teardown(self) -> None:
        self.store.close()
        self.patch.undo()


class MemoryStoreMachine(Machine):
    def open_store(self) -> Store:
        return getattr(self, "store", None) or FailingMemoryStore()

    def shipped(self) -> list[Any]:
        return self.store.events()


class SqliteStoreMachine(Machine):
    """Generations are so small that the store folds continuously, in parts."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="millrace-test-"))
        super().__init__()
        self.patch.setattr(millrace.store.sqlite.generations, "GENERATION_BYTES", 400)
        self.patch.setattr(millrace.store.sqlite.generations, "GENERATION_JOBS", 3)

    def open_store(self) -> Store:
        store = FailingSqliteStore(self.folder, sync=False)
        store.max_write_back = 6
        return store

    def shipped(self) -> list[Any]:
        events: list[Any] = []
        rows = self.store._db.execute("SELECT first, count, events FROM outbox ORDER BY first")
        for first, count, blob in rows:
            assert first == len(events) + 1, "event ids have a gap"
            events += decode_any(blob)
            assert len(events) == first + count - 1
        return events

    @invariant()
    def turns_are_deleted_once_folded(self):
        if self.begun is None:
            (turns,) = self.store._db.execute("SELECT count(*) FROM turns").fetchone()
            assert turns <= 60

    def teardown(self) -> None:
        super().teardown()
        shutil.rmtree(self.folder)


EXAMPLES = int(os.environ.get("MILLRACE_EXAMPLES", "150"))
effort = settings(
    max_examples=EXAMPLES,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)

TestOverMemory = pytest.mark.slow(MemoryStoreMachine.TestCase)
TestOverMemory.settings = effort
TestOverSqlite = pytest.mark.slow(SqliteStoreMachine.TestCase)
TestOverSqlite.settings = effort

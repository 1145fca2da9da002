"""Random actions of operators, scripts and workers, with refused commits: every index agrees with
the jobs, the journal has every change of each job, and no job is lost.
"""

from random import Random
from typing import Any

import pytest

from admin_room import Room
from failing_stores import FailingMemoryStore
from millrace.engine import consistency
from millrace.engine.change_set import ChangeSet
from millrace.engine.states import GONE, STATE_NAMES
from millrace.protocols.registry import FAKTORY, GOQUEUE, MASENKO, WORKQ
from millrace.store import StoreWriteFailed
from scene import recover, write_turn
from wires import SECOND

QUEUES = ("q", "r", "s")
ACTIONS = (
    "retry", "kill", "cancel", "delete", "move", "priority",
    "tag", "untag", "track", "untrack", "undepend", "timeout",
)  # fmt: skip
STEPS = 250


class StoredRoom(Room):
    """A room with a store, which commits or reverts each change set."""

    def __init__(self) -> None:
        self.store = FailingMemoryStore()
        self.store.load()
        #: seq -> the state after the last committed event.
        self.journal: dict[int, int] = {}
        self.undone = 0
        super().__init__()

    def keep(self, batch: ChangeSet) -> None:
        try:
            write_turn(batch, self.engine, self.store)
        except StoreWriteFailed:
            self._undo(batch)
            return
        for event in batch.events:
            if event[1] == "flushed":
                self.journal.clear()
            else:
                self.journal[event[2]] = event[10]

    def _undo(self, batch: ChangeSet) -> None:
        if batch.cleared:
            recovered = self.store.load()
        else:
            recovered = self.store.load_jobs({seq for part in batch.touched_seqs() for seq in part})
        self.engine.revert([batch], recovered.jobs.values(), recovered.queues)
        recovered.fill_counters(self.engine)
        self.engine.unavailable_reason = "disk full"
        self.undone += 1

    def agrees(self) -> None:
        self.check()
        current = {seq: job.state for seq, job in self.engine.jobs.items()}
        assert current == {seq: state for seq, state in self.journal.items() if state != GONE}


class Walk:
    def __init__(self, seed: int, failing: float) -> None:
        self.random = Random(seed)
        self.failing = failing
        self.room = StoredRoom()
        self.tokens: list[str] = []
        self.made = 0

    def step(self) -> None:
        room, random = self.room, self.random
        room.store.fail = random.choice(("begin", "commit")) if self.chance(self.failing) else ""
        getattr(self, random.choice(STEPS_OF_A_WALK))()
        room.tell()
        room.store.fail = ""
        if room.engine.unavailable_reason:
            room.engine.resume(room.now)
            room.tell()
        room.agrees()

    def chance(self, of: float) -> bool:
        return self.random.random() < of

    def says(self, **request: Any) -> list[dict[str, Any]]:
        answers = self.room.says(**request)
        for answer in answers:
            assert answer.get("code") not in {"bad request", "too large"}, answer
        return answers

    # Pushes

    def name(self) -> str:
        self.made += 1
        return f"job-{self.made}"

    def some(self) -> list[str]:
        jids = list(self.room.engine.by_jid)
        return self.random.sample(jids, min(len(jids), self.random.randrange(1, 4)))

    def push_over_other_protocols(self) -> None:
        room, random = self.room, self.random
        blockers = [room.engine.by_jid[jid].seq for jid in self.some()] if self.chance(0.3) else []
        room.push(
            self.name(),
            random.choice(QUEUES),
            origin=random.choice((WORKQ, MASENKO, FAKTORY, GOQUEUE)),
            rank=random.choice((0, 0, 0, 1, -1)),
            due_at=room.now + SECOND * 60 if self.chance(0.2) else 0,
            blockers=blockers,
            retries=random.randrange(3),
        )

    def put(self) -> None:
        options = ["depends", f'["{self.some()[0]}"]'] if self.some() and self.chance(0.3) else []
        delay = 60 if self.chance(0.2) else 0
        jid = self.some()[0] if self.some() and self.chance(0.2) else self.name()
        queue = self.random.choice(QUEUES)
        self.room.speaks_qless(
            "put", "p", queue, jid, "klass", "{}", delay, "tags", '["t"]', *options
        )

    def push_by_http(self) -> None:
        jobs = [
            {
                "queue": self.random.choice(QUEUES),
                "payload": "",
                "jid": self.name() if self.chance(0.8) else "",
                "at": self.room.now + 60 * SECOND if self.chance(0.2) else 0,
                "waits_for": self.some() if self.chance(0.3) else [],
                "tags": ["t", "u"][: self.random.randrange(3)],
                "retries": self.random.randrange(3),
            }
            for _ in range(self.random.randrange(1, 4))
        ]
        self.says(push={"jobs": jobs, "by": "ci"})

    # Work

    def lease(self) -> None:
        wire = self.room.connect()
        request_ = {
            "queues": self.random.sample(QUEUES, 2),
            "worker": "w1",
            "limit": self.random.randrange(1, 4),
            "wait": self.random.choice((0, SECOND)),
        }
        for answer in self.room.says(wire, lease=request_):
            self.tokens += [leased["token"] for leased in answer["jobs"]]
        if self.chance(0.5):
            wire.lose()

    def end(self) -> None:
        if not self.tokens:
            return
        token = self.random.choice(self.tokens)
        action = self.random.choice(("complete", "fail", "release", "renew"))
        self.says(end={"token": token, "action": action, "by": "ci"})

    def work_over_other_protocols(self) -> None:
        engine, now = self.room.engine, self.room.now
        actor = self.random.choice((WORKQ, FAKTORY, GOQUEUE))
        job = engine.lease(self.random.sample(QUEUES, 2), "w2", actor, now)
        if job is not None and self.chance(0.6):
            self.room.tell()
            if self.chance(0.5) or engine.jobs.get(job.seq) is not job:
                return
            if self.chance(0.5):
                engine.complete(job, now, actor)
            else:
                engine.fail(job, now, actor, "Oops", "it broke", [])

    def pop(self) -> None:
        self.room.pop(self.random.choice(QUEUES))

    def time(self) -> None:
        seconds = (0, 1) if self.room.store.fail else (0, 1, 100, 3600)
        self.room.advance(1 + SECOND * self.random.choice(seconds))

    # Operator actions

    def how(self) -> dict[str, Any]:
        return {
            "action": self.random.choice(ACTIONS),
            "queue": self.random.choice(QUEUES),
            "priority": self.random.randrange(-2, 3),
            "tags": self.random.sample(("t", "u", "v"), 2),
            "by": "ann",
        }

    def act(self) -> None:
        if (jobs := self.some()) and self.room.engine.jobs:
            (acted,) = self.says(act={**self.how(), "jobs": [*jobs, "nobody"]})
            if "done" in acted:
                assert acted["done"] + acted["skipped_count"] == len(jobs) + 1

    def act_on_all(self) -> None:
        query: dict[str, Any] = {"queue": self.random.choice(QUEUES)}
        if self.chance(0.8):
            query["state"] = self.random.choice(STATE_NAMES[:6])
        *_, acted = self.says(act={**self.how(), "query": query})
        if "done" in acted:
            assert acted["finished"]
            assert acted["done"] + acted["skipped_count"] <= acted["total"]

    def act_on_queue(self) -> None:
        action = self.random.choice(("pause", "resume", "resume", "clear", "remove"))
        self.says(act_on_queue={"name": self.random.choice(QUEUES), "action": action, "by": "a"})

    def flush(self) -> None:
        if self.chance(0.1):
            self.says(flush={"by": "ann"})

    def audit(self) -> None:
        entries = self.room.asks(audit={"limit": 500})["audit"]
        numbers = [entry["number"] for entry in entries]
        assert numbers == sorted(numbers, reverse=True)
        assert len(set(numbers)) == len(numbers)


STEPS_OF_A_WALK = (
    "push_over_other_protocols", "push_over_other_protocols", "put", "put", "push_by_http", "push_by_http",
    "lease", "lease", "end", "end", "work_over_other_protocols", "pop", "time",
    "act", "act", "act", "act_on_all", "act_on_queue", "flush", "audit",
)  # fmt: skip


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("failing", [0.0, 0.2])
def test_a_random_walk(seed, failing):
    walk = Walk(seed, failing)
    for _ in range(STEPS):
        walk.step()
    assert bool(walk.room.undone) == bool(failing)
    again = recover(walk.room.store)
    assert consistency.check_engine(again).problems == []
    assert {seq: job.state for seq, job in again.jobs.items()} == {
        seq: job.state for seq, job in walk.room.engine.jobs.items()
    }
    assert again.settings == walk.room.engine.settings

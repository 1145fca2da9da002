"""What Qless keeps: it survives a restart, and a commit that fails leaves nothing of it behind."""

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from qless_conversation import SCRIPTS, sha_of

from failing_stores import FailingMemoryStore, FailingSqliteStore
from millrace.engine.engine import Engine
from millrace.engine.job import FAKTORY
from millrace.engine.policy import SECOND
from millrace.engine.states import SCHEDULED
from millrace.protocols.qless import QlessConnection, QlessHub
from millrace.protocols.qless.calls import QlessApi
from millrace.protocols.qless.contract import Refused
from millrace.protocols.qless.script_catalog import Script
from scene import commit, commit_or_revert, recover, unit
from speakers import QlessSpeaker

SERVER_NOW = 1_794_771_831_000_000
QUEUES = ("q", "q2")
JIDS = ("a", "b", "c", "dep", "done", "failed", "later", "r-1", "r-2", "new")


class Kept:
    """Qless, with a store behind it."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self._begin(Engine(Random(1)))

    def _begin(self, engine: Engine) -> None:
        self.engine = engine
        self.hub = QlessHub(engine, started_at=SERVER_NOW)
        self.api = QlessApi(self.hub)

    def __call__(self, command: str, now: float, *args: object) -> Any:
        words = [str(word).encode() for word in (now, *args)]
        return self.api.call("C", command, [], words, SERVER_NOW)

    def put(self, now: float, jid: str, *options: object, queue: str = "q", delay: int = 0) -> None:
        self("put", now, "putter", queue, jid, "klass", "{}", delay, *options)

    def commits(self) -> None:
        commit(self.engine, self.store)

    def restarts(self) -> None:
        self.commits()
        self._begin(recover(self.store))

    def fails_to_commit(self) -> None:
        self.store.fail = "commit"
        assert not commit_or_revert(self.engine, self.store)
        self.store.fail = ""
        self.engine.resume(SERVER_NOW)

    def seen(self) -> dict[str, Any]:
        """Everything that anybody can ask for, at one moment."""
        asked: list[tuple[object, ...]] = [
            ("queues",),  # what has fallen due is made ready by this
            ("multiget", *JIDS),
            ("failed",),
            ("failed", "group"),
            ("track",),
            ("config.get",),
            ("jobs", "complete"),
            ("tag", "top"),
            *(("tag", "get", tag) for tag in ("t", "u")),
            *(("recur.get", jid) for jid in ("r", "s")),
            *(("stats", queue, 1000) for queue in QUEUES),
            *(("length", queue) for queue in QUEUES),
            *(
                ("jobs", state, queue)
                for queue in QUEUES
                for state in ("running", "stalled", "scheduled", "depends", "recurring")
            ),
            *(("workers", worker) for worker in ("w1", "w2")),
        ]
        found = {}
        for command, *args in asked:
            reply = self(str(command), 1000, *args)
            value = json.loads(reply) if isinstance(reply, bytes) else reply
            found[f"{command} {args}"] = value
        return found

    def order(self) -> list[str]:
        """In which order the jobs that wait would be handed out."""
        return [
            job.jid
            for name in QUEUES
            if (queue := self.engine.queues.get(name))
            for job in queue.ready.first(len(queue.ready))
        ]


@pytest.fixture(params=["memory", "sqlite"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Kept:
    if request.param == "memory":
        return Kept(FailingMemoryStore())
    return Kept(FailingSqliteStore(tmp_path / "data"))


def furnish(q: Kept) -> None:
    """Something of everything."""
    q("config.set", 1, "heartbeat", 5000)
    q("config.set", 1, "heartbeat-q2", 7.5)
    for jid in ("done", "failed", "a"):
        q.put(2, jid, "tags", '["t", 7]', "priority", 2.5, "retries", 2)
    q("pop", 3, "q", "w1", 3)
    q("complete", 4, "done", "w1", "q", '{"x": 1}')
    q("fail", 5, "failed", "w1", "group", "message", "[ ]")
    q("log", 6, "a", "hello", '{"who": "me"}')
    q.put(7, "b", "tags", '["t","u"]')
    q.put(8, "c", "priority", 1)
    q.put(9, "dep", "depends", '["a","b"]', delay=5000)
    q.put(10, "later", delay=5000)
    q("track", 11, "track", "a")
    q("track", 12, "track", "done")
    q("recur", 13, "q2", "r", "klass", "{}", "interval", 300, 2, "tags", '["u"]', "retries", 1)
    q("pop", 400, "q2", "w2", 1)
    q("pause", 401, "q2")


def test_everything_survives_a_restart(kept: Kept) -> None:
    furnish(kept)
    before, order = kept.seen(), kept.order()
    assert len(before["multiget " + str(list(JIDS))]) == 8
    kept.restarts()
    assert kept.seen() == before
    assert kept.order() == order
    kept.restarts()
    assert kept.seen() == before


def test_life_goes_on_after_a_restart(kept: Kept) -> None:
    furnish(kept)
    kept.restarts()
    assert kept("heartbeat", 1001, "a", "w1") == 6001
    assert kept("complete", 1002, "a", "w1", "q", "{}") == b"complete"
    assert json.loads(kept("get", 1003, "dep"))["dependencies"] == ["b"]
    assert kept("unfail", 1004, "q", "group") == 1
    kept("unpause", 1005, "q2")
    assert [job["jid"] for job in json.loads(kept("pop", 1006, "q2", "w2", 9))] == [
        "r-2",
        "r-3",
        "r-4",
    ]
    popped = [job["jid"] for job in json.loads(kept("pop", 6000, "q", "w2", 9))]
    assert popped == ["failed", "c", "b", "later"]


def test_grace_survives_a_restart(kept: Kept) -> None:
    kept.put(1, "a")
    kept("pop", 2, "q", "w1", 1)
    assert kept("pop", 62, "q", "w2", 1) == b"{}"
    kept.restarts()
    assert json.loads(kept("get", 63, "a"))["expires"] == 62
    assert kept("pop", 71, "q", "w2", 1) == b"{}"
    [job] = json.loads(kept("pop", 72, "q", "w2", 1))
    assert (job["worker"], job["remaining"]) == ("w2", 4)


def test_a_stalled_job_stays_ahead_of_all_after_a_restart(kept: Kept) -> None:
    kept.put(1, "a")
    kept("pop", 2, "q", "w1", 1)
    kept.put(3, "b", "priority", 100)
    kept("timeout", 4, "a")
    kept.restarts()
    assert json.loads(kept("get", 5, "a"))["state"] == "stalled"
    assert [job["jid"] for job in json.loads(kept("pop", 6, "q", "w1", 2))] == ["a", "b"]
    assert kept("retry", 7, "a", "q", "w1") == 4
    kept.put(8, "c", "priority", 1)
    assert [job["jid"] for job in json.loads(kept("pop", 9, "q", "w1", 2))] == ["c", "a"]


def test_a_wrong_clock_of_one_caller_is_nobody_elses(kept: Kept) -> None:
    """Milliseconds for seconds, say: other protocols' jobs are due when they were."""
    kept.put(1_794_771_831_000, "a")
    kept.put(1_794_771_831_000, "b", delay=10)
    kept.restarts()
    push = unit("job-1", due=SERVER_NOW + 60 * SECOND)
    job = kept.engine.push(push, SERVER_NOW)
    assert (job.state, job.created) == (SCHEDULED, SERVER_NOW)
    assert kept.engine.push(unit("job-2"), SERVER_NOW).ready_at <= SERVER_NOW + 10


def test_a_worker_of_another_protocol_regains_a_job_after_a_crash(kept: Kept) -> None:
    """Its lease was never written down, and the job has waited ever since."""
    kept.put(1000, "a")
    kept.restarts()
    job = kept.engine.regain("a", "somebody", FAKTORY, SERVER_NOW)
    assert job is not None
    kept.engine.fail(job, SERVER_NOW, FAKTORY, "group", "message", [])
    kept("pop", 2000, "q", "w1", 1)
    kept("retry", 2001, "a", "q", "w1")
    assert kept.engine.regain("a", "somebody", FAKTORY, SERVER_NOW) is None


def test_scripts_survive_a_restart(kept: Kept) -> None:
    sha = sha_of(SCRIPTS["B"])
    kept.hub.learn(sha, Script("B"))
    kept.restarts()
    assert kept.hub.scripts == {sha.encode(): Script("B")}
    kept.hub.forget()
    kept.restarts()
    assert kept.hub.scripts == {}


def test_flush_forgets_everything_but_the_scripts(kept: Kept) -> None:
    nothing = kept.seen()
    furnish(kept)
    kept.hub.learn("sha", Script("C"))
    kept.commits()
    flush(kept)
    assert kept.seen() == nothing
    kept.restarts()
    assert kept.seen() == nothing
    assert kept.hub.scripts == {b"sha": Script("C")}


def flush(kept: Kept) -> None:
    for _ in kept.hub.flush(SERVER_NOW, b"", everything=True):
        pass


CHANGES: dict[str, Callable[[Kept], Any]] = {
    "put": lambda q: q.put(500, "new", "tags", '["t","u"]', "depends", '["a"]'),
    "put later": lambda q: q.put(500, "new", delay=50),
    "put again": lambda q: q.put(500, "b", "priority", 9, "tags", "[]", queue="q2"),
    "put over a worker": lambda q: q.put(500, "a"),
    "put of a failed job": lambda q: q.put(500, "failed"),
    "put of a completed job": lambda q: q.put(500, "done"),
    "put into a new queue": lambda q: q.put(500, "new", queue="q3"),
    "pop": lambda q: q("pop", 500, "q", "w2", 2),
    "pop that takes a lock": lambda q: q("pop", 6000, "q", "w2", 9),
    "heartbeat": lambda q: q("heartbeat", 500, "a", "w1", "[1]"),
    "complete": lambda q: q("complete", 500, "a", "w1", "q", "[1]"),
    "complete and go on": lambda q: q("complete", 500, "a", "w1", "q", "[1]", "next", "q2"),
    "fail": lambda q: q("fail", 500, "a", "w1", "group", "message"),
    "retry": lambda q: q("retry", 500, "a", "q", "w1", 10),
    "timeout": lambda q: q("timeout", 500, "a"),
    "cancel": lambda q: q("cancel", 500, "a", "b", "dep"),
    "depends off": lambda q: q("depends", 500, "dep", "off", "all"),
    "depends on": lambda q: q("depends", 500, "dep", "on", "c"),
    "priority": lambda q: q("priority", 500, "b", 50),
    "tag add": lambda q: q("tag", 500, "add", "c", "t", "new"),
    "tag remove": lambda q: q("tag", 500, "remove", "b", "t"),
    "track": lambda q: q("track", 500, "track", "b"),
    "untrack": lambda q: q("track", 500, "untrack", "a"),
    "log": lambda q: q("log", 500, "a", "bye"),
    "unfail": lambda q: q("unfail", 500, "q2", "group"),
    "unpause": lambda q: q("unpause", 500, "q2"),
    "pause": lambda q: q("pause", 500, "q"),
    "forget a queue": lambda q: q("queue.forget", 500, "q"),
    "config.set": lambda q: q("config.set", 500, "heartbeat", 1),
    "config.unset": lambda q: q("config.unset", 500, "heartbeat"),
    "recur": lambda q: q("recur", 500, "q", "s", "klass", "{}", "interval", 9, 0),
    "recur anew": lambda q: q("recur", 500, "q", "r", "klass", "{}", "interval", 9, 0),
    "unrecur": lambda q: q("unrecur", 500, "r"),
    "recur.update": lambda q: q("recur.update", 500, "r", "queue", "q"),
    "recur.tag": lambda q: q("recur.tag", 500, "r", "x"),
    "recur.untag": lambda q: q("recur.untag", 500, "r", "u"),
    "what recurs": lambda q: q("peek", 500, "q2", 9),
    "flush": flush,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_failed_commit_undoes_it(kept: Kept, change: Callable[[Kept], Any]) -> None:
    furnish(kept)
    kept.commits()
    before, order = kept.seen(), kept.order()
    kept.commits()
    change(kept)
    after = kept.seen()
    assert after != before or kept.order() != order
    kept.fails_to_commit()
    assert kept.seen() == before
    assert kept.order() == order
    change(kept)
    assert kept.seen() == after
    kept.restarts()
    assert kept.seen() == after


def test_a_script_whose_learning_was_undone_is_learned_with_the_next_change(kept: Kept) -> None:
    kept.hub.learn("sha", Script("C"))
    kept.fails_to_commit()
    kept.put(1, "a")
    kept.restarts()
    assert kept.hub.scripts == {b"sha": Script("C")}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_nothing_changes_while_nothing_can_be_kept(
    kept: Kept, change: Callable[[Kept], Any]
) -> None:
    furnish(kept)
    kept.commits()
    before = kept.seen()
    kept.engine.halted = "disk full"
    try:
        change(kept)
    except Refused:
        pass
    else:
        assert change in {CHANGES["flush"], CHANGES["what recurs"]}  # the hub refuses a flush
        if change is CHANGES["flush"]:
            return
    assert kept.seen() == before


# What was done just now may still be undone


@pytest.mark.parametrize("jid", ["a", "nobody's"])
def test_whoever_is_told_that_a_job_is_no_more_can_rely_on_it(jid):
    kept = Kept(FailingMemoryStore())
    kept.put(1000, "a")
    kept("pop", 1001, "q", "w1", 1)
    kept("complete", 1002, "a", "w1", "q", "{}")
    before = kept.engine.changes
    kept("cancel", 1003, jid)
    assert kept.engine.changes > before


def test_an_error_waits_for_what_it_tells_of():
    kept = Kept(FailingMemoryStore())
    kept.engine.durable = True
    kept.put(1000, "a")
    connection = QlessConnection(kept.hub)
    speaker = QlessSpeaker("w1")
    connection.receive(speaker.hello() + speaker.lease("q", 1001 * SECOND), SERVER_NOW, 10)
    held = speaker.receive(b"".join(connection.replies))[-1].held
    ends = speaker.complete(held, 1002 * SECOND) * 2
    connection.replies, connection.marks = [], []
    connection.receive(ends, SERVER_NOW, 10)
    assert b"not currently running" in connection.replies[1]
    assert connection.marks == [0, 1]


def test_idle_workers_survive_a_restart(kept: Kept) -> None:
    assert json.loads(kept("pop", 10, "q", "idle", 1)) == {}
    kept.commits()
    kept.restarts()
    workers = json.loads(kept("workers", 20))
    assert workers == [{"name": "idle", "jobs": 0, "stalled": 0}]
    kept("worker.deregister", 20, "idle")
    kept.commits()
    kept.restarts()
    assert json.loads(kept("workers", 20)) == {}

"""The state of Qless survives a restart, and a failed commit reverts it completely."""

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from qless_conversation import SCRIPTS, sha_of

from failing_stores import FailingMemoryStore, FailingSqliteStore
from millrace.engine.engine import Engine
from millrace.engine.job import SECOND
from millrace.engine.queues import FORGOTTEN_PREFIX
from millrace.engine.states import SCHEDULED
from millrace.protocols.qless.calls import QlessApi
from millrace.protocols.qless.connection import QlessConnection
from millrace.protocols.qless.errors import ChangeRefused
from millrace.protocols.qless.hub import QlessHub
from millrace.protocols.qless.script_catalog import Script
from millrace.protocols.registry import FAKTORY
from millrace.protocols.spec import protocol_rules
from scene import commit, commit_or_revert, recover, unit
from speakers import QlessSpeaker
from wires import data_of, waiting

SERVER_NOW = 1_794_771_831_000_000
QUEUES = ("q", "q2")
JIDS = ("a", "b", "c", "dep", "done", "failed", "later", "r-1", "r-2", "new")


class StoredQless:
    """Qless with a store."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.server_now = SERVER_NOW
        self._begin(Engine(Random(1), protocol_rules()))

    def _begin(self, engine: Engine) -> None:
        self.engine = engine
        self.hub = QlessHub(engine, started_at=SERVER_NOW)
        self.api = QlessApi(self.hub)

    def __call__(self, command: str, now: float, *args: object) -> Any:
        words = [str(word).encode() for word in (now, *args)]
        return self.api.call("C", command, [], words, self.server_now)

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
        """The results of all queries at one time."""
        asked: list[tuple[object, ...]] = [
            ("queues",),  # makes due jobs ready
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
        """The order in which waiting jobs would be delivered."""
        return [
            job.jid
            for name in QUEUES
            if (queue := self.engine.queues.get(name))
            for job in queue.ready.first(len(queue.ready))
        ]


@pytest.fixture(params=["memory", "sqlite"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> StoredQless:
    if request.param == "memory":
        return StoredQless(FailingMemoryStore())
    return StoredQless(FailingSqliteStore(tmp_path / "data"))


def create_sample_data(q: StoredQless) -> None:
    """Create data of every kind."""
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


def test_the_complete_state_survives_a_restart(kept: StoredQless) -> None:
    create_sample_data(kept)
    before, order = kept.seen(), kept.order()
    assert len(before["multiget " + str(list(JIDS))]) == 8
    kept.restarts()
    assert kept.seen() == before
    assert kept.order() == order
    kept.restarts()
    assert kept.seen() == before


def test_work_continues_after_a_restart(kept: StoredQless) -> None:
    create_sample_data(kept)
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


def test_grace_survives_a_restart(kept: StoredQless) -> None:
    kept.put(1, "a")
    kept("pop", 2, "q", "w1", 1)
    assert kept("pop", 62, "q", "w2", 1) == b"{}"
    kept.restarts()
    assert json.loads(kept("get", 63, "a"))["expires"] == 62
    assert kept("pop", 71, "q", "w2", 1) == b"{}"
    [job] = json.loads(kept("pop", 72, "q", "w2", 1))
    assert (job["worker"], job["remaining"]) == ("w2", 4)


def test_a_stalled_job_stays_first_after_a_restart(kept: StoredQless) -> None:
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


def test_a_wrong_clock_of_one_client_does_not_affect_others(kept: StoredQless) -> None:
    """For example milliseconds instead of seconds: jobs of other protocols keep their due times."""
    kept.put(1_794_771_831_000, "a")
    kept.put(1_794_771_831_000, "b", delay=10)
    kept.restarts()
    push = unit("job-1", due_at=SERVER_NOW + 60 * SECOND)
    job = kept.engine.push(push, SERVER_NOW)
    assert (job.state, job.created) == (SCHEDULED, SERVER_NOW)
    assert kept.engine.push(unit("job-2"), SERVER_NOW).ready_at <= SERVER_NOW + 10


def test_a_worker_of_another_protocol_regains_a_job_after_a_crash(kept: StoredQless) -> None:
    """Its lease was never committed, and the job has been ready since."""
    kept.put(1000, "a")
    kept.restarts()
    job = kept.engine.reclaim_by_id("a", "somebody", FAKTORY, SERVER_NOW)
    assert job is not None
    kept.engine.fail(job, SERVER_NOW, FAKTORY, "group", "message", [])
    kept("pop", 2000, "q", "w1", 1)
    kept("retry", 2001, "a", "q", "w1")
    assert kept.engine.reclaim_by_id("a", "somebody", FAKTORY, SERVER_NOW) is None


def test_scripts_survive_a_restart(kept: StoredQless) -> None:
    sha = sha_of(SCRIPTS["B"])
    kept.hub.load_script(sha, Script("B"))
    kept.restarts()
    assert kept.hub.scripts == {sha.encode(): Script("B")}
    kept.hub.flush_scripts()
    kept.restarts()
    assert kept.hub.scripts == {}


def test_a_flush_keeps_only_the_scripts(kept: StoredQless) -> None:
    nothing = kept.seen()
    create_sample_data(kept)
    kept.hub.load_script("sha", Script("C"))
    kept.commits()
    flush(kept)
    assert kept.seen() == nothing
    kept.restarts()
    assert kept.seen() == nothing
    assert kept.hub.scripts == {b"sha": Script("C")}


def flush(kept: StoredQless) -> None:
    for _ in kept.hub.flush(SERVER_NOW, b"", all_databases=True):
        pass


CHANGES: dict[str, Callable[[StoredQless], Any]] = {
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
def test_a_failed_commit_reverts_every_change(
    kept: StoredQless, change: Callable[[StoredQless], Any]
) -> None:
    create_sample_data(kept)
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


def test_a_script_with_a_failed_commit_is_stored_with_the_next_change(kept: StoredQless) -> None:
    kept.hub.load_script("sha", Script("C"))
    kept.fails_to_commit()
    kept.put(1, "a")
    kept.restarts()
    assert kept.hub.scripts == {b"sha": Script("C")}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changes_are_refused_while_the_store_fails(
    kept: StoredQless, change: Callable[[StoredQless], Any]
) -> None:
    create_sample_data(kept)
    kept.commits()
    before = kept.seen()
    kept.engine.unavailable_reason = "disk full"
    try:
        change(kept)
    except ChangeRefused:
        pass
    else:
        assert change in {CHANGES["flush"], CHANGES["what recurs"]}  # the hub refuses a flush
        if change is CHANGES["flush"]:
            return
    assert kept.seen() == before


# Recent changes may still be reverted


@pytest.mark.parametrize("jid", ["a", "nobody's"])
def test_the_reply_about_a_removed_job_waits_for_the_commit(jid):
    kept = StoredQless(FailingMemoryStore())
    kept.put(1000, "a")
    kept("pop", 1001, "q", "w1", 1)
    kept("complete", 1002, "a", "w1", "q", "{}")
    kept.engine.durable = True
    kept.engine.caller.must_wait = False
    kept("cancel", 1003, jid)
    assert kept.engine.caller.must_wait


def test_an_error_reply_waits_for_the_change_that_it_reports():
    kept = StoredQless(FailingMemoryStore())
    kept.engine.durable = True
    kept.put(1000, "a")
    connection = QlessConnection(kept.hub)
    speaker = QlessSpeaker("w1")
    connection.receive(speaker.hello() + speaker.lease("q", 1001 * SECOND), SERVER_NOW, 10)
    held = speaker.receive(b"".join(data_of(connection)))[-1].held
    ends = speaker.complete(held, 1002 * SECOND) * 2
    connection.replies = []
    connection.receive(ends, SERVER_NOW, 10)
    assert b"not currently running" in connection.replies[1].data
    assert waiting(connection) == [0, 1]


def test_idle_workers_survive_a_restart(kept: StoredQless) -> None:
    assert json.loads(kept("pop", 10, "q", "idle", 1)) == {}
    kept.commits()
    kept.restarts()
    workers = json.loads(kept("workers", 20))
    assert workers == [{"name": "idle", "jobs": 0, "stalled": 0}]
    kept("worker.deregister", 20, "idle")
    kept.commits()
    kept.restarts()
    assert json.loads(kept("workers", 20)) == {}


@pytest.mark.parametrize(
    ("times", "order"),
    [({"a": 5, "b": 7, "c": 6}, ["b", "c", "a"]), (dict.fromkeys("bca", 5), ["c", "b", "a"])],
)
def test_completed_jobs_are_ordered_by_the_clocks_of_their_clients(
    kept: StoredQless, times: dict[str, int], order: list[str]
) -> None:
    for jid in "abc":
        kept.put(1, jid)
    kept("pop", 2, "q", "w", 3)
    for jid, now in times.items():
        kept("complete", now, jid, "w", "q", "{}")
    assert kept("jobs", 9, "complete") == order
    kept.restarts()
    assert kept("jobs", 9, "complete") == order


def test_blocked_jobs_are_ordered_by_the_time_of_their_put(kept: StoredQless) -> None:
    kept.put(1, "x")
    for now, jid in ((2, "a"), (3.25, "c"), (3.25, "b"), (4, "a")):
        kept.put(now, jid, "depends", '["x"]')
    for _ in range(2):
        assert kept("jobs", 9, "depends", "q") == ["c", "b", "a"]
        scores = kept.hub.redis_view.scores(b"ql:q:q-depends")
        assert scores == [(b"b", 3.25), (b"c", 3.25), (b"a", 4)]  # ties of a key: by member
        kept.restarts()


def test_a_deregistered_worker_with_a_job_is_not_listed_after_a_restart(kept: StoredQless) -> None:
    kept.put(1, "a")
    kept("pop", 2, "q", "w", 1)
    kept("worker.deregister", 3, "w")
    assert json.loads(kept("workers", 4)) == {}
    kept.restarts()
    assert json.loads(kept("workers", 4)) == {}
    assert kept("heartbeat", 5, "a", "w") == 65
    assert [each["name"] for each in json.loads(kept("workers", 6))] == ["w"]


def test_a_refused_script_flush_leaves_the_scripts(kept: StoredQless) -> None:
    sha, script = "0" * 40, Script("C", "pop")
    kept.hub.load_script(sha, script)
    kept.commits()
    kept.hub.flush_scripts()
    kept.fails_to_commit()
    assert kept.hub.scripts == {sha.encode(): script}
    kept.hub.flush_scripts()
    kept.commits()
    kept.hub.load_script("1" * 40, script)
    kept.fails_to_commit()
    assert sha.encode() not in kept.hub.scripts
    kept.restarts()
    assert sha.encode() not in kept.hub.scripts


# The order of failures


def fail_three_at_one_time(q: StoredQless) -> None:
    for jid in ("a", "b", "c"):
        q.put(1, jid)
    q("pop", 2, "q", "w", 3)
    for jid in ("c", "a", "b"):
        q("fail", 3, jid, "w", "group", "message", "{}")


def test_jobs_that_failed_at_the_same_time_keep_the_order_of_the_calls(kept: StoredQless) -> None:
    fail_three_at_one_time(kept)
    for _ in range(2):
        assert json.loads(kept("failed", 4, "group"))["jobs"] == ["b", "a", "c"]
        kept.restarts()
    assert kept("unfail", 5, "q", "group", 2) == 2
    assert kept.order() == ["c", "a"]


def test_failures_after_a_restart_are_behind_earlier_ones_of_the_same_time(
    kept: StoredQless,
) -> None:
    kept.put(1, "first", queue="q2")
    kept("pop", 1, "q2", "w", 1)
    fail_three_at_one_time(kept)
    kept.restarts()
    kept.server_now += SECOND
    kept("fail", 3, "first", "w", "group", "message", "{}")
    for _ in range(2):
        assert json.loads(kept("failed", 4, "group"))["jobs"] == ["first", "b", "a", "c"]
        kept.restarts()


# Forgotten queues


@pytest.mark.parametrize("change", ["retry", "fail and unfail elsewhere", "expire"])
def test_a_forgotten_queue_stays_hidden_until_the_next_put(kept: StoredQless, change: str) -> None:
    def listed() -> list[str]:
        return [queue["name"] for queue in json.loads(kept("queues", 100))]

    for jid in ("a", "b"):
        kept.put(1, jid)
    kept.put(1, "c", queue="q2")
    kept("pop", 2, "q", "w", 1)
    kept("queue.forget", 3, "q")
    if change == "retry":
        kept("retry", 4, "a", "q", "w")
    elif change == "expire":
        assert kept("pop", 90, "q", "w2", 5)
    else:
        kept("fail", 4, "a", "w", "group", "message", "{}")
        kept("unfail", 5, "q2", "group")
    assert listed() == ["q2"]
    kept.restarts()
    assert kept("pop", 95, "q", "w3", 1) or change == "expire"
    assert listed() == ["q2"]
    kept.put(96, "d")
    assert sorted(listed()) == ["q", "q2"]


@pytest.mark.parametrize("restarts", [0, 1, 2])
@pytest.mark.parametrize("state", ["scheduled", "leased", "blocked", "failed"])
def test_a_forgotten_queue_without_ready_jobs_stays_hidden(
    kept: StoredQless, state: str, restarts: int
) -> None:
    """Its job becomes ready after a restart as it does without one."""
    kept.put(1, "other", queue="q2")
    if state == "blocked":
        kept.put(1, "a", "depends", '["other"]')
    else:
        kept.put(1, "a", delay=50 if state == "scheduled" else 0)
    if state in {"leased", "failed"}:
        kept("pop", 2, "q", "w", 1)
    if state == "failed":
        kept("fail", 2, "a", "w", "group", "message", "{}")
    kept("queue.forget", 3, "q")
    for _ in range(restarts):
        kept.restarts()
    if state == "leased":
        kept("retry", 4, "a", "q", "w")
    elif state == "failed":
        kept.engine.retry_now(kept.engine.find("a"), SERVER_NOW)
    elif state == "blocked":
        kept("pop", 4, "q2", "w", 1)
        kept("complete", 5, "other", "w", "q2", "{}")
    assert kept("pop", 90, "q", "w2", 1)
    assert [queue["name"] for queue in json.loads(kept("queues", 100))] == ["q2"]
    kept.put(101, "d")
    kept.restarts()
    assert [queue["name"] for queue in json.loads(kept("queues", 102))] == ["q2", "q"]
    assert not any(key.startswith(FORGOTTEN_PREFIX) for key in kept.engine.settings)


def test_a_forgotten_queue_without_jobs_leaves_no_setting(kept: StoredQless) -> None:
    kept.put(1, "a", delay=50)
    kept("queue.forget", 3, "q")
    kept("cancel", 4, "a")
    kept.restarts()
    kept.engine.restoration.after_restart(SERVER_NOW)
    kept.restarts()
    assert not any(key.startswith(FORGOTTEN_PREFIX) for key in kept.engine.settings)


def test_a_refused_put_leaves_a_queue_forgotten(kept: StoredQless) -> None:
    kept.put(1, "other", queue="q2")
    kept.put(1, "a", delay=50)
    kept("queue.forget", 3, "q")
    kept.commits()
    kept.put(4, "b")
    kept.fails_to_commit()
    assert kept("pop", 90, "q", "w", 1)
    assert [queue["name"] for queue in json.loads(kept("queues", 100))] == ["q2"]

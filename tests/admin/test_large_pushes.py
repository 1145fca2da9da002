"""A push of many jobs over HTTP runs in slices, and takes effect as a whole or not at all."""

import json
from base64 import b64encode

import pytest

from failing_stores import FailingMemoryStore
from millrace.admin.client import hello
from millrace.admin.connection import AdminConnection
from millrace.admin.service import AdminService
from millrace.engine import consistency
from millrace.engine.states import BLOCKED, READY, SCHEDULED
from millrace.protocols.http.pushes import SLICE_SIZE
from millrace.records.types import MAX_PUSHED
from millrace.store import MemoryStore
from scene import SECOND, Scene, commit, commit_or_revert, recover, refused
from wires import data_of

MANY = 3 * SLICE_SIZE + 7


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.fixture
def hub(scene: Scene) -> AdminService:
    hub = AdminService(scene.engine, 10)
    hub.hubs = [hub]
    return hub


def connect(scene: Scene, hub: AdminService) -> AdminConnection:
    connection = AdminConnection(hub)
    connection.receive(hello(), scene.now, 64)
    connection.replies.clear()
    return connection


def jobs(count: int = MANY, prefix: str = "a", **more: object) -> list[dict]:
    payload = b64encode(b"[1]").decode()
    return [{"jid": f"{prefix}{n}", "queue": "q", "payload": payload, **more} for n in range(count)]


def send(scene: Scene, connection: AdminConnection, pushed: list[dict], key: str = "") -> bool:
    request = {"jobs": pushed, "by": "ci", "key": key, "digest": "digest" if key else ""}
    return connection.receive(json.dumps({"push": request}).encode() + b"\n", scene.now, 1)


def begin(scene: Scene, connection: AdminConnection, pushed: list[dict], key: str = "") -> bool:
    """Send a request and execute its first slice."""
    return send(scene, connection, pushed, key) and connection.run(scene.now, 1)


def finish(scene: Scene, connection: AdminConnection) -> dict:
    """The reply, after all slices."""
    while connection.run(scene.now, 1):
        pass
    (data,) = data_of(connection)
    connection.replies.clear()
    return json.loads(data)


def tick(scene: Scene) -> None:
    for _ in range(MAX_PUSHED):
        scene.engine.tick(scene.now)
    assert consistency.check_engine(scene.engine).total == 0


def states(scene: Scene) -> list[int]:
    return [job.state for job in scene.engine.jobs.values()]


def test_no_job_can_be_leased_before_all_are_pushed(scene, hub):
    connection = connect(scene, hub)
    assert send(scene, connection, jobs(MAX_PUSHED))
    steps = 1
    while len(scene.engine.jobs) < MAX_PUSHED:
        assert scene.lease("q") is None
        before = len(scene.engine.jobs)
        assert connection.run(scene.now, 1)
        assert len(scene.engine.jobs) - before <= SLICE_SIZE
        steps += 1
    assert steps >= MAX_PUSHED // SLICE_SIZE
    rows = finish(scene, connection)["result"]["jobs"]
    assert states(scene) == [READY] * MAX_PUSHED
    found = [(job.jid, job.seq, job.created, job.ready_at) for job in scene.engine.jobs.values()]
    assert found == [(row["jid"], row["seq"], row["created"], row["ready_at"]) for row in rows]
    assert {row["state"] for row in rows} == {"ready"}
    assert hub.audit.before(0, 9)[0].count == MAX_PUSHED
    assert [scene.lease("q").jid for _ in rows] == [row["jid"] for row in rows]
    assert not scene.engine.staged
    tick(scene)


def test_the_reply_has_the_states_after_the_push(scene, hub):
    scene.push("other", "other")
    pushed = jobs()
    pushed[1] |= {"waits_for": ["a0", "other"]}
    pushed[MANY - 1] |= {"waits_for": ["a0"], "at": scene.now + SECOND}
    pushed[2] |= {"at": scene.now + SECOND}
    connection = connect(scene, hub)
    assert send(scene, connection, pushed)
    rows = finish(scene, connection)["result"]["jobs"]
    first, second, third = scene.engine.find("a0"), scene.engine.find("a1"), scene.engine.find("a2")
    assert (first.state, second.state, third.state) == (READY, BLOCKED, SCHEDULED)
    assert second.extra.blockers == [first.seq, scene.engine.find("other").seq]
    assert [row["state"] for row in rows[:4]] == ["ready", "blocked", "scheduled", "ready"]
    assert rows[-1]["state"] == "blocked"
    tick(scene)


def test_many_blockers_and_tags_are_entered_in_slices(scene, hub):
    names = [scene.push(f"blocker-{n}", "blockers").jid for n in range(1000)]
    connection = connect(scene, hub)
    assert send(scene, connection, jobs(3, waits_for=names, tags=["x"] * 100))
    steps = 1
    while not connection.replies:
        assert len(scene.engine.jobs) <= 1000 + steps
        connection.run(scene.now, 1)
        steps += 1
    assert steps > 6
    assert states(scene)[1000:] == [BLOCKED] * 3
    tick(scene)


@pytest.mark.parametrize("slices", [0, 2])
def test_an_error_in_any_slice_pushes_nothing(scene, hub, slices):
    """Another client pushes a job with the last jid, or the last job waits for an unknown one."""
    for error in ("jid", "blocker"):
        pushed = jobs()
        connection = connect(scene, hub)
        if error == "blocker":
            pushed[-1]["waits_for"] = ["unknown"]
        more = send(scene, connection, pushed)
        for _ in range(slices):
            assert more
            more = connection.run(scene.now, 1)
        if error == "jid":
            scene.push(f"a{MANY - 1}", "other")
        assert finish(scene, connection)["error"]["code"] == "conflict"
        tick(scene)
        left = [job.jid for job in scene.engine.jobs.values()]
        assert left == ([f"a{MANY - 1}"] if error == "jid" else [])
        assert not scene.engine.staged
        scene.engine.flush(scene.now)


def test_a_lost_client_pushes_nothing(scene, hub):
    connection = connect(scene, hub)
    assert begin(scene, connection, jobs(), "key")
    connection.connection_lost(scene.now)
    tick(scene)
    assert not scene.engine.jobs
    assert not hub.idempotency.unfinished


def test_a_flush_in_between_pushes_nothing(scene, hub):
    connection = connect(scene, hub)
    assert begin(scene, connection, jobs())
    scene.engine.flush(scene.now)
    assert finish(scene, connection)["error"]["code"] == "conflict"
    tick(scene)
    assert not scene.engine.jobs


def test_a_refused_commit_in_between_pushes_nothing(scene, hub):
    store = FailingMemoryStore()
    commit(scene.engine, store)
    connection = connect(scene, hub)
    assert begin(scene, connection, jobs())
    refused(scene, store)
    assert finish(scene, connection)["error"]["code"] == "unavailable"
    tick(scene)
    assert not scene.engine.jobs


def test_a_push_is_durable_from_its_seal_on(scene, hub):
    """Before it, a restart discards the staged jobs; after it, none is missing."""
    store = MemoryStore()
    connection = connect(scene, hub)
    assert send(scene, connection, jobs(), "key")
    while True:
        commit(scene.engine, store)
        again = recover(store)
        again.transactions.after_restart(scene.now)
        ready = [job for job in again.jobs.values() if job.state == READY]
        is_known = any(key.endswith("/key") for key in again.settings)
        assert len(again.jobs) == len(ready) == (MANY if is_known else 0)
        if connection.replies:
            break
        connection.run(scene.now, 1)
    assert is_known


def test_the_same_request_on_two_connections_pushes_once(scene, hub):
    first, second, third = connect(scene, hub), connect(scene, hub), connect(scene, hub)
    assert begin(scene, first, jobs(), "key")
    assert send(scene, second, jobs(), "key")
    assert send(scene, third, jobs(1), "key")  # a smaller request with the same key waits too
    for _ in range(3):
        assert second.run(scene.now, 1)
        assert third.run(scene.now, 1)
    rows = finish(scene, first)
    assert finish(scene, second) == rows
    assert finish(scene, third) == rows
    assert len(scene.engine.jobs) == MANY


def test_a_reply_waits_until_the_push_is_durable(scene, hub):
    store = FailingMemoryStore()
    scene.engine.durable = True
    commit(scene.engine, store)
    connection = connect(scene, hub)
    assert send(scene, connection, jobs())
    for _ in range(20):
        connection.run(scene.now, 1)
    assert not connection.replies
    assert connection.long_command_waits
    assert commit_or_revert(scene.engine, store)
    commit(scene.engine, store)
    connection.wake(scene.now)
    assert len(finish(scene, connection)["result"]["jobs"]) == MANY


def test_a_repeated_request_does_not_conflict_with_its_abandoned_attempt(
    scene: Scene, hub: AdminService
) -> None:
    """The staged jobs of the first attempt are discarded in the next ticks."""
    lost = connect(scene, hub)
    assert begin(scene, lost, jobs(), key="K")
    lost.run(scene.now, 1)
    assert scene.engine.jobs
    lost.connection_lost(scene.now)
    again = connect(scene, hub)
    assert send(scene, again, jobs(), key="K")
    assert "result" in finish(scene, again)
    tick(scene)
    assert len(scene.engine.jobs) == len(jobs())

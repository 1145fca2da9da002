"""Operator actions on queues, workers, recurring jobs and settings, and the flush."""

import msgspec
import pytest

from admin_room import Room
from millrace.admin.bulk import ACTION_SLICE_SIZE, PROGRESS_INTERVAL
from millrace.engine.states import READY
from millrace.engine.workers import QUIET, TERMINATE
from millrace.protocols.faktory.features import RecurRequest, put_recurring
from wires import SECOND, START


@pytest.fixture
def room() -> Room:
    return Room()


def act(room: Room, action: str, name: str = "q") -> dict:
    return room.asks(act_on_queue={"name": name, "action": action, "by": "ann"})


# Queues


def test_pause_and_resume(room):
    room.push()
    act(room, "pause")
    assert room.engine.queues["q"].paused
    act(room, "resume")
    assert not room.engine.queues["q"].paused
    assert room.audit() == [
        ("ann", "resume queue", "q", 0),
        ("ann", "pause queue", "q", 0),
    ]


@pytest.mark.parametrize("action", ["pause", "resume", "clear", "remove"])
def test_an_unknown_queue_is_refused(room, action):
    waiter = room.connect()
    waiter.receive(b'{"lease":{"queues":["nowhere"],"worker":"w","wait":1000000}}\n')
    request = {"name": "nowhere", "action": action}
    assert room.refused(act_on_queue=request) == ("not found", 'Queue "nowhere" not found.')


def test_clear_removes_ready_jobs(room):
    for number in range(2 * PROGRESS_INTERVAL + 7):
        room.push(f"a{number}", rank=number % 3)
    later, held = room.push("later", due_at=START + SECOND), room.lease()
    other = room.push("b", "other")
    replies = room.says(act_on_queue={"name": "q", "action": "clear", "by": "ann"})
    assert set(room.engine.jobs) == {later.seq, held.seq, other.seq}
    assert [each["finished"] for each in replies] == [False, False, True]
    assert replies[-1]["done"] == replies[-1]["total"] == 1006
    assert room.engine.queues["q"].registered
    assert room.audit() == [("ann", "clear queue", "q", 1006)]


def test_jobs_pushed_while_a_queue_is_cleared_stay(room):
    for number in range(4 * ACTION_SLICE_SIZE):
        room.push(f"a{number}")
    connection = room.wire.connection
    connection.receive(b'{"act_on_queue":{"name":"q","action":"clear"}}\n', room.now, 64)
    room.now += 1
    urgent, plain = room.push("urgent", rank=9), room.push("plain")
    room.wire.run()
    assert set(room.engine.jobs) == {urgent.seq, plain.seq}
    assert [room.lease(), room.lease()] == [urgent, plain]


def test_workers_can_lease_jobs_while_a_queue_is_cleared(room):
    for number in range(4 * ACTION_SLICE_SIZE):
        room.push(f"a{number}")
    connection = room.wire.connection
    connection.receive(b'{"act_on_queue":{"name":"q","action":"remove"}}\n', room.now, 64)
    held = room.lease()
    room.wire.run()
    assert list(room.engine.jobs) == [held.seq]
    assert not room.engine.queues["q"].registered
    room.check()


def test_dependents_of_cleared_jobs_stay(room):
    first = room.push("a1")
    second = room.push("a2", blockers=[first.seq])
    act(room, "clear")
    assert second.state == READY


def test_remove(room):
    room.put("j1")
    act(room, "pause")
    act(room, "remove")
    assert room.engine.queues == {}
    assert room.speaks_qless("queues") == b"{}"
    room.push()
    assert not room.engine.queues["q"].paused


def test_a_queue_used_during_its_removal_stays(room):
    for number in range(2 * ACTION_SLICE_SIZE):
        room.push(f"a{number}")
    connection = room.wire.connection
    connection.receive(b'{"act_on_queue":{"name":"q","action":"remove"}}\n', room.now, 64)
    job = room.push("new")
    room.wire.run()
    assert room.engine.queues["q"].registered
    assert list(room.engine.jobs) == [job.seq]


def test_any_queue_name_is_accepted(room):
    name = 'a/b?c#d "e" <f>\n\u2028ü'
    room.push("a1", name)
    act(room, "pause", name)
    assert room.engine.queues[name].paused


# Workers


def test_actions_on_faktory_workers(room):
    room.faktory_worker("w1")
    room.faktory_worker("w2")
    known = room.faktory.workers.known
    room.asks(act_on_worker={"wid": "w1", "action": "quiet", "by": "ann"})
    assert (known["w1"].state, known["w2"].state) == (QUIET, 0)
    room.asks(act_on_worker={"wid": "all", "action": "terminate", "by": "ann"})
    assert (known["w1"].state, known["w2"].state) == (TERMINATE, TERMINATE)
    assert room.audit()[0] == ("ann", "terminate worker", "all", 0)


def test_an_unknown_worker_is_refused(room):
    worker = room.faktory_worker("w1")
    worker.lose()
    for wid in ("w1", "w2", "all"):
        request = {"wid": wid, "action": "quiet"}
        assert room.refused(act_on_worker=request)[0] == "not found"
    assert room.audit() == []


# Qless


@pytest.fixture
def recurring(room):
    room.speaks_qless("recur", "q", "r1", "klass", "{}", "interval", 60, 0, "priority", 2)
    return room


def test_recurring_jobs(recurring):
    def change(action, **more):
        recurring.asks(act_on_recurring={"jid": "r1", "action": action, "by": "ann", **more})

    change("move", queue="other")
    change("priority", priority=7)
    change("tag", tags=["x", "y"])
    change("untag", tags=["x"])
    found = recurring.qless.recurring["r1"]
    assert (found.queue, found.priority, found.tags) == ("other", 7, ["y"])
    change("cancel")
    assert recurring.qless.recurring == {}
    request = {"jid": "r1", "action": "cancel"}
    assert recurring.refused(act_on_recurring=request)[0] == "not found"
    assert recurring.audit()[0] == ("ann", "cancel recurring", "r1", 0)


def test_recurring_jobs_of_the_sdk_without_qless():
    """They belong to the engine: an operator can change them while the Qless port is off."""
    room = Room(qless=False)
    request = RecurRequest("nightly", "report", msgspec.Raw(b"[]"), every=60, queue="q")
    put_recurring(room.engine, request, room.now)
    changes = [
        ("move", {"queue": "other"}),
        ("priority", {"priority": 7}),
        ("tag", {"tags": ["x", "y"]}),
    ]
    for action, more in [*changes, ("untag", {"tags": ["x"]})]:
        room.asks(act_on_recurring={"jid": "nightly", "action": action, "by": "ann", **more})
    found = room.engine.recurring.by_id["nightly"]
    assert (found.queue, found.priority, found.tags) == ("other", 7, ["y"])
    assert list(room.engine.recurring.by_queue) == ["other"]
    room.asks(act_on_recurring={"jid": "nightly", "action": "cancel", "by": "ann"})
    assert room.engine.recurring.by_id == room.engine.recurring.by_queue == {}


def test_a_recurring_job_cannot_be_moved_nowhere(recurring):
    request = {"jid": "r1", "action": "move", "queue": ""}
    assert recurring.refused(act_on_recurring=request)[0] == "bad request"
    assert recurring.audit() == []


def test_qless_settings(room):
    room.asks(set_qless={"option": "heartbeat", "value": "5", "by": "ann"})
    assert room.qless.options.heartbeat("q") == 5 * SECOND
    room.asks(set_qless={"option": "heartbeat", "value": None, "by": "ann"})
    assert room.qless.options.heartbeat("q") == 60 * SECOND
    assert [each[1:3] for each in room.audit()] == [
        ("unset Qless", "heartbeat"),
        ("set Qless", "heartbeat = 5"),
    ]
    assert room.refused(set_qless={"option": "", "value": "5"})[0] == "bad request"


@pytest.mark.parametrize(
    "request_",
    [
        {"act_on_recurring": {"jid": "r1", "action": "cancel"}},
        {"set_qless": {"option": "a", "value": "b"}},
    ],
)
def test_without_qless(request_):
    assert Room(qless=False).refused(**request_)[0] == "not found"


# All jobs


@pytest.mark.parametrize("qless", [True, False])
def test_flush(qless):
    room = Room(qless=qless)
    room.push()
    if qless:
        room.put("j1")
        room.speaks_qless("config.set", "a", "b")
    before = len(room.engine.jobs)
    room.asks(flush={"by": "ann"})
    assert not room.engine.jobs
    assert not [key for key in room.engine.settings if not key.startswith("audit/")]
    assert room.audit() == [("ann", "flush", "everything", before)]


class Host:
    def __init__(self, reason: str) -> None:
        self.reason = reason

    def run_pipeline(self) -> str:
        return self.reason


def test_run_pipeline(room):
    assert room.refused(run_pipeline={})[0] == "unavailable"
    room.hub.host = Host("it runs already")
    assert room.refused(run_pipeline={}) == ("conflict", "it runs already")
    room.hub.host = Host("")
    room.asks(run_pipeline={"by": "ann"})
    assert room.audit() == [("ann", "run pipeline", "", 0)]


@pytest.mark.parametrize(
    "request_",
    [
        {"act_on_queue": {"name": "q", "action": "pause"}},
        {"act_on_worker": {"wid": "all", "action": "quiet"}},
        {"act_on_recurring": {"jid": "r1", "action": "cancel"}},
        {"set_qless": {"option": "a", "value": "b"}},
        {"run_pipeline": {}},
        {"flush": {}},
        {"note": {"action": "login"}},
    ],
)
def test_changes_are_refused_while_the_store_fails(room, request_):
    room.push()
    room.engine.unavailable_reason = "the disk is full"
    code, reason = room.refused(**request_)
    assert code == "unavailable"
    assert reason.startswith("the disk is full")
    room.engine.unavailable_reason = ""
    assert room.audit() == []


def test_a_qless_setting_has_the_length_limit_of_the_http_api():
    room = Room()
    room.asks(set_qless={"option": "o" * 1000, "value": "v" * 10_000})
    assert room.refused(set_qless={"option": "o", "value": "v" * 10_001})[0] == "bad request"
    assert room.refused(set_qless={"option": "o" * 1001, "value": "v"})[0] == "bad request"

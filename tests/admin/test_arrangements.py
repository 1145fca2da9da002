"""What people do to queues, workers, recurring jobs, settings, and to everything."""

import pytest

from admin_room import Room
from millrace.admin.bulk import ACTION_SLICE_SIZE, PROGRESS_INTERVAL
from millrace.engine.states import READY
from millrace.engine.workers import QUIET, TERMINATE
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
def test_a_queue_that_nobody_pushed_to(room, action):
    waiter = room.connect()
    waiter.receive(b'{"lease":{"queues":["nowhere"],"worker":"w","wait":1000000}}\n')
    request = {"name": "nowhere", "action": action}
    assert room.refused(act_on_queue=request) == ("not found", "there is no queue nowhere")


def test_clear_removes_what_is_ready(room):
    for number in range(2 * PROGRESS_INTERVAL + 7):
        room.push(f"a{number}", rank=number % 3)
    later, held = room.push("later", due=START + SECOND), room.lease()
    other = room.push("b", "other")
    told = room.says(act_on_queue={"name": "q", "action": "clear", "by": "ann"})
    assert set(room.engine.jobs) == {later.seq, held.seq, other.seq}
    assert [each["over"] for each in told] == [False, False, True]
    assert told[-1]["done"] == told[-1]["of"] == 1006
    assert room.engine.queues["q"].known
    assert room.audit() == [("ann", "clear queue", "q", 1006)]


def test_what_comes_while_a_queue_is_cleared_stays(room):
    for number in range(4 * ACTION_SLICE_SIZE):
        room.push(f"a{number}")
    connection = room.wire.connection
    connection.receive(b'{"act_on_queue":{"name":"q","action":"clear"}}\n', room.now, 64)
    room.now += 1
    urgent, plain = room.push("urgent", rank=9), room.push("plain")
    room.wire.run()
    assert set(room.engine.jobs) == {urgent.seq, plain.seq}
    assert [room.lease(), room.lease()] == [urgent, plain]


def test_workers_may_take_jobs_while_a_queue_is_cleared(room):
    for number in range(4 * ACTION_SLICE_SIZE):
        room.push(f"a{number}")
    connection = room.wire.connection
    connection.receive(b'{"act_on_queue":{"name":"q","action":"remove"}}\n', room.now, 64)
    held = room.lease()
    room.wire.run()
    assert list(room.engine.jobs) == [held.seq]
    assert not room.engine.queues["q"].known
    room.check()


def test_jobs_that_waited_for_what_is_cleared_stay(room):
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


def test_a_queue_that_is_used_again_while_it_is_removed_stays(room):
    for number in range(2 * ACTION_SLICE_SIZE):
        room.push(f"a{number}")
    connection = room.wire.connection
    connection.receive(b'{"act_on_queue":{"name":"q","action":"remove"}}\n', room.now, 64)
    job = room.push("new")
    room.wire.run()
    assert room.engine.queues["q"].known
    assert list(room.engine.jobs) == [job.seq]


def test_names_of_queues_are_anything(room):
    name = 'a/b?c#d "e" <f>\n\u2028ü'
    room.push("a1", name)
    act(room, "pause", name)
    assert room.engine.queues[name].paused


# Workers


def test_workers_of_faktory(room):
    room.faktory_worker("w1")
    room.faktory_worker("w2")
    known = room.faktory.workers.known
    room.asks(act_on_worker={"wid": "w1", "action": "quiet", "by": "ann"})
    assert (known["w1"].state, known["w2"].state) == (QUIET, 0)
    room.asks(act_on_worker={"wid": "all", "action": "terminate", "by": "ann"})
    assert (known["w1"].state, known["w2"].state) == (TERMINATE, TERMINATE)
    assert room.audit()[0] == ("ann", "terminate worker", "all", 0)


def test_a_worker_that_is_not_there(room):
    worker = room.faktory_worker("w1")
    worker.lose()
    for wid in ("w1", "w2", "all"):
        request = {"wid": wid, "action": "quiet"}
        assert room.refused(act_on_worker=request)[0] == "not found"
    assert room.audit() == []


# Of Qless


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


def test_a_recurring_job_cannot_be_moved_nowhere(recurring):
    request = {"jid": "r1", "action": "move", "queue": ""}
    assert recurring.refused(act_on_recurring=request)[0] == "bad request"
    assert recurring.audit() == []


def test_settings_of_qless(room):
    room.asks(set_qless={"option": "heartbeat", "value": "5", "by": "ann"})
    assert room.qless.heartbeat("q") == 5 * SECOND
    room.asks(set_qless={"option": "heartbeat", "value": None, "by": "ann"})
    assert room.qless.heartbeat("q") == 60 * SECOND
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


# Everything


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
    assert not [key for key in room.engine.notes if not key.startswith("audit/")]
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
def test_while_nothing_can_be_kept_nothing_is_changed(room, request_):
    room.push()
    room.engine.halted = "the disk is full"
    code, reason = room.refused(**request_)
    assert code == "unavailable"
    assert reason.startswith("the disk is full")
    room.engine.halted = ""
    assert room.audit() == []


def test_a_qless_setting_may_be_as_long_as_the_http_api_says():
    room = Room()
    room.asks(set_qless={"option": "o" * 1000, "value": "v" * 10_000})
    assert room.refused(set_qless={"option": "o", "value": "v" * 10_001})[0] == "bad request"
    assert room.refused(set_qless={"option": "o" * 1001, "value": "v"})[0] == "bad request"

"""What `millrace` asks of a running server: lines of JSON, in any pieces."""

from random import Random

import msgspec
import pytest
from qless_conversation import Qless
from reqless_conversation import Reqless
from resp_conversation import Resp

from admin_room import Room, content
from millrace import __version__
from millrace.admin.client import hello
from millrace.admin.connection import MAX_LINE_BYTES, AdminConnection
from millrace.admin.overview import COUNTERS_SLICE_SIZE
from millrace.admin.service import MAX_JOBS_PER_ID, AdminService
from millrace.engine.engine import Engine
from millrace.engine.job import FAKTORY, alias
from millrace.engine.why import Reason
from scene import START, unit


class Asked:
    """A connection and what it has answered."""

    def __init__(self) -> None:
        self.engine = Engine(Random(1))
        self.hub = AdminService(self.engine, 10)
        self.connect()

    def connect(self) -> None:
        self.connection = AdminConnection(self.hub)
        self.connection.receive(hello(), START, 64)
        self.connection.replies = []

    def says(self, *pieces: bytes) -> list[dict]:
        for piece in pieces:
            more = self.connection.receive(piece, START, 64)
            while more:
                more = self.connection.run(START, 64)
        heard, self.connection.replies = b"".join(self.connection.replies), []
        return [content(line) for line in heard.splitlines()]

    def why(self, name: str) -> dict:
        (answer,) = self.says(msgspec.json.encode({"why": name}) + b"\n")
        return answer


@pytest.fixture
def asked() -> Asked:
    return Asked()


def test_why(asked):
    asked.engine.push(unit("job-1"), START)
    answer = asked.why("job-1")
    assert answer["now"] == START
    assert [job["jid"] for job in answer["jobs"]] == ["job-1"]
    assert [reason["code"] for reason in answer["jobs"][0]["reasons"]] == ["unasked", "queued"]


def test_several_of_one_id_are_all_told_the_oldest_first(asked):
    for _ in range(3):
        asked.engine.push(unit("job-1"), START)
    assert [job["seq"] for job in asked.why("job-1")["jobs"]] == [1, 2, 3]


def test_of_very_many_of_one_id_only_the_oldest_are_told(asked):
    for _ in range(MAX_JOBS_PER_ID + 5):
        asked.engine.push(unit("job-1"), START)
    answer = asked.why("job-1")
    assert [job["seq"] for job in answer["jobs"]] == list(range(1, MAX_JOBS_PER_ID + 1))
    assert answer["more"] == 5
    assert asked.why("1")["more"] == 0


def test_a_job_may_be_named_by_its_number_or_what_is_made_from_it(asked):
    asked.engine.push(unit("job-1"), START)
    asked.engine.push(unit(""), START)
    assert [job["seq"] for job in asked.why("1")["jobs"]] == [1]
    assert [job["seq"] for job in asked.why(alias(1))["jobs"]] == [1]
    assert [job["seq"] for job in asked.why(alias(2))["jobs"]] == [2]


def test_an_id_that_looks_like_a_number_is_an_id_first(asked):
    asked.engine.push(unit("2"), START)
    asked.engine.push(unit("job-2"), START)
    assert [job["seq"] for job in asked.why("2")["jobs"]] == [1, 2]
    assert [job["seq"] for job in asked.why("1")["jobs"]] == [1]


@pytest.mark.parametrize(
    "name", ["nobody", "", "0", "2", "99999999999999999999", alias(2), alias(1) + "x", "²", "-1"]
)
def test_a_job_that_never_was(asked, name):
    asked.engine.push(unit("job-1"), START)
    assert asked.why(name) == {"jobs": [], "now": START, "known": False, "more": 0}


@pytest.mark.parametrize("name", ["1", alias(1)])
def test_a_number_that_is_gone_was_there_once(asked, name):
    asked.engine.cancel(asked.engine.push(unit("job-1"), START), START)
    assert asked.why(name) == {"jobs": [], "now": START, "known": True, "more": 0}


@pytest.mark.parametrize(
    "line", [b"", b"why", b"{}", b"[]", b'{"why":1}', b'{"why":"a","who":"b"}', b"\xff", b'{"why":']
)
def test_nonsense_is_refused_and_forgiven(asked, line):
    refused, answered = asked.says(line + b'\n{"why":"a"}\n')
    assert list(refused) == ["error", "code"]
    assert answered["jobs"] == []


def test_byte_by_byte_and_many_at_once(asked):
    line = b'{"why":"a"}\n'
    assert len(asked.says(*(bytes([byte]) for byte in line))) == 1
    assert len(asked.says(line * 200)) == 200


def test_a_line_without_an_end(asked):
    (refused,) = asked.says(b"x" * (MAX_LINE_BYTES + 1))
    assert refused["error"] == f"A line must not be longer than {MAX_LINE_BYTES:,} bytes."
    assert asked.connection.closing


def test_it_is_forgotten_when_it_is_gone(asked):
    asked.connection.lost(START)
    assert not asked.hub.connections


def why_beside(talk: Resp, jid: str) -> list[Reason]:
    """The reasons, from a server that serves Qless as well; the engine knows no limits of Qless."""
    hub = AdminService(talk.engine, 10)
    hub.hubs = [talk.world.hub, hub]
    (job,) = hub.why(jid, 12_000_000).jobs
    return [msgspec.convert(msgspec.to_builtins(each), Reason) for each in job.reasons]


def test_a_limit_of_qless_is_told():
    with Qless() as talk:
        c = talk.speaks("C")
        c.put(10, "one")
        c.put(10, "two")
        c("config.set", 10, "q-max-concurrency", 1)
        assert c.pop(11, 5) == ["one"]
        limit = Reason("limit", count=1, about="Qless's setting q-max-concurrency")
        assert why_beside(talk, "two") == [limit, Reason("queued", since=10_000_000)]


def test_a_throttle_of_qless_is_told():
    with Reqless() as talk:
        client = talk.speaker()
        for jid in ("one", "two"):
            client.calls("queue.throttle.set", 10, "q", 1).hears_whatever()
            client.calls("queue.put", 10, "w", "q", jid, "klass", "{}", 0).hears_whatever()
        client.calls("queue.pop", 11, "q", "w", 2).hears_whatever()
        limit = Reason("limit", count=1, about="Qless's throttle ql:q:q")
        assert why_beside(talk, "two")[0] == limit


def test_sizes(asked):
    for number in range(3):
        asked.engine.push(unit(f"job-{number}"), START)
    job = asked.engine.lease(["default"], "w", FAKTORY, START)
    asked.engine.cancel(asked.engine.find("job-1"), START)
    (answer,) = asked.says(b'{"sizes": true}\n')
    told = {name: answer[name] for name in ("jobs", "ready", "leased", "timers", "queues")}
    assert told == {"jobs": 2, "ready": 1, "leased": 1, "timers": 1, "queues": 1}
    assert answer["ready jobs that are over"] == 1
    asked.engine.complete(job, START, FAKTORY)
    (answer,) = asked.says(b'{"sizes": true}\n')
    assert (answer["timers"], answer["timers that are over"]) == (0, 1)


def test_nothing_asked(asked):
    (answer,) = asked.says(b"{}\n")
    assert answer["error"] == "A request must have exactly one operation; this one has 0: none."


def said(asked: Asked) -> list[dict]:
    """What it has answered until now."""
    heard, asked.connection.replies = b"".join(asked.connection.replies), []
    return [content(line) for line in heard.splitlines()]


def test_counters_are_of_an_event(asked):
    engine = asked.engine
    engine.durable = True
    asked.hub = AdminService(engine, 10, lambda: 101)
    asked.connect()
    engine.push(unit("job-1"), START)
    engine.push(unit("job-2", "other"), START)
    engine.lease(["default"], "worker", FAKTORY, START + 2_000_000)
    (answer,) = asked.says(b'{"counters": true}\n')
    assert asked.connection.marks == [0], "it is told when it is durable"
    assert answer["event"] == 100 + 3
    assert answer["queues"] == [["default", [0, 0, 0, 1, 0, 0]], ["other", [0, 0, 1, 0, 0, 0]]]
    (day,) = answer["days"]
    assert day[:3] == ["default", START // 86_400_000_000, [1, 2.0, 0.0, {"2": 1}]]
    assert answer["since"] == START // 86_400_000_000 - 30
    assert not answer["more"]


def test_many_counters_come_in_pieces_each_of_its_own_event(asked):
    for number in range(COUNTERS_SLICE_SIZE + 3):
        asked.engine.push(unit(f"job-{number}", f"queue-{number}"), START)
        asked.engine.lease([f"queue-{number}"], "worker", FAKTORY, START)
    asked.connection.feed(b'{"counters": true}\n{"sizes": true}\n')
    pieces, more = [], True
    while more:
        more = asked.connection.run(START, 64)
        pieces += said(asked)
        asked.engine.push(unit("another", "queue-0"), START)
    *counted, sizes = pieces
    assert "timers" in sizes, "what was asked afterwards is answered afterwards"
    assert [len(piece["queues"]) + len(piece["days"]) for piece in counted] == [64, 64, 6]
    first = 2 * (COUNTERS_SLICE_SIZE + 3)
    assert [piece["event"] for piece in counted] == [first, first + 1, first + 2]
    assert [piece["more"] for piece in counted] == [True, True, False]
    assert {name for piece in counted for name, _ in piece["queues"]} == set(asked.engine.queues)
    assert len({day[0] for piece in counted for day in piece["days"]}) == COUNTERS_SLICE_SIZE + 3


def test_nothing_is_counted(asked):
    (answer,) = asked.says(b'{"counters": true}\n')
    assert (answer["event"], answer["queues"], answer["days"]) == (0, [], [])


def test_counters_that_begin_anew_meanwhile_are_asked_for_again(asked):
    for number in range(COUNTERS_SLICE_SIZE + 3):
        asked.engine.push(unit(f"job-{number}", f"queue-{number}"), START)
    asked.connection.feed(b'{"counters": true}\n')
    assert asked.connection.run(START, 64)
    asked.engine.flush(START)
    asked.connection.run(START, 64)
    piece, refused = said(asked)
    assert piece["more"]
    assert list(refused) == ["error", "code"]


def test_a_request_with_two_operations_is_an_error():
    room = Room()
    assert room.refused(queues={}, sizes=True) == (
        "bad request",
        "A request must have exactly one operation; this one has 2: `sizes`, `queues`.",
    )


# The hello


def replies_to(*lines: bytes) -> tuple[list[dict], AdminConnection]:
    connection = AdminConnection(AdminService(Engine(Random(1)), 10))
    for line in lines:
        connection.receive(line + b"\n", START, 64)
    return [msgspec.json.decode(reply) for reply in connection.replies], connection


def test_a_connection_starts_with_a_hello():
    (reply,), connection = replies_to(b'{"hello":{"version":2,"client":"cli 0.1.0"}}')
    assert reply == {"result": {"version": 2, "server": __version__}}
    assert not connection.closing


@pytest.mark.parametrize(("version", "older"), [(1, "client"), (3, "server")])
def test_another_version_is_refused_with_the_side_to_upgrade(version, older):
    (reply,), connection = replies_to(b'{"hello":{"version":%d}}' % version)
    assert reply["error"]["code"] == "refused"
    assert f"version {version}" in reply["error"]["detail"]
    assert f"Upgrade the {older}." in reply["error"]["detail"]
    assert connection.closing


@pytest.mark.parametrize("line", [b'{"queues":{}}', b"nonsense", b'{"hello":{},"sizes":true}'])
def test_a_client_of_version_1_gets_an_error_that_it_can_read(line):
    (reply,), connection = replies_to(line)
    assert reply["code"] == "bad request"
    assert "Upgrade the client" in reply["error"]
    assert connection.closing


def test_an_invalid_hello_is_an_error():
    (reply,), connection = replies_to(b'{"hello":{"version":"two"}}')
    assert reply["error"]["code"] == "bad request"
    assert connection.closing

"""The control socket: requests of `millrace` as JSON lines, in arbitrary segments."""

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
from millrace.engine.job import id_from_seq
from millrace.engine.reasons import Reason
from millrace.protocols.registry import FAKTORY
from millrace.protocols.spec import protocol_rules
from scene import START, unit
from wires import data_of, waiting


class AdminClient:
    """A connection and its replies."""

    def __init__(self) -> None:
        self.engine = Engine(Random(1), protocol_rules())
        self.hub = AdminService(self.engine, 10)
        #: Numbers of the last replies that had to wait for the commit.
        self.waiting: list[int] = []
        self.connect()

    def connect(self) -> None:
        self.connection = AdminConnection(self.hub)
        self.connection.receive(hello(), START, 64)
        self.connection.replies = []

    def sends(self, *pieces: bytes) -> list[dict]:
        for piece in pieces:
            more = self.connection.receive(piece, START, 64)
            while more:
                more = self.connection.run(START, 64)
        self.waiting = waiting(self.connection)
        received_bytes, self.connection.replies = b"".join(data_of(self.connection)), []
        return [content(line) for line in received_bytes.splitlines()]

    def why(self, name: str) -> dict:
        (answer,) = self.sends(msgspec.json.encode({"why": name}) + b"\n")
        return answer


@pytest.fixture
def admin_client() -> AdminClient:
    return AdminClient()


def test_why(admin_client):
    admin_client.engine.push(unit("job-1"), START)
    answer = admin_client.why("job-1")
    assert answer["now"] == START
    assert [job["jid"] for job in answer["jobs"]] == ["job-1"]
    assert [reason["code"] for reason in answer["jobs"][0]["reasons"]] == ["unasked", "queued"]


def test_all_jobs_of_one_id_are_listed_oldest_first(admin_client):
    for _ in range(3):
        admin_client.engine.push(unit("job-1"), START)
    assert [job["seq"] for job in admin_client.why("job-1")["jobs"]] == [1, 2, 3]


def test_a_limited_number_of_jobs_of_one_id_is_listed(admin_client):
    for _ in range(MAX_JOBS_PER_ID + 5):
        admin_client.engine.push(unit("job-1"), START)
    answer = admin_client.why("job-1")
    assert [job["seq"] for job in answer["jobs"]] == list(range(1, MAX_JOBS_PER_ID + 1))
    assert answer["more"] == 5
    assert admin_client.why("1")["more"] == 0


def test_a_job_can_be_found_by_its_seq_or_generated_id(admin_client):
    admin_client.engine.push(unit("job-1"), START)
    admin_client.engine.push(unit(""), START)
    assert [job["seq"] for job in admin_client.why("1")["jobs"]] == [1]
    assert [job["seq"] for job in admin_client.why(id_from_seq(1))["jobs"]] == [1]
    assert [job["seq"] for job in admin_client.why(id_from_seq(2))["jobs"]] == [2]


def test_a_numeric_id_has_priority_over_a_seq(admin_client):
    admin_client.engine.push(unit("2"), START)
    admin_client.engine.push(unit("job-2"), START)
    assert [job["seq"] for job in admin_client.why("2")["jobs"]] == [1, 2]
    assert [job["seq"] for job in admin_client.why("1")["jobs"]] == [1]


@pytest.mark.parametrize(
    "name",
    [
        "nobody",
        "",
        "0",
        "2",
        "99999999999999999999",
        id_from_seq(2),
        id_from_seq(1) + "x",
        "²",
        "-1",
    ],
)
def test_an_unknown_job(admin_client, name):
    admin_client.engine.push(unit("job-1"), START)
    assert admin_client.why(name) == {"jobs": [], "now": START, "known": False, "more": 0}


@pytest.mark.parametrize("name", ["1", id_from_seq(1)])
def test_a_removed_job_is_known(admin_client, name):
    admin_client.engine.cancel(admin_client.engine.push(unit("job-1"), START), START)
    assert admin_client.why(name) == {"jobs": [], "now": START, "known": True, "more": 0}


@pytest.mark.parametrize(
    "line", [b"", b"why", b"{}", b"[]", b'{"why":1}', b'{"why":"a","who":"b"}', b"\xff", b'{"why":']
)
def test_an_invalid_request_is_refused_and_the_connection_stays_open(admin_client, line):
    refused, answered = admin_client.sends(line + b'\n{"why":"a"}\n')
    assert list(refused) == ["error", "code"]
    assert answered["jobs"] == []


def test_single_bytes_and_pipelined_requests(admin_client):
    line = b'{"why":"a"}\n'
    assert len(admin_client.sends(*(bytes([byte]) for byte in line))) == 1
    assert len(admin_client.sends(line * 200)) == 200


def test_a_line_without_an_end_is_refused(admin_client):
    (refused,) = admin_client.sends(b"x" * (MAX_LINE_BYTES + 1))
    assert refused["error"] == f"A line must not be longer than {MAX_LINE_BYTES:,} bytes."
    assert admin_client.connection.closing


def test_a_closed_connection_is_removed(admin_client):
    admin_client.connection.connection_lost(START)
    assert not admin_client.hub.connections


def why_with_qless(talk: Resp, jid: str) -> list[Reason]:
    """The reasons from a server that also serves Qless; the engine does not know Qless limits."""
    hub = AdminService(talk.engine, 10)
    hub.hubs = [talk.world.hub, hub]
    (job,) = hub.why(jid, 12_000_000).jobs
    return [msgspec.convert(msgspec.to_builtins(each), Reason) for each in job.reasons]


def test_a_qless_limit_is_reported():
    with Qless() as talk:
        c = talk.speaks("C")
        c.put(10, "one")
        c.put(10, "two")
        c("config.set", 10, "q-max-concurrency", 1)
        assert c.pop(11, 5) == ["one"]
        limit = Reason("limit", count=1, about='The limit of the queue "q"')
        assert why_with_qless(talk, "two") == [limit, Reason("queued", since=10_000_000)]


def test_a_qless_throttle_is_reported():
    with Reqless() as talk:
        client = talk.speaker()
        for jid in ("one", "two"):
            client.calls("queue.throttle.set", 10, "q", 1).hears_whatever()
            client.calls("queue.put", 10, "w", "q", jid, "klass", "{}", 0).hears_whatever()
        client.calls("queue.pop", 11, "q", "w", 2).hears_whatever()
        limit = Reason("limit", since=11_000_000, count=1, about='The limit of the queue "q"')
        assert why_with_qless(talk, "two")[0] == limit


def test_sizes(admin_client):
    for number in range(3):
        admin_client.engine.push(unit(f"job-{number}"), START)
    job = admin_client.engine.lease(["default"], "w", FAKTORY, START)
    admin_client.engine.cancel(admin_client.engine.find("job-1"), START)
    (answer,) = admin_client.sends(b'{"sizes": true}\n')
    size_fields = {name: answer[name] for name in ("jobs", "ready", "leased", "timers", "queues")}
    assert size_fields == {"jobs": 2, "ready": 1, "leased": 1, "timers": 1, "queues": 1}
    assert answer["stale ready entries"] == 1
    admin_client.engine.complete(job, START, FAKTORY)
    (answer,) = admin_client.sends(b'{"sizes": true}\n')
    assert (answer["timers"], answer["stale timers"]) == (0, 1)


def test_an_empty_request_is_refused(admin_client):
    (answer,) = admin_client.sends(b"{}\n")
    assert answer["error"] == "A request must have exactly one operation; this one has 0: none."


def received(admin_client: AdminClient) -> list[dict]:
    """The replies so far."""
    received_bytes, admin_client.connection.replies = b"".join(data_of(admin_client.connection)), []
    return [content(line) for line in received_bytes.splitlines()]


def test_counters_belong_to_an_event(admin_client):
    engine = admin_client.engine
    engine.durable = True
    admin_client.hub = AdminService(engine, 10, lambda: 101)
    admin_client.connect()
    engine.push(unit("job-1"), START)
    engine.push(unit("job-2", "other"), START)
    engine.lease(["default"], "worker", FAKTORY, START + 2_000_000)
    (answer,) = admin_client.sends(b'{"counters": true}\n')
    assert admin_client.waiting == [0], "the reply waits for the commit"
    assert answer["event"] == 100 + 3
    assert answer["queues"] == [["default", [0, 0, 0, 1, 0, 0]], ["other", [0, 0, 1, 0, 0, 0]]]
    (day,) = answer["days"]
    assert day[:3] == ["default", START // 86_400_000_000, [1, 2.0, 0.0, {"2": 1}]]
    assert answer["since"] == START // 86_400_000_000 - 30
    assert not answer["more"]


def test_large_counters_arrive_in_parts_with_their_events(admin_client):
    for number in range(COUNTERS_SLICE_SIZE + 3):
        admin_client.engine.push(unit(f"job-{number}", f"queue-{number}"), START)
        admin_client.engine.lease([f"queue-{number}"], "worker", FAKTORY, START)
    admin_client.connection.feed(b'{"counters": true}\n{"sizes": true}\n')
    pieces, more = [], True
    while more:
        more = admin_client.connection.run(START, 64)
        pieces += received(admin_client)
        admin_client.engine.push(unit("another", "queue-0"), START)
    *counted, sizes = pieces
    assert "timers" in sizes, "the next request is answered afterwards"
    assert [len(piece["queues"]) + len(piece["days"]) for piece in counted] == [64, 64, 6]
    first = 2 * (COUNTERS_SLICE_SIZE + 3)
    assert [piece["event"] for piece in counted] == [first, first + 1, first + 2]
    assert [piece["more"] for piece in counted] == [True, True, False]
    assert {name for piece in counted for name, _ in piece["queues"]} == set(
        admin_client.engine.queues
    )
    assert len({day[0] for piece in counted for day in piece["days"]}) == COUNTERS_SLICE_SIZE + 3


def test_counters_of_an_empty_server(admin_client):
    (answer,) = admin_client.sends(b'{"counters": true}\n')
    assert (answer["event"], answer["queues"], answer["days"]) == (0, [], [])


def test_counters_reset_by_a_flush_are_refused(admin_client):
    for number in range(COUNTERS_SLICE_SIZE + 3):
        admin_client.engine.push(unit(f"job-{number}", f"queue-{number}"), START)
    admin_client.connection.feed(b'{"counters": true}\n')
    assert admin_client.connection.run(START, 64)
    admin_client.engine.flush(START)
    admin_client.connection.run(START, 64)
    piece, refused = received(admin_client)
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
    connection = AdminConnection(AdminService(Engine(Random(1), protocol_rules()), 10))
    for line in lines:
        connection.receive(line + b"\n", START, 64)
    return [msgspec.json.decode(reply) for reply in data_of(connection)], connection


def test_a_connection_starts_with_a_hello():
    (reply,), connection = replies_to(b'{"hello":{"version":3,"client":"cli 0.1.0"}}')
    assert reply == {"result": {"version": 3, "server": __version__}}
    assert not connection.closing


@pytest.mark.parametrize(("version", "older"), [(1, "client"), (2, "client"), (4, "server")])
def test_another_version_is_refused_with_the_side_to_upgrade(version, older):
    (reply,), connection = replies_to(b'{"hello":{"version":%d}}' % version)
    assert reply["error"]["code"] == "refused"
    assert f"version {version}" in reply["error"]["detail"]
    assert f"Upgrade the {older}." in reply["error"]["detail"]
    assert connection.closing


@pytest.mark.parametrize("line", [b'{"queues":{}}', b"nonsense", b'{"hello":{},"sizes":true}'])
def test_a_client_of_version_1_receives_a_readable_error(line):
    (reply,), connection = replies_to(line)
    assert reply["code"] == "bad request"
    assert "Upgrade the client" in reply["error"]
    assert connection.closing


def test_an_invalid_hello_is_an_error():
    (reply,), connection = replies_to(b'{"hello":{"version":"two"}}')
    assert reply["error"]["code"] == "bad request"
    assert connection.closing

"""Pushes and leases over HTTP, as they arrive over the control socket."""

from base64 import b64decode, b64encode
from collections import deque

import pytest

from admin_room import Room
from millrace.engine.states import BLOCKED, DEAD, DONE, LEASED, READY, SCHEDULED
from millrace.protocols.http.leases import MAX_WAIT
from millrace.protocols.http.tokens import LeaseToken
from millrace.protocols.registry import FAKTORY, HTTP
from millrace.records.types import MAX_PUSHED
from millrace.store import MemoryStore
from scene import recover
from wires import SECOND, START, Wire


@pytest.fixture
def room() -> Room:
    return Room()


def new(jid: str = "a1", queue: str = "q", **more: object) -> dict:
    return {"jid": jid, "queue": queue, "payload": b64encode(b"[1]").decode(), **more}


def push(room: Room, *jobs: dict) -> list[dict]:
    return room.asks(push={"jobs": list(jobs), "by": "ci"})["jobs"]


def lease(room: Room, *queues: str, wire: Wire | None = None, **more: object) -> list[dict]:
    request_ = {"queues": queues or ["q"], "worker": "w1", **more}
    answers = room.says(wire, lease=request_)
    return answers[-1]["jobs"] if answers else []


def end(room: Room, token: str, action: str, **more: object) -> dict | None:
    return room.asks(end={"token": token, "action": action, "by": "ci", **more})["job"]


def token_of(room: Room, seq: int, attempt: int = 1, leased_at: int = START) -> str:
    """The token of a lease."""
    return room.hub.tokens.write(LeaseToken(seq, attempt, leased_at))


def refused_end(room: Room, token: str, action: str = "complete", **more: object) -> str:
    return room.refused(end={"token": token, "action": action, **more})[0]


# Push


def test_push(room):
    (row,) = push(room, new(kind="Resize", priority=3, tags=["x", "y", "x"], retries=7))
    job = room.engine.find("a1")
    assert (job.origin, job.inline_payload, job.kind, job.rank) == (HTTP, b"[1]", "Resize", 3)
    assert (row["seq"], row["jid"], row["state"], row["protocol"]) == (1, "a1", "ready", "http")
    assert (row["tags"], row["retries"]) == (["x", "y"], 7)
    assert room.qless.tags.keys() == {"x", "y"}
    assert room.wire.durable == [0]


def test_an_id_is_generated(room):
    first, second = push(room, new(""), new(""))
    assert first["jid"] == "00000000-0000-4000-8000-000000000001"
    assert second["jid"] != first["jid"]


def test_push_with_a_due_time(room):
    (row,) = push(room, new(at=START + SECOND))
    assert row["state"] == "scheduled"
    (row,) = push(room, new("a2", at=START - SECOND))
    assert (row["state"], row["due"]) == ("ready", 0)
    room.advance(SECOND)
    assert room.engine.find("a1").state == READY


def test_jobs_with_blockers(room):
    room.push("old")
    rows = push(room, new("a1"), new("a2", waits_for=["a1", "old", "a1"]))
    assert rows[1]["state"] == "blocked"
    job = room.engine.find("a2")
    assert job.extra.blockers == [2, 1]


def test_an_unknown_blocker_is_refused(room):
    code, reason = room.refused(push={"jobs": [new("a1"), new("a2", waits_for=["a1", "nobody"])]})
    assert (code, "nobody" in reason) == ("conflict", True)
    assert not room.engine.jobs


def test_a_dead_job_blocks_and_a_done_job_does_not(room):
    room.dead("dead")
    room.put("done")
    room.pop()
    room.speaks_qless("complete", "done", "w1", "q", "{}")
    rows = push(room, new("a1", waits_for=["dead"]), new("a2", waits_for=["done"]))
    assert [row["state"] for row in rows] == ["blocked", "ready"]


def test_an_id_in_use(room):
    push(room, new())
    assert room.refused(push={"jobs": [new("a2"), new()]})[0] == "conflict"
    assert room.refused(push={"jobs": [new("a2"), new("a2")]})[0] == "conflict"
    assert len(room.engine.jobs) == 1
    room.act("kill", "a1")
    push(room, new())
    assert len(room.engine.jobs) == 2


@pytest.mark.parametrize(
    "more",
    [
        {"queue": ""},
        {"queue": "x" * 300},
        {"jid": "x" * 300},
        {"kind": "x" * 300},
        {"priority": 1e300},
        {"retries": -1},
        {"at": -1},
        {"at": 1 << 63},
        {"lease_for": 0},
        {"lease_for": 1 << 62},
        {"tags": [""]},
        {"tags": ["x"] * 101},
        {"waits_for": ["x"] * 1001},
        {"payload": "no base64"},
        {"unknown": 1},
    ],
)
def test_invalid_pushes_are_refused(room, more):
    code, _ = room.refused(push={"jobs": [new("good"), {**new(), **more}]})
    assert code == "bad request"
    assert not room.engine.jobs


def test_the_number_of_pushed_jobs_is_limited(room):
    jobs = [new(f"a{number}") for number in range(MAX_PUSHED + 1)]
    assert room.refused(push={"jobs": jobs})[0] == "too large"
    assert room.refused(push={"jobs": []})[0] == "too large"
    assert len(push(room, *jobs[1:])) == MAX_PUSHED


# Lease


def test_lease_and_complete(room):
    push(room, new())
    (leased,) = lease(room)
    job = room.engine.find("a1")
    assert (job.state, job.holder, job.holder_protocol) == (LEASED, "w1", HTTP)
    assert leased["token"].startswith("1-1-")
    assert leased["deadline"] == START + 1800 * SECOND
    assert b64decode(leased["job"]["payload"]) == b"[1]"
    assert end(room, token_of(room, 1), "complete") is None
    assert not room.engine.jobs
    assert refused_end(room, token_of(room, 1)) == "conflict"


def test_lease_in_the_order_of_the_queues(room):
    room.push("a1", "one")
    room.push("a2", "two")
    room.push("a3", "two")
    found = lease(room, "two", "one", "two", limit=10)
    assert [each["job"]["jid"] for each in found] == ["a2", "a3", "a1"]
    assert lease(room, "one") == []


def test_a_worker_can_set_the_lease_duration(room):
    push(room, new(), new("a2"))
    (leased,) = lease(room, lease_for=5 * SECOND)
    assert leased["deadline"] == START + 5 * SECOND
    room.advance(5 * SECOND)
    job = room.engine.find("a1")
    assert (job.state, job.failures, job.failure.group) == (SCHEDULED, 1, "LeaseExpired")


def test_waiters_are_served_immediately_and_in_order(room):
    first, second = room.connect(), room.connect()
    assert lease(room, wire=first, wait=10 * SECOND, lease_for=7 * SECOND) == []
    assert lease(room, wire=second, wait=10 * SECOND) == []
    push(room, new("a1"), new("a2"))
    assert b'"token":"1-1-' in first.heard
    assert b'"token":"2-1-' in second.heard
    assert room.engine.find("a1").deadline == START + 7 * SECOND


def test_a_wait_times_out(room):
    assert lease(room, wait=10 * SECOND) == []
    assert room.wire.waits
    room.advance(10 * SECOND)
    assert room.wire.replies[-1] == b'{"result":{"jobs":[]}}\n'
    assert not room.wire.waits


def test_a_wait_is_limited(room):
    lease(room, wait=1 << 62)
    room.advance(MAX_WAIT)
    assert not room.wire.waits


def test_a_closed_connection_stops_waiting(room):
    wire = room.connect()
    lease(room, wire=wire, wait=10 * SECOND)
    wire.lose()
    job = room.push()
    assert job.state == READY
    assert not room.engine.queues["q"].waiters


def test_a_job_with_an_unwritten_reply_is_released(room):
    wire = room.connect()
    wire.reads = False
    room.push()
    lease(room, wire=wire)
    wire.lose()
    job = room.engine.find("a1")
    assert (job.state, job.attempt) == (READY, 0)


def test_a_lease_of_an_uncommitted_job_waits_for_the_commit(room):
    room.hold_commits()
    room.push()
    lease(room)
    assert room.wire.durable == [0]


def test_a_stopping_server_delivers_no_job(room):
    room.push()
    room.hub.stopping = True
    assert lease(room) == []


@pytest.mark.parametrize(
    "more",
    [
        {"queues": []},
        {"queues": [""]},
        {"queues": [str(number) for number in range(101)]},
        {"worker": ""},
        {"worker": "x" * 300},
        {"limit": 0},
        {"limit": 101},
        {"lease_for": 1},
    ],
)
def test_invalid_leases_are_refused(room, more):
    room.push()
    request_ = {"queues": ["q"], "worker": "w", **more}
    assert room.refused(lease=request_)[0] == "bad request"
    assert not room.engine.leased


# End


def test_fail(room):
    push(room, new(retries=1))
    (leased,) = lease(room)
    backtrace = [f"line {number}" for number in range(100)]
    row = end(room, leased["token"], "fail", group="Oops", message="it broke", backtrace=backtrace)
    assert (row["state"], row["failure"]["group"]) == ("scheduled", "Oops")
    assert row["failure"]["message"] == "it broke"
    assert row["due"] == START + 15 * SECOND
    job = room.engine.find("a1")
    assert len(job.failure.backtrace) == 50
    room.advance(15 * SECOND)
    (leased,) = lease(room)
    assert leased["token"].startswith("1-2-")
    assert end(room, leased["token"], "fail")["state"] == "dead"
    assert job.due_at == room.now + 180 * 86_400 * SECOND


def test_without_retries_a_failed_job_is_dead_immediately(room):
    push(room, new(retries=0))
    lease(room)
    assert end(room, token_of(room, 1), "fail")["state"] == "dead"


def test_a_worker_can_set_the_retry_time(room):
    push(room, new())
    lease(room)
    row = end(room, token_of(room, 1), "fail", retry_at=START + 7 * SECOND)
    assert (row["state"], row["due"]) == ("scheduled", START + 7 * SECOND)
    push(room, new("a2", retries=0))
    lease(room)
    assert end(room, token_of(room, 2), "fail", retry_at=START + 7 * SECOND)["state"] == "dead"


def test_release(room):
    push(room, new())
    lease(room)
    row = end(room, token_of(room, 1), "release")
    assert (row["state"], row["failures"]) == ("ready", 0)
    (leased,) = lease(room)
    assert leased["token"].startswith("1-2-")
    assert refused_end(room, token_of(room, 1), "release") == "conflict"


def test_renew(room):
    push(room, new(lease_for=10 * SECOND))
    lease(room)
    room.advance(9 * SECOND)
    assert end(room, token_of(room, 1), "renew")["deadline"] == START + 19 * SECOND
    assert (
        end(room, token_of(room, 1), "renew", lease_for=60 * SECOND)["deadline"]
        == START + 69 * SECOND
    )
    assert refused_end(room, token_of(room, 1), "renew", lease_for=1) == "bad request"
    room.advance(60 * SECOND)
    assert refused_end(room, token_of(room, 1), "renew") == "conflict"


def test_a_result_is_stored_for_a_retained_job(room):
    job = room.put("j1")
    lease(room)
    row = end(room, token_of(room, 1), "complete", result=b64encode(b"done").decode())
    assert row["state"] == "done"
    assert (job.state, job.extra.result) == (DONE, b"done")


@pytest.mark.parametrize(
    "token",
    ["", "1", "1-1", "1-1-1", "-1-1-x", "x-1-1-x", "1-x-1-x", "²-1-1-x", "1" * 30 + "-1-1-x"],
)
def test_an_invalid_token(room, token):
    room.push()
    assert refused_end(room, token) == "bad request"


def test_tokens_of_other_leases(room):
    room.push()
    room.lease(actor=FAKTORY)
    assert refused_end(room, token_of(room, 1)) == "conflict"
    push(room, new("a2"))
    (leased,) = lease(room)
    for other in (token_of(room, 2, 0), token_of(room, 2, 2), token_of(room, 2, 1, START - 1)):
        assert refused_end(room, other) == "conflict"
    assert room.engine.find("a2").state == LEASED
    assert leased["token"] == token_of(room, 2)


def test_a_token_cannot_be_guessed(room):
    push(room, new())
    (leased,) = lease(room)
    named, _, digest = leased["token"].rpartition("-")
    assert (named, len(digest)) == (f"1-1-{START}", 24)
    for guess in ("", "0" * 24, digest[:-1], digest + "0", digest.upper() + "ü"):
        assert refused_end(room, f"{named}-{guess}") == "not found"
    assert refused_end(room, f"1-2-{START}-{digest}") == "not found"
    another = Room()
    push(another, new())
    another.engine.set_setting("http/lease-key", b"x" * 32)
    assert refused_end(another, leased["token"]) == "not found"


def stored(room: Room, store: MemoryStore | None = None) -> MemoryStore:
    """Commit everything so far to the store."""
    if store is None:
        store = MemoryStore()
        store.load()
    for batch in room.kept:
        store.prepare(batch, room.engine)
        store.commit()
    return store


def restarted(store: MemoryStore) -> Room:
    room = Room(engine=recover(store))
    room.now = START + SECOND
    return room


def test_a_lease_lost_in_a_crash_can_be_ended():
    """The lease was delivered before its commit."""
    room = Room()
    room.hub.tokens.ensure_key()
    push(room, new(), new("a2"))
    store = stored(room)
    first, second = lease(room, limit=2)
    again = restarted(store)
    assert again.engine.find("a1").state == READY
    assert refused_end(again, f"1-1-{START}-{'0' * 24}") == "not found"
    assert end(again, first["token"], "renew")["state"] == "leased"
    assert end(again, first["token"], "renew")["state"] == "leased"
    end(again, first["token"], "complete")
    (released,) = lease(again)
    assert released["token"] != second["token"]
    assert refused_end(again, second["token"]) == "conflict"
    end(again, released["token"], "complete")
    assert not again.engine.jobs


def test_a_reclaimed_lease_survives_a_second_crash():
    room = Room()
    room.hub.tokens.ensure_key()
    push(room, new())
    store = stored(room)
    (first,) = lease(room)
    again = restarted(store)
    end(again, first["token"], "renew")
    last = restarted(stored(again, store))
    assert end(last, first["token"], "renew")["state"] == "leased"
    end(last, first["token"], "complete")
    assert not last.engine.jobs


def table_sizes(*owners: object) -> dict[str, int]:
    """The sizes of all tables of these objects, by attribute."""
    names = {
        (owner, name)
        for owner in owners
        for name in (*vars(type(owner)), *getattr(owner, "__dict__", ()))
        if not name.startswith("__")
    }
    found = {f"{type(owner).__name__}.{name}": getattr(owner, name, None) for owner, name in names}
    tables = (dict, set, list, deque)
    return {name: len(value) for name, value in found.items() if isinstance(value, tables)}


@pytest.mark.parametrize("ending", ["complete", "fail", "release", "timeout", "delete", "expiry"])
def test_no_table_keeps_reclaimed_leases(ending):
    """The lease may end by its token, by an operator or by its deadline."""
    room = Room()
    room.hub.tokens.ensure_key()
    push(room, *(new(f"a{number}", retries=0) for number in range(20)))
    store = stored(room)
    leased = lease(room, limit=20)
    again = restarted(store)
    owners = (again.engine.leases, again.hub, again.hub.tokens)
    before = table_sizes(*owners)
    assert "LeaseSet._undone" in before
    for each in leased:
        assert end(again, each["token"], "renew")["state"] == "leased"
    for each in leased:
        if ending in {"complete", "fail", "release"}:
            end(again, each["token"], ending)
        elif ending != "expiry":
            again.act(ending, each["job"]["jid"])
    if ending == "expiry":
        again.advance(3600 * SECOND)
    assert not again.engine.leased
    after = table_sizes(*owners)
    assert {name for name in after if after[name] >= before.get(name, 0) + 20} == set()


def test_a_token_waits_for_the_commit_of_its_key(room):
    room.push()
    room.hold_commits()
    lease(room)
    assert room.wire.durable == [0]


def test_a_lease_that_never_existed_cannot_be_ended():
    room = Room()
    room.hub.tokens.ensure_key()
    push(room, new())
    assert refused_end(room, token_of(room, 1)) == "conflict"
    assert refused_end(restarted(stored(room)), f"1-1-{START}-{'0' * 24}") == "not found"


def test_work_is_refused_while_the_store_fails(room):
    push(room, new())
    lease(room)
    room.engine.unavailable_reason = "the disk is full"
    for request in (
        {"push": {"jobs": [new("a2")]}},
        {"lease": {"queues": ["q"], "worker": "w"}},
        {"end": {"token": token_of(room, 1), "action": "complete"}},
    ):
        assert room.refused(**request)[0] == "unavailable"
    assert room.engine.find("a1").state == LEASED


# Other protocols


def test_http_jobs_for_workers_of_other_protocols(room):
    push(room, new(kind="Resize"))
    worker = room.faktory_worker("w9")
    worker.receive(b"FETCH q\r\n")
    assert b'"jobtype":"Resize"' in worker.heard
    worker.receive(b'FAIL {"jid":"a1","errtype":"E","message":"m"}\r\n')
    assert room.engine.find("a1").state == SCHEDULED


def test_other_protocols_cannot_end_http_leases(room):
    push(room, new())
    lease(room)
    worker = room.faktory_worker("w9")
    worker.receive(b'ACK {"jid":"a1"}\r\nFAIL {"jid":"a1","errtype":"E","message":"m"}\r\n')
    assert b"Job not found" in worker.heard
    assert room.engine.find("a1").state == LEASED


def test_qless_finds_and_keeps_the_tags(room):
    push(room, new(tags=["x"]))
    assert b"a1" in room.speaks_qless("tag", "get", "x", 0, 10)
    room.speaks_qless("tag", "add", "a1", "y")
    assert room.engine.find("a1").extra.tags == ["x", "y"]
    lease(room)
    end(room, token_of(room, 1), "complete")
    assert room.qless.tags == {}


def test_tags_pushed_while_qless_was_off_are_found_when_it_is_on():
    store = MemoryStore()
    store.load()
    room = Room(qless=False)
    push(room, new(tags=["x"]))
    assert room.engine.find("a1").extra.details is None
    for batch in room.kept:
        store.prepare(batch, room.engine)
        store.commit()
    again = Room(engine=recover(store))
    again.check()
    assert b"a1" in again.speaks_qless("tag", "get", "x", 0, 10)


def test_work_is_in_the_audit_log(room):
    push(room, new("a1"), new("a2"))
    push(room, new("a3"))
    for _ in range(3):
        (leased,) = lease(room)
        end(room, leased["token"], "complete")
    assert room.audit() == [
        ("ci", "complete", "jobs over HTTP", 3),
        ("ci", "push", "jobs over HTTP", 3),
    ]


def test_a_blocked_job_is_ready_when_its_blocker_is_done(room):
    push(room, new("a1"), new("a2", waits_for=["a1"]))
    assert room.engine.find("a2").state == BLOCKED
    lease(room)
    end(room, token_of(room, 1), "complete")
    assert room.engine.find("a2").state == READY


def test_a_job_blocked_by_a_dead_job_stays_blocked(room):
    push(room, new("a1", retries=0), new("a2", waits_for=["a1"]))
    lease(room)
    end(room, token_of(room, 1), "fail")
    assert (room.engine.find("a1").state, room.engine.find("a2").state) == (DEAD, BLOCKED)

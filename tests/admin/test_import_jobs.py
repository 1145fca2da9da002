"""The steps of an import over the admin socket. The indexes are checked after every request."""

from typing import Any

import msgspec
import pytest

from admin_room import Room
from millrace.engine.states import BLOCKED, DEAD, READY, SCHEDULED
from wires import SECOND


@pytest.fixture
def room() -> Room:
    return Room()


def job(jid: str, **more: Any) -> dict[str, Any]:
    return {
        "jid": jid,
        "protocol": "faktory",
        "queue": "mail",
        "kind": "send",
        "payload": "WzFd",
        "spec": "CgoK",
        **more,
    }


def step(room: Room, name: str, run: int = 0, **more: Any) -> dict[str, Any]:
    request = {"source": "faktory", "step": name, "run": run, "by": "ann", **more}
    return room.asks(import_jobs=request)


def imported(room: Room, *jobs: dict[str, Any], **more: Any) -> dict[str, Any]:
    run = step(room, "begin")["run"]
    staged = step(room, "stage", run, jobs=jobs)
    step(room, "finish", run, **more)
    return staged


def failure(at: int) -> dict[str, Any]:
    return {"first_at": at, "last_at": at, "group": "E", "message": "broken"}


def test_jobs_keep_their_state_and_their_history(room: Room) -> None:
    now = room.now
    imported(
        room,
        job("ready-1", created=now - SECOND),
        job("later-1", due=now + 60 * SECOND),
        job("retry-1", due=now + 60 * SECOND, failures=2, attempts=2, failure=failure(now)),
        job("dead-01", dead=True, failures=26, failure=failure(now)),
        job("child-1", waits_for=["ready-1"]),
    )
    found = {jid: room.engine.find(jid) for jid in ("ready-1", "later-1", "retry-1", "dead-01")}
    states = {jid: each.state for jid, each in found.items()}
    assert states == {"ready-1": READY, "later-1": SCHEDULED, "retry-1": SCHEDULED, "dead-01": DEAD}
    assert found["ready-1"].created == now - SECOND
    assert (found["retry-1"].failures, found["retry-1"].failure.message) == (2, "broken")
    assert room.engine.find("child-1").state == BLOCKED
    assert room.asks(failures={})["groups"][0]["dead"] == 1
    assert room.audit()[0] == ("ann", "import", "faktory", 5)


def test_staged_jobs_are_invisible_before_the_end(room: Room) -> None:
    run = step(room, "begin")["run"]
    step(room, "stage", run, jobs=[job("a-000001"), job("d-000001", dead=True)])
    assert room.engine.lease(["mail"], "w", 1, room.now) is None
    assert {each.state for each in room.engine.jobs.values()} == {BLOCKED}
    step(room, "discard", run)
    assert not room.engine.jobs
    assert not room.engine.staged


def test_the_next_run_discards_an_incomplete_one(room: Room) -> None:
    first = step(room, "begin")["run"]
    step(room, "stage", first, jobs=[job("a-000001")])
    assert step(room, "check", jobs=[job("a-000001")])["done"] == 1
    staged = imported(room, job("a-000001"))
    assert (staged["done"], staged["known"]) == (1, [])
    assert len(room.engine.jobs) == 1
    code, reason = room.refused(
        import_jobs={"source": "faktory", "step": "stage", "run": first, "jobs": []}
    )
    assert (code, "Another import" in reason) == ("conflict", True)


def test_a_repeated_import_skips_known_jobs_even_after_their_end(room: Room) -> None:
    imported(room, job("a-000001"), job("b-000001"))
    done = room.engine.lease(["mail"], "w", 1, room.now)
    assert done is not None
    room.engine.complete(done, room.now, 1)
    staged = imported(room, job("a-000001"), job("b-000001"), job("c-000001"))
    assert (staged["done"], staged["known"]) == (1, ["a-000001", "b-000001"])
    assert sorted(room.engine.by_jid) == ["b-000001", "c-000001"]


def test_an_existing_job_is_not_replaced(room: Room) -> None:
    room.push("a-000001", queue="mail")
    assert imported(room, job("a-000001"))["existing"] == ["a-000001"]
    assert len(room.engine.jobs) == 1


def test_an_interrupted_release_continues(room: Room) -> None:
    run = step(room, "begin")["run"]
    jobs = [job(f"job-{number:05}", dead=number % 2 == 0) for number in range(400)]
    step(room, "stage", run, jobs=jobs)
    wire = room.connect()
    request = {"import_jobs": {"source": "faktory", "step": "finish", "run": run}}
    wire.connection.receive(msgspec.json.encode(request) + b"\n", room.now, 64)
    for _ in range(3):
        wire.connection.run(room.now, 64)
    wire.connection.connection_lost(room.now)  # the client disconnects after a few slices
    assert 0 < sum(len(each) for each in room.engine.staged.values()) < 400
    next_run = step(room, "begin")["run"]
    assert not room.engine.staged
    assert step(room, "stage", next_run, jobs=jobs[:10])["known"] == [
        each["jid"] for each in jobs[:10]
    ]
    assert room.engine.queues["mail"].counts[READY] == 200
    assert len(room.engine.dead) == 200


def test_settings_are_imported_once(room: Room) -> None:
    day = {
        "queue": "mail",
        "day": 20_000,
        "wait": {"count": 2, "mean": 1.5, "vk": 0.5, "histogram": {1: 2}},
        "run": {"count": 1, "mean": 3, "histogram": {3: 1}},
        "failures": 4,
    }
    settings = {
        "queues": {"mail": room.now, "empty": room.now},
        "paused": ["empty"],
        "limits": [{"key": "ql:q:mail", "maximum": 3}],
        "tracked": {"a-000001": room.now},
        "recurring": [
            {
                "jid": "r1",
                "kind": "K",
                "payload": "e30=",
                "queue": "mail",
                "interval": 60,
                "next_at": room.now,
            }
        ],
        "qless_options": {"heartbeat": "7"},
        "processed": 10,
        "failures": 4,
        "days": [(room.now // (86_400 * SECOND) - 3, 6, 2)],
        "queue_days": [day],
    }
    encoded = msgspec.json.decode(msgspec.json.encode(settings))
    for _ in range(2):
        imported(room, settings=encoded)
    engine = room.engine
    assert (engine.totals.processed, engine.totals.failures) == (10, 4)
    assert engine.queues["empty"].paused
    assert room.qless.options.config == {"heartbeat": "7"}
    assert list(room.qless.first_seen) == ["mail", "empty"]
    assert "r1" in engine.recurring.by_id
    assert "a-000001" in engine.annotations.tracked
    assert engine.limits.maximum("ql:q:mail", room.now) == 3
    spread = engine.statistics.days["mail", 20_000].wait
    assert (spread.count, spread.mean, spread.histogram) == (2, 1.5, {1: 2})
    history = room.asks(overview=True)["days"]
    assert [each["processed"] for each in history][:1] == [6]


def test_a_flush_forgets_imports(room: Room) -> None:
    imported(room, job("a-000001"))
    room.asks(flush={"by": "ann"})
    assert imported(room, job("a-000001"))["done"] == 1


@pytest.mark.parametrize(
    "wrong", [{"source": "", "step": "begin"}, {"source": "x", "step": "nothing"}]
)
def test_wrong_requests_are_refused(room: Room, wrong: dict[str, Any]) -> None:
    assert room.refused(import_jobs=wrong)[0] == "bad request"


def test_an_unknown_protocol_is_refused(room: Room) -> None:
    run = step(room, "begin")["run"]
    request = {
        "source": "faktory",
        "step": "stage",
        "run": run,
        "jobs": [job("a-000001", protocol="x")],
    }
    assert room.refused(import_jobs=request) == ("bad request", "Unknown protocol x.")

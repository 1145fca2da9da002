"""While a commit is held back, every reply waits that depends on uncommitted state."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from command_rows import ROWS, Row, Stage, control, faktory, request_of, words, workq
from held_server import HeldServer

from millrace.server.turns import MIN_REPLIES_TO_WAIT

#: HTTP routes are requests to the control socket, which have their own rows.
WIRE_ROWS = [row for row in ROWS if row.protocol != "http"]
#: Commands that end the connection or wait for something else, and reports that need a lake.
NOT_SENT = {"QUIT", "END", "run", "BRPOP", "ship", "run_pipeline", "journal", "server", "pipeline"}
SECOND = 1_000_000


@pytest.fixture
def server(tmp_path: Path) -> Iterator[HeldServer]:
    server = HeldServer(tmp_path)
    try:
        yield server
    finally:
        server.close()


def rows(*effects: str) -> list[Row]:
    chosen = [row for row in WIRE_ROWS if row.effect in effects]
    return [row for row in chosen if row.command not in NOT_SENT]


def test_a_repeated_change_waits_for_the_first_one(server: HeldServer) -> None:
    """The second client receives "done", "already done" or an error: each depends on the first."""
    early = [
        row.name for number, row in enumerate(rows("changes")) if _is_early(server, row, number)
    ]
    assert not early


def _is_early(server: HeldServer, row: Row, number: int) -> bool:
    stage = Stage(server, f"changed-{number}")
    protocol, data, client = request_of(row, stage)
    server.hold()
    first = server.send(protocol, data, client)
    second = server.send(protocol, data, "other") if row.command != "EXEC" else b""
    assert server.engine.has_uncommitted, f"{row.name} had no effect"
    server.release()
    assert server.written(protocol, client), f"{row.name} has no reply"
    return bool(first or second)


def test_a_read_waits_for_the_change_of_another_client(server: HeldServer) -> None:
    early = []
    for number, row in enumerate(rows("reads")):
        stage = Stage(server, f"read-{number}")
        protocol, data, client = request_of(row, stage)
        server.hold()
        server.send("faktory", faktory("PUSH", _unit(f"another-{number}")), "pusher")
        if server.send(protocol, data, client):
            early.append(row.name)
        server.release()
        assert server.written(protocol, client), f"{row.name} has no reply"
    assert not early


def test_a_read_has_no_effect(server: HeldServer) -> None:
    for number, row in enumerate(rows("reads", "nothing")):
        stage = Stage(server, f"only-read-{number}")
        protocol, data, client = request_of(row, stage)
        server.hold()
        assert server.send(protocol, data, client), f"{row.name} waits for its own change"
        assert not server.engine.has_uncommitted, f"{row.name} changed something"
        server.release()


def test_a_reply_without_durable_state_does_not_wait(server: HeldServer) -> None:
    late = []
    for number, row in enumerate(rows("nothing", "memory")):
        stage = Stage(server, f"never-waits-{number}")
        protocol, data, client = request_of(row, stage)
        server.hold()
        server.send("faktory", faktory("PUSH", _unit(f"another-{number}")), "pusher")
        if not server.send(protocol, data, client) and not _may_wait(row):
            late.append(row.name)
        server.release()
    assert not late


def _may_wait(row: Row) -> bool:
    """Commands of the Qless port on workers and scratch keys are in memory but follow the rule for
    durable commands.
    """
    return row.effect == "memory" and row.protocol != "faktory"


def _unit(job: str, **more: object) -> dict[str, object]:
    return {"jid": job, "jobtype": "t", "args": [], "queue": "others", **more}


def test_a_command_that_arrives_with_the_end_of_a_commit_shares_the_next_one(
    server: HeldServer,
) -> None:
    server.hold()
    for number in range(1 + MIN_REPLIES_TO_WAIT):  # the first commit contains only the first push
        server.send("faktory", faktory("PUSH", _unit(f"early-job-{number}")), f"early-{number}")
    server.end_commit("faktory", faktory("PUSH", _unit("second-job")), "second")
    server.end_commit("faktory", faktory("PUSH", _unit("third-job")), "third")
    assert server.written("faktory", f"early-{MIN_REPLIES_TO_WAIT}")
    assert not server.written("faktory", "second")
    assert not server.written("faktory", "third")
    committing = server.engine.committing
    assert committing is not None
    assert [job.jid for job in committing.new.values()] == ["second-job", "third-job"]
    server.release()
    assert server.written("faktory", "second")
    assert server.written("faktory", "third")


# Leases


def test_a_lease_of_a_committed_job_does_not_wait(server: HeldServer) -> None:
    for number, row in enumerate(rows("leases")):
        stage = Stage(server, f"leased-{number}")
        protocol, data, client = request_of(row, stage)
        if row.protocol == "control":  # the first token of a data folder waits for its key
            server.send("control", control(lease={"queues": [stage.queue], "worker": "w"}))
            stage.push(stage.job + "2")
        server.hold()
        server.send("faktory", faktory("PUSH", _unit(f"another-{number}")), "pusher")
        assert server.send(protocol, data, client), row.name
        server.release()


def test_a_lease_waits_for_the_push(server: HeldServer) -> None:
    for number, row in enumerate(rows("leases")):
        stage = Stage(server, f"pushed-{number}")
        protocol, data, client = request_of(row, stage)
        server.send(protocol, data, client)  # the prepared job was removed
        server.hold()
        server.send("faktory", faktory("PUSH", _unit("new-" + stage.job, queue=stage.queue)), "p")
        assert not server.send(protocol, data, client), row.name
        server.release()
        assert server.written(protocol, client), row.name


def test_a_lease_waits_until_a_due_job_is_committed_as_ready(server: HeldServer) -> None:
    stage = Stage(server, "due-job")
    stage.later()
    server.hold()
    server.advance_timers(5_000_000_000 * SECOND)
    assert not server.send("faktory", faktory("FETCH", stage.queue))
    server.release()
    assert b"due-job-job" in server.written("faktory", "main")


def test_a_lease_waits_for_the_release_of_a_load(server: HeldServer) -> None:
    stage = Stage(server, "load-1")
    stage.load()
    server.hold()
    server.send("faktory", faktory("MILLRACE", {"release": stage.name}), "loader")
    assert not server.send("faktory", faktory("FETCH", stage.queue))
    server.release()
    assert b"load-1-job" in server.written("faktory", "main")


def test_a_lease_waits_for_the_commit_that_unblocked_its_job(server: HeldServer) -> None:
    stage = Stage(server, "blocked-job")
    stage.blocked()
    pop = stage.qless("C", "pop", stage.queue, "main", 1)
    done = (stage.name + "-first", "main", stage.queue, "{}")
    complete = stage.qless("C", "complete", *done)
    server.send("qless", pop)
    server.send("qless", pop)
    server.hold()
    server.send("qless", complete, "worker")
    assert not server.send("qless", pop)
    server.release()
    assert b"blocked-job-job" in server.written("qless", "main")


def test_a_lease_waits_for_a_put_over_an_existing_job(server: HeldServer) -> None:
    stage = Stage(server, "put-again")
    stage.put()
    put = stage.qless("C", "put", "", stage.queue, stage.job, "klass", '{"b":2}', 0)
    pop = stage.qless("C", "pop", stage.queue, "main", 1)
    server.hold()
    server.send("qless", put, "putter")
    assert not server.send("qless", pop)
    server.release()
    assert b"put-again-job" in server.written("qless", "main")


def test_a_lease_after_the_commit_of_its_push_does_not_wait(server: HeldServer) -> None:
    """While one commit is in progress, the following turn leases a job of an older commit."""
    stage = Stage(server, "older-job")
    stage.push()
    server.hold()
    server.send("workq", workq("add", stage.uuid, "others", 60_000, 600_000, block=b""), "pusher")
    server.send("faktory", faktory("PUSH", _unit("third-job")), "third")
    assert b"older-job-job" in server.send("faktory", faktory("FETCH", stage.queue))
    server.release()


# Errors


def test_a_conflict_waits_for_the_push_that_it_depends_on(server: HeldServer) -> None:
    job = {"queue": "q", "jid": "same-id", "payload": "WzFd"}
    server.hold()
    server.send("control", control(push={"jobs": [job]}), "first")
    assert not server.send("control", control(push={"jobs": [job]}), "second")
    server.release()
    assert b'"conflict"' in server.written("control", "second")


def test_not_found_waits_for_the_removal_that_it_depends_on(server: HeldServer) -> None:
    stage = Stage(server, "removed-1")
    stage.push()
    remove = control(act_on_queue={"name": stage.queue, "action": "remove"})
    server.hold()
    server.send("control", remove, "first")
    assert not server.send("control", remove, "second")
    assert not server.send("qless", words("QLESS.GET", 0, stage.job), "reader")
    server.release()
    assert b'"not found"' in server.written("control", "second")


def test_a_repeated_recur_off_waits_for_the_first_one(server: HeldServer) -> None:
    stage = Stage(server, "recurring-1")
    off = words("QLESS.RECUR", 0, "off", stage.recurring())
    server.hold()
    assert not server.send("qless", off, "first")
    assert not server.send("qless", off, "second")
    server.release()
    assert server.written("qless", "second").startswith(b":")

"""Replies to Masenko and Go Job Queue clients hold after a SIGKILL."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.client import AlreadyDeleted, GoJobQueue
from raw_masenko import RawMasenko
from server_process import ServerProcess, running_server

#: Seconds: the time to process a job, the downtime, the tolerated delay on a busy machine.
TTP, DOWN, LATE = 6, 4.5, 4
OK = b"OK {}"


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[ServerProcess]:
    with running_server(tmp_path / "data") as server:
        yield server


# Masenko


def waiting(wire: RawMasenko) -> dict[str, tuple[int, int, int]]:
    return {queue: counts for queue, counts in wire.queues().items() if any(counts)}


def test_every_kind_of_push_survives_a_kill(killed: ServerProcess) -> None:
    with RawMasenko(killed.ports["masenko"]) as wire:
        plain = wire.push("plain", payload={"a": [1, 2.0, "ż<&>"]})
        bare = wire.push("bare")
        blocked = wire.push("blocked", queue="other", blocked_by=[plain])
        past = wire.push("past", execute_at="2001-02-03T04:05:06Z")
        wire.push("far", execute_at="2100-01-01T00:00:00Z", queue="other")
        done = wire.push("done")
        wire.push("dies", queue="other", deadqueue="grave", retry=0)
        before = {number: wire.fetch() for number in (past, plain, bare, done)}
        assert list(before) == [task["id"] for task in before.values()]
        assert wire.ack(done) == OK
        killed.restart()
    with RawMasenko(killed.ports["masenko"]) as wire:
        assert waiting(wire) == {"default": (2, 1, 0), "other": (1, 1, 0)}
        assert [wire.fetch() for _ in range(3)] == [before[n] for n in (past, plain, bare)]
        assert wire.ack(plain) == OK
        dies, unblocked = wire.fetch("other"), wire.fetch("other")
        assert (dies["name"], unblocked["id"]) == ("dies", blocked)
        assert wire.nack(dies["id"]) == OK
        killed.restart()
    with RawMasenko(killed.ports["masenko"]) as wire:
        assert wire.fetch("grave") == {**dies, "queue": "grave"}
        assert wire.push() > dies["id"]


def test_a_leased_task_is_ready_again_without_a_failure(killed: ServerProcess) -> None:
    """Not even a task without retries, whatever ended the server."""
    with RawMasenko(killed.ports["masenko"]) as wire:
        ids = [wire.push("task", retry=0) for _ in range(3)]
    for stop in (killed.kill, killed.stop, killed.kill):
        with RawMasenko(killed.ports["masenko"]) as wire:
            assert [wire.fetch()["id"] for _ in ids[:2]] == ids[:2]
            wire.push(queue="later")  # by now the leases are on the disk
            assert stop() in {None, 0}
        killed.start()
    with RawMasenko(killed.ports["masenko"]) as wire:
        assert waiting(wire) == {"default": (3, 0, 0), "later": (3, 0, 0)}
        for number in ids:
            assert wire.fetch() == {"id": number, "queue": "default", "name": "task"}


def test_a_failure_stays_counted_and_its_retry_due(killed: ServerProcess) -> None:
    with RawMasenko(killed.ports["masenko"]) as wire:
        number = wire.push()
        assert wire.fetch()["id"] == number
        assert wire.nack(number) == OK
        killed.restart()
    with RawMasenko(killed.ports["masenko"]) as wire:
        assert wire.fetch(timeout="5s")["failures"] == 1
        assert wire.nack(number) == OK
        killed.restart()
    with RawMasenko(killed.ports["masenko"]) as wire:
        assert waiting(wire) == {"default": (0, 1, 0)}  # for 16 s


# Go Job Queue


def test_added_jobs_survive_and_deleted_jobs_stay_deleted(killed: ServerProcess) -> None:
    data = bytes(range(256)) * 1000
    with GoJobQueue(port=killed.ports["goqueue"]) as queue:
        ids = [queue.add("q", data, priority=priority) for priority in (2, 1, 4, 1, 2, 3)]
        queue.delete(ids[2])
        killed.restart()
    with GoJobQueue(port=killed.ports["goqueue"]) as queue:
        jobs = [queue.reserve("q", wait=1) for _ in range(5)]
        assert [job.id for job in jobs] == [ids[n] for n in (1, 3, 0, 4, 5)]
        assert {job.data for job in jobs} == {data}
        with pytest.raises(AlreadyDeleted):
            queue.delete(ids[2])
        assert queue.add("q", b"") > ids[-1]


def test_the_time_to_process_elapses_while_the_server_is_down(killed: ServerProcess) -> None:
    with GoJobQueue(port=killed.ports["goqueue"]) as queue:
        number = queue.add("q", b"slow", ttp=TTP)
        began = time.monotonic()
        assert queue.reserve("q", wait=1).id == number
        reserved = time.monotonic()
        kept = queue.add("kept", b"", ttp=3600)
        assert queue.reserve("kept", wait=1).id == kept
        queue.add("later", b"")  # by now the leases are on the disk
        killed.kill()
    time.sleep(DOWN)
    killed.start()
    up = time.monotonic()
    with GoJobQueue(port=killed.ports["goqueue"]) as queue:
        job = queue.reserve("q", wait=TTP + 3)
        assert began + TTP <= time.monotonic() < max(reserved + TTP, up) + LATE
        assert (job.id, job.ttp, job.data) == (number, TTP, b"slow")
        assert queue.reserve("kept", wait=1) is None  # another client holds it for an hour
        queue.delete(kept)  # and can still complete it


def test_a_time_to_process_that_ended_while_the_server_was_down(killed: ServerProcess) -> None:
    with GoJobQueue(port=killed.ports["goqueue"]) as queue:
        number = queue.add("q", b"", ttp=1)
        assert queue.reserve("q", wait=1).id == number
        reserved = time.monotonic()
        queue.add("later", b"")
        killed.kill()
    time.sleep(max(0.0, reserved + 1 - time.monotonic()))
    killed.start()
    with GoJobQueue(port=killed.ports["goqueue"]) as queue:
        asked = time.monotonic()
        assert queue.reserve("q", wait=5).id == number
        assert time.monotonic() < asked + LATE

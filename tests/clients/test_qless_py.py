"""qless-py, as published on PyPI, with redis-py 8: the client, its events, and its worker."""

import contextlib
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import qless
import redis
from client_suite import WorkerLoop
from qless.exceptions import LostLockException, QlessException

from server_process import ServerProcess, running_server

HERE = Path(__file__).parent
WORKER = Path(sys.executable).with_name("qless-py-worker")
DEADLINE = 15.0
TIMEOUT = 0.02

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("qless")
    with running_server(folder / "data", MILLRACE_QLESS_PORT="0") as server:
        yield server


@pytest.fixture
def url(server: ServerProcess) -> str:
    return f"redis://127.0.0.1:{server.ports['qless']}/0"


@pytest.fixture
def client(url: str) -> Iterator[qless.Client]:
    client = qless.Client(url, hostname="worker-1")
    client.redis.flushdb()
    yield client
    client.redis.close()


@pytest.fixture
def other(url: str) -> Iterator[qless.Client]:
    client = qless.Client(url, hostname="worker-2")
    yield client
    client.redis.close()


@pytest.fixture
def queue(client: qless.Client) -> Any:
    return client.queues["queue"]


def eventually(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(TIMEOUT)


# The client


def test_put_pop_complete(client: qless.Client, queue: Any) -> None:
    data = {"n": [], "text": "é", "big": 12345678901234567}
    jid = queue.put("klass", data, priority=3, tags=["a", "b"], retries=2)
    assert len(queue) == 1
    assert queue.peek().jid == jid
    job = queue.pop()
    assert (job.jid, job.data, job.priority, job.tags, job.original_retries) == (
        jid, data, 3, ["a", "b"], 2,
    )  # fmt: skip
    assert (job.state, job.worker_name, job.retries_left) == ("running", "worker-1", 2)
    assert 59 < job.ttl <= 60
    assert job.complete() == "complete"
    assert client.jobs[jid].state == "complete"
    assert client.jobs.complete() == [jid]
    assert queue.pop() is None
    assert queue.pop(5) == []


def test_several_at_once_by_priority(queue: Any) -> None:
    jids = [queue.put("klass", {}, priority=n) for n in range(5)]
    assert [job.jid for job in queue.peek(5)] == jids[::-1]
    assert [job.jid for job in queue.pop(3)] == jids[:1:-1]


def test_complete_into_the_next_queue(client: qless.Client, queue: Any) -> None:
    queue.put("klass", {}, jid="first")
    queue.put("klass", {}, jid="second")
    first, second = queue.pop(2)
    assert first.complete("next") == "waiting"
    assert second.complete("next", delay=60) == "scheduled"
    assert client.queues["next"].pop().jid == "first"
    assert client.queues["next"].jobs.scheduled() == ["second"]
    assert client.queues["next"].counts["running"] == 1


def test_fail_and_unfail(client: qless.Client, queue: Any) -> None:
    for number in range(3):
        queue.put("klass", {}, jid=f"jid-{number}")
        assert queue.pop().fail("group", f"message {number}") == f"jid-{number}"
    assert client.jobs.failed() == {"group": 3}
    failed = client.jobs.failed("group", 0, 2)
    assert failed["total"] == 3
    assert [job.jid for job in failed["jobs"]] == ["jid-2", "jid-1"]
    assert failed["jobs"][0].failure["message"] == "message 2"
    assert client.unfail("group", "queue", 2) == 2
    assert {job.jid for job in queue.pop(5)} == {"jid-0", "jid-1"}


def test_retry(client: qless.Client, queue: Any) -> None:
    queue.put("klass", {}, jid="jid", retries=1)
    assert queue.pop().retry() == 0
    assert queue.pop().retry(0, "group", "message") == -1
    assert client.jobs.failed() == {"group": 1}


def test_heartbeat_and_a_lost_lock(client: qless.Client, other: qless.Client, queue: Any) -> None:
    queue.heartbeat = -10
    client.config["grace-period"] = 0
    queue.put("klass", {}, jid="jid")
    mine = queue.pop()
    mine.data["half"] = "done"
    assert mine.heartbeat() < time.time()
    assert client.jobs["jid"].data == {"half": "done"}
    theirs = other.queues["queue"].pop()
    assert theirs.worker_name == "worker-2"
    with pytest.raises(LostLockException):
        mine.heartbeat()
    with pytest.raises(QlessException, match="handed out to another worker: worker-2"):
        mine.complete()
    assert theirs.complete() == "complete"


def test_dependencies(client: qless.Client, queue: Any) -> None:
    for jid in "ab":
        queue.put("klass", {}, jid=jid)
    queue.put("klass", {}, jid="c", depends=["a"])
    job = client.jobs["c"]
    assert job.depend("b")
    job = client.jobs["c"]
    assert (job.state, job.dependencies) == ("depends", ["a", "b"])
    assert queue.jobs.depends() == ["c"]
    assert job.undepend("a")
    with pytest.raises(QlessException, match="is a dependency of c"):
        client.jobs["b"].cancel()
    assert job.undepend(all=True)
    assert client.jobs["c"].state == "waiting"
    with pytest.raises(QlessException, match="not in the depends state: waiting"):
        job.depend("b")


def test_recurring_jobs(client: qless.Client, queue: Any) -> None:
    queue.recur("klass", {"n": 1}, interval=60, jid="recurring", tags=["t"])
    recurring = client.jobs["recurring"]
    assert (recurring.interval, recurring.retries, recurring.count) == (60, 5, 0)
    assert queue.jobs.recurring() == ["recurring"]
    child = queue.pop()
    assert (child.jid, child.data, child.tags) == ("recurring-1", {"n": 1}, ["t"])
    recurring.priority = 7
    recurring.data = {"n": 2}
    recurring.move("other")
    recurring.tag("u")
    recurring = client.jobs["recurring"]
    assert (recurring.priority, recurring.data, recurring.queue_name, recurring.tags) == (
        7, {"n": 2}, "other", ["t", "u"],
    )  # fmt: skip
    recurring.cancel()
    assert client.jobs["recurring"] is None


def test_tags_and_tracking(client: qless.Client, queue: Any) -> None:
    for jid in "ab":
        queue.put("klass", {}, jid=jid, tags=["t"])
    job = client.jobs["a"]
    job.tag("u", "v")
    job.untag("v")
    assert client.jobs["a"].tags == ["t", "u"]
    assert client.jobs.tagged("t") == {"total": 2, "jobs": ["a", "b"]}
    assert client.tags() == ["t"]
    job.track()
    assert [each.jid for each in client.jobs.tracked()["jobs"]] == ["a"]
    job.untrack()
    assert client.jobs.tracked() == {"jobs": [], "expired": {}}


def test_moving_prioritising_cancelling(client: qless.Client, queue: Any) -> None:
    for jid in "ab":
        queue.put("klass", {}, jid=jid)
    client.jobs["b"].priority = 10
    job = queue.pop()
    assert job.jid == "b"
    job.move("other")
    assert client.jobs["b"].queue_name == "other"
    job = queue.pop()
    job.timeout()
    assert client.jobs["a"].state == "stalled"
    client.jobs["a"].cancel()
    assert client.jobs["a"] is None


def test_queues_workers_statistics(client: qless.Client, queue: Any) -> None:
    queue.put("klass", {}, jid="jid")
    queue.pop()
    assert client.workers.counts == [{"name": "worker-1", "jobs": 1, "stalled": 0}]
    assert client.workers["worker-1"] == {"jobs": ["jid"], "stalled": []}
    assert [each["name"] for each in client.queues.counts] == ["queue"]
    assert queue.counts["running"] == 1
    assert queue.jobs.running() == ["jid"]
    assert queue.stats()["wait"]["count"] == 1
    queue.pause()
    assert queue.counts["paused"] is True
    queue.unpause()


def test_config(client: qless.Client) -> None:
    assert client.config["heartbeat"] == 60
    client.config["heartbeat"] = 30
    assert client.config["heartbeat"] == 30
    assert client.config.all["heartbeat"] == "30"
    del client.config["heartbeat"]
    assert client.config["heartbeat"] == 60


def test_a_missing_script_is_loaded_again(client: qless.Client, queue: Any) -> None:
    queue.put("klass", {}, jid="jid")
    client.redis.script_flush()
    assert queue.pop().jid == "jid"


@pytest.mark.parametrize("protocol", [2, 3])
def test_both_versions_of_resp(url: str, client: qless.Client, protocol: int) -> None:
    spoken = qless.Client(url, hostname="worker-3", protocol=protocol)
    spoken.queues["queue"].put("klass", {}, jid="jid")
    assert spoken.queues["queue"].pop().complete() == "complete"
    spoken.redis.close()


# Events


def test_events(client: qless.Client, queue: Any) -> None:
    messages: list[tuple[str, str]] = []
    for event in ("track", "put", "popped", "completed", "failed", "canceled", "untrack"):
        client.events.on(event, lambda jid, event=event: messages.append((event, jid)))
    with client.events.thread():
        eventually(lambda: "ql:untrack" in client.redis.pubsub_channels())
        queue.put("klass", {}, jid="jid")
        client.track("jid")
        queue.pop().complete("queue")
        queue.pop().fail("group", "message")
        client.jobs["jid"].move("queue")
        client.jobs["jid"].cancel()
        queue.put("klass", {}, jid="jid")
        client.untrack("jid")
        eventually(lambda: ("untrack", "jid") in messages)
    assert [event for event, _ in messages] == [
        "track", "popped", "completed", "popped", "failed", "put", "canceled", "put", "untrack",
    ]  # fmt: skip


# The worker


@contextlib.contextmanager
def working(
    url: str, folder: Path, *queues: str, workers: int = 1, verbose: bool = False
) -> Iterator[WorkerLoop]:
    names = [word for queue in queues for word in ("--queue", queue)]
    command = [
        sys.executable, WORKER, "--host", url, "--name", "forking", "--workdir", folder,
        "--path", HERE, "--import", "qless_py_jobs", "--workers", str(workers), "--interval", "1",
        *names, *(["--verbose"] if verbose else []),
    ]  # fmt: skip
    worker = WorkerLoop(command)
    try:
        yield worker
    finally:
        worker._process.send_signal(signal.SIGTERM)  # it ends its child processes
        worker.wait_exit()
        worker.close()


def test_the_worker_works_a_queue(url: str, client: qless.Client, tmp_path: Path) -> None:
    queue = client.queues["queue"]
    wanted = {str(number) for number in range(20)}
    for number in wanted:
        queue.put("qless_py_jobs.Echo", {"n": number})
    with working(url, tmp_path, "queue", workers=3) as worker:
        echoed = {json.loads(worker.wait_for("echo ").partition(" ")[2])["n"] for _ in wanted}
        assert echoed == wanted
        eventually(lambda: len(client.jobs.complete()) == len(wanted))
        assert client.workers.counts[0]["name"] == "forking"


def test_the_worker_goes_through_stages(url: str, client: qless.Client, tmp_path: Path) -> None:
    jid = client.queues["first"].put("qless_py_jobs.Stages", {})
    with working(url, tmp_path, "second", "first") as worker:
        assert worker.wait_for("stages ") == 'stages ["first", "second"]'
    job = client.jobs[jid]
    assert (job.state, job.data["stages"]) == ("complete", ["first", "second"])
    assert [stage["what"] for stage in job.history] == [
        "put", "popped", "done", "put", "popped", "done",
    ]  # fmt: skip


def test_the_worker_reports_errors(url: str, client: qless.Client, tmp_path: Path) -> None:
    jid = client.queues["queue"].put("qless_py_jobs.Stumble", {})
    with working(url, tmp_path, "queue") as worker:
        worker.wait_for("stumbles")
        eventually(lambda: client.jobs[jid].state == "failed")
        assert client.jobs.failed() == {"queue-ValueError": 1}
        assert "stumbled" in client.jobs[jid].failure["message"]
        client.jobs[jid].move("queue")
        worker.wait_for("recovers")
    assert client.jobs[jid].state == "complete"


def test_the_worker_tries_again(url: str, client: qless.Client, tmp_path: Path) -> None:
    client.queues["queue"].put("qless_py_jobs.Again", {}, retries=2)
    with working(url, tmp_path, "queue") as worker:
        assert [worker.wait_for("left") for _ in range(3)] == ["left 1", "left 0", "left -1"]
    assert client.jobs.failed() == {"group": 1}


def test_the_worker_reads_its_own_channel(url: str, client: qless.Client, tmp_path: Path) -> None:
    """A message on this channel makes it abandon a job; the library only logs this."""
    jid = client.queues["queue"].put("qless_py_jobs.Long", {})
    with working(url, tmp_path, "queue", verbose=True) as worker:
        worker.wait_for(f"works on {jid}")
        eventually(lambda: "ql:w:forking" in client.redis.pubsub_channels())
        client.jobs[jid].cancel()
        worker.wait_for("Pubsub error")  # its listener exits in its own thread


# The server's end


def test_all_data_survives_a_kill(tmp_path: Path) -> None:
    with running_server(tmp_path / "data", MILLRACE_QLESS_PORT="0") as server:
        client = qless.Client(f"redis://127.0.0.1:{server.ports['qless']}", hostname="w")
        queue = client.queues["queue"]
        queue.put("klass", {"n": 1}, jid="held", tags=["t"])
        held = queue.pop()
        queue.put("klass", {}, jid="waits", depends=["held"])
        client.track("held")
        client.config["heartbeat"] = 30
        queue.recur("klass", {}, interval=3600, offset=3600, jid="recurring")
        held.heartbeat()
        server.restart()
        again = redis.Redis(port=server.ports["qless"], decode_responses=True)
        client.redis = again
        client._lua.registered_client = again
        assert again.script_exists(client._lua.sha) == [True]
        assert client.jobs["held"].worker_name == "w"
        assert client.jobs["held"].tracked is True
        assert client.jobs["waits"].dependencies == ["held"]
        assert client.jobs["recurring"].interval == 3600
        assert client.config["heartbeat"] == 30
        assert client.jobs["held"].complete() == "complete"
        assert queue.pop().jid == "waits"
        again.close()

"""reqless, as published on PyPI: its client and its forking worker."""

import contextlib
import json
import queue as threadsafe
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import reqless
from reqless.exceptions import LostLockError
from reqless.listener import Listener

from server_process import ServerProcess, running_server

LOOP = Path(__file__).with_name("reqless_loop.py")
DEADLINE = 20.0
PASSWORD = "open-sesame"


@pytest.fixture(scope="module", params=["plain", "password"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    password = PASSWORD if request.param == "password" else None
    with running_server(
        tmp_path_factory.mktemp("reqless") / "data",
        MILLRACE_QLESS_PORT="0",
        MILLRACE_QLESS_PASSWORD=password,
    ) as server:
        yield server


@pytest.fixture
def url(server: ServerProcess) -> str:
    password = server.env["MILLRACE_QLESS_PASSWORD"]
    login = f":{password}@" if password else ""
    return f"redis://{login}127.0.0.1:{server.ports['qless']}"


@pytest.fixture
def client(url: str) -> Iterator[reqless.Client]:
    client = reqless.Client(url, hostname="me")
    client.redis.flushdb()
    yield client
    client.redis.close()


@pytest.fixture
def queue(client: reqless.Client) -> reqless.Queue:
    return client.queues["testing"]


def eventually(what: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + DEADLINE
    while not (found := what()):
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.02)
    return found


# Jobs


def test_put_pop_complete(client: reqless.Client, queue: reqless.Queue) -> None:
    jid = queue.put("Foo", '{"number": 1}', priority=2, tags=["a", "b"], retries=3)
    job = client.jobs[jid]
    assert (job.state, job.klass_name, job.data) == ("waiting", "Foo", '{"number": 1}')
    assert (job.priority, job.tags, job.original_retries) == (2, ["a", "b"], 3)
    assert len(queue) == 1
    popped = queue.pop()
    assert (popped.jid, popped.state, popped.worker_name) == (jid, "running", "me")
    assert 50 < popped.ttl <= 60
    assert queue.jobs.running() == [jid]
    assert client.workers["me"] == {"jobs": [jid], "stalled": []}
    assert popped.complete() == "complete"
    assert client.jobs.complete() == [jid]
    assert [each["what"] for each in client.jobs[jid].history] == ["put", "popped", "done"]
    assert queue.pop() is None
    assert client.jobs["nope"] is None


def test_jobs_are_popped_by_priority_then_push_order(queue: reqless.Queue) -> None:
    jids = [queue.put("Foo", "{}", priority=priority) for priority in (0, 5, 0, 5)]
    order = [jids[1], jids[3], jids[0], jids[2]]
    assert [job.jid for job in queue.peek(0, 10)] == order
    assert [job.jid for job in queue.peek(1, 2)] == order[1:3]
    assert queue.peek().jid == order[0]
    assert [job.jid for job in queue.pop(10)] == order


def test_data_is_unchanged(queue: reqless.Queue) -> None:
    data = '{"big": 12345678901234567890, "empty": [], "text": "\\u00fc \\/ \u00fc"}'
    queue.put("Foo", data)
    job = queue.pop()
    assert job.data == data
    job.heartbeat()
    assert job.client.jobs[job.jid].data == data


def test_fail_and_unfail(client: reqless.Client, queue: reqless.Queue) -> None:
    jid = queue.put("Foo", "{}")
    assert queue.pop().fail("group", "message") == jid
    assert client.jobs.failed() == {"group": 1}
    found = client.jobs.failed("group")
    assert (found["total"], [job.jid for job in found["jobs"]]) == (1, [jid])
    failure = found["jobs"][0].failure
    assert (failure["group"], failure["message"], failure["worker"]) == ("group", "message", "me")
    assert client.unfail("group", "testing") == 1
    assert queue.pop().jid == jid


def test_retry(client: reqless.Client, queue: reqless.Queue) -> None:
    jid = queue.put("Foo", "{}", retries=1)
    assert queue.pop().retry(group="group", message="message") == 0
    job = queue.pop()
    assert (job.retries_left, job.failure["group"]) == (0, "group")
    assert job.retry() == -1
    assert client.jobs[jid].state == "failed"
    assert client.jobs.failed() == {"failed-retries-testing": 1}


def test_heartbeat_and_lost_locks(client: reqless.Client, queue: reqless.Queue, url: str) -> None:
    jid = queue.put("Foo", "{}")
    job = queue.pop()
    before = job.expires_at
    assert job.heartbeat() >= int(before)
    assert queue.heartbeat == 60
    queue.heartbeat = -10
    client.config["grace-period"] = 0
    job.heartbeat()
    other = reqless.Client(url, hostname="other")
    assert other.queues["testing"].pop().jid == jid
    with pytest.raises(LostLockError):
        job.heartbeat()
    with pytest.raises(reqless.ReqlessError, match="handed out to another worker: other"):
        job.complete()
    other.redis.close()


def test_dependencies(client: reqless.Client, queue: reqless.Queue) -> None:
    first, second = queue.put("Foo", "{}"), queue.put("Foo", "{}")
    last = queue.put("Foo", "{}", depends=[first])
    assert client.jobs[last].depend(second)
    assert client.jobs[last].dependencies == [first, second]
    assert client.jobs[first].dependents == [last]
    assert queue.jobs.depends() == [last]
    with pytest.raises(reqless.ReqlessError, match="is a dependency of"):
        client.jobs[first].cancel()
    assert client.jobs[last].undepend(second)
    queue.pop().complete()
    assert client.jobs[last].state == "waiting"
    assert client.jobs[last].cancel() == [last]
    assert client.jobs[last] is None


def test_advancing_moving_and_delays(client: reqless.Client, queue: reqless.Queue) -> None:
    jid = queue.put("Foo", "{}")
    assert queue.pop().complete("other") == "waiting"
    assert client.queues["other"].pop().complete("testing", delay=60) == "scheduled"
    assert queue.jobs.scheduled() == [jid]
    client.jobs[jid].move("third")
    assert client.jobs[jid].queue_name == "third"
    assert client.jobs[jid].throttles == ["ql:q:third"]


def test_requeue(client: reqless.Client, queue: reqless.Queue) -> None:
    with pytest.raises(reqless.ReqlessError, match="does not exist"):
        queue.requeue("Foo", "{}", jid="nope")
    jid = queue.put("Foo", "{}")
    queue.pop().fail("group", "message")
    assert queue.requeue("Foo", "{}", jid=jid) == jid
    assert client.jobs[jid].state == "waiting"


def test_timeout_and_priority(client: reqless.Client, queue: reqless.Queue) -> None:
    first, second = queue.put("Foo", "{}"), queue.put("Foo", "{}")
    job = queue.pop()
    assert job.jid == first
    job.timeout()
    assert client.jobs[first].state == "stalled"
    assert queue.pop().jid == first
    client.jobs[second].priority = 7
    assert client.jobs[second].priority == 7


def test_recurring_jobs(client: reqless.Client, queue: reqless.Queue) -> None:
    jid = queue.recur("Foo", '{"n":1}', interval=60, tags=["t"], throttles=["limit"])
    recurring = client.jobs[jid]
    assert isinstance(recurring, reqless.RecurringJob)
    assert recurring.throttles == ["limit", "ql:q:testing"]
    assert queue.jobs.recurring() == [jid]
    assert queue.counts["recurring"] == 1
    recurring.interval = 30
    recurring.data = '{"n":2}'
    recurring.tag("u")
    job = queue.pop()
    assert (job.jid, job.data, job.tags) == (f"{jid}-1", '{"n":2}', ["t", "u"])
    assert job.throttles == ["limit", "ql:q:testing"]
    assert client.jobs[jid].count == 1
    recurring.cancel()
    assert client.jobs[jid] is None


def test_tags(client: reqless.Client, queue: reqless.Queue) -> None:
    jids = [queue.put("Foo", "{}", tags=["x"]) for _ in range(2)]
    assert client.tags() == ["x"]
    assert sorted(client.jobs.tagged("x")["jobs"]) == sorted(jids)
    assert json.loads(client.jobs[jids[0]].tag("y")) == ["x", "y"]
    assert json.loads(client.jobs[jids[0]].untag("x")) == ["y"]
    assert client.jobs.tagged("x") == {"total": 1, "jobs": [jids[1]]}


def test_tracking(client: reqless.Client, queue: reqless.Queue) -> None:
    jid = queue.put("Foo", "{}")
    assert client.jobs.tracked() == {"jobs": [], "expired": {}}
    assert client.jobs[jid].track()
    assert [job.jid for job in client.jobs.tracked()["jobs"]] == [jid]
    assert client.jobs[jid].tracked
    assert client.untrack(jid)


def test_statistics(queue: reqless.Queue) -> None:
    for _ in range(3):
        queue.put("Foo", "{}")
    first, second, _ = queue.pop(3)
    first.complete()
    second.fail("group", "message")
    stats = queue.stats()
    assert (stats["wait"]["count"], stats["run"]["count"], stats["failures"]) == (3, 1, 1)
    assert sum(stats["wait"]["histogram"]) == 3


def test_queues_workers_and_options(client: reqless.Client, queue: reqless.Queue) -> None:
    queue.put("Foo", "{}")
    (counts,) = client.queues.counts
    assert counts == {
        "name": "testing",
        "waiting": 1,
        "running": 0,
        "stalled": 0,
        "scheduled": 0,
        "depends": 0,
        "recurring": 0,
        "throttled": 0,
        "paused": False,
    }
    queue.pause()
    assert queue.pop() is None
    queue.unpause()
    assert queue.pop() is not None
    assert client.workers.counts == [{"name": "me", "jobs": 1, "stalled": 0}]
    assert client.config["heartbeat"] == 60
    client.config["heartbeat"] = 120
    assert client.config["heartbeat"] == 120
    del client.config["heartbeat"]
    assert "application" in client.config


# Events


def test_events(client: reqless.Client, queue: reqless.Queue, url: str) -> None:
    listener = reqless.Client(url)
    messages: threadsafe.Queue[tuple[str, str]] = threadsafe.Queue()
    for event in listener.events.events:
        listener.events.on(event, lambda jid, event=event: messages.put((event, jid)))
    thread = threading.Thread(target=listener.events.listen, daemon=True)
    thread.start()
    eventually(lambda: client.redis.publish("ql:track", "hello"))
    jid = queue.put("Foo", "{}")
    client.track(jid)
    queue.pop().retry()
    queue.pop().fail("group", "message")
    client.unfail("group", "testing")
    queue.pop().complete()
    client.untrack(jid)
    wanted = ["track", "popped", "popped", "failed", "popped", "completed", "untrack"]
    seen = [messages.get(timeout=DEADLINE) for _ in range(len(wanted) + 1)]
    assert [event for event in seen if event != ("track", "hello")] == [(e, jid) for e in wanted]
    listener.events._listener.unlisten()
    thread.join(DEADLINE)
    assert not thread.is_alive()
    listener.redis.close()


def test_a_worker_is_notified_when_its_job_is_cancelled(
    client: reqless.Client, queue: reqless.Queue, url: str
) -> None:
    other = reqless.Client(url)
    listener = Listener(other.redis, ["ql:w:me"])
    messages: threadsafe.Queue[dict] = threadsafe.Queue()
    thread = threading.Thread(target=lambda: [messages.put(each) for each in listener.listen()])
    thread.start()
    eventually(lambda: client.redis.publish("ql:w:me", "{}"))
    first, second = queue.put("Foo", "{}"), queue.put("Foo", "{}")
    queue.pop(2)
    client.jobs[first].cancel()
    client.jobs[second].timeout()
    output = [json.loads(messages.get(timeout=DEADLINE)["data"]) for _ in range(3)]
    assert [(each["event"], each["jid"]) for each in output if each] == [
        ("canceled", first),
        ("lock_lost", second),
    ]
    listener.unlisten()
    thread.join(DEADLINE)
    assert not thread.is_alive()
    other.redis.close()


# Throttles


def test_throttles(client: reqless.Client, queue: reqless.Queue) -> None:
    throttle = client.throttles["limit"]
    assert throttle.maximum() == 0
    throttle.set_maximum(1)
    assert (throttle.maximum(), throttle.ttl()) == (1, -1)
    first = queue.put("Foo", "{}", throttles=["limit"])
    second = queue.put("Foo", "{}", throttles=["limit"])
    assert client.jobs[first].throttles == ["limit", "ql:q:testing"]
    (running,) = queue.pop(2)
    assert running.jid == first
    assert (throttle.locks(), throttle.pending()) == ([first], [second])
    assert client.jobs[second].state == "throttled"
    assert (queue.counts["throttled"], queue.counts["waiting"]) == (1, 0)
    assert queue.pop() is None
    running.complete()
    assert (throttle.locks(), throttle.pending()) == ([], [])
    assert queue.pop().jid == second
    throttle.set_maximum(5, 1000)
    assert 990 < throttle.ttl() <= 1000
    throttle.delete()
    assert throttle.maximum() == 0


def test_a_throttle_outlives_the_server(tmp_path: Path) -> None:
    with running_server(tmp_path / "data", MILLRACE_QLESS_PORT="0") as server:
        client = reqless.Client(f"redis://127.0.0.1:{server.ports['qless']}", hostname="me")
        client.queues["testing"].throttle.set_maximum(1)
        first, second = (client.queues["testing"].put("Foo", "{}") for _ in range(2))
        assert [job.jid for job in client.queues["testing"].pop(2)] == [first]
        assert client.jobs[second].state == "throttled"
        client.redis.close()
        server.restart()
        client = reqless.Client(f"redis://127.0.0.1:{server.ports['qless']}", hostname="me")
        queue = client.queues["testing"]
        assert (queue.throttle.maximum(), queue.throttle.locks()) == (1, [first])
        assert queue.throttle.pending() == [second]
        assert queue.pop() is None
        client.jobs[first].complete()
        assert queue.pop().jid == second
        client.redis.close()


# The worker


class Loop:
    """The worker's process and its output."""

    def __init__(self, url: str, queue: str, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, LOOP, url, queue, f"worker-{uuid.uuid4().hex[:8]}"],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=(folder / "stderr").open("wb"),
        )
        self.lines: threadsafe.Queue[str] = threadsafe.Queue()
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line.decode().strip())

    def next_line(self) -> str:
        return self.lines.get(timeout=DEADLINE)

    def stop(self) -> int:
        """End the worker. It loses a signal that arrives while it forks, so the signal is repeated."""
        try:
            for _ in range(3):
                self.process.send_signal(signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return self.process.wait(5)
            return self.process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            self.thread.join(DEADLINE)


@pytest.fixture
def loop(client: reqless.Client, url: str, tmp_path: Path) -> Iterator[Loop]:
    loop = Loop(url, "testing", tmp_path)
    yield loop
    if loop.process.poll() is None:
        loop.stop()


def test_the_worker_works(client: reqless.Client, queue: reqless.Queue, loop: Loop) -> None:
    jids = [queue.put("reqless_loop.Echo", f'{{"n":{n}}}') for n in range(20)]
    output = sorted(loop.next_line() for _ in jids)
    assert output == sorted(f'echo {{"n":{n}}}' for n in range(20))
    eventually(lambda: len(client.jobs.complete(0, 50)) == 20)


def test_the_worker_reports_failures(
    client: reqless.Client, queue: reqless.Queue, loop: Loop
) -> None:
    jid = queue.put("reqless_loop.Stumble", "{}")
    unknown = queue.put("no.such.Thing", "{}")
    eventually(lambda: sum(client.jobs.failed().values()) == 2)
    failure = client.jobs[jid].failure
    assert failure["group"] == "testing-RuntimeError"
    assert "stumbled" in failure["message"]
    assert client.jobs[unknown].failure["group"] == "testing-ModuleNotFoundError"


def test_the_worker_retries_and_advances(
    client: reqless.Client, queue: reqless.Queue, loop: Loop
) -> None:
    jid = queue.put("reqless_loop.Step", "{}")
    assert [loop.next_line() for _ in range(3)] == [
        f"{word} {jid}" for word in ("step", "retry", "done")
    ]
    eventually(lambda: client.jobs[jid].state == "complete")


def test_a_throttle_keeps_the_workers_apart(
    client: reqless.Client, queue: reqless.Queue, loop: Loop
) -> None:
    client.throttles["alone"].set_maximum(1)
    for _ in range(4):
        queue.put("reqless_loop.Slow", "{}", throttles=["alone"])
    output = [loop.next_line().split() for _ in range(8)]
    assert [word for word, _ in output] == ["begin", "end"] * 4
    assert len({jid for _, jid in output}) == 4


def test_the_worker_stops(client: reqless.Client, queue: reqless.Queue, loop: Loop) -> None:
    # Python drops a signal that a process gets during its fork, so both processes must run.
    words: list[str] = []
    while words[:2] != ["begin", "begin"]:
        for _ in range(2):
            queue.put("reqless_loop.Slow", "{}")
        words = [loop.next_line().split()[0] for _ in range(4)]
    assert loop.stop() == 0
    jid = queue.put("reqless_loop.Echo", "{}")
    assert client.jobs[jid].state == "waiting"

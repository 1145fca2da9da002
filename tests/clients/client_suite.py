"""The requirements for every client library of a Millrace server: one suite for all of them.

The test module of a library subclasses ClientSuite and implements each action with that library.
"""

import abc
import contextlib
import datetime as dt
import json
import queue as threadsafe
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from raw_faktory import HOST, RawFaktory

DEADLINE = 20.0
TIMEOUT = 0.02


@dataclass(frozen=True, slots=True)
class Endpoint:
    port: int
    password: str | None
    ca: Path | None

    @property
    def tls(self) -> bool:
        return self.ca is not None

    @property
    def url(self) -> str:
        scheme = "tcp+tls" if self.tls else "tcp"
        login = "" if self.password is None else f":{self.password}@"
        return f"{scheme}://{login}{HOST}:{self.port}"

    def raw(self, wid: str | None = None) -> RawFaktory:
        return RawFaktory(self.port, password=self.password, ca=self.ca, wid=wid)


class Client(abc.ABC):
    """One connected client of the library under test that can push and work."""

    @abc.abstractmethod
    def push(
        self, jid: str, queue: str, jobtype: str, args: list[Any], at: dt.datetime | None
    ) -> None: ...

    @abc.abstractmethod
    def fetch(self, queue: str) -> dict[str, Any] | None: ...

    @abc.abstractmethod
    def ack(self, jid: str) -> None: ...

    @abc.abstractmethod
    def fail(self, jid: str, message: str) -> str:
        """Report a failure. Returns the error type that the library sends."""

    @abc.abstractmethod
    def beat(self) -> str:
        """The library's interpretation of the reply: running, quiet or terminate."""


class WorkerLoop:
    """The library's own worker loop in a separate process, and the lines it prints."""

    def __init__(self, command: list[Any], env: dict[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env
        )
        self._lines: threadsafe.Queue[str | None] = threadsafe.Queue()
        self._seen: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def wait_for(self, text: str) -> str:
        """The next line that contains `text`."""
        deadline = time.monotonic() + DEADLINE
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except threadsafe.Empty:
                line = None
            assert line is not None, f"the worker did not print {text!r}, only {self._seen}"
            self._seen.append(line)
            if text in line:
                return line

    def wait_exit(self) -> None:
        self._process.wait(DEADLINE)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


class ClientSuite(abc.ABC):
    refusals: tuple[type[Exception], ...]  # the library's errors for a wrong password
    quiet_line: str  # part of the line that its worker loop prints when it becomes quiet

    @abc.abstractmethod
    def connect(
        self, endpoint: Endpoint, wid: str
    ) -> contextlib.AbstractContextManager[Client]: ...

    @abc.abstractmethod
    def work(self, endpoint: Endpoint, queue: str, wid: str) -> WorkerLoop:
        """Start the library's worker loop, with the jobs `echo` and `stumble`."""

    @pytest.fixture
    def client(self, endpoint: Endpoint, wid: str) -> Iterator[Client]:
        with self.connect(endpoint, wid) as client:
            yield client

    @pytest.fixture
    def raw(self, endpoint: Endpoint) -> Iterator[RawFaktory]:
        with endpoint.raw() as raw:
            yield raw

    def test_a_pushed_job_is_fetched_unchanged_and_removed_by_its_ack(
        self, client: Client, raw: RawFaktory, queue: str
    ) -> None:
        jid = uuid.uuid4().hex
        args = [1, -2.5, "Grüße, 世界 🦆", None, True, {"deep": [[], {"er": "\r\n\t\"'"}]}]
        working = raw.set_size("working")
        client.push(jid, queue, "echo", args, None)
        assert raw.queue_size(queue) == 1

        unit = client.fetch(queue)
        assert unit is not None
        assert unit["jid"] == jid
        assert unit["queue"] == queue
        assert unit["jobtype"] == "echo"
        assert unit["args"] == args
        assert unit["enqueued_at"]
        assert "failure" not in unit
        assert (raw.queue_size(queue), raw.set_size("working")) == (0, working + 1)

        before = raw.info()["faktory"]["total_processed"]
        client.ack(jid)
        after = raw.info()["faktory"]
        assert after["total_processed"] == before + 1
        assert after["sets"]["working"] == working

    def test_a_job_larger_than_any_buffer(self, client: Client, queue: str) -> None:
        jid = uuid.uuid4().hex
        args = ["abcdefgh" * 40_000]
        client.push(jid, queue, "echo", args, None)
        unit = client.fetch(queue)
        assert unit is not None
        assert unit["args"] == args
        client.ack(jid)

    def test_a_scheduled_job_is_fetched_when_it_is_due_and_not_before(
        self, client: Client, raw: RawFaktory, queue: str
    ) -> None:
        jid = uuid.uuid4().hex
        scheduled = raw.set_size("scheduled")
        at = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=1)
        at = at.replace(microsecond=at.microsecond // 1000 * 1000)
        client.push(jid, queue, "echo", [], at)
        assert raw.set_size("scheduled") == scheduled + 1
        assert raw.queue_size(queue) == 0

        unit = self._fetch_within(DEADLINE, client, queue)
        now = dt.datetime.now(dt.UTC)
        assert unit["jid"] == jid
        assert at <= now < at + dt.timedelta(seconds=3)
        assert raw.set_size("scheduled") == scheduled
        client.ack(jid)

    def test_a_failed_job_is_retried_with_its_failure(
        self, client: Client, raw: RawFaktory, queue: str
    ) -> None:
        jid = uuid.uuid4().hex
        retries = raw.set_size("retries")
        client.push(jid, queue, "echo", [], None)
        for failures in range(2):
            unit = client.fetch(queue)
            assert unit is not None
            errtype = client.fail(jid, f"no luck, {failures}")
            assert raw.set_size("retries") == retries + 1
            assert raw.queue_size(queue) == 0

            raw.mutate("requeue", "retries", jid)
            assert raw.set_size("retries") == retries
            assert raw.queue_size(queue) == 1
        unit = client.fetch(queue)
        assert unit is not None
        assert unit["jid"] == jid
        assert unit["failure"]["retry_count"] == 1
        assert unit["failure"]["errtype"] == errtype
        assert unit["failure"]["message"] == "no luck, 1"
        client.ack(jid)

    def test_heartbeats_return_quiet_and_terminate(
        self, client: Client, raw: RawFaktory, wid: str
    ) -> None:
        assert client.beat() == "running"
        assert raw.command(f"WORKER QUIET {wid}") == "OK"
        assert client.beat() == "quiet"
        assert client.beat() == "quiet"
        assert raw.command(f"WORKER TERMINATE {wid}") == "OK"
        assert client.beat() == "terminate"

    def test_a_wrong_password_is_refused(self, endpoint: Endpoint, wid: str) -> None:
        wrong = replace(endpoint, password="wrong")
        if endpoint.password is None:
            with self.connect(wrong, wid) as client:  # the server does not require it
                assert client.beat() == "running"
            return
        with pytest.raises(self.refusals, match=r"(?i)password"), self.connect(wrong, wid):
            pass

    @pytest.mark.parametrize("endpoint", ["plain", "tls and password"], indirect=True)
    def test_the_librarys_own_worker_loop(
        self, endpoint: Endpoint, raw: RawFaktory, queue: str, wid: str, tmp_path: Path
    ) -> None:
        retries, working = raw.set_size("retries"), raw.set_size("working")
        worker = self.work(endpoint, queue, wid)
        try:
            for n in range(10):
                raw.push(_unit(queue, "echo", [n, "é"]))
            for n in range(10):
                echoed = worker.wait_for("echo ")
                assert json.loads(echoed.partition(" ")[2])[1] == "é", n

            stumbling = _unit(queue, "stumble", [str(tmp_path / "stumbled")])
            raw.push(stumbling)
            worker.wait_for("stumbled")
            _poll(lambda: raw.set_size("retries") == retries + 1)
            raw.mutate("requeue", "retries", stumbling["jid"])
            worker.wait_for("recovered")
            _poll(lambda: raw.set_size("working") == working)

            assert raw.command(f"WORKER QUIET {wid}") == "OK"
            worker.wait_for(self.quiet_line)
            raw.push(_unit(queue, "echo", ["never fetched"]))
            assert raw.command(f"WORKER TERMINATE {wid}") == "OK"
            worker.wait_exit()
            assert raw.queue_size(queue) == 1
            assert raw.set_size("working") == working
        finally:
            worker.close()

    @staticmethod
    def _fetch_within(seconds: float, client: Client, queue: str) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if (unit := client.fetch(queue)) is not None:
                return unit
        raise AssertionError(f"no job from {queue} within {seconds} s")


def _unit(queue: str, jobtype: str, args: list[Any]) -> dict[str, Any]:
    return {"jid": uuid.uuid4().hex, "queue": queue, "jobtype": jobtype, "args": args}


def _poll(condition: Any) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(TIMEOUT)

"""Requests with a large number of arguments, and jobs with a large number of dependencies or tags:
other clients are served in between, and the cost of a request is proportional to its size.
"""

from collections.abc import Generator
from random import Random
from time import process_time
from typing import Any

import pytest

from millrace.engine.consistency import check_engine
from millrace.engine.engine import Engine
from millrace.engine.job import NewJob
from millrace.protocols.qless.calls import QlessApi
from millrace.protocols.qless.connection import QlessConnection
from millrace.protocols.qless.errors import ScriptError
from millrace.protocols.qless.hub import QlessHub
from millrace.protocols.qless.resp import READ_BATCH_ARGUMENTS
from millrace.protocols.registry import QLESS
from millrace.protocols.spec import protocol_rules
from wires import data_of

NOW = 1_794_771_831_000_000


class Port:
    """A Qless port with some jobs, j0 and following."""

    def __init__(self, jobs: int) -> None:
        self.engine = Engine(Random(1), protocol_rules())
        self.hub = QlessHub(self.engine, started_at=NOW)
        self.api = QlessApi(self.hub)
        for number in range(jobs):
            self.engine.push(NewJob(f"j{number}", "x", b"{}", QLESS, "q", 5, 1_800_000_000), NOW)

    def call(self, command: str, *words: object, dialect: str = "C") -> Any:
        """The reply, or a generator with the remaining slices."""
        args = [str(word).encode() for word in words]
        return self.api.call(dialect, command, [], args if dialect == "A" else [b"1", *args], NOW)

    def finish(self, work: Any) -> tuple[Any, int]:
        """The reply, and the number of its slices."""
        slices = 1
        while isinstance(work, Generator):
            try:
                next(work)
            except StopIteration as ended:
                return ended.value, slices
            slices += 1
        return work, slices


def request(*words: str) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(
        b"$%d\r\n%b\r\n" % (len(word), word.encode()) for word in words
    )


def test_a_request_with_many_arguments_is_parsed_over_several_turns() -> None:
    client = QlessConnection(Port(0).hub)
    sent = request("EXISTS", *["a"] * 50_000) + request("PING")
    more, turns = client.receive(sent, NOW, 64), 1
    while client.work is None:
        assert more
        more = client.run(NOW, 1)
        turns += 1
    assert turns == 50_001 // READ_BATCH_ARGUMENTS + 1
    while more:
        more = client.run(NOW, 1)
    assert data_of(client) == [b":0\r\n", b"+PONG\r\n"]


def test_the_dependencies_of_a_job_change_in_linear_time() -> None:
    """Blockers are looked up in a set: 20,000 of them took a second in a list."""
    port = Port(20_000)
    port.call("put", "", "q", "blocked", "K", "{}", 0, "depends", '["j0"]')
    names = [f"j{number}" for number in range(20_000)]
    job = port.engine.find("blocked")
    reply, slices = port.finish(port.call("depends", "blocked", "on", *names))
    assert reply == 1
    assert slices >= 100
    assert job.extra.blockers == [port.engine.find(name).seq for name in names]
    reply, _ = port.finish(port.call("depends", "blocked", "off", *names[:0:-1]))
    assert reply == 1
    assert job.extra.blockers == [port.engine.find("j0").seq]
    assert not check_engine(port.engine).problems


def test_nothing_changes_if_the_job_starts_before_its_dependencies_are_found() -> None:
    port = Port(1000)
    names = [f"j{number}" for number in range(1000)]
    for dialect in ("C", "D", "A"):
        jid = f"blocked-{dialect}"
        port.call("put", "", "q", jid, "K", "{}", 0, "depends", '["j0"]')
        command = "job.addDependency" if dialect == "D" else "depends"
        words = (jid, *names) if dialect == "D" else (jid, "on", *names)
        work = port.call(command, *words, dialect=dialect)
        assert isinstance(work, Generator)
        next(work)
        job = port.engine.find(jid)
        port.engine.unblock(job, list(job.extra.blockers), NOW)
        if dialect == "A":
            assert port.finish(work)[0] is None
        else:
            with pytest.raises(ScriptError, match="not in the depends state: waiting"):
                port.finish(work)
        assert not job.extra or not job.extra.blockers


def test_many_tags_are_removed_in_linear_time() -> None:
    port = Port(1)
    tags = [f"tag-{number}" for number in range(20_000)]
    port.finish(port.call("tag", "add", "j0", *tags))
    began = process_time()
    reply, _ = port.finish(port.call("tag", "remove", "j0", *tags[1:], *tags[:0:-1]))
    assert reply == b'["tag-0"]'
    assert process_time() - began < 0.5  # 2 s if each tag is searched in a list

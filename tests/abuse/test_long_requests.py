"""Requests with a large number of arguments, and jobs with a large number of dependencies or tags:
other clients are served in between, and the cost of a request is proportional to its size.
"""

import asyncio
import json
import sys
import tracemalloc
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from random import Random
from time import process_time
from types import FrameType
from typing import Any

import pytest
from held_server import HeldServer

from millrace.engine.consistency import check_engine
from millrace.engine.engine import Engine
from millrace.engine.job import NewJob
from millrace.engine.queue_rules import rule_for
from millrace.engine.states import BLOCKED, READY
from millrace.protocols.faktory.bulk import BulkRequest, ReadCursors, ReadRequest, execute_bulk
from millrace.protocols.masenko.connection import MasenkoConnection
from millrace.protocols.masenko.hub import MasenkoHub
from millrace.protocols.qless import lua_values
from millrace.protocols.qless.calls import QlessApi
from millrace.protocols.qless.connection import QlessConnection
from millrace.protocols.qless.errors import ScriptError
from millrace.protocols.qless.flush import flush
from millrace.protocols.qless.hub import QlessHub
from millrace.protocols.qless.resp_requests import READ_BATCH_ARGUMENTS
from millrace.protocols.registry import FAKTORY, MASENKO, QLESS, WORKQ
from millrace.protocols.spec import protocol_rules
from millrace.protocols.workq.connection import WorkqConnection
from millrace.protocols.workq.hub import WorkqHub
from millrace.server.turns import LARGE_TURN_QUEUES
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
    while client.long_command is None:
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


LONG = 3000


def long_list(count: int = LONG) -> str:
    return json.dumps([f"j{number}" for number in range(count)])


def lines_of(work: Generator[None, None, Any]) -> tuple[Any, int]:
    """The result of a long command, and the highest number of lines of Python in one slice."""
    lines = most = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal lines
        lines += 1
        return trace

    while True:
        lines = 0
        sys.settrace(trace)
        try:
            next(work)
        except StopIteration as ended:
            return ended.value, max(most, lines)
        finally:
            sys.settrace(None)
        most = max(most, lines)


@pytest.mark.parametrize("dialect", ["C", "D"])
def test_a_put_with_many_dependencies_takes_effect_at_once(dialect: str) -> None:
    port = Port(LONG)
    port.engine.complete(port.engine.lease(["q"], "w", QLESS, NOW), NOW, QLESS)  # j0
    command = "queue.put" if dialect == "D" else "put"
    words = ("", "q", "long", "K", "{}", 0, "depends", long_list())
    work = port.call(command, *words, dialect=dialect)
    assert isinstance(work, Generator)
    for _ in range(8):
        next(work)
    assert port.engine.find("long") is None
    for name in ("j1", "j2999"):  # one is found already, the other is not
        port.engine.cancel(port.engine.find(name), NOW, QLESS)
    reply, _ = port.finish(work)
    assert reply == b"long"
    job = port.engine.find("long")
    assert job.extra.blockers == [port.engine.find(f"j{n}").seq for n in range(2, LONG - 1)]
    assert port.engine.first_dependents(port.engine.find("j5"), 9) == ([job], 0)
    assert not check_engine(port.engine).problems
    port.engine.cancel(port.engine.find("j7"), NOW, QLESS)  # the index does not contain it yet
    assert len(job.extra.blockers) == LONG - 4
    for _ in range(10):
        port.engine.tick(NOW)
    assert port.engine.dependencies.by_blocker[port.engine.find("j5").seq] == [job.seq]
    assert not check_engine(port.engine).problems
    for number in (2, 3, 4, 5, 6, *range(8, LONG - 1)):
        assert job.state == BLOCKED
        port.engine.cancel(port.engine.find(f"j{number}"), NOW, QLESS)
    assert job.state == READY
    assert not port.engine.dependencies.by_blocker


def test_no_slice_of_a_long_list_of_dependencies_is_long() -> None:
    port = Port(LONG)
    put = port.call("put", "", "q", "long", "K", "{}", 0, "depends", long_list())
    assert lines_of(put)[1] < 5000
    port.call("put", "", "q", "other", "K", "{}", 0, "depends", '["j0"]')
    names = [f"j{number}" for number in range(LONG)]
    for words in (("other", "on", *names), ("other", "off", *names[1:])):
        reply, lines = lines_of(port.call("depends", *words))
        assert (reply, lines < 5000) == (1, True)
    job = port.engine.find("other")
    assert job.extra.blockers == [port.engine.find("j0").seq]
    assert [each.jid for each in port.engine.dependents(port.engine.find("j9"))] == ["long"]
    assert port.engine.next_dependent(port.engine.find("j9"), port.engine.find("long").seq) == 0
    assert not check_engine(port.engine).problems
    port.call("cancel", "long")
    for _ in range(10):
        port.engine.tick(NOW)
    assert list(port.engine.dependencies.by_blocker.values()) == [[job.seq]]


def test_a_long_list_of_dependencies_that_changes_in_between_is_kept() -> None:
    """The list is shortened and extended again before the index has all of it."""
    port = Port(LONG)
    port.finish(port.call("put", "", "q", "long", "K", "{}", 0, "depends", long_list()))
    names = [f"j{number}" for number in range(LONG)]
    port.finish(port.call("depends", "long", "off", *names[1:]))
    port.engine.tick(NOW)
    port.finish(port.call("depends", "long", "on", *names[:2000]))
    job = port.engine.find("long")
    for _ in range(10):
        assert [port.engine.dependents(port.engine.find(f"j{n}")) for n in (0, 1999, 2000)] == [
            [job],
            [job],
            [],
        ]
        assert not check_engine(port.engine).problems
        port.engine.tick(NOW)
    assert len(port.engine.dependencies.by_blocker) == 2000


def test_an_abandoned_put_with_many_dependencies_leaves_nothing() -> None:
    port = Port(LONG)
    work = port.call("put", "", "q", "long", "K", "{}", 0, "depends", long_list())
    next(work)
    next(work)
    work.close()
    assert not port.engine.dependencies.by_blocker
    work = port.call("put", "", "q", "long", "K", "{}", 0, "depends", long_list()[:-1] + ",]")
    with pytest.raises(ScriptError, match="Expected value but found"):
        port.finish(work)
    assert not port.engine.dependencies.by_blocker
    assert port.engine.find("long") is None


def test_a_flush_during_a_put_removes_its_dependencies() -> None:
    port = Port(LONG)
    work = port.call("put", "", "q", "long", "K", "{}", 0, "depends", long_list())
    for _ in range(8):
        next(work)
    port.engine.flush(NOW)
    assert port.finish(work)[0] == b"long"
    assert port.engine.find("long").state == READY
    assert not port.engine.dependencies.by_blocker


def test_a_completed_job_can_depend_on_many_jobs() -> None:
    port = Port(LONG)
    job = port.engine.lease(["q"], "w", QLESS, NOW + 10)
    words = ("next", "other", "depends", long_list())
    reply, _ = port.finish(port.call("complete", job.jid, "w", "q", "{}", *words))
    assert reply == b"depends"
    assert len(job.extra.blockers) == LONG  # it waits for itself, too
    assert not check_engine(port.engine).problems


@pytest.mark.parametrize(
    "text",
    [
        *("[]", "[ ]", "{}", '["a"]', '["a",]', "[,]", '["a",,"b"]', '["a","b"', '["a" "b"]'),
        *('["a,]","b"]', r'["\\",1, 2.5 ,"\"x\""]', "[1e5,-0,1.2.3,4]", '["a",[1],"b"]', "7"),
        *('["a",null]', '["a",true,"b"', '["a","\\ud800","b"]', '["a",]]', ' [ "a" , "b" ] '),
        *('["a","b"]x', "[01,2]", "[12345678901234567890123,1]", '["a",{},"b"]', "", "null"),
    ],
)
def test_pieces_of_a_list_are_the_list(text: str) -> None:
    def outcome(decode: Callable[[bytes], list[Any]]) -> object:
        try:
            return decode(text.encode())
        except ScriptError as error:
            return str(error)

    def joined(data: bytes) -> list[Any]:
        return [item for piece in lua_values.pieces_of_list(data) for item in piece]

    assert outcome(joined) == outcome(lua_values.decode_list)


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
    tags = [f"tag-{number}" for number in range(10_000)]
    port.finish(port.call("tag", "add", "j0", *tags))
    began = process_time()
    reply, _ = port.finish(port.call("tag", "remove", "j0", *tags[1:], *tags[:0:-1]))
    assert reply == b'["tag-0"]'
    assert process_time() - began < 0.5  # 2 s if each tag is searched in a list


def test_a_job_has_a_limited_number_of_tags() -> None:
    port = Port(1)
    tags = [f"tag-{number}" for number in range(10_001)]
    refused = "a job may have at most 10000 tags"
    with pytest.raises(ScriptError, match=refused):
        port.finish(port.call("tag", "add", "j0", *tags))
    port.finish(port.call("tag", "add", "j0", *tags[1:]))
    with pytest.raises(ScriptError, match=refused):
        port.finish(port.call("tag", "add", "j0", "one more"))
    arguments = ("w", "q", "new", "k", "{}", "0", "tags")
    with pytest.raises(ScriptError, match=refused):
        port.finish(port.call("put", *arguments, json.dumps(tags)))
    port.finish(port.call("put", *arguments, json.dumps(tags[1:])))


# Lists of many jobs

FEW, MANY = 1000, 5000


def long_lists() -> Port:
    """Thousands of jobs in each state, with tags, of two databases."""
    port = Port(0)
    engine = port.engine
    for number in range(MANY):
        late = NOW + (MANY - number) * 1_000_000
        push = NewJob(f"later-{number}", "x", b"{}", QLESS, "q", 5, 1_800_000_000, due_at=late)
        engine.push(push, NOW)
    port.call("put", "", "q", "root", "K", "{}", 0)
    root = engine.find("root").seq
    for number in range(FEW):
        name = f"db1/hidden-{number}" if number % 2 else f"blocked-{number}"
        tags = ["all", f"tag-{number // 3}"]
        push = NewJob(name, "x", b"{}", QLESS, "q", 5, 1_800_000_000, blockers=[root], tags=tags)
        engine.push(push, NOW + number % 7)
        engine.push(NewJob(f"run-{number}", "x", b"{}", QLESS, "runs", 5, 1_800_000_000), NOW)
        engine.push(NewJob(f"bad-{number}", "x", b"{}", QLESS, "bad", 5, 1_800_000_000), NOW)
    for name, worker in (("runs", "w"), ("bad", "v")):
        port.finish(port.call("pop", name, worker, FEW))
    for number in range(FEW):
        port.call("fail", f"bad-{number}", "v", "group", "message")
        port.call("track", "track", f"run-{number}")
    return port


@pytest.fixture(scope="module")
def lists() -> Port:
    return long_lists()


@pytest.mark.parametrize(
    ("dialect", "words", "least"),
    [
        ("C", ("jobs", "scheduled", "q", 0, 10), 20),
        ("C", ("jobs", "depends", "q", 0, 10_000), 5),
        ("C", ("jobs", "running", "runs", 0, -1), 5),
        ("C", ("jobs", "stalled", "runs", 0, 10), 5),
        ("C", ("stats", "bad", NOW // 1_000_000), 5),
        ("C", ("workers",), 5),
        ("C", ("workers", "w"), 5),
        ("C", ("tag", "get", "all", 0, 10), 5),
        ("C", ("tag", "top", 0, 10), 5),
        ("C", ("track",), 40),
        ("D", ("queue.jobsByState", "scheduled", "q", 0, 10), 20),
        ("D", ("queue.stats", "bad", NOW // 1_000_000), 5),
        ("D", ("workers.counts",), 5),
        ("D", ("jobs.tagged", "all", 0, 10), 5),
        ("D", ("tags.top", 0, 10), 5),
        ("D", ("jobs.tracked",), 40),
        ("D", ("queue.peek", "q", 0, 1000), 1),
    ],
)
def test_a_list_of_many_jobs_is_made_in_slices(
    lists: Port, dialect: str, words: tuple[object, ...], least: int
) -> None:
    reply, slices = lists.finish(lists.call(*words, dialect=dialect))  # type: ignore[arg-type]
    assert slices >= least
    assert reply is not None


def test_the_lists_are_complete_and_in_order(lists: Port) -> None:
    def ask(*words: object, dialect: str = "C") -> Any:
        reply, _ = lists.finish(lists.call(*words, dialect=dialect))  # type: ignore[arg-type]
        return json.loads(reply) if isinstance(reply, bytes) else reply

    later = [f"later-{number}" for number in range(MANY)][::-1]
    assert ask("jobs", "scheduled", "q", 0, MANY) == later
    assert ask("jobs", "scheduled", "q", -3, 2) == later[-3:-1]
    assert ask("queue.jobsByState", "scheduled", "q", 0, MANY, dialect="D") == later
    assert ask("jobs", "depends", "q", 1, 2) == ["db1/hidden-7", "blocked-14"]
    runs = [f"run-{number}" for number in range(FEW)]
    assert ask("jobs", "running", "runs", 0, -1) == runs
    assert ask("jobs", "stalled", "runs", 0, -1) == []
    assert ask("stats", "bad", NOW // 1_000_000)["failed"] == 0
    assert ask("stats", "bad", 1)["failed"] == FEW  # by the clock of the clients
    assert ask("workers") == [
        {"name": "w", "jobs": FEW, "stalled": 0},
        {"name": "v", "jobs": 0, "stalled": 0},
    ]
    assert ask("workers", "w")["jobs"] == sorted(runs, reverse=True)
    tagged = ask("tag", "get", "all", 0, FEW)
    assert tagged["total"] == FEW
    assert tagged["jobs"][:2] == ["blocked-0", "blocked-112"]
    assert ask("tag", "top", 0, 3) == ["all", "tag-99", "tag-98"]
    assert [job["jid"] for job in ask("track")["jobs"]] == sorted(runs)


# Workq


class WorkqPort:
    """A Workq port with one client."""

    def __init__(self, *patterns: str) -> None:
        self.engine = Engine(Random(1), protocol_rules())
        self.hub = WorkqHub(self.engine, started_at=NOW, rule=rule_for(patterns))
        self.client = WorkqConnection(self.hub)

    def ask(self, line: str) -> tuple[bytes, int]:
        """The reply, and the number of turns."""
        self.client.replies.clear()
        more, turns = self.client.receive(line.encode() + b"\r\n", NOW, 1), 1
        while more:
            more = self.client.run(NOW, 1)
            turns += 1
        return b"".join(data_of(self.client)), turns


def shown_ids(reply: bytes) -> list[bytes]:
    lines = reply.split(b"\r\n")
    return [line[:36] for line in lines if line[36:39] in {b" 12", b" 13"}]


@pytest.mark.parametrize("parked", [False, True])
def test_workq_shows_any_part_of_a_long_queue_in_slices(parked: bool) -> None:
    port = WorkqPort()
    engine = port.engine
    for number in range(3000):
        due = NOW + (60 + number % 900) * 1_000_000 if number % 3 == 0 else 0
        jid = f"61a444a0-6128-41c0-8078-{number:012x}"
        push = NewJob(jid, "q", b"x", WORKQ, "q", 5, 1_000_000, b"0", number % 5, due_at=due)
        job = engine.push(push, NOW)
        if parked and number % 300 == 1:
            engine.set_limit("one", 1, 0, NOW)
            engine.limits.park(job, "one", NOW, "q")
    ready = [job.jid.encode() for job in engine.queues["q"].ready.first(10_000)]
    scheduled = sorted(engine.scheduled.values(), key=lambda job: (-job.rank, job.due_at, job.seq))
    assert (len(ready), len(scheduled)) == (2000, 1000)
    for what, order in (
        ("jobs", ready),
        ("scheduled-jobs", [job.jid.encode() for job in scheduled]),
    ):
        for offset in (0, 450, 900, len(order) - 3):
            reply, turns = port.ask(f"inspect {what} q {offset} 10")
            assert shown_ids(reply) == order[offset : offset + 10]
            assert turns >= (10 if what != "jobs" or offset > 490 else 1)
        assert port.ask(f"inspect {what} q {len(order)} 10")[0] == b"+OK 0\r\n"


def test_workq_lists_many_queues_in_slices() -> None:
    port = WorkqPort()
    for number in range(3000):
        port.engine.open_queue(f"q{2999 - number:04}")
    reply, turns = port.ask("inspect queues 2990 100")
    assert reply.startswith(b"+OK 10\r\nq2990 2\r\n")
    assert turns > 10


def test_a_workq_lease_of_many_new_queues_takes_several_turns() -> None:
    port = WorkqPort()
    names = [f"q{number:04}" for number in range(3000)]
    reply, turns = port.ask(f"lease {' '.join(names)} 0\r\nlease {names[0]} 0")
    assert reply == b"-TIMEOUT\r\n" * 2
    assert turns > 60
    assert [name for name, queue in port.engine.queues.items() if queue.registered] == names
    reply, _ = port.ask(f"lease {' '.join(names)} a/b 0")
    assert reply == b"-CLIENT-ERROR Invalid Name\r\n"
    port.engine.unavailable_reason = "the disk is full"
    reply, _ = port.ask(f"lease {' '.join(names)} 0")
    assert reply.startswith(b"-SERVER-ERROR ")


def test_a_long_workq_lease_of_a_queue_that_the_rule_excludes_is_refused() -> None:
    port = WorkqPort("q*")
    names = [f"q{number:04}" for number in range(300)]
    reply, _ = port.ask(f"lease {' '.join(names)} other 0\r\ninspect queue q0000")
    assert reply.startswith(b"-CLIENT-ERROR the queue other is not allowed")
    assert reply.endswith(b"-NOT-FOUND\r\n")  # all names are checked before a queue is created


def test_a_store_that_fails_during_a_long_lease_is_reported() -> None:
    port = WorkqPort()
    names = " ".join(f"q{number:04}" for number in range(3000))
    assert port.client.receive(b"lease %b 0\r\n" % names.encode(), NOW, 1)
    for _ in range(20):
        assert port.client.run(NOW, 1)
    port.engine.unavailable_reason = "the disk is full"
    while port.client.run(NOW, 1):
        pass
    [reply] = data_of(port.client)
    assert reply.startswith(b"-SERVER-ERROR ")
    assert len(port.engine.queues) < 1000


def test_a_long_lease_starts_when_its_queues_exist() -> None:
    port = WorkqPort()
    push = NewJob("6ba7b810-9dad-41d1-80b4-00c04fd430c8", "q0", b"x", WORKQ, "q0", 0, 9_000_000)
    job = port.engine.push(push, NOW)
    names = " ".join(f"q{number}" for number in range(300))
    later = NOW + 5_000_000
    assert port.client.receive(b"lease %b 60000\r\n" % names.encode(), NOW, 1)
    while port.client.run(later, 1):
        pass
    assert (job.leased_at, job.deadline) == (later, later + 9_000_000)
    assert port.client.receive(b"lease %b x 60000\r\n" % names.encode(), NOW, 1)
    while port.client.run(later, 1):
        pass
    assert port.client.waiter is not None
    assert port.engine.timers.when(port.client.waiter.key) == later + 60_000_000


def test_a_fetch_from_many_queues_leases_at_the_time_of_its_slice() -> None:
    hub = MasenkoHub(Engine(Random(1), protocol_rules()))
    job = hub.engine.push(NewJob("", "t", b"[]", MASENKO, "q2999", 0, 1_000_000), NOW)
    client = MasenkoConnection(hub)
    fetch = {"queues": [f"q{number:04}" for number in range(3000)], "timeout": 30_000_000_000}
    assert client.receive(b"FETCH %b\n" % json.dumps(fetch).encode(), NOW, 1)
    while client.run(NOW + 3_000_000, 1):
        pass
    assert job.leased_at == NOW + 3_000_000


def test_a_reply_in_pieces_that_cannot_be_completed_ends_the_connection() -> None:
    port = WorkqPort()
    for number in range(9):
        jid = f"61a444a0-6128-41c0-8078-{number:012x}"
        port.engine.push(NewJob(jid, "q", b"x" * 40_000, WORKQ, "q", 5, 1_000_000, b"0"), NOW)
    assert port.client.receive(b"inspect jobs q 0 10\r\ninspect server\r\n", NOW, 1)
    port.client.run(NOW, 1)
    port.engine.revert_count += 1  # as a refused commit does
    while port.client.run(NOW, 1):
        pass
    assert port.client.closing
    assert b"".join(data_of(port.client)).count(b"x" * 40_000) < 9


@pytest.mark.parametrize(
    ("protocol", "count", "request_line", "reply"),
    [
        ("workq", 2000, b"lease %b 60000\r\n", b"-TIMEOUT\r\n"),
        ("masenko", 40_000, b'FETCH {"queues":[%b],"timeout":30000000000}\n', b"EMPTY {}\n"),
    ],
)
def test_a_server_that_stops_answers_clients_that_begin_to_wait(
    tmp_path: Path, protocol: str, count: int, request_line: bytes, reply: bytes
) -> None:
    names = [f"q{number:04}" for number in range(count)]
    listed = " ".join(names) if protocol == "workq" else json.dumps(names)[1:-1]
    server = HeldServer(tmp_path)
    try:
        session, transport = server._session(protocol, "client")
        session.data_received(request_line % listed.encode())
        assert session.is_working
        assert session.connection.waiter is None
        server._loop.run_until_complete(server.server.stop(0, asyncio.Event()))
        assert transport.written == reply
    finally:
        server.close()


def test_a_long_lease_does_not_wait_on_a_server_that_stops() -> None:
    port = WorkqPort()
    names = " ".join(f"q{number:04}" for number in range(3000))
    assert port.client.receive(b"lease %b 60000\r\n" % names.encode(), NOW, 1)
    port.client.hub.stop()
    port.client.notify(NOW, port.client.stop_waiting)  # as for all clients; it does not wait yet
    while port.client.run(NOW, 1):
        pass
    port.client.notify(NOW, port.client.stop_waiting)  # as the server does after long commands
    assert data_of(port.client) == [b"-TIMEOUT\r\n"]


def test_a_fetch_from_many_queues_does_not_wait_on_a_server_that_stops() -> None:
    hub = MasenkoHub(Engine(Random(1), protocol_rules()))
    client = MasenkoConnection(hub)
    fetch = {"queues": [f"q{number:04}" for number in range(3000)], "timeout": 30_000_000_000}
    assert client.receive(b"FETCH %b\n" % json.dumps(fetch).encode(), NOW, 1)
    hub.stop()
    client.notify(NOW, client.stop_waiting)  # as for all clients; it does not wait yet
    while client.run(NOW, 1):
        pass
    client.notify(NOW, client.stop_waiting)  # as the server does after long commands
    assert data_of(client) == [b"EMPTY {}\n"]
    assert client.waiter is None


def test_a_large_job_is_shown_without_a_copy() -> None:
    port = WorkqPort()
    payload = b"x" * (2 << 20)
    port.engine.push(NewJob("", "q", payload, QLESS, "q", 5, 1_000_000), NOW)
    port.client.receive(b"inspect jobs q 0 1\r\n", NOW, 64)
    while port.client.run(NOW, 64):
        pass
    replies = [reply.data for reply in port.client.replies]
    assert replies[1] is payload
    assert replies[0].endswith(b"\r\npayload-size 2097152\r\npayload ")
    assert replies[2].startswith(b"\r\nmax-attempts 0\r\n")


def test_a_bulk_read_examines_some_jobs_in_each_slice() -> None:
    port = Port(5000)
    request = BulkRequest(read=ReadRequest(queue="none"))
    work = execute_bulk(port.engine, request, ReadCursors(), port, lambda: None, NOW)
    reply, slices = port.finish(work)
    assert reply == b'{"cursor":null,"jobs":[]}'
    assert slices >= 10


@pytest.mark.parametrize("command", ["read", "flush"])
def test_a_command_does_not_list_the_whole_table_in_its_first_slice(command: str) -> None:
    """A list of a million seqs takes 40 ms."""
    port = Port(50_000)
    work: Iterator[None]
    if command == "read":
        request = BulkRequest(read=ReadRequest(queue="none"))
        work = execute_bulk(port.engine, request, ReadCursors(), port, lambda: None, NOW)
    else:
        work = flush(port.api.qless, NOW, all_databases=True)
    tracemalloc.start()
    try:
        next(work)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 150_000  # the list takes 400,000 bytes


def test_a_long_command_without_events_waits_for_the_commit(tmp_path: Path) -> None:
    """Otherwise one turn would write all of its changes."""
    server = HeldServer(tmp_path)
    try:
        for number in range(6000):
            server.engine.push(NewJob("", "x", b"[]", FAKTORY, f"q{number}", 5, 1_800_000_000), NOW)
        server.drain()
        server.hold()
        push = b'PUSH {"jid":"other-job","jobtype":"x","args":[]}\r\n'
        assert server.send("faktory", push, "other") == b""
        assert server.engine.committing
        session, _ = server._session("faktory", "main")
        assert server.send("faktory", b"QUEUE PAUSE *\r\n") == b""
        server.sleep(0.05)
        assert session.is_working
        assert LARGE_TURN_QUEUES <= len(server.engine.change_set.queues) < 2500
        server.release()
        while session.is_working:
            server.sleep(0.01)
        assert all(queue.paused for queue in server.engine.queues.values())
        server.drain()
        assert server.written("faktory", "main") == b"+OK\r\n"
    finally:
        server.close()

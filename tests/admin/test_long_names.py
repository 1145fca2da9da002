"""Arbitrary names of jobs, queues, workers and tags: every reply is valid and matches messages.py."""

from contextlib import suppress
from typing import Any

import msgspec
import pytest

from admin_room import Room, content
from millrace.protocols.qless.errors import ScriptError
from millrace.protocols.registry import GOQUEUE, MASENKO, WORKQ
from millrace.records import (
    FailurePage,
    JobDetail,
    JobPage,
    LimitPage,
    QueuePage,
    RecurringPage,
    TagPage,
    TrackedPage,
    WorkerPage,
)
from wires import SECOND

NAMES = [
    b"",
    b"\xff\xfe",
    b"\xed\xa0\x80",  # an unpaired surrogate, which is invalid in UTF-8
    b"a/b?c#d%2F e",
    "ü😀\u202e\u0000".encode(),
    b"<script>alert(1)</script>",
    b"'\"\\\n\r\t",
    b"x" * 1000,
]
NUMBERS = ["inf", "-inf", "nan", "1e400", "-0", "9223372036854775808", "1e18", "0.1"]


def fetch(room: Room, type_: type[Any], **request: Any) -> Any:
    room.wire.receive(msgspec.json.encode(request) + b"\n")
    return msgspec.convert(content(room.wire.replies[-1]), type_)


def check_all_replies(room: Room) -> None:
    found = fetch(room, JobPage, search={"query": {}, "limit": 1000})
    assert len(found.jobs) == len(room.engine.jobs)
    for row in found.jobs:
        detail = fetch(room, JobDetail, job={"id": row.jid, "seq": row.seq})
        assert detail.job.seq == row.seq
        again = fetch(room, JobPage, search={"query": {"id": row.jid, "queue": row.queue}})
        assert row.seq in [each.seq for each in again.jobs]
        for tag in row.tags:
            by_tag = fetch(room, JobPage, search={"query": {"tag": tag}})
            assert row.seq in [each.seq for each in by_tag.jobs]
    workers = fetch(room, WorkerPage, workers={"limit": 1000}).workers
    for worker in workers:
        filter_ = {"protocol": worker.protocol, "wid": worker.wid}
        assert fetch(room, WorkerPage, workers=filter_).workers[0].wid == worker.wid
    fetch(room, RecurringPage, recurring={})
    fetch(room, TrackedPage, tracked={})
    fetch(room, TagPage, tags={})
    fetch(room, LimitPage, limits=True)
    fetch(room, FailurePage, failures={})


def call_ignoring_errors(room: Room, command: str, *args: bytes) -> None:
    """Call a Qless command and ignore its errors."""
    arguments = [b"%f" % (room.now / SECOND), *args]
    with suppress(ScriptError):  # a refused command creates no record
        room.api.call("C", command, [], arguments, room.now)


@pytest.mark.parametrize("name", NAMES)
def test_names_over_qless(name: bytes) -> None:
    room = Room()
    tags = msgspec.json.encode([name.decode("utf-8", "replace"), 7, 0.5])
    call_ignoring_errors(
        room, "put", name, name, name, name, b'{"a":"\\ud800"}', b"0", b"tags", tags
    )
    call_ignoring_errors(room, "put", b"w", b"q", b"held", name, b"{}", b"0")
    call_ignoring_errors(room, "pop", b"q", name or b"w", b"1")
    call_ignoring_errors(room, "put", b"w", b"f", b"failed", name, b"{}", b"0")
    call_ignoring_errors(room, "pop", b"f", b"w", b"1")
    call_ignoring_errors(room, "fail", b"failed", b"w", name, name)
    call_ignoring_errors(room, "track", b"track", name)
    call_ignoring_errors(room, "track", b"track", b"held")
    call_ignoring_errors(room, "log", b"held", name, b'{"x": "\\u0000"}')
    call_ignoring_errors(
        room, "recur", name, name, name, b"[]", b"interval", b"60", b"0", b"tags", tags
    )
    room.qless.throttles.set(name.decode("utf-8", "replace"), 3, 0, room.now)
    check_all_replies(room)


@pytest.mark.parametrize("number", NUMBERS)
def test_numbers_over_qless(number: str) -> None:
    room, argument = Room(), number.encode()
    call_ignoring_errors(room, "put", b"w", b"q", b"a1", b"k", b"{}", b"0", b"priority", argument)
    call_ignoring_errors(room, "put", b"w", b"q", b"a2", b"k", b"{}", b"0", b"retries", argument)
    call_ignoring_errors(room, "put", b"w", b"q", b"a3", b"k", b"{}", argument)
    call_ignoring_errors(room, "recur", b"q", b"r1", b"k", b"{}", b"interval", argument, b"0")
    call_ignoring_errors(
        room, "recur", b"q", b"r2", b"k", b"{}", b"interval", b"60", argument, b"priority", argument
    )
    call_ignoring_errors(
        room, "recur", b"q", b"r3", b"k", b"{}", b"interval", b"60", b"0", b"backlog", argument
    )
    call_ignoring_errors(
        room, "recur", b"q", b"r4", b"k", b"{}", b"interval", b"60", b"0", b"retries", argument
    )
    for jid in (b"a1", b"a2", b"a3"):
        call_ignoring_errors(room, "log", jid, b"said", b'{"n": %b}' % argument)
    call_ignoring_errors(room, "config.set", b"heartbeat", argument)
    call_ignoring_errors(room, "pop", b"q", b"w", b"3")
    for maximum in (float(number), 1.5):
        room.qless.throttles.set("t", maximum, 1 << 62, room.now)
    check_all_replies(room)


@pytest.mark.parametrize("name", NAMES)
def test_names_over_faktory(name: bytes) -> None:
    room = Room()
    text = msgspec.json.encode(name.decode("utf-8", "replace"))
    lone = b'"\\ud800"'
    for wid in (text, lone):
        wire = room.faktory_worker("plain")
        wire.receive(
            b'PUSH {"jid":"12345678%b","jobtype":%b,"args":[%b],"custom":{"a":%b}}\r\n'
            % (b"ab", text if len(text) > 2 else lone, wid, lone)
        )
        wire.receive(b"FETCH default\r\n")
        wire.receive(
            b'FAIL {"jid":"12345678ab","errtype":%b,"message":%b,"backtrace":[%b]}\r\n'
            % (wid, text, lone)
        )
    check_all_replies(room)


def test_bytes_of_other_protocols() -> None:
    room = Room()
    for number, origin in enumerate((WORKQ, MASENKO, GOQUEUE)):
        for spec in (b"", b"\xff", b"99999999999999999999999 \xff\xff", b"\n\n\n\n\n"):
            room.push(
                f"job-{number}", origin=origin, wire_fields=spec, payload=b"\xff\x00", rank=1e300
            )
    check_all_replies(room)


# Long names


@pytest.fixture
def room() -> Room:
    return Room()


def test_a_list_shortens_long_names(room):
    long, tags = "x" * 100_000, [f"{number}{'t' * 2000}" for number in range(100)]
    job = room.push(long, long, kind=long, tags=tags)
    room.lease(long, holder=long)
    (row,) = fetch(room, JobPage, search={"query": {}}).jobs
    for name in (row.jid, row.queue, row.kind, row.worker, *row.tags):
        assert (len(name), name[-1]) == (1000, "…")
    assert (row.seq, len(row.tags)) == (job.seq, 50)
    detail = fetch(room, JobDetail, job={"id": str(row.seq), "seq": row.seq})
    assert (detail.job.jid, detail.job.kind, detail.job.tags) == (long, long, tags)
    (worker,) = fetch(room, WorkerPage, workers={}).workers
    assert [len(each.kind) for each in worker.held] == [1000]


def test_a_page_that_is_too_large_ends_early_with_a_cursor(room):
    for number in range(600):
        room.push(f"{number}{'x' * 1000}", "q", kind="k" * 1000)
        room.lease(holder=f"{number:03}{'w' * 100_000}")
    seen, cursor = list[int](), ""
    while not seen or cursor:
        found = fetch(room, JobPage, search={"query": {}, "limit": 1000, "cursor": cursor})
        assert len(room.wire.replies[-1]) < 3 << 20
        seen, cursor = [*seen, *(row.seq for row in found.jobs)], found.next
    assert seen == list(range(600, 0, -1))
    page = fetch(room, WorkerPage, workers={"limit": 1000})
    assert (len(page.workers), page.count) == (11, 600)
    page = fetch(room, WorkerPage, workers={"cursor": page.next, "limit": 1000})
    assert page.workers[0].wid.startswith("011")


def test_queues_with_long_names_are_paged(room):
    for number in range(20):
        room.push(queue=f"{number:02}{'q' * 200_000}")
    names, after = list[str](), ""
    while not names or after:
        queue_page = fetch(room, QueuePage, queues={"cursor": after})
        assert len(queue_page.queues) < 7
        names, after = [*names, *(row.name[:2] for row in queue_page.queues)], queue_page.next
    assert names == [f"{number:02}" for number in range(20)]

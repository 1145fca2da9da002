"""Whatever strangers have called their jobs, queues, workers and tags: it can be told, and what is
told is what messages.py says.
"""

from contextlib import suppress
from typing import Any

import msgspec
import pytest

from admin_room import Room, content
from millrace.engine.job import GOQUEUE, MASENKO, WORKQ
from millrace.protocols.qless.contract import ScriptError
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
    b"\xed\xa0\x80",  # half of a pair, as UTF-8 must not have it
    b"a/b?c#d%2F e",
    "ü😀\u202e\u0000".encode(),
    b"<script>alert(1)</script>",
    b"'\"\\\n\r\t",
    b"x" * 1000,
]
NUMBERS = ["inf", "-inf", "nan", "1e400", "-0", "9223372036854775808", "1e18", "0.1"]


def told(room: Room, type_: type[Any], **request: Any) -> Any:
    room.wire.receive(msgspec.json.encode(request) + b"\n")
    return msgspec.convert(content(room.wire.replies[-1]), type_)


def everything(room: Room) -> None:
    found = told(room, JobPage, search={"query": {}, "most": 1000})
    assert len(found.jobs) == len(room.engine.jobs)
    for row in found.jobs:
        detail = told(room, JobDetail, job={"id": row.jid, "seq": row.seq})
        assert detail.job.seq == row.seq
        again = told(room, JobPage, search={"query": {"id": row.jid, "queue": row.queue}})
        assert row.seq in [each.seq for each in again.jobs]
        for tag in row.tags:
            by_tag = told(room, JobPage, search={"query": {"tag": tag}})
            assert row.seq in [each.seq for each in by_tag.jobs]
    workers = told(room, WorkerPage, workers={"most": 1000}).workers
    for worker in workers:
        asked = {"protocol": worker.protocol, "wid": worker.wid}
        assert told(room, WorkerPage, workers=asked).workers[0].wid == worker.wid
    told(room, RecurringPage, recurring={})
    told(room, TrackedPage, tracked={})
    told(room, TagPage, tags={})
    told(room, LimitPage, throttles=True)
    told(room, FailurePage, failures={})


def say(room: Room, command: str, *args: bytes) -> None:
    """As somebody would who cares for no answer."""
    words = [b"%f" % (room.now / SECOND), *args]
    with suppress(ScriptError):  # what is refused is not there to be told
        room.api.call("C", command, [], words, room.now)


@pytest.mark.parametrize("name", NAMES)
def test_names_over_qless(name: bytes) -> None:
    room = Room()
    tags = msgspec.json.encode([name.decode("utf-8", "replace"), 7, 0.5])
    say(room, "put", name, name, name, name, b'{"a":"\\ud800"}', b"0", b"tags", tags)
    say(room, "put", b"w", b"q", b"held", name, b"{}", b"0")
    say(room, "pop", b"q", name or b"w", b"1")
    say(room, "put", b"w", b"f", b"failed", name, b"{}", b"0")
    say(room, "pop", b"f", b"w", b"1")
    say(room, "fail", b"failed", b"w", name, name)
    say(room, "track", b"track", name)
    say(room, "track", b"track", b"held")
    say(room, "log", b"held", name, b'{"x": "\\u0000"}')
    say(room, "recur", name, name, name, b"[]", b"interval", b"60", b"0", b"tags", tags)
    room.qless.throttles.set(name.decode("utf-8", "replace"), 3, 0, room.now)
    everything(room)


@pytest.mark.parametrize("number", NUMBERS)
def test_numbers_over_qless(number: str) -> None:
    room, word = Room(), number.encode()
    say(room, "put", b"w", b"q", b"a1", b"k", b"{}", b"0", b"priority", word)
    say(room, "put", b"w", b"q", b"a2", b"k", b"{}", b"0", b"retries", word)
    say(room, "put", b"w", b"q", b"a3", b"k", b"{}", word)
    say(room, "recur", b"q", b"r1", b"k", b"{}", b"interval", word, b"0")
    say(room, "recur", b"q", b"r2", b"k", b"{}", b"interval", b"60", word, b"priority", word)
    say(room, "recur", b"q", b"r3", b"k", b"{}", b"interval", b"60", b"0", b"backlog", word)
    say(room, "recur", b"q", b"r4", b"k", b"{}", b"interval", b"60", b"0", b"retries", word)
    for jid in (b"a1", b"a2", b"a3"):
        say(room, "log", jid, b"said", b'{"n": %b}' % word)
    say(room, "config.set", b"heartbeat", word)
    say(room, "pop", b"q", b"w", b"3")
    for maximum in (float(number), 1.5):
        room.qless.throttles.set("t", maximum, 1 << 62, room.now)
    everything(room)


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
    everything(room)


def test_bytes_of_the_others() -> None:
    room = Room()
    for number, origin in enumerate((WORKQ, MASENKO, GOQUEUE)):
        for spec in (b"", b"\xff", b"99999999999999999999999 \xff\xff", b"\n\n\n\n\n"):
            room.push(f"job-{number}", origin=origin, spec=spec, payload=b"\xff\x00", rank=1e300)
    everything(room)


# Long names


@pytest.fixture
def room() -> Room:
    return Room()


def test_a_list_shows_the_beginning_of_long_names(room):
    long, tags = "x" * 100_000, [f"{number}{'t' * 2000}" for number in range(100)]
    job = room.push(long, long, kind=long, tags=tags)
    room.lease(long, holder=long)
    (row,) = told(room, JobPage, search={"query": {}}).jobs
    for name in (row.jid, row.queue, row.kind, row.worker, *row.tags):
        assert (len(name), name[-1]) == (1000, "…")
    assert (row.seq, len(row.tags)) == (job.seq, 50)
    detail = told(room, JobDetail, job={"id": str(row.seq), "seq": row.seq})
    assert (detail.job.jid, detail.job.kind, detail.job.tags) == (long, long, tags)
    (worker,) = told(room, WorkerPage, workers={}).workers
    assert [len(each.kind) for each in worker.held] == [1000]


def test_a_list_that_grows_too_large_ends_early_and_goes_on(room):
    for number in range(600):
        room.push(f"{number}{'x' * 1000}", "q", kind="k" * 1000)
        room.lease(holder=f"{number:03}{'w' * 100_000}")
    seen, cursor = list[int](), ""
    while not seen or cursor:
        found = told(room, JobPage, search={"query": {}, "most": 1000, "cursor": cursor})
        assert len(room.wire.replies[-1]) < 3 << 20
        seen, cursor = [*seen, *(row.seq for row in found.jobs)], found.cursor
    assert seen == list(range(600, 0, -1))
    page = told(room, WorkerPage, workers={"most": 1000})
    assert (len(page.workers), page.count) == (11, 600)
    page = told(room, WorkerPage, workers={"after": page.more, "most": 1000})
    assert page.workers[0].wid.startswith("011")


def test_queues_with_long_names_are_told_some_at_a_time(room):
    for number in range(20):
        room.push(queue=f"{number:02}{'q' * 200_000}")
    names, after = list[str](), ""
    while not names or after:
        told_now = told(room, QueuePage, queues={"after": after})
        assert len(told_now.queues) < 7
        names, after = [*names, *(row.name[:2] for row in told_now.queues)], told_now.more
    assert names == [f"{number:02}" for number in range(20)]

"""What must hold of the smaller parsers, whatever they are given: they raise what they say they raise
and nothing else, and what they take, another decoder takes for the same.
"""

import contextlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playing import HEAD, bytewise, in_sizes

from millrace.engine.job import Job
from millrace.protocols import go_json, go_scanner
from millrace.protocols.errors import BadJson, ClientError
from millrace.protocols.faktory import mutate
from millrace.protocols.masenko import durations, tasks
from millrace.protocols.qless import arguments, globs, script_catalog
from millrace.protocols.qless import lua_values as lua
from millrace.protocols.qless.commands import decimal, integer
from millrace.protocols.qless.contract import ScriptError
from millrace.protocols.qless.resp import Limits, ProtocolError, Requests, read_whole
from millrace.protocols.times import parse_rfc3339, rfc3339
from millrace.protocols.workq import arguments as workq_arguments
from millrace.store import StoreDamaged, changes
from millrace.store.errors import readable

UNREAD: Any = object()


def read(text: bytes) -> Any:
    """What the standard library reads, an object as its pairs; UNREAD if it is no JSON, None is its
    null, and `...` what is too deep for it.
    """

    def refuse(word: str) -> None:
        raise ValueError(word)

    try:
        return json.loads(
            text.decode("utf-8", "surrogateescape"),
            parse_constant=refuse,
            parse_int=str,
            parse_float=str,
            object_pairs_hook=Pairs,
        )
    except ValueError:
        return UNREAD
    except RecursionError:
        return ...


def refused_rightly(problem: Exception, rightly: bool = True) -> None:
    """The complaint says something, and not all that the client said."""
    assert rightly, problem
    assert 0 < len(str(problem)) < 20_000


class Pairs(list[tuple[str, Any]]):
    """An object's members, as often as they came."""


def check_goscan(data: bytes) -> None:
    """Go's decoder takes what the standard library takes, and sees the same in it."""
    expected = read(data)
    try:
        found = go_scanner.pieces(data)
    except BadJson as problem:
        refused_rightly(problem, expected is UNREAD or expected is ...)
        return
    assert expected is not UNREAD, "this is no JSON"
    if isinstance(expected, Pairs):
        members = go_scanner.members(data)
        keys = [go_scanner.folded(text_of(key)) for key, _ in expected]
        assert [key for key, _ in members] == keys
        assert [read(raw) for _, raw in members] == [value for _, value in expected]
    elif isinstance(expected, list):
        assert [read(raw) for raw in found] == expected
    elif isinstance(expected, str) and data.strip()[:1] == b'"':
        assert go_scanner.string(found[0]) == text_of(expected)
        go_scanner.quoted(go_scanner.string(found[0])).encode()


def text_of(text: str) -> str:
    return re.sub("[\ud800-\udfff]", "\ufffd", text)


def check_gojson(data: bytes) -> None:
    """Members are those that came, the last of a key; what is none is BadJson."""
    expected = read(data)
    try:
        mine, others = go_json.folded(
            go_json.repair_text(data), frozenset({"jid", "n", "list", "at"})
        )
    except BadJson as problem:
        refused_rightly(problem)
        return
    if expected is ...:
        return
    if expected is None:  # Go reads null as an object without members
        assert not mine
        assert not others
        return
    assert isinstance(expected, Pairs)
    assert {key.lower() for key, _ in expected} >= mine.keys()
    for raw in [*mine.values(), *others.values()]:
        assert read(raw) is not UNREAD
    for name, raw in mine.items():
        for reading in (go_json.string, go_json.integer, go_json.strings):
            with contextlib.suppress(BadJson):
                reading(raw, name)


def check_push(data: bytes) -> None:
    """The fast decoder and the one that reads as Go does agree on what they both take."""
    for line in (data, go_json.mend(data)):
        with contextlib.suppress(ClientError):
            push = tasks.read_push(line)
            usual = repr(push)
            assert repr(tasks.read_push(b" " + line)) == usual
            with contextlib.suppress(ClientError):
                unusual = tasks._unusual_push(line)
                assert (unusual.name, unusual.retry) == (push.kind, push.retries)
                assert bytes(unusual.payload) == push.payload
        with contextlib.suppress(ClientError):
            tasks.read_fetch(line, 45_000_000)
        with contextlib.suppress(ClientError):
            tasks.read_id(line, 5, "ackRequest")


def check_times(data: bytes) -> None:
    """A moment is read or a ValueError, and what is written is read as the same moment; spans too."""
    text = data.decode("utf-8", "replace")
    try:
        moment = parse_rfc3339(text)
    except ValueError as problem:
        refused_rightly(problem, str(problem).startswith('parsing time "'))
    else:
        if len(workq_arguments.whole_second(moment)) == 20:  # the years 0 to 9999
            assert parse_rfc3339(rfc3339(moment)) == moment
    try:
        span = durations.parse(text)
    except ValueError:
        pass
    else:
        assert durations.parse(durations.shown(abs(span))) == abs(span)
    for reading in (
        workq_arguments.moment,
        workq_arguments.ttl,
        workq_arguments.ttr,
        workq_arguments.limit,
        workq_arguments.job_id,
        workq_arguments.name,
    ):
        with contextlib.suppress(ClientError):
            reading(data)
    workq_arguments.split_flags(data.split(b" "))
    workq_arguments.signed(data)


def check_resp(data: bytes) -> None:
    """Requests are the same in any pieces, read at once or step by step; only ProtocolError."""
    sizes, stream = data[1:HEAD].ljust(HEAD - 1, b"\0"), data[HEAD:]
    large, small = Limits(1000, 10_000, 100_000), Limits(1000, 10_000, 100_000)
    small.at_once = 0
    whole = requests_of([stream], large)
    for limits in (large, small):
        assert requests_of(in_sizes(stream, sizes), limits) == whole
        assert requests_of(bytewise(stream), limits) == whole
    requests, size = read_whole(stream)
    packed = [b"*%d\r\n" % len(args) + b"".join(map(_bulk, args)) for args in requests]
    assert b"".join(packed) == stream[:size]
    assert read_whole(b"*1\r\n$4\r\nPING\r\n") == ([[b"PING"]], 14), "it remembers a rest"


def requests_of(pieces: list[bytes], limits: Limits) -> tuple[list[list[bytes]], str]:
    requests, found = Requests(), []
    try:
        for piece in pieces:
            requests.feed(piece)
            while (args := requests.take(limits)) is not None:
                found.append(args)
    except ProtocolError as problem:
        return found, str(problem)
    return found, ""


def _bulk(argument: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(argument), argument)


def check_lua(data: bytes) -> None:
    """Arguments of Qless: numbers are finite or none, JSON is taken or a ScriptError."""
    found = lua.tonumber(data)
    if found is not None:
        assert abs(found) < float("inf")
        assert isinstance(float(data) if b"x" not in data.lower() else 0.0, float)
        lua.number(found)
        assert abs(lua.moment(found)) <= 10**17
        assert 0 <= lua.clock(found) <= 10**17
        assert -(1 << 63) <= lua.whole(found) < 1 << 63
    for reading in (lua.decode, lua.check, lua.decode_list, arguments.tags, arguments.jids):
        try:
            value = reading(data)
        except ScriptError as problem:
            refused_rightly(problem)
        else:
            assert read(data) is not UNREAD
            changes.encode(value)  # it will have to be kept
    for reading in (lambda word: decimal(word, "ERR x"), integer):
        with contextlib.suppress(ClientError):
            reading(data)
    with contextlib.suppress(ScriptError):
        arguments.options(data.split(b" "), 1)
    script_catalog.recognise(data)


def check_globs(data: bytes) -> None:
    """A pattern matches as the simplest of matchers says, whatever is in it."""
    pattern, _, text = data[:200].partition(b"\0")
    with contextlib.suppress(ClientError):
        globs.matcher(globs.pattern_of(pattern))(text)
    shown = text.decode("utf-8", "replace")
    glob = mutate.Glob(pattern.decode("utf-8", "replace"))
    found = glob.matches(shown)
    if b"[" not in pattern and b"\\" not in pattern:
        parts = pattern.decode("utf-8", "replace")
        assert found == simple_match(parts, shown)
        matches = globs.matcher(globs.pattern_of(pattern))(text)
        assert bool(matches) == simple_match(pattern.decode("latin-1"), text.decode("latin-1"))


def simple_match(pattern: str, text: str) -> bool:
    """Which of the pattern's beginnings match the text so far, character by character."""
    reached = {0}
    for char in (*text, ""):
        stars: set[int] = set()
        for at in sorted(reached):
            here = at
            while pattern[here : here + 1] == "*":
                stars.add(here)
                here += 1
            stars.add(here)
        reached = stars
        if not char:
            return len(pattern) in reached
        reached = {at if pattern[at] == "*" else at + 1 for at in reached if pattern[at : at + 1] in {"*", "?", char}}  # fmt: skip
    raise AssertionError


def check_changes(data: bytes) -> None:
    """A store's record is read, or refused as damaged; nothing else."""
    jobs: dict[int, Job] = {}
    touched: dict[int, None] = {}
    with contextlib.suppress(StoreDamaged), readable(Path("millrace.db")):
        changes.replay(data, jobs, touched)
        assert all(seq == job.seq for seq, job in jobs.items())
    with contextlib.suppress(StoreDamaged), readable(Path("millrace.db")):
        changes.decode_job(data)


CHECKS: dict[str, Callable[[bytes], None]] = {
    "go_scanner": check_goscan,
    "go_json": check_gojson,
    "push": check_push,
    "times": check_times,
    "resp": check_resp,
    "lua": check_lua,
    "globs": check_globs,
    "changes": check_changes,
}

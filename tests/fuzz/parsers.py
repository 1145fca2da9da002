"""Invariants of the smaller parsers for any input: they raise only their documented errors, and
another decoder accepts the same input with the same result.
"""

import contextlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stream_checks import HEAD, bytewise, in_sizes

from millrace.engine.job import Job
from millrace.protocols import globs, go_json, go_scanner
from millrace.protocols.errors import BadJson, ClientError
from millrace.protocols.masenko import durations, tasks
from millrace.protocols.qless import arguments, script_catalog
from millrace.protocols.qless import lua_values as lua
from millrace.protocols.qless.commands import parse_decimal, parse_integer
from millrace.protocols.qless.errors import ScriptError
from millrace.protocols.qless.resp_requests import (
    ProtocolError,
    RequestBuffer,
    RequestLimits,
    parse_complete,
)
from millrace.protocols.times import format_rfc3339, parse_rfc3339
from millrace.protocols.workq import arguments as workq_arguments
from millrace.store import StoreDamaged, records
from millrace.store.sqlite.error_translation import translate_record_errors
from support.plain import values

UNREAD: Any = object()


def read(text: bytes) -> Any:
    """The result of the standard library, with objects as pairs; UNREAD for invalid JSON, None for
    null, and `...` for input that is nested too deep.
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


def check_refusal(problem: Exception, rightly: bool = True) -> None:
    """The error has a message, which does not repeat the complete input."""
    assert rightly, problem
    assert 0 < len(str(problem)) < 20_000


class Pairs(list[tuple[str, Any]]):
    """The members of an object, including duplicates."""


def check_goscan(data: bytes) -> None:
    """Go's decoder accepts the same input as the standard library, with the same result."""
    expected = read(data)
    try:
        found = go_scanner.top_level_values(data)
    except BadJson as problem:
        check_refusal(problem, expected is UNREAD or expected is ...)
        return
    assert expected is not UNREAD, "this is no JSON"
    if isinstance(expected, Pairs):
        members = go_scanner.members(data)
        keys = [go_scanner.fold_key(text_of(key)) for key, _ in expected]
        assert [key for key, _ in members] == keys
        assert [read(raw) for _, raw in members] == [value for _, value in expected]
    elif isinstance(expected, list):
        assert [read(raw) for raw in found] == expected
    elif isinstance(expected, str) and data.strip()[:1] == b'"':
        assert go_scanner.decode_string(found[0]) == text_of(expected)
        go_scanner.quote_as_go(go_scanner.decode_string(found[0])).encode()


def text_of(text: str) -> str:
    return re.sub("[\ud800-\udfff]", "\ufffd", text)


def check_gojson(data: bytes) -> None:
    """The result has the members of the input, the last one of each key; other input raises
    BadJson.
    """
    expected = read(data)
    try:
        mine, others = go_json.split_members(
            go_json.repair_text(data), frozenset({"jid", "n", "list", "at"})
        )
    except BadJson as problem:
        check_refusal(problem)
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
        for reading in (go_json.read_string, go_json.read_integer, go_json.read_strings):
            with contextlib.suppress(BadJson):
                reading(raw, name)


def check_push(data: bytes) -> None:
    """The fast decoder and the Go-compatible decoder agree on input that both accept."""
    for line in (data, go_json.replace_surrogates(data)):
        with contextlib.suppress(ClientError):
            push = tasks.read_push(line)
            usual = values(push)
            assert values(tasks.read_push(b" " + line)) == usual
            with contextlib.suppress(ClientError):
                unusual = tasks._scan_push(line)
                assert (unusual.name, unusual.retry) == (push.kind, push.retries)
                assert bytes(unusual.payload) == push.payload
        with contextlib.suppress(ClientError):
            tasks.read_fetch(line, 45_000_000)
        with contextlib.suppress(ClientError):
            tasks.read_id(line, 5, "ackRequest")


def check_times(data: bytes) -> None:
    """A time is parsed or raises ValueError, and its text is parsed as the same time; so are
    durations.
    """
    text = data.decode("utf-8", "replace")
    try:
        moment = parse_rfc3339(text)
    except ValueError as problem:
        check_refusal(problem, str(problem).startswith('parsing time "'))
    else:
        if len(workq_arguments.format_second(moment)) == 20:  # the years 0 to 9999
            assert parse_rfc3339(format_rfc3339(moment)) == moment
    try:
        span = durations.parse_duration(text)
    except ValueError:
        pass
    else:
        assert durations.parse_duration(durations.format_duration(abs(span))) == abs(span)
    for reading in (
        workq_arguments.parse_time,
        workq_arguments.parse_ttl,
        workq_arguments.parse_ttr,
        workq_arguments.parse_limit,
        workq_arguments.parse_job_id,
        workq_arguments.parse_name,
    ):
        with contextlib.suppress(ClientError):
            reading(data)
    workq_arguments.split_flags(data.split(b" "))
    workq_arguments.parse_signed(data)


def check_resp(data: bytes) -> None:
    """Requests are equal for any fragmentation, parsed at once or in steps; the only error is
    ProtocolError.
    """
    sizes, stream = data[1:HEAD].ljust(HEAD - 1, b"\0"), data[HEAD:]
    large, small = RequestLimits(1000, 10_000, 100_000), RequestLimits(1000, 10_000, 100_000)
    small.max_batch_bytes = small.max_single_bytes = 0
    whole = requests_of([stream], large)
    for limits in (large, small):
        assert requests_of(in_sizes(stream, sizes), limits) == whole
        assert requests_of(bytewise(stream), limits) == whole
    requests, size = parse_complete(stream)
    packed = [b"*%d\r\n" % len(args) + b"".join(map(_bulk, args)) for args in requests]
    assert b"".join(packed) == stream[:size]
    assert parse_complete(b"*1\r\n$4\r\nPING\r\n") == ([[b"PING"]], 14), "it remembers a rest"


def requests_of(pieces: list[bytes], limits: RequestLimits) -> tuple[list[list[bytes]], str]:
    requests, found = RequestBuffer(), []
    try:
        for piece in pieces:
            requests.feed(piece)
            while (args := requests.take(limits)) is not None or requests.is_partly_read:
                if args is not None:
                    found.append(args)
    except ProtocolError as problem:
        return found, str(problem)
    return found, ""


def _bulk(argument: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(argument), argument)


def check_lua(data: bytes) -> None:
    """Arguments of Qless: numbers are finite or None, JSON is accepted or raises ScriptError."""
    found = lua.tonumber(data)
    if found is not None:
        assert abs(found) < float("inf")
        assert isinstance(float(data) if b"x" not in data.lower() else 0.0, float)
        lua.format_number(found)
        assert abs(lua.to_microseconds(found)) <= 10**17
        assert 0 <= lua.parse_clock(found) <= 10**17
        assert -(1 << 63) <= lua.to_int64(found) < 1 << 63
    for reading in (lua.decode, lua.check_json, lua.decode_list, arguments.tags, arguments.jids):
        try:
            value = reading(data)
        except ScriptError as problem:
            check_refusal(problem)
        else:
            assert read(data) is not UNREAD
            records.encode(value)  # it must be storable
    for reading in (lambda word: parse_decimal(word, "ERR x"), parse_integer):
        with contextlib.suppress(ClientError):
            reading(data)
    with contextlib.suppress(ScriptError):
        arguments.options(data.split(b" "), 1)
    script_catalog.recognise(data)


def check_globs(data: bytes) -> None:
    """A pattern matches like a simple reference implementation, for any characters."""
    pattern, _, text = data[:200].partition(b"\0")
    with contextlib.suppress(ClientError):
        globs.matcher(globs.check_pattern(pattern))(text)
    if b"[" not in pattern and b"\\" not in pattern:
        matches = globs.matcher(globs.check_pattern(pattern))(text)
        assert bool(matches) == simple_match(pattern.decode("latin-1"), text.decode("latin-1"))


def simple_match(pattern: str, text: str) -> bool:
    """The positions of the pattern that match the text so far, character by character."""
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
    """A store's record is decoded, or raises StoreDamaged and no other error."""
    jobs: dict[int, Job] = {}
    touched: dict[int, None] = {}
    with contextlib.suppress(StoreDamaged), translate_record_errors(Path("millrace.db")):
        records.replay(data, jobs, touched)
        assert all(seq == job.seq for seq, job in jobs.items())
    with contextlib.suppress(StoreDamaged), translate_record_errors(Path("millrace.db")):
        records.decode_job(data)


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

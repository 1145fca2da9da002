"""Tasks: from the JSON of PUSH, FETCH, ACK and NACK to engine records, and back to replies.

A typed decoder reads the requests of nearly every client. JSON that it refuses is read again as Go
reads it (see go_scanner.py). The checks follow the original's order and use its error texts. A
payload is kept byte for byte.
"""

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from millrace.engine.job import BEFORE_ARRIVALS, SECOND, Job, NewJob
from millrace.protocols import go_json, go_scanner
from millrace.protocols.buffers import CR, LF, SPACE, TAB
from millrace.protocols.errors import BadJson, ClientError
from millrace.protocols.payloads import BASE64, as_json
from millrace.protocols.registry import MASENKO
from millrace.protocols.times import parse_rfc3339

from . import durations
from .forms import DEFAULT_QUEUE, AckArguments, FetchArguments, PushArguments
from .replies import MAX_ECHO, encode_string, escape_html

UNREADABLE: Final = "cannot unmarshal payload"
MAX_RETRY: Final = 255
MAX_BLOCKERS: Final = 255
MAX_NAME: Final = 255
MAX_TIME_LENGTH: Final = 64
#: Maximum number of backslashes in a long line with lone surrogates. Examining this many takes a
#: few milliseconds.
MAX_BACKSLASHES: Final = 10_000
#: The lease duration for workers of protocols with deadlines; Masenko has none.
LEASE_DURATION: Final = 1800 * SECOND
_UINT32: Final = (1 << 32) - 1
_INT64: Final = (1 << 63) - 1
_UINT8: Final = 255

_NAME: Final = re.compile(r"[0-9A-Za-z_-]")
_SPACES: Final = re.compile(rb'("(?:[^"\\]++|\\.)*+")|[ \t\r\n]++', re.DOTALL)
#: Names that were checked before, with their JSON.
_valid_names: dict[str, bytes] = {}


_decode_push = msgspec.json.Decoder(PushArguments).decode
_decode_fetch = msgspec.json.Decoder(FetchArguments).decode
_decode_ack = msgspec.json.Decoder(AckArguments).decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_DECODE_ERRORS: Final = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)


# PUSH


def read_push(line: bytes) -> NewJob:
    """Read a pushed task. Its size is not checked. Its blockers are as the client wrote them."""
    try:
        task = _decode_push(line)
    except _DECODE_ERRORS:
        task = _scan_push(line)
    if not task.retry and line.find(b"-0") >= 0:
        task = _scan_push(line)  # a negative zero, or part of a date
    if not 0 <= task.retry <= MAX_RETRY:
        raise ClientError(UNREADABLE)
    if (  # the usual push
        task.name in _valid_names
        and task.queue in _valid_names
        and task.execute_at is None
        and not task.deadqueue
        and not task.blocked_by
    ):
        payload = bytes(task.payload)
        return NewJob("", task.name, payload, MASENKO, task.queue, task.retry, LEASE_DURATION)
    if (
        task.blocked_by
        and not -_INT64 - 1 <= min(task.blocked_by) <= max(task.blocked_by) <= _INT64
    ):
        raise ClientError(UNREADABLE)
    due = place = 0
    if task.execute_at is not None:
        due = _parse_time(task.execute_at)
        place = BEFORE_ARRIVALS + due
    queue, dead_queue = task.queue or DEFAULT_QUEUE, task.deadqueue
    if not _is_name(queue) or (dead_queue and not _is_name(dead_queue)):
        raise ClientError(f"invalid queue name {go_scanner.quote_as_go(queue[:MAX_ECHO])}")
    if not _is_name(task.name):
        raise ClientError(f"invalid task name {go_scanner.quote_as_go(task.name[:MAX_ECHO])}")
    if len(task.blocked_by) > MAX_BLOCKERS:
        raise ClientError("at most 255 blocked by task IDs can be provided")
    return NewJob(
        "",
        task.name,
        bytes(task.payload),
        MASENKO,
        queue,
        task.retry,
        LEASE_DURATION,
        due_at=max(0, due),
        blockers=task.blocked_by,
        position=place,
        dead_queue=dead_queue,
    )


def check_blockers(push: NewJob, before: int) -> None:
    """Check relative ids: -1 is the previous push of the transaction, which has `before` pushes."""
    for blocker in push.blockers:
        if blocker == 0:
            raise ClientError("cannot self reference in blocked by")
        if blocker < -before:
            raise ClientError("invalid relative task position in blocked by")


def check_size(push: NewJob, max_payload: int) -> None:
    """Raise ClientError if a name or the payload exceeds the limits of the original's log, which
    has one byte for the length of a name and two for that of a payload. If `max_payload` is 0,
    there are no limits.
    """
    if not max_payload:
        return
    for name, what in (
        (push.queue, "queue"),
        (push.kind, "task"),
        (push.dead_queue, "deadqueue"),
    ):
        if name not in _valid_names and len(name.encode()) > MAX_NAME:
            raise ClientError(f"input: {what} name too long")
    if max_payload < len(push.payload):
        raise ClientError("input: arguments too big")


def blocker_seqs(numbers: list[int], next_seq: int, pushed: Sequence[int] = ()) -> list[int]:
    """The tasks that these numbers name; a negative number counts back in `pushed`. As in the
    original, numbers above all known ids are truncated to 32 bits. A task that does not exist yet
    blocks nothing, so a task cannot block itself.
    """
    seqs = [pushed[n] if n < 0 else n if n < next_seq else n & _UINT32 for n in numbers]
    return [seq for seq in seqs if seq < next_seq]


def _scan_push(line: bytes) -> PushArguments:
    task = PushArguments()
    try:
        for name, raw in _members(line):
            if name == "payload":
                task.payload = msgspec.Raw(raw)
            elif name == "blocked_by":
                task.blocked_by = [] if raw == b"null" else _integers(raw)
            elif raw == b"null":
                task.execute_at = None if name == "execute_at" else task.execute_at
            elif name in {"name", "queue", "deadqueue", "execute_at"}:
                setattr(task, name, decode_text(raw))
                if name == "execute_at":
                    _parse_time(decode_text(raw))
            elif name == "retry":
                task.retry = _unsigned(raw, MAX_RETRY)
    except BadJson:
        raise ClientError(UNREADABLE) from None
    return task


def _integers(raw: bytes) -> list[int]:
    """The integers of an array that is known to be valid JSON."""
    if go_scanner.go_type(raw) != "array":
        raise BadJson(UNREADABLE)
    inner = raw[1:-1].strip()
    return [_integer(each.strip()) for each in inner.split(b",")] if inner else []


def _parse_time(text: str) -> int:
    """`execute_at` in microseconds, truncated to a whole second."""
    if len(text) > MAX_TIME_LENGTH or "," in text:  # ISO 8601 allows a comma, RFC 3339 does not
        raise ClientError(UNREADABLE)
    try:
        moment = parse_rfc3339(text)
    except ValueError:
        raise ClientError(UNREADABLE) from None
    return moment // SECOND * SECOND


def _is_name(text: str) -> bool:
    """Whether the name contains a valid character; one is enough."""
    if text in _valid_names:
        return True
    if _NAME.search(text) is None:
        return False
    if len(_valid_names) < 10_000 and len(text.encode()) <= MAX_NAME:
        _valid_names[text] = encode_string(text)
    return True


# FETCH


def read_fetch(line: bytes, heartbeat: int) -> tuple[tuple[str, ...], int]:
    """The queues in order, and the timeout in microseconds."""
    fetch = FetchArguments()
    if line:
        try:
            fetch = _decode_fetch(line)
        except _DECODE_ERRORS:
            fetch = _scan_fetch(line)
    timeout = fetch.timeout
    if isinstance(timeout, str):
        timeout = _duration(timeout)
    elif timeout is msgspec.UNSET:
        timeout = heartbeat * 1000 // 2
    elif timeout is None:
        timeout = 0
    elif not -_INT64 - 1 <= timeout <= _INT64:
        raise ClientError(UNREADABLE)
    if timeout <= 0:
        raise ClientError("timeout must be greater than zero")
    if timeout > heartbeat * 1000:
        maximum = durations.format_duration(heartbeat * 1000)
        raise ClientError(f"timeout must be smaller than the heartbeat frequency {maximum}")
    return tuple(dict.fromkeys(fetch.queues or ())), max(1, timeout // 1000)


def _scan_fetch(line: bytes) -> FetchArguments:
    fetch = FetchArguments()
    try:
        for name, raw in _members(line):
            if name == "queues":
                fetch.queues = None if raw == b"null" else _names(raw)
            elif name == "timeout":
                fetch.timeout = _timeout(raw)
    except BadJson:
        raise ClientError(UNREADABLE) from None
    return fetch


def _names(raw: bytes) -> tuple[str, ...]:
    """The names; Go keeps the default value where an element is null."""
    defaults = (DEFAULT_QUEUE, "")
    found = enumerate(_elements(raw))
    return tuple(defaults[n > 0] if each == b"null" else decode_text(each) for n, each in found)


def _timeout(raw: bytes) -> int | str | None:
    if raw == b"null":
        return None
    if go_scanner.go_type(raw) == "string":
        text = decode_text(raw)
        _duration(text)
        return text
    return _integer(raw)


def _duration(text: str) -> int:
    try:
        return durations.parse_duration(text)
    except ValueError:
        raise ClientError(UNREADABLE) from None


# ACK and NACK


def read_id(line: bytes, next_seq: int, record: str) -> int:
    """The task id; `record` is the original's name for the request in errors."""
    try:
        number = _decode_ack(line).id
    except _DECODE_ERRORS:
        number = 0
    if 0 < number < next_seq:
        return number
    number = _scan_id(line, next_seq, record)
    if not number:
        raise ClientError("missing id")
    return number


def _scan_id(line: bytes, next_seq: int, record: str) -> int:
    prefix = "unmarshal payload: "
    what = go_scanner.go_type(line.lstrip() or b" ")
    try:
        if len(line) <= go_json.MAX_SLOW_PARSE_BYTES:
            go_scanner.top_level_values(line)
        elif what == "object":
            _members(line)
    except BadJson as problem:
        raise ClientError(prefix + str(problem)) from None
    prefix += "json: cannot unmarshal "
    if what not in {"object", "null"}:
        raise ClientError(f"{prefix}{what} into Go value of type proto.{record}")
    number, first = 0, ""
    for name, raw in _members(line):
        if name != "id" or raw == b"null":
            continue
        try:
            number = _unsigned(raw, max(_UINT32, next_seq - 1))
        except BadJson:
            what = go_scanner.go_type(raw)
            first = first or (f"number {raw.decode()}" if what == "number" else what)
    if first:
        raise ClientError(f"{prefix}{first} into Go struct field {record}.id of type uint32")
    return number


# As Go reads it


def _members(line: bytes) -> list[tuple[str, bytes]]:
    """The members as Go reads them. A long line is read by the fast decoder, which refuses more
    than 900 levels.
    """
    if len(line) <= go_json.MAX_SLOW_PARSE_BYTES:
        return go_scanner.members(line)
    try:
        found = _decode_members(line)
    except _DECODE_ERRORS as problem:
        return _repaired_members(line, go_json.error_text(problem))
    return [(go_scanner.fold_key(key), bytes(raw)) for key, raw in found.items()]


def _repaired_members(line: bytes, problem: str) -> list[tuple[str, bytes]]:
    """The members of a long line with lone surrogates, which the fast decoder refuses. A payload
    must not contain them, because it would change.
    """
    if line.count(b"\\") > MAX_BACKSLASHES:
        raise BadJson(problem)
    repaired = go_json.replace_surrogates(line)
    if repaired == line:
        raise BadJson(problem)
    try:
        decoded = _decode_members(repaired)
    except _DECODE_ERRORS as other:
        raise BadJson(go_json.error_text(other)) from None
    found = [(go_scanner.fold_key(key), bytes(raw)) for key, raw in decoded.items()]
    if any(name == "payload" and rb"\ufffd" in raw for name, raw in found):
        raise BadJson(problem)
    return found


def _elements(raw: bytes) -> list[bytes]:
    if go_scanner.go_type(raw) != "array":
        raise BadJson(UNREADABLE)
    return go_scanner.top_level_values(raw)


def decode_text(raw: bytes) -> str:
    if go_scanner.go_type(raw) != "string":
        raise BadJson(UNREADABLE)
    return go_scanner.decode_string(raw)


def _unsigned(raw: bytes, maximum: int) -> int:
    if raw.isdigit() and len(raw) <= 20 and (number := int(raw)) <= maximum:
        return number
    raise BadJson(UNREADABLE)


def _integer(raw: bytes) -> int:
    if raw == b"null":
        return 0
    if raw[:1] == b"-":
        return -_unsigned(raw[1:], _INT64 + 1)
    return _unsigned(raw, _INT64)


# To a reply


def fetch_reply(job: Job, payload: bytes) -> bytes:
    """The reply to FETCH."""
    queue, name = job.queue, job.kind or job.queue
    return b'OK {"id":%d,"queue":%b,"name":%b%b%b}\n' % (
        job.seq,
        _valid_names.get(queue) or encode_string(queue),
        _valid_names.get(name) or encode_string(name),
        _payload_member(payload) if job.origin == MASENKO else _convert_payload(payload),
        b',"failures":%d' % min(job.failures, _UINT8) if job.failures else b"",
    )


def _payload_member(payload: bytes) -> bytes:
    if not payload:
        return b""
    # A Qless worker can replace the payload with JSON that contains line feeds.
    if SPACE in payload or TAB in payload or CR in payload or LF in payload:
        payload = _compact(payload)
    return b',"payload":' + escape_html(payload)


def _convert_payload(payload: bytes) -> bytes:
    """The payload of a job that another protocol pushed: JSON as it is, other text as a JSON
    string, other bytes as base64, marked by the member `encoding`.
    """
    payload, in_base64 = as_json(payload)
    shown = b',"payload":' + escape_html(_compact(payload))
    return b'%b,"encoding":"%b"' % (shown, BASE64.encode()) if in_base64 else shown


def _compact(payload: bytes) -> bytes:
    """JSON without the whitespace between its tokens, which stay as they are."""
    try:
        return msgspec.json.format(payload, indent=-1)
    except _DECODE_ERRORS:  # lone surrogates, or too deep for the decoder
        return _SPACES.sub(rb"\1", payload)

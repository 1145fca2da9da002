"""Work units: conversion between Faktory's JSON and the engine's jobs.

The payload of a Faktory job is its `args`, byte for byte. The other members (custom,
created_at, at, unknown ones) are kept in `wire_fields`: four pieces of JSON text, separated by
newlines. No piece contains a newline, because the command was one line. A `failure` that the client
sent is a fifth piece; workers get it until the job fails here.
"""

import re
from codecs import getincrementaldecoder
from collections.abc import Generator
from io import BytesIO
from typing import Final

import msgspec

from millrace.engine.job import SECOND, Job, NewJob
from millrace.engine.states import DEAD
from millrace.protocols import go_json
from millrace.protocols.buffers import CR, LF
from millrace.protocols.errors import BadJson, ClientError
from millrace.protocols.payloads import BASE64, as_json
from millrace.protocols.registry import FAKTORY, MASENKO
from millrace.protocols.times import format_rfc3339, parse_rfc3339

from .forms import ABSENT, DEFAULT_RETRY, WorkUnit

DEFAULT_RESERVE: Final = 1800
#: Bytes of a large work unit that one step checks or copies.
COPY_BYTES: Final = 1 << 20
MIN_RESERVE: Final = 60
MAX_RESERVE: Final = 86_400
QUEUE_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")
#: Longer names are not remembered, to bound memory use.
MAX_REMEMBERED_LENGTH: Final = 255
_INT_MAX: Final = (1 << 63) - 1
#: The `wire_fields` of a work unit with only the required members.
_PLAIN: Final = b"\n\n\n"
#: The `wire_fields` of a work unit with a payload in base64.
_BASE64_FIELDS: Final = b'{"encoding":"%b"}\n\n\n' % BASE64.encode()
#: Queue names that were checked before.
_valid_names: set[str] = set()
_KNOWN_MEMBERS: Final = frozenset(
    {
        "jid",
        "jobtype",
        "args",
        "queue",
        "retry",
        "reserve_for",
        "at",
        "backtrace",
        "created_at",
        "enqueued_at",
        "failure",
        "custom",
    }
)


_decode = msgspec.json.Decoder(WorkUnit).decode
_encode_text = msgspec.json.Encoder().encode


def read(line: bytes, now: int) -> NewJob:
    """Read a pushed work unit, or raise its first error."""
    if not line.isascii():
        line = go_json.repair_text(line)
    if CR in line:
        go_json.members(line)  # in valid JSON a CR is white space; clients expect none in replies
        line = line.replace(b"\r", b" ")
    try:
        unit = _decode(line)
    except (msgspec.MsgspecError, RecursionError):
        return _read_as_in_go(line, now)
    return _from_work_unit(unit, bytes(unit.args), now)


def read_in_slices(line: bytes, start: int, end: int, now: int) -> Generator[None, None, NewJob]:
    """Read the work unit in part of a large line, with the same result as `read`. The line is
    searched, checked and copied in several steps; only the decoding takes a single step.
    """
    view = memoryview(line)[start:end]
    is_ascii = line.isascii()
    yield
    if not is_ascii:
        check = getincrementaldecoder("utf-8")()
        try:
            for at in range(0, len(view), COPY_BYTES):
                check.decode(view[at : at + COPY_BYTES], at + COPY_BYTES >= len(view))
                yield
        except UnicodeDecodeError:
            return read(bytes(view), now)
    has_cr = line.find(b"\r", start, end) >= 0
    yield
    if has_cr:
        return read(bytes(view), now)
    try:
        unit = _decode(view)
    except (msgspec.MsgspecError, RecursionError):
        return read(bytes(view), now)
    yield
    raw = memoryview(unit.args)
    args = BytesIO()
    for at in range(0, len(raw), COPY_BYTES):
        args.write(raw[at : at + COPY_BYTES])
        yield
    return _from_work_unit(unit, args.getvalue(), now)


def _from_work_unit(unit: WorkUnit, args: bytes, now: int) -> NewJob:
    created = _encode_text(unit.created_at) if unit.created_at else b""
    custom = b"" if unit.custom is ABSENT else bytes(unit.custom)
    if (  # the usual push
        unit.retry == DEFAULT_RETRY
        and not unit.reserve_for
        and not unit.at
        and not custom
        and not unit.backtrace
        and unit.queue in _valid_names
        and args[0] == 0x5B
        and len(unit.jid) >= 8
        and unit.jobtype
    ):
        return NewJob(
            unit.jid,
            unit.jobtype,
            args,
            FAKTORY,
            unit.queue,
            DEFAULT_RETRY,
            DEFAULT_RESERVE * SECOND,
            b"\n%b\n\n" % created if created else _PLAIN,
        )
    return _new_job(
        unit.jid,
        unit.jobtype,
        args,
        unit.queue,
        unit.retry,
        unit.reserve_for,
        unit.at,
        unit.backtrace,
        created,
        custom,
        b"",
        now,
    )


def jid_of(line: bytes) -> str:
    """The jid of a refused work unit, or an empty string."""
    fields, _ = go_json.split_members(line, _KNOWN_MEMBERS)
    return go_json.read_string(fields.get("jid"), "jid")


def _read_as_in_go(line: bytes, now: int) -> NewJob:
    fields, others = go_json.split_members(line, _KNOWN_MEMBERS)
    retry = go_json.read_integer(fields.get("retry"), "retry")
    created = fields.get("created_at", b"")
    go_json.read_string(created or None, "created_at")
    go_json.read_string(fields.get("enqueued_at"), "enqueued_at")
    tail = b"".join(b",%b:%b" % (_encode_text(key), raw) for key, raw in others.items())
    failure = fields.get("failure", b"")
    if failure and failure[:1] != b"{":
        raise BadJson("failure must be an object")
    push = _new_job(
        go_json.read_string(fields.get("jid"), "jid"),
        go_json.read_string(fields.get("jobtype"), "jobtype"),
        fields.get("args", b"null"),
        go_json.read_string(fields.get("queue"), "queue"),
        DEFAULT_RETRY if retry is None else retry,
        go_json.read_integer(fields.get("reserve_for"), "reserve_for") or 0,
        go_json.read_string(fields.get("at"), "at"),
        go_json.read_integer(fields.get("backtrace"), "backtrace") or 0,
        b"" if created == b'""' else created,
        fields.get("custom", b""),
        tail,
        now,
    )
    if failure:
        push.wire_fields += b"\n" + failure
    return push


def _new_job(
    jid: str,
    jobtype: str,
    args: bytes,
    queue: str,
    retry: int,
    reserve_for: int,
    at: str,
    backtrace: int,
    created: bytes,
    custom: bytes,
    tail: bytes,
    now: int,
) -> NewJob:
    """Check the members in the original's order, and return the job."""
    if not all(-_INT_MAX - 1 <= n <= _INT_MAX for n in (retry, reserve_for, backtrace)):
        raise BadJson("a number is out of range")
    if args[0] != 0x5B and args != b"null":
        raise BadJson("args must be an array")
    if custom and custom[0] != 0x7B and custom != b"null":
        raise BadJson("custom must be an object")
    if custom == b"null" or not custom[1:-1].strip():
        custom = b""  # an empty object counts as absent
    if len(jid) < 8 and len(jid.encode()) < 8:
        raise ClientError("jobs must have a reasonable jid parameter")
    if not jobtype:
        raise ClientError("jobs must have a jobtype parameter")
    if args == b"null":
        raise ClientError("jobs must have an args parameter")
    if reserve_for > MAX_RESERVE:
        raise ClientError("jobs cannot be reserved for more than one day")
    due = 0
    if at:
        try:
            due = parse_rfc3339(at)
        except ValueError as error:
            raise ClientError(f"invalid timestamp for 'at': {go_json.quote(at)}: {error}") from None
    queue = queue or "default"
    _check_name(queue)
    if reserve_for or backtrace:
        numbers = b',"reserve_for":%d' % reserve_for if reserve_for else b""
        tail = numbers + (b',"backtrace":%d' % backtrace if backtrace else b"") + tail
    wire_fields = b"%b\n%b\n%b\n%b" % (custom, created, _encode_text(at) if at else b"", tail)
    lease_for = max(MIN_RESERVE, reserve_for or DEFAULT_RESERVE) * SECOND
    if due <= now:
        due = 0
    return NewJob(jid, jobtype, args, FAKTORY, queue, retry, lease_for, wire_fields, 0, due)


def _check_name(queue: str) -> None:
    if queue in _valid_names:
        return
    if QUEUE_NAME.fullmatch(queue) is None:
        raise ClientError(
            f"cannot get {go_json.quote(queue)} queue: queue names must match \\A[a-zA-Z0-9._-]+\\z"
        )
    if len(_valid_names) < 10_000 and len(queue) <= MAX_REMEMBERED_LENGTH:
        _valid_names.add(queue)


def is_same_unit(job: Job, payload: bytes, push: NewJob) -> bool:
    """Whether the push is identical to the work unit of the job."""
    return (
        payload == push.payload
        and job.wire_fields == push.wire_fields
        and job.kind == push.kind
        and job.queue == push.queue
        and job.retries == push.retries
        and job.lease_duration == push.lease_duration
        and job.terms.origin == push.origin
    )


def _convert_payload(job: Job, payload: bytes) -> tuple[bytes, bytes]:
    """The args and `wire_fields` of a job that another protocol pushed: an array as it is, other
    JSON as an array of one, text as a JSON string, other bytes as base64, marked in `custom`.
    """
    if not payload and job.terms.origin == MASENKO:
        return b"[]", _PLAIN  # it was pushed without a payload
    payload, encoded = as_json(payload)
    # A line break can only occur between values here, and clients read work units as lines.
    payload = payload.replace(b"\r", b" ").replace(b"\n", b" ").strip()
    wire_fields = _BASE64_FIELDS if encoded else _PLAIN
    return payload if payload[:1] == b"[" else b"[%b]" % payload, wire_fields


def write_large(job: Job, payload: bytes) -> tuple[bytes, bytes, bytes]:
    """The work unit in three parts, without a copy of a payload that needs no conversion."""
    if not _is_native(job, payload):
        return write(job, payload), b"", b""
    head, _, tail = _write(job, b"\0", job.wire_fields).partition(b"\0")  # JSON has no such byte
    return head, payload, tail


def write(job: Job, payload: bytes) -> bytes:
    """The work unit as a worker gets it, in the original's order of keys."""
    if (job.terms.origin == FAKTORY and job.extra is None) or _is_native(job, payload):
        return _write(job, payload, job.wire_fields)
    args, wire_fields = _convert_payload(job, payload)
    return _write(
        job,
        args,
        job.wire_fields if job.terms.origin == FAKTORY and wire_fields == _PLAIN else wire_fields,
    )


def _is_native(job: Job, payload: bytes) -> bool:
    """Whether the payload is the args array that a client pushed over Faktory. A Qless worker can
    replace it with any JSON; such a job has details.
    """
    return job.terms.origin == FAKTORY and (
        job.extra is None
        or job.extra.details is None
        or (payload[:1] == b"[" and LF not in payload and CR not in payload and _is_utf8(payload))
    )


def _is_utf8(payload: bytes) -> bool:
    if payload.isascii():
        return True
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True


def _write(job: Job, args: bytes, wire_fields: bytes) -> bytes:
    terms = job.terms
    if wire_fields == _PLAIN and job.failure is None and job.ready_at:
        # The same format as below, built faster for most jobs.
        created_at = enqueued_at = format_rfc3339(job.created).encode()
        if job.ready_at != job.created:
            enqueued_at = format_rfc3339(job.ready_at).encode()
        return (
            b'{"retry":%d,"jid":%b,"queue":%b,"jobtype":%b,"created_at":"%b","enqueued_at":"%b","args":%b}'
            % (
                terms.retries,
                _encode_text(job.jid),
                _encode_text(job.queue),
                _encode_text(terms.kind or job.queue),
                created_at,
                enqueued_at,
                args,
            )
        )
    custom, created, at, tail, *failure_piece = wire_fields.split(b"\n")
    failure = b',"failure":' + failure_piece[0] if failure_piece else b""
    if job.history.failure is not None:
        failure = _failure(job)
    if not created:
        created = b'"%b"' % format_rfc3339(job.created).encode()
    return b'{"retry":%d%b%b,"jid":%b,"queue":%b,"jobtype":%b,"created_at":%b%b%b,"args":%b%b}' % (
        terms.retries,
        failure,
        b',"custom":' + custom if custom else b"",
        _encode_text(job.jid),
        _encode_text(job.queue),
        _encode_text(terms.kind or job.queue),
        created,
        b',"enqueued_at":"%b"' % format_rfc3339(job.ready_at).encode() if job.ready_at else b"",
        b',"at":' + at if at else b"",
        args,
        tail,
    )


def _failure(job: Job) -> bytes:
    """The `failure` member, with counts as in the original."""
    failure = job.failure
    assert failure is not None
    count = job.failures - 1
    waits = job.due_at and job.state != DEAD
    next_at = b',"next_at":"%b"' % format_rfc3339(job.due_at).encode() if waits else b""
    backtrace = b',"backtrace":' + _encode_text(failure.backtrace) if failure.backtrace else b""
    return (
        b',"failure":{"failed_at":"%b"%b,"message":%b,"errtype":%b%b,"retry_count":%d,"remaining":%d}'
        % (
            format_rfc3339(failure.first_at).encode(),
            next_at,
            _encode_text(failure.message),
            _encode_text(failure.group),
            backtrace,
            count,
            max(0, job.retries - count) if count else job.retries,
        )
    )

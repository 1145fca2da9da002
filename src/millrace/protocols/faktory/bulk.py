"""MILLRACE: load jobs in bulk, all or nothing, and read jobs in bulk. An extension of the protocol.

    MILLRACE {"open": LOAD}                          begin or continue a load
    MILLRACE {"stage": LOAD, "jobs": [...]}          stage jobs as in PUSHB, each jid once
    MILLRACE {"release": LOAD, "most": N}            release up to N staged jobs to their queues
    MILLRACE {"discard": LOAD, "most": N}            remove up to N staged jobs
    MILLRACE {"loads": true}                         list all loads
    MILLRACE {"read": {...}}                         return a page of jobs with all fields
    MILLRACE {"result": {...}}                       return the state and the result of a job
    MILLRACE {"cancel": [...]}                       cancel jobs
    MILLRACE {"fetch": {...}}                        fetch several jobs
    MILLRACE {"ack": [...]}                          acknowledge several jobs
    MILLRACE {"limit": {...}}                        a limit; also recur, unrecur, track, untrack

extensions.py declares the requests from `result` to `ack`, features.py the rest.
millrace_command.py executes result, fetch and ack.

A request may take several turns, between which other clients are served. engine/bulk_loads.py
describes loads.
"""

import re
from base64 import b64encode
from collections.abc import Callable, Generator, Iterator
from typing import Any, Final

import msgspec

from millrace.engine import bulk_loads
from millrace.engine.engine import Engine
from millrace.engine.errors import LoadError
from millrace.engine.job import FOREVER, SECOND, Job
from millrace.engine.states import BLOCKED, DEAD, DONE, LEASED, SCHEDULED, STATE_NAMES
from millrace.engine.tables import seqs_to_examine
from millrace.protocols import go_json
from millrace.protocols.errors import BadJson, ClientError
from millrace.protocols.payload_reads import read_ahead, release_payload
from millrace.protocols.payloads import BASE64
from millrace.protocols.registry import FAKTORY, PROTOCOL_NAMES
from millrace.records import JobDetail, JobRecord
from millrace.records.forms import export
from millrace.records.types import STATES

from . import extensions, features, work_unit

#: Jobs that are staged, released or written in one slice.
BULK_BATCH_SIZE: Final = 50
#: Jobs that are examined in one slice.
SCAN_BATCH_SIZE: Final = 400
#: Maximum number of jobs in one command.
MAX_JOBS: Final = 10_000
MAX_PAGE: Final = 1000
#: A page ends when the total size of its jobs reaches this limit.
PAGE_BYTES: Final = 1 << 20
MAX_PARTS: Final = 10_000
#: Maximum number of concurrent reads: each one keeps the seqs of its jobs in memory.
MAX_READ_CURSORS: Final = 16
#: A reader that has sent no request for this long can be replaced.
IDLE_TIMEOUT: Final = 10 * SECOND
MAX_REASON: Final = 1000
_NAME: Final = re.compile(r"[a-zA-Z0-9._:-]{1,200}")

Steps = Generator[None, None, Any]
#: Called after each slice; raises an error if the changes of an earlier slice were reverted.
StoreCheck = Callable[[], None]


class ReadRequest(msgspec.Struct, forbid_unknown_fields=True):
    queue: str | None = None
    state: str | None = None
    part: int = 0
    parts: int = 1
    cursor: int | None = None
    most: int = 500


class BulkRequest(msgspec.Struct, forbid_unknown_fields=True):
    open: str | None = None
    stage: str | None = None
    release: str | None = None
    discard: str | None = None
    loads: bool | None = None
    read: ReadRequest | None = None
    result: extensions.ResultRequest | None = None
    cancel: list[str] | None = None
    fetch: extensions.FetchRequest | None = None
    ack: list[extensions.Acknowledgement] | None = None
    limit: features.LimitRequest | None = None
    recur: features.RecurRequest | None = None
    unrecur: str | None = None
    track: features.Ids | None = None
    untrack: features.Ids | None = None
    jobs: list[msgspec.Raw] | None = None
    most: int = 1000

    @property
    def changes(self) -> bool:
        return (
            self.read is None and self.loads is None and self.result is None and self.fetch is None
        )


#: A job in the reply to `read`. Values that do not apply to the job are absent.
ExportedJob: Final = export(
    "ExportedJob", JobRecord, (JobDetail, "backtrace"), (JobDetail, "result"), (JobDetail, "load")
)


class ReadCursor:
    """The jobs that one connection reads page by page."""

    def __init__(self, request: ReadRequest, seqs: list[int]) -> None:
        self.queue = request.queue
        self.state = _state(request.state)
        self.seqs = seqs

    def selects(self, job: Job) -> bool:
        return self.queue in {None, job.queue} and self.state in {-1, job.state}


class ReadCursors:
    """The reads of all connections, and the time of the last request of each."""

    def __init__(self) -> None:
        self._requested_at: dict[object, int] = {}
        self._by_client: dict[object, ReadCursor] = {}

    def __len__(self) -> int:
        return len(self._by_client)

    def get(self, client: object, now: int) -> ReadCursor | None:
        if client in self._by_client:
            self._requested_at[client] = now
        return self._by_client.get(client)

    def begin(self, client: object, cursor: ReadCursor, now: int) -> None:
        self.end(client)
        self.make_room(client, now)
        self._by_client[client], self._requested_at[client] = cursor, now

    def make_room(self, client: object, now: int) -> None:
        """Make room for another read: end an idle one, or raise an error."""
        if client in self._by_client or len(self._by_client) < MAX_READ_CURSORS:
            return
        idle = min(self._requested_at, key=self._requested_at.__getitem__)
        if self._requested_at[idle] > now - IDLE_TIMEOUT:
            raise ClientError(
                f"too many concurrent reads: at most {MAX_READ_CURSORS}, try again later"
            )
        self.end(idle)

    def end(self, client: object) -> None:
        self._by_client.pop(client, None)
        self._requested_at.pop(client, None)


_decode: Final = msgspec.json.Decoder(BulkRequest).decode
_encode: Final = msgspec.json.Encoder().encode


def parse(line: bytes) -> BulkRequest:
    """The request, checked as far as possible without the engine."""
    try:
        line = go_json.repair_text(line)
        request = _decode(line)
    except (msgspec.MsgspecError, RecursionError) as problem:
        repaired = go_json.replace_surrogates(line)
        if repaired != line:
            return parse(repaired)
        raise ClientError(f"invalid MILLRACE: {go_json.error_text(problem)}") from None
    given = (request.open, request.stage, request.release, request.discard)
    names = [name for name in given if name is not None]
    others = (
        request.loads,
        request.read,
        request.result,
        request.cancel,
        request.fetch,
        request.ack,
        request.limit,
        request.recur,
        request.unrecur,
        request.track,
        request.untrack,
    )
    if len(names) + sum(each is not None for each in others) != 1:
        raise ClientError(
            "invalid MILLRACE: expected one of open, stage, release, discard, loads, read, result,"
            " cancel, fetch, ack, limit, recur, unrecur, track, untrack"
        )
    if names and _NAME.fullmatch(names[0]) is None:
        raise ClientError(f"invalid MILLRACE: the name of a load must match {_NAME.pattern}")
    if (request.jobs is None) != (request.stage is None):
        raise ClientError("invalid MILLRACE: jobs and stage must be given together")
    if request.jobs is not None and len(request.jobs) > MAX_JOBS:
        raise ClientError(f"invalid MILLRACE: more than {MAX_JOBS} jobs")
    if request.cancel is not None and len(request.cancel) > extensions.MAX_CANCELLED:
        raise ClientError(f"invalid MILLRACE: more than {extensions.MAX_CANCELLED} jobs")
    if request.ack is not None and len(request.ack) > extensions.MAX_ACKNOWLEDGED:
        raise ClientError(f"invalid MILLRACE: more than {extensions.MAX_ACKNOWLEDGED} jobs")
    _check_range("most", request.most, 1, MAX_JOBS)
    if request.read is not None:
        _check_read(request.read)
    return request


def _check_read(read: ReadRequest) -> None:
    if read.state is not None and read.state not in STATES:
        raise ClientError(f"invalid MILLRACE: state must be one of {', '.join(STATES)}")
    _check_range("most", read.most, 1, MAX_PAGE)
    _check_range("parts", read.parts, 1, MAX_PARTS)
    _check_range("part", read.part, 0, read.parts - 1)


def _check_range(name: str, value: int, minimum: int, maximum: int) -> None:
    if not minimum <= value <= maximum:
        raise ClientError(f"invalid MILLRACE: {name} must be from {minimum} to {maximum}")


def execute_bulk(
    engine: Engine,
    request: BulkRequest,
    read_cursors: ReadCursors,
    client: object,
    check_store: StoreCheck,
    now: int,
) -> Generator[None, None, bytes]:
    """Execute the request in slices, and return the body of the reply."""
    try:
        if request.open is not None:
            return _encode(bulk_loads.open_load(engine, request.open, now))
        if request.stage is not None:
            reply = yield from _stage(engine, request.stage, request.jobs or [], check_store, now)
        elif request.release is not None:
            reply = yield from _release(engine, request.release, request.most, check_store, now)
        elif request.discard is not None:
            reply = yield from _discard(engine, request.discard, request.most, check_store, now)
        elif request.read is not None:
            return (yield from _page(engine, request.read, read_cursors, client, now))
        elif request.cancel is not None:
            return (yield from extensions.cancel_jobs(engine, request.cancel, check_store, now))
        elif request.loads is None:
            reply = {"changed": _change_feature(engine, request, now)}
        else:
            reply = {"loads": bulk_loads.list_loads(engine)}
        return _encode(reply)
    except LoadError as problem:
        raise ClientError(str(problem)) from None


def _change_feature(engine: Engine, request: BulkRequest, now: int) -> int:
    if request.limit is not None:
        return features.set_limit(engine, request.limit, now)
    if request.recur is not None:
        return features.put_recurring(engine, request.recur, now)
    if request.unrecur is not None:
        return features.delete_recurring(engine, request.unrecur)
    if request.track is not None:
        return features.track(engine, request.track, now)
    return features.track(engine, request.untrack or [], None)


def _stage(
    engine: Engine, load: str, units: list[msgspec.Raw], check_store: StoreCheck, now: int
) -> Steps:
    """Stage the valid jobs. The reply lists the invalid ones, as that of PUSHB does."""
    bulk_loads.require_open(engine, load)
    new, invalid = 0, {}
    for number, unit in enumerate(units, 1):
        line = bytes(unit)
        try:
            push = work_unit.read(line, now)
            if extensions.may_have_extensions(push):
                extensions.apply_extensions(push, engine)
            if b'"priority"' in line:
                push.rank = _priority(line, push.rank)
        except BadJson as problem:
            raise ClientError(f"invalid JSON: {problem}") from None
        except ClientError as problem:
            invalid[work_unit.jid_of(line)] = str(problem)[:MAX_REASON]
        else:
            new += bulk_loads.stage(engine, load, push, now)
        if number % BULK_BATCH_SIZE == 0:
            yield
            check_store()
            bulk_loads.require_open(engine, load)
    return {"new": new, "known": len(units) - new - len(invalid), "invalid": invalid}


def _priority(line: bytes, default: float) -> float:
    """The rank of a staged job: its member `priority`, which the protocol does not define."""
    fields, _ = go_json.split_members(line, frozenset({"priority"}))
    raw = fields.get("priority")
    if raw is None:
        return default
    try:
        return msgspec.json.decode(raw, type=float)
    except msgspec.MsgspecError:
        raise BadJson("priority must be a number") from None


def _release(engine: Engine, load: str, most: int, check_store: StoreCheck, now: int) -> Steps:
    bulk_loads.start_release(engine, load, now)
    done = 0
    while done < most and (
        count := bulk_loads.release(engine, load, min(BULK_BATCH_SIZE, most - done), now)
    ):
        done += count
        yield
        check_store()
    return {"done": done, "left": len(engine.tables.staged.get(load, ()))}


def _discard(engine: Engine, load: str, most: int, check_store: StoreCheck, now: int) -> Steps:
    done = 0
    while done < most and (
        count := bulk_loads.discard(engine, load, min(BULK_BATCH_SIZE, most - done), FAKTORY, now)
    ):
        done += count
        yield
        check_store()
    return {"done": done, "left": len(engine.tables.staged.get(load, ()))}


# Reading


def _page(
    engine: Engine, read: ReadRequest, read_cursors: ReadCursors, client: object, now: int
) -> Generator[None, None, bytes]:
    """Return the next jobs of a read, and the cursor of the following page."""
    if read.cursor is None:
        cursor = ReadCursor(read, [])
        read_cursors.begin(client, cursor, now)  # before `_fill`, which takes several slices
        yield from _fill(engine, read, cursor)
    else:
        found = read_cursors.get(client, now)
        if found is None or not 0 <= read.cursor <= len(found.seqs):
            raise ClientError("no such cursor on this connection: read from the beginning")
        cursor = found
    jobs: list[bytes] = []
    size, at = 0, read.cursor or 0
    while at < len(cursor.seqs) and len(jobs) < read.most and size < PAGE_BYTES:
        job = engine.job(cursor.seqs[at])
        at += 1
        if job is not None and cursor.selects(job):
            yield from read_ahead(engine, job)
            if engine.job(job.seq) is not None:  # it may have been removed meanwhile
                jobs.append(_encode(_export_job(job, engine.payload(job))))
                size += len(jobs[-1])
            release_payload(engine, job)
        if at % BULK_BATCH_SIZE == 0:
            yield
    if at == len(cursor.seqs):
        read_cursors.end(client)
    if not engine.unavailable_reason:
        engine.caller.wait()  # the reply waits until its content is durable
    next_cursor = b"null" if at == len(cursor.seqs) else b"%d" % at
    return b'{"cursor":%b,"jobs":[%b]}' % (next_cursor, b",".join(jobs))


def _fill(engine: Engine, read: ReadRequest, cursor: ReadCursor) -> Generator[None, None, None]:
    """Collect the seqs of the jobs that the read selects."""
    for number, seq in enumerate(_candidates(engine, cursor.state), 1):
        if seq % read.parts == read.part:
            job = engine.job(seq)
            if job is not None and cursor.selects(job):
                cursor.seqs.append(seq)
        if number % SCAN_BATCH_SIZE == 0:
            yield


def _candidates(engine: Engine, state: int) -> Iterator[int]:
    """Return the seqs of all jobs that may be in that state."""
    tables = engine.tables
    if state == DEAD:
        return iter((*tables.dead, *tables.dead_untrimmed))
    if state == DONE:
        return iter((*tables.done, *tables.done_untrimmed))
    indexes = {SCHEDULED: tables.scheduled, BLOCKED: tables.blocked, LEASED: tables.leased}
    return seqs_to_examine(indexes.get(state, tables.jobs))


def _state(name: str | None) -> int:
    return -1 if name is None else STATE_NAMES.index(name)


def _export_job(job: Job, raw_payload: bytes) -> Any:
    payload, payload_encoding = _decode_text(raw_payload)
    found = ExportedJob(
        jid=job.jid,
        seq=job.seq,
        queue=job.queue,
        kind=job.kind,
        state=STATE_NAMES[job.state],
        origin=PROTOCOL_NAMES[job.origin],
        priority=job.rank,
        created=job.created,
        due=0 if job.due_at == FOREVER else job.due_at,
        ready_at=job.ready_at,
        leased_at=job.leased_at,
        ended_at=job.ended_at,
        attempt=job.attempt,
        failures=job.failures,
        retries=job.retries,
        worker=job.holder,
        protocol=PROTOCOL_NAMES[job.holder_protocol],
        payload=payload,
        payload_encoding=payload_encoding,
    )
    if job.state == LEASED and job.deadline != FOREVER:
        found.deadline = job.deadline
    if (failure := job.failure) is not None:
        found.error_group, found.error_message = failure.group, failure.message
        found.backtrace, found.failed_at = failure.backtrace, failure.last_at
    if (extra := job.extra) is not None:
        found.tags, found.load = extra.tags, extra.load
        if extra.result is not None:
            found.result, found.result_encoding = _decode_text(extra.result)
    return found


def _decode_text(data: bytes) -> tuple[str, str]:
    try:
        return data.decode(), ""
    except UnicodeDecodeError:
        return b64encode(data).decode(), BASE64

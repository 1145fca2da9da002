"""MILLRACE: load jobs in bulk, all or none, and read jobs in bulk. An extension of the protocol.

    MILLRACE {"open": LOAD}                          a load is begun, or gone on with
    MILLRACE {"stage": LOAD, "jobs": [...]}          as PUSHB; each jid once, not leased
    MILLRACE {"release": LOAD, "most": N}            up to N of them become ready or scheduled
    MILLRACE {"discard": LOAD, "most": N}            or are removed
    MILLRACE {"loads": true}                         all loads that are known
    MILLRACE {"read": {...}}                         a page of jobs, with everything

Each may take several turns: others are served meanwhile. What a load is, is in engine/loads.py.
"""

import re
from base64 import b64encode
from collections.abc import Callable, Generator, Iterable
from typing import Any, Final, Literal, get_args

import msgspec

from millrace.engine import loads
from millrace.engine.engine import Engine
from millrace.engine.errors import LoadError
from millrace.engine.job import FAKTORY, FOREVER, PROTOCOLS, Job
from millrace.engine.policy import SECOND
from millrace.engine.states import BLOCKED, DEAD, DONE, LEASED, SCHEDULED, STATE_NAMES
from millrace.protocols import go_json
from millrace.protocols.errors import BadJson, ClientError
from millrace.protocols.payloads import BASE64

from . import work_unit

#: Jobs that are staged, released or written in one slice.
SLICE: Final = 100
#: Jobs that are examined in one slice.
GLANCE: Final = 2000
#: Jobs of one command.
MAX_JOBS: Final = 10_000
MAX_PAGE: Final = 1000
#: A page ends when its jobs take so much.
PAGE_BYTES: Final = 1 << 20
MAX_PARTS: Final = 10_000
#: Connections that can read at a time: each keeps the numbers of the jobs to read.
MAX_READINGS: Final = 16
#: A reader without a request for this time can be replaced.
IDLE: Final = 10 * SECOND
MAX_REASON: Final = 1000
_NAME: Final = re.compile(r"[a-zA-Z0-9._:-]{1,200}")

Steps = Generator[None, None, Any]
#: Called after each slice; raises an error if the changes of an earlier slice were reverted.
GoOn = Callable[[], None]
State = Literal["scheduled", "blocked", "ready", "leased", "done", "dead"]


class Read(msgspec.Struct, forbid_unknown_fields=True):
    queue: str | None = None
    state: str | None = None
    part: int = 0
    parts: int = 1
    cursor: int | None = None
    most: int = 500


class Request(msgspec.Struct, forbid_unknown_fields=True):
    open: str | None = None
    stage: str | None = None
    release: str | None = None
    discard: str | None = None
    loads: bool | None = None
    read: Read | None = None
    jobs: list[msgspec.Raw] | None = None
    most: int = 1000

    @property
    def changes(self) -> bool:
        return self.read is None and self.loads is None


class Told(msgspec.Struct, omit_defaults=True):
    """A job as it is read. Times are microseconds since 1970, and absent where there is none."""

    seq: int
    jid: str
    queue: str
    kind: str
    origin: str
    state: str
    priority: float
    created: int
    attempt: int
    failures: int
    retries: int
    payload: str
    #: `base64` if the payload, or the result, is no UTF-8 text.
    payload_encoding: str = ""
    result: str | None = None
    result_encoding: str = ""
    due: int = 0
    ready_at: int = 0
    leased_at: int = 0
    deadline: int = 0
    ended_at: int = 0
    worker: str = ""
    protocol: str = ""
    error_group: str = ""
    error_message: str = ""
    backtrace: list[str] = []
    failed_at: int = 0
    tags: list[str] = []
    load: str = ""


class Reading:
    """The rest of one connection's read."""

    def __init__(self, request: Read, seqs: list[int]) -> None:
        self.queue = request.queue
        self.state = _state(request.state)
        self.seqs = seqs

    def wants(self, job: Job) -> bool:
        return self.queue in {None, job.queue} and self.state in {-1, job.state}


class Readings:
    """All reads, and the time of the last request of each."""

    def __init__(self) -> None:
        self._asked: dict[object, int] = {}
        self._of: dict[object, Reading] = {}

    def __len__(self) -> int:
        return len(self._of)

    def get(self, who: object, now: int) -> Reading | None:
        if who in self._of:
            self._asked[who] = now
        return self._of.get(who)

    def begin(self, who: object, reading: Reading, now: int) -> None:
        self.end(who)
        self.check_room(who, now)
        self._of[who], self._asked[who] = reading, now

    def check_room(self, who: object, now: int) -> None:
        """Make room for another read; an idle one ends."""
        if who in self._of or len(self._of) < MAX_READINGS:
            return
        idle = min(self._asked, key=self._asked.__getitem__)
        if self._asked[idle] > now - IDLE:
            raise ClientError(
                f"too many read jobs at once: at most {MAX_READINGS}, try again later"
            )
        self.end(idle)

    def end(self, who: object) -> None:
        self._of.pop(who, None)
        self._asked.pop(who, None)


_decode: Final = msgspec.json.Decoder(Request).decode
_encode: Final = msgspec.json.Encoder().encode


def parse(line: bytes) -> Request:
    """The request, checked as far as possible without the engine."""
    try:
        line = go_json.repair_text(line)
        request = _decode(line)
    except (msgspec.MsgspecError, RecursionError) as problem:
        mended = go_json.mend(line)
        if mended != line:
            return parse(mended)
        raise ClientError(f"invalid MILLRACE: {go_json.plain(problem)}") from None
    given = (request.open, request.stage, request.release, request.discard)
    names = [name for name in given if name is not None]
    if len(names) + (request.loads is not None) + (request.read is not None) != 1:
        raise ClientError(
            "invalid MILLRACE: expected one of open, stage, release, discard, loads, read"
        )
    if names and _NAME.fullmatch(names[0]) is None:
        raise ClientError(f"invalid MILLRACE: the name of a load must match {_NAME.pattern}")
    if (request.jobs is None) != (request.stage is None):
        raise ClientError("invalid MILLRACE: jobs and stage go together")
    if request.jobs is not None and len(request.jobs) > MAX_JOBS:
        raise ClientError(f"invalid MILLRACE: more than {MAX_JOBS} jobs")
    _within("most", request.most, 1, MAX_JOBS)
    if request.read is not None:
        _check_read(request.read)
    return request


def _check_read(read: Read) -> None:
    if read.state is not None and read.state not in get_args(State):
        raise ClientError(f"invalid MILLRACE: state must be one of {', '.join(get_args(State))}")
    _within("most", read.most, 1, MAX_PAGE)
    _within("parts", read.parts, 1, MAX_PARTS)
    _within("part", read.part, 0, read.parts - 1)


def _within(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ClientError(f"invalid MILLRACE: {name} must be from {least} to {most}")


def answer(
    engine: Engine, request: Request, readings: Readings, who: object, go_on: GoOn, now: int
) -> Generator[None, None, bytes]:
    """Execute the request in slices; the body of the reply."""
    try:
        if request.open is not None:
            return _encode(loads.begin(engine, request.open, now))
        if request.stage is not None:
            found = yield from _stage(engine, request.stage, request.jobs or [], go_on, now)
        elif request.release is not None:
            found = yield from _release(engine, request.release, request.most, go_on, now)
        elif request.discard is not None:
            found = yield from _discard(engine, request.discard, request.most, go_on, now)
        elif request.read is not None:
            return (yield from _page(engine, request.read, readings, who, now))
        else:
            found = {"loads": loads.listed(engine)}
        return _encode(found)
    except LoadError as problem:
        raise ClientError(str(problem)) from None


def _stage(engine: Engine, load: str, units: list[msgspec.Raw], go_on: GoOn, now: int) -> Steps:
    """Stage the good ones; the answer tells of those that cannot be, as PUSHB does."""
    loads.need_open(engine, load)
    new, invalid = 0, {}
    for number, unit in enumerate(units, 1):
        line = bytes(unit)
        try:
            push = work_unit.read(line, now)
            if b'"priority"' in line:
                push.rank = _priority(line)
        except BadJson as problem:
            raise ClientError(f"invalid JSON: {problem}") from None
        except ClientError as problem:
            invalid[work_unit.jid_of(line)] = str(problem)[:MAX_REASON]
        else:
            new += loads.stage(engine, load, push, now)
        if number % SLICE == 0:
            yield
            go_on()
            loads.need_open(engine, load)
    return {"new": new, "known": len(units) - new - len(invalid), "invalid": invalid}


def _priority(line: bytes) -> float:
    """Faktory knows no priority: a member of this name is the job's rank among all in its queue."""
    mine, _ = go_json.folded(line, frozenset({"priority"}))
    raw = mine.get("priority")
    if raw is None:
        return 0
    try:
        return msgspec.json.decode(raw, type=float)
    except msgspec.MsgspecError:
        raise BadJson("priority must be a number") from None


def _release(engine: Engine, load: str, most: int, go_on: GoOn, now: int) -> Steps:
    loads.seal(engine, load, now)
    done = 0
    while done < most and (count := loads.release(engine, load, min(SLICE, most - done), now)):
        done += count
        yield
        go_on()
    return {"done": done, "left": len(engine.staged.get(load, ()))}


def _discard(engine: Engine, load: str, most: int, go_on: GoOn, now: int) -> Steps:
    done = 0
    while done < most and (
        count := loads.discard(engine, load, min(SLICE, most - done), FAKTORY, now)
    ):
        done += count
        yield
        go_on()
    return {"done": done, "left": len(engine.staged.get(load, ()))}


# Reading


def _page(
    engine: Engine, read: Read, readings: Readings, who: object, now: int
) -> Generator[None, None, bytes]:
    """The next jobs of a reading, and where to go on."""
    if read.cursor is None:
        reading = Reading(read, [])
        readings.begin(who, reading, now)  # reserves the place while the read is prepared
        yield from _fill(engine, read, reading)
    else:
        found = readings.get(who, now)
        if found is None or not 0 <= read.cursor <= len(found.seqs):
            raise ClientError("no such cursor on this connection: read from the beginning")
        reading = found
    told: list[bytes] = []
    size, at = 0, read.cursor or 0
    while at < len(reading.seqs) and len(told) < read.most and size < PAGE_BYTES:
        job = engine.jobs.get(reading.seqs[at])
        at += 1
        if job is not None and reading.wants(job):
            told.append(_encode(_told(job)))
            size += len(told[-1])
        if at % SLICE == 0:
            yield
    if at == len(reading.seqs):
        readings.end(who)
    if not engine.halted:
        engine.depend()  # the reply waits until its content is durable
    cursor = b"null" if at == len(reading.seqs) else b"%d" % at
    return b'{"cursor":%b,"jobs":[%b]}' % (cursor, b",".join(told))


def _fill(engine: Engine, read: Read, reading: Reading) -> Generator[None, None, None]:
    """Which jobs there are now that are wanted."""
    seqs, jobs = list(_candidates(engine, reading.state)), engine.jobs
    for start in range(0, len(seqs), GLANCE):
        for seq in seqs[start : start + GLANCE]:
            if seq % read.parts == read.part:
                job = jobs.get(seq)
                if job is not None and reading.wants(job):
                    reading.seqs.append(seq)
        yield


def _candidates(engine: Engine, state: int) -> Iterable[int]:
    """The numbers of all jobs that may be in that state."""
    if state == DEAD:
        return (*engine.dead, *engine.dying)
    if state == DONE:
        return (*engine.done, *engine.kept)
    indexes = {SCHEDULED: engine.scheduled, BLOCKED: engine.blocked, LEASED: engine.leased}
    return indexes.get(state, engine.jobs)


def _state(name: str | None) -> int:
    return -1 if name is None else STATE_NAMES.index(name)


def _told(job: Job) -> Told:
    payload, encoding = _text(job.payload)
    told = Told(
        job.seq,
        job.jid,
        job.queue,
        job.kind,
        PROTOCOLS[job.origin],
        STATE_NAMES[job.state],
        job.rank,
        job.created,
        job.attempt,
        job.failures,
        job.retries,
        payload,
        encoding,
    )
    told.due = 0 if job.due == FOREVER else job.due
    told.ready_at, told.leased_at, told.ended_at = job.ready_at, job.leased_at, job.ended_at
    told.worker, told.protocol = job.holder, PROTOCOLS[job.actor]
    if job.state == LEASED and job.deadline != FOREVER:
        told.deadline = job.deadline
    if (failure := job.failure) is not None:
        told.error_group, told.error_message = failure.group, failure.message
        told.backtrace, told.failed_at = failure.backtrace, failure.last_at
    if (extra := job.extra) is not None:
        told.tags, told.load = extra.tags, extra.load
        if extra.result is not None:
            told.result, told.result_encoding = _text(extra.result)
    return told


def _text(data: bytes) -> tuple[str, str]:
    try:
        return data.decode(), ""
    except UnicodeDecodeError:
        return b64encode(data).decode(), BASE64

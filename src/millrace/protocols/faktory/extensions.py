"""Extensions of the Faktory protocol that the Python SDK uses.

A push carries fields in `custom.millrace`. A plain Faktory server stores them and ignores them.
Members that are not listed in `JobExtensions` belong to the SDK's workers.

    {"jid": ..., "custom": {"millrace": {"priority": 5, "tags": ["a"], "depends_on": ["..."],
                                         "keep_result": 3600}}}

An ACK carries the result of the job as JSON text. Plain servers ignore it.

    ACK {"jid": ..., "result": "[1,2]"}

A BEAT lists the jobs that the worker is running. The reply lists those that are no longer leased to
it, because a client cancelled them or their leases have expired. The server extends the leases of
the others, so that a job can run longer than its reservation.

    BEAT {"wid": ..., "running": ["jid1", "jid2"]}  ->  {"cancelled": ["jid2"]}

A client asks for the state and the result of a job, and can wait a number of seconds for it to end.
It can cancel jobs in any state.

    MILLRACE {"result": {"jid": ..., "wait": 10}}   ->  {"jid": ..., "state": "done", "result": "3"}
    MILLRACE {"cancel": ["jid1", "jid2"]}           ->  {"cancelled": ["jid1"], "refused": {...}}

A worker fetches and acknowledges several jobs in one round trip.

    MILLRACE {"fetch": {"queues": ["a"], "count": 8}}   ->  [{"jid": ...}, ...]
    MILLRACE {"ack": [{"jid": ..., "result": "3"}]}     ->  {"acknowledged": 1}
"""

from base64 import b64encode
from collections.abc import Callable, Generator
from typing import Annotated, Final

import msgspec

from millrace.engine.engine import Engine
from millrace.engine.job import SECOND, Job, NewJob, add_time
from millrace.engine.retention import MAX_RETENTION
from millrace.engine.states import DEAD, DONE, LEASED, STATE_NAMES
from millrace.engine.waiters import JobOutcome
from millrace.protocols import go_json
from millrace.protocols.buffers import LF
from millrace.protocols.errors import ClientError
from millrace.protocols.payloads import BASE64
from millrace.protocols.registry import FAKTORY
from millrace.records.types import MAX_PRIORITY

MAX_TAGS: Final = 100
MAX_TAG_LENGTH: Final = 255
MAX_DEPENDENCIES: Final = 1000
#: Of the jobs with the same id, the oldest and this many of the newest are examined.
MAX_DUPLICATES: Final = 16
MAX_RESULT_BYTES: Final = 1 << 20
#: Maximum number of seconds that a request waits for the end of a job.
MAX_RESULT_WAIT: Final = 60
MAX_CANCELLED: Final = 1000
CANCEL_BATCH_SIZE: Final = 50
MAX_FETCHED: Final = 100
MAX_FETCH_QUEUES: Final = 1000
#: A bulk fetch adds no more jobs to its reply after this many bytes.
FETCH_BYTES_LIMIT: Final = 1 << 20
MAX_ACKNOWLEDGED: Final = 1000
#: Maximum number of jobs in a BEAT; further ones are ignored.
MAX_RUNNING: Final = 10_000
#: Only work units that contain these bytes can have extensions.
_MARK: Final = b'"millrace"'

_Tag = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_TAG_LENGTH)]


class JobExtensions(msgspec.Struct):
    priority: Annotated[int, msgspec.Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] = 0
    tags: Annotated[list[_Tag], msgspec.Meta(max_length=MAX_TAGS)] = []
    #: Ids of jobs that must complete first.
    depends_on: Annotated[list[str], msgspec.Meta(max_length=MAX_DEPENDENCIES)] = []
    #: Seconds that the completed job is kept with its result.
    keep_result: Annotated[float, msgspec.Meta(ge=0, le=MAX_RETENTION // SECOND)] | None = None


class _ExtensionFields(msgspec.Struct):
    millrace: JobExtensions = msgspec.field(default_factory=JobExtensions)


_decode: Final = msgspec.json.Decoder(_ExtensionFields).decode


def may_have_extensions(push: NewJob) -> bool:
    """Whether a push may have a member `custom.millrace`."""
    wire_fields = push.wire_fields  # they begin with `custom`
    return wire_fields[0] != LF and wire_fields.find(_MARK) >= 0


def apply_extensions(push: NewJob, engine: Engine) -> None:
    """Set the fields of a push that its `custom.millrace` asks for."""
    custom = push.wire_fields.partition(b"\n")[0]
    try:
        wanted = _decode(custom or b"{}").millrace
    except msgspec.ValidationError as error:
        raise ClientError(f"invalid custom: {go_json.error_text(error)}") from None
    push.rank = wanted.priority
    push.tags = list(dict.fromkeys(wanted.tags))
    if wanted.keep_result is not None:
        push.retention = round(wanted.keep_result * SECOND)
    push.blockers = [
        seq for jid in dict.fromkeys(wanted.depends_on) for seq in _unfinished_seqs(engine, jid)
    ]


def _unfinished_seqs(engine: Engine, jid: str) -> list[int]:
    """Return the seqs of the jobs with this id that are not done. A job that no longer exists
    counts as completed.
    """
    found = engine.find_all(jid, MAX_DUPLICATES)
    if not found:
        engine.caller.wait()  # its completion may not be committed yet
    return [job.seq for job in found if job.state != DONE]


# Several jobs


class FetchRequest(msgspec.Struct, forbid_unknown_fields=True):
    queues: Annotated[list[str], msgspec.Meta(min_length=1, max_length=MAX_FETCH_QUEUES)]
    count: Annotated[int, msgspec.Meta(ge=1, le=MAX_FETCHED)] = 1


class Acknowledgement(msgspec.Struct, forbid_unknown_fields=True):
    jid: str
    result: str | None = None


# Results


class ResultRequest(msgspec.Struct, forbid_unknown_fields=True):
    jid: str
    #: Seconds to wait for the end of the job.
    wait: Annotated[float, msgspec.Meta(ge=0, le=MAX_RESULT_WAIT)] = 0


class ResultReply(msgspec.Struct, omit_defaults=True):
    """The state of a job. `unknown`: it never existed, or it has ended and is not kept."""

    jid: str
    state: str
    result: str | None = None
    #: `base64` if the result is not UTF-8.
    result_encoding: str = ""
    error_type: str = ""
    error_message: str = ""


def result_of_ack(text: str | None) -> bytes | None:
    """The result in an ACK, checked."""
    if text is None:
        return None
    result = text.encode()
    if len(result) > MAX_RESULT_BYTES:
        raise ClientError(f"the result is larger than {MAX_RESULT_BYTES} bytes")
    return result


def newest_job(engine: Engine, jid: str) -> Job | None:
    found = engine.find_all(jid, 1)
    return found[-1] if found else None


def has_ended(job: Job | None) -> bool:
    return job is None or job.state in {DONE, DEAD}


def describe_job(jid: str, job: Job | None) -> bytes:
    """The reply about a job in its current state."""
    if job is None:
        return msgspec.json.encode(ResultReply(jid, "unknown"))
    result = None if job.extra is None else job.extra.result
    return _reply(jid, STATE_NAMES[job.state], job, result)


def describe_outcome(jid: str, outcome: JobOutcome) -> bytes:
    """The reply about a job that has just ended."""
    if outcome.succeeded:
        return _reply(jid, "done", outcome.job, outcome.result)
    ended = "dead" if outcome.job.state == DEAD else outcome.cause
    return _reply(jid, ended, outcome.job, None)


def _reply(jid: str, state: str, job: Job, result: bytes | None) -> bytes:
    reply = ResultReply(jid, state)
    if state == "done" and result:
        try:
            reply.result = result.decode()
        except UnicodeDecodeError:
            reply.result, reply.result_encoding = b64encode(result).decode(), BASE64
    elif state != "done" and job.failure is not None:
        reply.error_type, reply.error_message = job.failure.group, job.failure.message
    return msgspec.json.encode(reply)


# Cancellation


def cancel_jobs(
    engine: Engine, jids: list[str], check_store: Callable[[], None], now: int
) -> Generator[None, None, bytes]:
    """Cancel all unfinished jobs with these ids in slices, running ones included. `check_store`
    raises an error if the server must not continue.
    """
    cancelled: list[str] = []
    refused: dict[str, str] = {}
    for number, jid in enumerate(dict.fromkeys(jids)):
        if number and number % CANCEL_BATCH_SIZE == 0:
            yield
            check_store()
        found = [job for job in engine.find_all(jid, MAX_DUPLICATES) if not has_ended(job)]
        if not found:
            engine.caller.wait()  # the end of the job may not be committed yet
            refused[jid] = "The job does not exist or has ended."
        elif any(engine.first_dependents(job, 0)[1] for job in found):
            refused[jid] = "Other jobs depend on it."
        else:
            for job in found:
                engine.cancel(job, now, FAKTORY)
            cancelled.append(jid)
    return msgspec.json.encode({"cancelled": cancelled, "refused": refused})


def revoked_jobs(engine: Engine, wid: str, running: list[str], now: int) -> list[str]:
    """The jobs in this list that are not leased to the worker. A lease that a restart has undone
    is restored.
    """
    return [
        jid
        for jid in running[:MAX_RUNNING]
        if not _is_held(engine, jid, wid) and engine.reclaim_by_id(jid, wid, FAKTORY, now) is None
    ]


def renew_leases(engine: Engine, wid: str, running: list[str], now: int) -> int:
    """Extend the leases of jobs that the worker is running, once less than half of the time is
    left. Return the number of leases extended.
    """
    renewed = 0
    for jid in running[:MAX_RUNNING]:
        for job in _find_leased_jobs(engine, jid, wid):
            if job.deadline - now < job.lease_duration // 2:
                engine.renew(job, add_time(now, job.lease_duration), now)
                renewed += 1
    return renewed


def _is_held(engine: Engine, jid: str, wid: str) -> bool:
    return bool(_find_leased_jobs(engine, jid, wid))


def _find_leased_jobs(engine: Engine, jid: str, wid: str) -> list[Job]:
    return [
        job
        for job in engine.find_all(jid, MAX_DUPLICATES)
        if job.state == LEASED and job.holder == wid and job.holder_protocol == FAKTORY
    ]

"""Push jobs over HTTP."""

from collections.abc import Iterator
from typing import Final

from millrace.engine.engine import Engine
from millrace.engine.job import Job, NewJob
from millrace.engine.states import DEAD, DONE
from millrace.protocols.errors import CodedError
from millrace.protocols.registry import HTTP
from millrace.records import PushJob
from millrace.records.types import MAX_NAME, MAX_PAYLOAD, MAX_PUSHED, MAX_QUEUE_NAME

#: The oldest job and this number of the newest jobs with the same id are examined.
MAX_DUPLICATES: Final = 16
#: The size of a request whose jobs are pushed at once, and of a slice of a larger one. A job with
#: few tags and few jobs in `waits_for` counts as 1.
SLICE_SIZE: Final = 50
#: The number of ids in `waits_for` that a slice resolves.
MAX_NAMES_IN_SLICE: Final = 400


def push_jobs(engine: Engine, new_jobs: list[PushJob], now: int) -> list[Job]:
    """Push all jobs, or none."""
    _check(engine, new_jobs)
    index_by_jid: dict[str, int] = {}
    pushes = []
    for number, new in enumerate(new_jobs):
        blockers = _blockers(engine, _names(new), number, index_by_jid)
        pushes.append(_new_job(new, blockers, now))
        index_by_jid[new.jid] = number
    return engine.push_many(pushes, now)


def is_large(new_jobs: list[PushJob]) -> bool:
    """Whether the jobs should be pushed by `stage_jobs`."""
    return sum(map(_size, new_jobs)) > SLICE_SIZE


def stage_jobs(
    engine: Engine, new_jobs: list[PushJob], name: str, jobs: list[Job], now: int
) -> Iterator[None]:
    """Stage all jobs in a transaction in slices, and append them to `jobs`. After an error or a
    refused commit, the caller abandons the transaction.
    """
    _check(engine, new_jobs)
    index_by_jid: dict[str, int] = {}
    size = 0
    for number, new in enumerate(new_jobs):
        if size and size + _size(new) > SLICE_SIZE:
            yield
            size = 0
        size += _size(new)
        blockers: list[int] = []
        names = _names(new)
        while len(names) > MAX_NAMES_IN_SLICE:
            blockers += _blockers(engine, names[:MAX_NAMES_IN_SLICE], number, index_by_jid)
            del names[:MAX_NAMES_IN_SLICE]
            yield
        blockers += _blockers(engine, names, number, index_by_jid)
        blockers = [each if each > 0 else jobs[each].seq for each in blockers]
        _check_jid(engine, new.jid)  # another client may have pushed it since the first slice
        push = _new_job(new, blockers, now)
        engine.check_queues(push)
        engine.check_blockers(blockers)
        jobs.append(engine.transactions.stage(name, push, now))
        index_by_jid[new.jid] = number
    yield


def _size(new: PushJob) -> int:
    return 1 + (len(new.waits_for) + len(new.tags)) // 20


def _check(engine: Engine, new_jobs: list[PushJob]) -> None:
    """Raise an error for jobs that cannot be pushed. Blockers are checked later."""
    if not 0 < len(new_jobs) <= MAX_PUSHED:
        raise CodedError(f"A request must push 1 to {MAX_PUSHED} jobs.", "too large")
    jids: set[str] = set()
    for new in new_jobs:
        check_queue(new.queue)
        if len(new.payload) > MAX_PAYLOAD:
            raise CodedError(f"A payload must not exceed {MAX_PAYLOAD:,} bytes.", "too large")
        if new.jid in jids:
            raise _still_active(new.jid)
        _check_jid(engine, new.jid)
        if new.jid:
            jids.add(new.jid)


def _check_jid(engine: Engine, jid: str) -> None:
    found = engine.find_all(jid, MAX_DUPLICATES) if jid else []
    abandoned = engine.transactions.is_abandoned
    if any(job.state not in {DONE, DEAD} and not abandoned(job) for job in found):
        raise _still_active(jid)


def _still_active(jid: str) -> CodedError:
    return CodedError(f'A job with ID "{jid}" is still active.', "conflict")


def check_queue(name: str) -> None:
    if not name or len(name.encode()) > MAX_QUEUE_NAME:
        raise CodedError(f"A queue name must have 1 to {MAX_QUEUE_NAME} bytes.")


def _new_job(new: PushJob, blockers: list[int], now: int) -> NewJob:
    return NewJob(
        new.jid,
        new.kind,
        new.payload,
        HTTP,
        new.queue,
        new.retries,
        new.lease_for,
        rank=new.priority,
        due_at=new.at if new.at > now else 0,
        tags=list(dict.fromkeys(new.tags)),
        blockers=blockers,
        retention=new.retention,
    )


def _names(new: PushJob) -> list[str]:
    """The jids that a job waits for, each once."""
    return list(dict.fromkeys(new.waits_for))


def _blockers(
    engine: Engine, names: list[str], number: int, index_by_jid: dict[str, int]
) -> list[int]:
    """Resolve job ids to earlier jobs of the same request, or to the unfinished jobs with these
    ids.
    """
    blockers: list[int] = []
    for jid in names:
        if jid and jid in index_by_jid:
            blockers.append(index_by_jid[jid] - number)
            continue
        found = engine.find_all(jid, MAX_DUPLICATES)
        found = [job for job in found if not engine.transactions.is_abandoned(job)]
        if not found:
            engine.caller.wait()  # an uncommitted change may have removed it
            raise CodedError(
                f'Job "{jid[:MAX_NAME]}" in `waits_for` not found. It may have finished and no '
                "longer be retained. Push without this dependency.",
                "conflict",
            )
        blockers += [job.seq for job in found if job.state != DONE]
    return blockers

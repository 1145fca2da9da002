"""Push jobs over HTTP."""

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


def push_jobs(engine: Engine, new_jobs: list[PushJob], now: int) -> list[Job]:
    """Push all jobs, or none."""
    if not 0 < len(new_jobs) <= MAX_PUSHED:
        raise CodedError(f"A request must push 1 to {MAX_PUSHED} jobs.", "too large")
    index_by_jid: dict[str, int] = {}
    pushes = []
    for number, new in enumerate(new_jobs):
        check_queue(new.queue)
        if len(new.payload) > MAX_PAYLOAD:
            raise CodedError(f"A payload must not exceed {MAX_PAYLOAD:,} bytes.", "too large")
        if new.jid and (new.jid in index_by_jid or _is_active(engine, new.jid)):
            raise CodedError(f'A job with ID "{new.jid}" is still active.', "conflict")
        pushes.append(_new_job(engine, new, number, index_by_jid, now))
        if new.jid:
            index_by_jid[new.jid] = number
    return engine.push_many(pushes, now)


def check_queue(name: str) -> None:
    if not name or len(name.encode()) > MAX_QUEUE_NAME:
        raise CodedError(f"A queue name must have 1 to {MAX_QUEUE_NAME} bytes.")


def _new_job(
    engine: Engine, new: PushJob, number: int, index_by_jid: dict[str, int], now: int
) -> NewJob:
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
        blockers=[
            blocker
            for jid in dict.fromkeys(new.waits_for)
            for blocker in _blockers(engine, jid, number, index_by_jid)
        ],
        retention=new.retention,
    )


def _blockers(engine: Engine, jid: str, number: int, index_by_jid: dict[str, int]) -> list[int]:
    """Resolve a job id to an earlier job of the same request, or to its jobs that are not done."""
    if jid in index_by_jid:
        return [index_by_jid[jid] - number]
    found = engine.find_all(jid, MAX_DUPLICATES)
    if not found:
        engine.caller.wait()  # an uncommitted change may have removed it
        raise CodedError(
            f'Job "{jid[:MAX_NAME]}" in `waits_for` not found. It may have finished and no longer '
            "be retained. Push without this dependency.",
            "conflict",
        )
    return [job.seq for job in found if job.state != DONE]


def _is_active(engine: Engine, jid: str) -> bool:
    found = engine.find_all(jid, MAX_DUPLICATES)
    return any(job.state not in {DONE, DEAD} for job in found)

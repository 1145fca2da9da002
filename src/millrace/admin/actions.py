"""Actions on one job, by the name that the operation `act` uses.

An action that does not apply to the job leaves it unchanged and raises NotApplicable with the
reason. If Qless stores data with the job, its subscribers receive the message of the matching Qless
command.
"""

from collections.abc import Callable, Container
from typing import Final

from millrace.engine.job import GOQUEUE, NO_PROTOCOL, QLESS, Failure, Job, extra_of
from millrace.engine.policy import POLICIES
from millrace.engine.states import BLOCKED, DEAD, DONE, LEASED, READY, SCHEDULED
from millrace.protocols.qless import work
from millrace.protocols.qless.job_view import Failed, part_of
from millrace.protocols.qless.state import Qless
from millrace.records import ActionRequest

from .errors import NotApplicable
from .jobs import shorten
from .service import AdminService, jobs_by_id

Doing = Callable[[AdminService, Job, ActionRequest, int], None]

#: Maximum dependent jobs listed by name in an error message.
MAX_NAMED_DEPENDENTS: Final = 3
#: Error group and message of a killed job that has no failure yet, as in Qless.
KILLED: Final = ("killed", "somebody put it among the failed")

STATE_TEXT: Final = {
    SCHEDULED: "it is scheduled",
    BLOCKED: "it waits for other jobs",
    READY: "it is ready",
    LEASED: "a worker has it",
    DONE: "it is done",
    DEAD: "it is dead",
}


def retry(hub: AdminService, job: Job, asked: ActionRequest, now: int) -> None:
    _need(job, {SCHEDULED, DEAD}, "only what is scheduled or dead can be tried again")
    qless = hub.qless
    if job.state == DEAD and job.origin == QLESS and qless is not None:
        work.put_again(qless, now, job, job.queue, 0)
    else:
        hub.engine.requeue(job, now)


def kill(hub: AdminService, job: Job, asked: ActionRequest, now: int) -> None:
    _need(job, {SCHEDULED, BLOCKED, READY}, "it cannot be killed")
    engine, qless = hub.engine, hub.qless
    if job.origin != QLESS or qless is None:
        engine.kill(job, now)
        return
    part, theirs = part_of(job), now + engine.theirs
    rank = part.rank
    if job.failure is None:
        job.failure = Failure(theirs, theirs, *KILLED, [])
    group, message = job.failure.group, job.failure.message
    engine.kill(job, now)
    part.stalled, part.throttled, part.expired_at, job.rank = False, None, None, rank
    part.add("failed", theirs, qless.max_history, {"worker": "", "group": group})
    part.failure = Failed(group, message, theirs // 1_000_000, "")
    qless.log_failed(job, "", group, message)
    qless.tell_tracked("failed", job.jid)


def cancel(hub: AdminService, job: Job, asked: ActionRequest, now: int) -> None:
    _need(job, {SCHEDULED, BLOCKED, READY, DEAD, DONE}, "time it out first, or delete it")
    found, others = hub.engine.some_dependents(job, MAX_NAMED_DEPENDENTS + 1)
    waiting = [shorten(each.jid) for each in found if each is not job]
    if waiting:
        listed = ", ".join(waiting[:MAX_NAMED_DEPENDENTS])
        others += len(waiting[MAX_NAMED_DEPENDENTS:])
        more = f" and {others} more" if others else ""
        raise NotApplicable(f"others wait for it: {listed}{more}. Cancel them, too, or delete it")
    remove(hub, job, now)


def delete(hub: AdminService, job: Job, asked: ActionRequest, now: int) -> None:
    remove(hub, job, now)


def remove(hub: AdminService, job: Job, now: int) -> None:
    qless = hub.qless
    if qless is not None and (job.origin == QLESS or job.jid in qless.tracked):
        work.tell_cancelled(qless, job)
    hub.engine.cancel(job, now)


def move(hub: AdminService, job: Job, asked: ActionRequest, now: int) -> None:
    movable = {SCHEDULED, BLOCKED, READY, DEAD}
    if job.origin == QLESS:
        movable.add(DONE)  # Qless repeats a completed job this way
    _need(job, movable, "time it out first" if job.state == LEASED else "it cannot be moved")
    due = job.due if job.state in {SCHEDULED, BLOCKED} else 0
    qless = hub.qless
    if qless is not None and _has_part(job):
        work.put_again(qless, now, job, asked.queue, due)
    else:
        hub.engine.move(job, asked.queue, now, NO_PROTOCOL, due=due)


def priority(hub: AdminService, job: Job, asked: ActionRequest, now: int) -> None:
    """Set the priority, in the scale of the protocol that pushed the job."""
    _need(job, {SCHEDULED, BLOCKED, READY, LEASED, DEAD}, "nobody will work it again")
    rank = 0.0 - asked.priority if job.origin == GOQUEUE else asked.priority
    if not _has_part(job):
        hub.engine.rerank(job, rank, job.place)
        return
    part = part_of(job)
    if job.origin == QLESS:
        part.priority = asked.priority
    else:
        part.priority = 0.0 - rank if part.lower_first else rank
    if part.throttled is not None:
        part.throttled.rank = part.rank
        hub.engine.touch(job)
    else:
        hub.engine.rerank(job, job.rank if part.stalled else part.rank, job.place)


def tag(hub: AdminService, job: Job, asked: ActionRequest, now: int) -> None:
    known = _tags(job)
    added = [tag for tag in dict.fromkeys(asked.tags) if tag not in known]
    if not added:
        raise NotApplicable("it has these tags already")
    _set_tags(hub, job, [*known, *added], now)


def untag(hub: AdminService, job: Job, asked: ActionRequest, now: int) -> None:
    known = _tags(job)
    left = [tag for tag in known if tag not in asked.tags]
    if left == known:
        raise NotApplicable("it has none of these tags")
    _set_tags(hub, job, left, now)


def track(hub: AdminService, job: Job, asked: ActionRequest, now: int) -> None:
    qless = require_qless(hub)
    qless.publish("track", job.jid.encode())
    qless.track(job.jid, now + hub.engine.theirs)


def untrack(hub: AdminService, job: Job, asked: ActionRequest, now: int) -> None:
    if not is_tracked(hub, job.jid):
        raise NotApplicable("it is not tracked")
    untrack_id(hub, job.jid)


def is_tracked(hub: AdminService, jid: str) -> bool:
    return jid in require_qless(hub).tracked


def untrack_id(hub: AdminService, jid: str) -> None:
    """Stop tracking a job id. The job need not exist."""
    qless = require_qless(hub)
    qless.publish("untrack", jid.encode())
    qless.track(jid, None)


def undepend(hub: AdminService, job: Job, asked: ActionRequest, now: int) -> None:
    _need(job, {BLOCKED}, "it waits for no other job")
    assert job.extra is not None
    waits_for = job.extra.blockers
    if not waits_for:
        raise NotApplicable(f"it waits for the release of the load {job.extra.load}, not for a job")
    if asked.blockers:
        named = {each.seq for name in asked.blockers for each in jobs_by_id(hub.engine, name)}
        away = [seq for seq in waits_for if seq in named]
        if not away:
            raise NotApplicable("it waits for none of these")
    else:
        away = list(waits_for)
    hub.engine.unblock(job, away, now)


def timeout(hub: AdminService, job: Job, asked: ActionRequest, now: int) -> None:
    _need(job, {LEASED}, "no worker has it")
    engine, qless = hub.engine, hub.qless
    if job.actor == QLESS and qless is not None:
        work.take_away(qless, now, job, now + engine.theirs)
    else:
        group, message = POLICIES[job.origin].expired
        engine.fail(job, now, NO_PROTOCOL, group, message, [], cause="expired")


ACTIONS: Final[dict[str, Doing]] = {
    "retry": retry,
    "kill": kill,
    "cancel": cancel,
    "delete": delete,
    "move": move,
    "priority": priority,
    "tag": tag,
    "untag": untag,
    "track": track,
    "untrack": untrack,
    "undepend": undepend,
    "timeout": timeout,
}


def require_qless(hub: AdminService) -> Qless:
    qless = hub.qless
    if qless is None:
        raise NotApplicable("that is of Qless, and its port is off")
    return qless


def _need(job: Job, states: Container[int], otherwise: str) -> None:
    if job.state not in states:
        raise NotApplicable(f"{STATE_TEXT[job.state]}: {otherwise}")


def _has_part(job: Job) -> bool:
    """Return whether Qless stores data with the job."""
    return job.extra is not None and job.extra.own is not None


def _tags(job: Job) -> list[str]:
    return [] if job.extra is None else list(job.extra.tags)


def set_tags(hub: AdminService, job: Job, tags: list[str], now: int) -> None:
    """Replace the tags of a job, and update the tag index of Qless."""
    qless = hub.qless
    if qless is None and not _has_part(job):
        extra_of(job).tags = tags
        return
    part = part_of(job)
    known, theirs = {str(tag): (tag, when) for tag, when in part.tags}, now + hub.engine.theirs
    kept = [known.get(tag, (tag, theirs)) for tag in tags]
    if qless is not None:
        qless.set_tags(job, part, kept)
    else:
        part.tags = kept
        extra_of(job).tags = tags


def _set_tags(hub: AdminService, job: Job, tags: list[str], now: int) -> None:
    set_tags(hub, job, tags, now)
    hub.engine.touch(job)

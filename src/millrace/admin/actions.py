"""The function of each job action; records.actions declares the actions.

`apply` calls a function only in the declared states. A function that cannot act for another reason
leaves the job unchanged and raises NotApplicable. If Qless stores data with the job, its
subscribers receive the message of the matching Qless command.
"""

from collections.abc import Callable
from typing import Final

from millrace.engine.annotations import ensure_details, tags_of
from millrace.engine.details import LastError
from millrace.engine.job import NO_PROTOCOL, Failure, Job
from millrace.engine.leases import leave_front
from millrace.engine.states import BLOCKED, DEAD, DONE, SCHEDULED, STATE_NAMES
from millrace.protocols.qless import cancellation, locks, puts
from millrace.protocols.registry import GOQUEUE, HTTP, QLESS
from millrace.records import JOB_ACTIONS, ActionRequest

from .errors import NotApplicable
from .jobs import shorten
from .service import AdminService, jobs_by_id

JobFunction = Callable[[AdminService, Job, ActionRequest, int], None]

#: Maximum dependent jobs listed by name in an error message.
MAX_NAMED_DEPENDENTS: Final = 3
#: Error group and message of a killed Qless job that has no failure yet.
KILLED: Final = ("killed", "killed by an operator")


def apply(hub: AdminService, job: Job, request: ActionRequest, now: int) -> None:
    """Perform the requested action on one job."""
    action, state = JOB_ACTIONS[request.action], STATE_NAMES[job.state]
    if state not in action.states:
        raise NotApplicable(
            f"The job is {state}; this action requires the state {action.state_list}."
        )
    FUNCTIONS[request.action](hub, job, request, now)


def retry(hub: AdminService, job: Job, request: ActionRequest, now: int) -> None:
    qless = hub.qless
    if job.state == DEAD and job.origin == QLESS and qless is not None:
        puts.put_again(qless, now, job, job.queue, 0)
    else:
        hub.engine.retry_now(job, now)


def kill(hub: AdminService, job: Job, request: ActionRequest, now: int) -> None:
    engine, qless = hub.engine, hub.qless
    if job.origin != QLESS or qless is None:
        engine.kill(job, now)
        return
    part, theirs = ensure_details(job), engine.time_of(job, now)
    failure = job.failure or Failure(theirs, theirs, *KILLED, [])
    group, message = failure.group, failure.message
    engine.kill(job, now, failure)
    part.parked = part.lapsed_at = None
    leave_front(job)
    part.add_entry("failed", theirs, qless.options.max_history, {"worker": "", "group": group})
    part.last_error = LastError(group, message, theirs // 1_000_000, "")
    qless.publisher.failed(job, "", group, message)
    qless.publisher.tracked("failed", job.jid)


def cancel(hub: AdminService, job: Job, request: ActionRequest, now: int) -> None:
    found, others = hub.engine.first_dependents(job, MAX_NAMED_DEPENDENTS + 1)
    waiting = [shorten(each.jid) for each in found if each is not job]
    if waiting:
        listed = ", ".join(waiting[:MAX_NAMED_DEPENDENTS])
        others += len(waiting[MAX_NAMED_DEPENDENTS:])
        more = f" and {others} more" if others else ""
        raise NotApplicable(
            f"Other jobs depend on it: {listed}{more}. Cancel them as well, or delete the job."
        )
    remove(hub, job, now)


def delete(hub: AdminService, job: Job, request: ActionRequest, now: int) -> None:
    remove(hub, job, now)


def remove(hub: AdminService, job: Job, now: int) -> None:
    qless = hub.qless
    if qless is not None and (job.origin == QLESS or is_tracked(hub, job.jid)):
        cancellation.publish_cancelled(qless, job)
    hub.engine.cancel(job, now)


def move(hub: AdminService, job: Job, request: ActionRequest, now: int) -> None:
    if job.state == DONE and job.origin != QLESS:  # Qless repeats a completed job this way
        raise NotApplicable("The job is done. Only completed Qless jobs can be moved.")
    due = job.due_at if job.state in {SCHEDULED, BLOCKED} else 0
    qless = hub.qless
    if qless is not None and _has_part(job):
        puts.put_again(qless, now, job, request.queue, due)
    else:
        hub.engine.move(job, request.queue, now, NO_PROTOCOL, due=due)


def priority(hub: AdminService, job: Job, request: ActionRequest, now: int) -> None:
    """Set the priority, in the scale of the protocol that pushed the job."""
    rank = 0.0 - request.priority if job.origin == GOQUEUE else request.priority
    if not _has_part(job):
        hub.engine.set_rank(job, rank, job.position)
        return
    part = ensure_details(job)
    if job.origin == QLESS:
        part.priority = request.priority
    else:
        part.priority = 0.0 - rank if part.lower_first else rank
    hub.engine.set_rank(job, job.rank if part.front else part.rank, job.position)


def tag(hub: AdminService, job: Job, request: ActionRequest, now: int) -> None:
    known = _tags(job)
    added = [tag for tag in dict.fromkeys(request.tags) if tag not in known]
    if not added:
        raise NotApplicable("The job has these tags already.")
    _set_tags(hub, job, [*known, *added], now)


def untag(hub: AdminService, job: Job, request: ActionRequest, now: int) -> None:
    known = _tags(job)
    left = [tag for tag in known if tag not in request.tags]
    if left == known:
        raise NotApplicable("The job has none of these tags.")
    _set_tags(hub, job, left, now)


def track(hub: AdminService, job: Job, request: ActionRequest, now: int) -> None:
    hub.engine.track(job.jid, now, HTTP)
    if hub.qless is not None:
        hub.qless.publisher.tracking("track", job.jid)


def untrack(hub: AdminService, job: Job, request: ActionRequest, now: int) -> None:
    if not is_tracked(hub, job.jid):
        raise NotApplicable("The job is not tracked.")
    untrack_id(hub, job.jid)


def is_tracked(hub: AdminService, jid: str) -> bool:
    return hub.engine.is_tracked(jid)


def untrack_id(hub: AdminService, jid: str) -> None:
    """Stop tracking a job id. The job need not exist."""
    hub.engine.track(jid, None)
    if hub.qless is not None:
        hub.qless.publisher.tracking("untrack", jid)


def undepend(hub: AdminService, job: Job, request: ActionRequest, now: int) -> None:
    assert job.extra is not None
    waits_for = job.extra.blockers
    if not waits_for:
        raise NotApplicable(f"The job waits for the load {job.extra.load}, not for other jobs.")
    if request.waits_for:
        named = {each.seq for name in request.waits_for for each in jobs_by_id(hub.engine, name)}
        away = [seq for seq in waits_for if seq in named]
        if not away:
            raise NotApplicable("The job depends on none of these jobs.")
    else:
        away = list(waits_for)
    hub.engine.unblock(job, away, now)


def timeout(hub: AdminService, job: Job, request: ActionRequest, now: int) -> None:
    engine, qless = hub.engine, hub.qless
    if job.holder_protocol == QLESS and qless is not None:
        locks.revoke(qless, now, job, engine.time_of(job, now))
    else:
        group, message = engine.rules.policies[job.origin].expiry_error
        engine.fail(job, now, NO_PROTOCOL, group, message, [], cause="expired")


FUNCTIONS: Final[dict[str, JobFunction]] = {name: globals()[name] for name in JOB_ACTIONS}


def _has_part(job: Job) -> bool:
    """Return whether Qless stores data with the job."""
    return job.extra is not None and job.extra.details is not None


def _tags(job: Job) -> list[str]:
    return [] if job.extra is None else list(job.extra.tags)


def _set_tags(hub: AdminService, job: Job, tags: list[str], now: int) -> None:
    """Replace the tags of a job; the tags that it keeps also keep their times."""
    known = {str(tag): (tag, when) for tag, when in tags_of(job)}
    hub.engine.set_tags(job, [known.get(tag, (tag, now)) for tag in tags])

"""All of the API: what is where, who may use it, and how it may be refused."""

from typing import Final

from . import actions, analytics, events, health, jobs, leases, queues, standing
from .asked import MOST_PUSH
from .endpoints import BYTES, Endpoint, Handler

ROOT: Final = "/api/v1"
_QUEUE: Final = ROOT + "/queues/{name:name}"
_JOB: Final = ROOT + "/jobs/{id:name}"
_ACTION: Final = ROOT + "/actions/{number:name}"
_FAILURE: Final = ROOT + "/failures/{fingerprint:name}"
_WORKER: Final = ROOT + "/workers/{protocol:name}/{wid:name}"
_RECURRING: Final = ROOT + "/recurring/{id:name}"
_LEASE: Final = ROOT + "/leases/{token:name}"


def _look(path: str, handler: Handler, summary: str) -> Endpoint:
    return Endpoint("GET", ROOT + path, handler, "read", summary)


def _one(path: str, handler: Handler, summary: str) -> Endpoint:
    """Something that may not be there."""
    return Endpoint("GET", path, handler, "read", summary, refusals=(404,))


def _do(path: str, handler: Handler, summary: str) -> Endpoint:
    """Something that may not be there, or not be possible."""
    return Endpoint("POST", path, handler, "operate", summary, refusals=(404, 409))


def _long(path: str, handler: Handler, summary: str) -> Endpoint:
    return Endpoint(
        "POST", path, handler, "operate", summary, statuses=(200, 202), refusals=(404, 409)
    )


TABLE: Final = (
    _look("/overview", queues.overview, "The numbers of the moment, and of the last days"),
    # Queues
    _look("/queues", queues.queues, "Queues by name"),
    _one(_QUEUE, queues.queue, "A queue, and its statistics of a day"),
    _do(_QUEUE + "/pause", queues.pause_queue, "Hand out no more of its jobs"),
    _do(_QUEUE + "/resume", queues.resume_queue, "Hand out its jobs again"),
    _long(_QUEUE + "/clear", queues.clear_queue, "Remove its ready jobs"),
    _long(_QUEUE + "/remove", queues.remove_queue, "Remove its ready jobs, and the queue"),
    # Jobs
    _look("/jobs", jobs.jobs, "Jobs that match"),
    Endpoint(
        "POST",
        ROOT + "/jobs",
        jobs.push,
        "operate",
        "Push jobs: all of them, or none",
        statuses=(201,),
        refusals=(409,),
        most=MOST_PUSH,
    ),
    Endpoint(
        "GET",
        _JOB + "/payload",
        jobs.job_payload,
        "read",
        "A job's payload: its bytes as they came",
        refusals=(404, 409),
        media=BYTES,
    ),
    _one(_JOB + "/events", events.job_events, "What happened to a job, as the journal has it"),
    _one(_JOB, jobs.job, "A job, its failure, and why it is not running"),
    _do(_JOB + "/retry", jobs.retry_job, "A dead or scheduled job is ready now"),
    _do(_JOB + "/kill", jobs.kill_job, "Put it among the dead"),
    _do(_JOB + "/cancel", jobs.cancel_job, "Remove it, unless a worker has it"),
    _do(_JOB + "/delete", jobs.delete_job, "Remove it, whatever it is doing"),
    _do(_JOB + "/move", jobs.move_job, "Put it into another queue"),
    _do(_JOB + "/priority", jobs.change_priority, "Change its priority"),
    _do(_JOB + "/tag", jobs.tag_job, "Add tags"),
    _do(_JOB + "/untag", jobs.untag_job, "Take tags away"),
    _do(_JOB + "/track", jobs.track_job, "Track it"),
    _do(_JOB + "/untrack", jobs.untrack_job, "Track it no longer"),
    _do(_JOB + "/undepend", jobs.undepend_job, "It waits no longer for other jobs"),
    _do(_JOB + "/timeout", jobs.time_out_job, "Its worker loses it"),
    # Actions
    _look("/actions", actions.actions, "What is being done to many jobs, the newest first"),
    _long(ROOT + "/actions", actions.begin_action, "Do something to many jobs"),
    _one(_ACTION, actions.action, "How far an action is"),
    _do(_ACTION + "/stop", actions.stop_action, "Stop an action: what is done stays done"),
    # Failures
    _look("/failures", standing.failures, "Failures by error, the largest first"),
    _one(_FAILURE, standing.failure, "The jobs that failed of an error"),
    _long(_FAILURE + "/retry", standing.retry_failure, "Retry all jobs that failed of it"),
    _long(_FAILURE + "/delete", standing.delete_failure, "Delete all jobs that failed of it"),
    # Workers
    _look("/workers", standing.workers, "Workers, and what they have"),
    _one(_WORKER, standing.worker, "A worker, and what it has"),
    _do(_WORKER + "/quiet", standing.quiet_worker, "A worker of Faktory takes no more jobs"),
    _do(_WORKER + "/terminate", standing.terminate_worker, "A worker of Faktory ends"),
    # What Qless keeps
    _look("/recurring", standing.recurring, "Recurring jobs"),
    _do(_RECURRING + "/cancel", standing.cancel_recurring, "It recurs no longer"),
    _do(_RECURRING + "/move", standing.move_recurring, "Put its jobs into another queue"),
    _do(_RECURRING + "/priority", standing.change_recurring_priority, "Change its priority"),
    _do(_RECURRING + "/tag", standing.tag_recurring, "Add tags"),
    _do(_RECURRING + "/untag", standing.untag_recurring, "Take tags away"),
    _look("/tracked", standing.tracked, "Tracked jobs"),
    _look("/tags", standing.tags, "Tags, the most used first"),
    _look("/throttles", standing.throttles, "Throttles, and who holds them"),
    # Working
    Endpoint("POST", ROOT + "/leases", leases.lease, "operate", "Lease jobs, or wait for one"),
    Endpoint(
        "POST",
        _LEASE + "/complete",
        leases.complete,
        "operate",
        "The job is done",
        refusals=(404, 409),
        most=MOST_PUSH,
    ),
    _do(_LEASE + "/fail", leases.fail, "The attempt failed"),
    _do(_LEASE + "/release", leases.release, "Give the job back; the attempt is counted"),
    _do(_LEASE + "/renew", leases.renew, "Prolong the lease"),
    # The server
    _look("/server", standing.server, "The server: its version, store, disk and journal"),
    _do(ROOT + "/ship", standing.ship, "Ship what waits in the journal to the lake, now"),
    Endpoint(
        "GET",
        ROOT + "/analytics",
        analytics.analytics,
        "read",
        "What the pipeline made of some days, for all queues or one",
        refusals=(409,),
    ),
    _look("/pipeline", standing.pipeline, "When the pipeline last ran"),
    _do(ROOT + "/pipeline/run", standing.run_pipeline, "Run the pipeline"),
    Endpoint("GET", ROOT + "/configuration", standing.configuration, "admin", "All settings"),
    Endpoint(
        "POST",
        ROOT + "/configuration/qless",
        standing.set_qless,
        "operate",
        "Change one of Qless's settings",
        refusals=(409,),
    ),
    Endpoint("GET", ROOT + "/audit", standing.audit, "admin", "What was changed, and by whom"),
    Endpoint(
        "POST", ROOT + "/flush", standing.flush, "admin", "Forget everything", refusals=(409,)
    ),
    # Outside of it
    Endpoint("GET", "/health", health.health, None, "Is the server there?"),
    Endpoint("GET", "/ready", health.ready, None, "Can changes be made durable?"),
    Endpoint("GET", "/stats", health.stats, "read", "What Faktory's INFO says"),
)

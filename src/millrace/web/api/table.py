"""The routes of the API, with the role each requires and the errors it may return."""

from typing import Any, Final

from millrace.records import MAX_PAYLOAD

from . import actions, bulk, health, jobs, leases, status
from .endpoints import BYTES, Endpoint, Handler

ROOT: Final = "/api/v1"
_QUEUE: Final = ROOT + "/queues/{name:name}"
_JOB: Final = ROOT + "/jobs/{id:name}"
_ACTION: Final = ROOT + "/actions/{number:name}"
_FAILURE: Final = ROOT + "/failures/{fingerprint:name}"
_WORKER: Final = ROOT + "/workers/{protocol:name}/{wid:name}"
_RECURRING: Final = ROOT + "/recurring/{id:name}"
_LEASE: Final = ROOT + "/leases/{token:name}"


def _list(path: str, handler: Handler, summary: str) -> Endpoint:
    return Endpoint("GET", ROOT + path, handler, "read", summary)


def _get(path: str, handler: Handler, summary: str, **more: Any) -> Endpoint:
    return Endpoint("GET", path, handler, "read", summary, **{"refusals": (404,), **more})


def _change(path: str, handler: Handler, summary: str, **more: Any) -> Endpoint:
    return Endpoint("POST", path, handler, "operate", summary, **{"refusals": (404, 409), **more})


TABLE: Final = (
    _list("/overview", status.overview, "Get the current numbers and the totals of the last days"),
    _get(ROOT + "/events", status.events, "List the newest events that are not shipped yet"),
    # Queues
    _list("/queues", status.queues, "List queues by name"),
    _get(_QUEUE, status.queue, "Get a queue and its statistics of a day"),
    *actions.queue_routes(_QUEUE),
    # Jobs
    _list("/jobs", jobs.jobs, "Search jobs"),
    _change(
        ROOT + "/jobs",
        jobs.push,
        "Push jobs: all of them or none",
        statuses=(201,),
        refusals=(409,),
        most=MAX_PAYLOAD,
    ),
    _get(
        _JOB + "/payload",
        jobs.job_payload,
        "Get the bytes of a job's payload",
        refusals=(404, 409, 500),
        media=BYTES,
    ),
    _get(_JOB + "/events", jobs.job_events, "List the events of a job from the journal"),
    _get(
        _JOB,
        jobs.job,
        "Get a job, its failure, and the reasons why it is not running",
        refusals=(404, 500),
    ),
    *actions.job_routes(_JOB),
    # Bulk actions
    _list("/actions", bulk.actions, "List bulk actions, newest first"),
    _change(
        ROOT + "/actions", bulk.begin_action, "Start an action on several jobs", statuses=(200, 202)
    ),
    _get(_ACTION, bulk.action, "Get the progress of a bulk action"),
    _change(_ACTION + "/stop", bulk.stop_action, "Stop a bulk action; finished changes remain"),
    # Failures
    _list("/failures", status.failures, "List failure groups, largest first"),
    _get(_FAILURE, status.failure, "List the jobs of a failure group"),
    actions.failure_route(_FAILURE, "retry", "Retry all jobs of a failure group"),
    actions.failure_route(_FAILURE, "delete", "Delete all jobs of a failure group"),
    # Workers
    _list("/workers", status.workers, "List workers and the jobs they hold"),
    _get(_WORKER, status.worker, "Get a worker and the jobs it holds"),
    *actions.worker_routes(_WORKER),
    # Recurring jobs, tracked jobs, tags and limits
    _list("/recurring", status.recurring, "List recurring jobs"),
    *actions.recurring_routes(_RECURRING),
    _list("/tracked", status.tracked, "List tracked jobs"),
    _list("/tags", status.tags, "List tags, most used first"),
    _list("/throttles", status.throttles, "List limits and the jobs that hold them"),
    # Leases
    Endpoint("POST", ROOT + "/leases", leases.lease, "operate", "Lease jobs, or wait for one"),
    _change(_LEASE + "/complete", leases.complete, "Complete the job", most=MAX_PAYLOAD),
    _change(_LEASE + "/fail", leases.fail, "Fail the attempt"),
    _change(_LEASE + "/release", leases.release, "Return the job; the attempt counts"),
    _change(_LEASE + "/renew", leases.renew, "Extend the lease"),
    # The server
    _list("/server", status.server, "Get the status of the server"),
    _change(ROOT + "/ship", status.ship, "Ship pending events to the lake now"),
    _get(
        ROOT + "/analytics",
        status.analytics,
        "Get the report of some days, for all queues or one",
        refusals=(409,),
    ),
    _list("/pipeline", status.pipeline, "Get the last run of the pipeline"),
    _change(ROOT + "/pipeline/run", status.run_pipeline, "Run the pipeline"),
    Endpoint("GET", ROOT + "/configuration", status.configuration, "admin", "List all settings"),
    _change(
        ROOT + "/configuration/qless", status.set_qless, "Change a Qless setting", refusals=(409,)
    ),
    Endpoint("GET", ROOT + "/audit", status.audit, "admin", "List audit entries, newest first"),
    Endpoint(
        "POST",
        ROOT + "/flush",
        status.flush,
        "admin",
        "Delete all jobs, queues and statistics",
        refusals=(409,),
    ),
    # Outside of the API
    Endpoint("GET", "/health", health.health, None, "Check that the server replies"),
    Endpoint("GET", "/ready", health.ready, None, "Check that the server accepts changes"),
    Endpoint("GET", "/stats", health.stats, "read", "Get Faktory's INFO"),
)

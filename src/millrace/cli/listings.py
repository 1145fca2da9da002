"""Operator commands that show something: queues, jobs, workers, limits, statistics, events."""

import base64
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from millrace.cli.operator_command import EXIT_FAILED, fail, operator_command
from millrace.cli.tables import print_fields, print_json, print_table, printable

if TYPE_CHECKING:
    from millrace.cli.remote import Remote

#: Seconds between two looks at the outbox or at a job.
FOLLOW_INTERVAL: Final = 0.2
EVENT_PAGE_SIZE: Final = 1000
#: Prefix of the names of limits that belong to a queue.
QUEUE_LIMIT: Final = "ql:q:"
#: Seconds between two questions for a result.
RESULT_INTERVAL: Final = 0.1

Limit = Annotated[
    int,
    typer.Option("--limit", metavar="N", min=1, max=1000, help="Maximum number of rows to list."),
]
Search = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="QUERY",
        help="Search terms, such as queue:mail state:dead timeout.",
        show_default=False,
    ),
]
#: Heads of a table, each with the member of a record or a function of it.
Columns = dict[str, Any]
JobId = Annotated[
    str, typer.Argument(metavar="JID", help="ID or number of the job.", show_default=False)
]


@operator_command
def queues_command(
    remote: "Remote",
    text: Annotated[
        str, typer.Argument(metavar="TEXT", help="Part of the name.", show_default=False)
    ] = "",
    limit: Limit = 100,
    *,
    json: bool,
) -> None:
    """List queues with their jobs by state.

    Examples:
    - `millrace queues`
    - `millrace queues mail --json`
    - `millrace queues --url http://queue.example.com:7420`

    """
    from millrace.records import MAX_LARGE_PAGE_SIZE  # noqa: PLC0415

    found = remote.read_list("queues", text=text, limit=min(limit, MAX_LARGE_PAGE_SIZE))
    states = ("ready", "scheduled", "blocked", "leased", "done", "dead")
    columns = {"queue": "name", **{state: _count(state) for state in states}, "paused": "paused"}
    page = _show_list(found, "queues", columns, json=json)
    more = page["count"] - len(page["queues"])
    if more > 0 and not json:
        sys.stdout.write(f"{more:,} more. Use --limit, or TEXT to select.\n")


def _count(state: str) -> Callable[[Any], Any]:
    return lambda queue: queue["jobs"][state]


@operator_command
def jobs_command(
    remote: "Remote",
    query: Search = None,
    limit: Limit = 50,
    order: Annotated[
        str, typer.Option(help="Order: newest, due, queue or ended.", metavar="ORDER")
    ] = "newest",
    *,
    json: bool,
) -> None:
    """Search for jobs, with the same terms as on the Jobs page.

    A term is text that occurs in the payload, the ID, the kind or the error, or `key:value` with
    one of the keys id, queue, kind, state, tag, protocol, worker, error, group, fingerprint, is and
    not (`is:retrying`, `is:failing`, `is:tracked`). A job must match all terms.

    Examples:
    - `millrace jobs queue:mail state:dead`
    - `millrace jobs 'error:"connection refused"' --limit 5`
    - `millrace jobs is:retrying --json`

    """
    if order not in {"newest", "due", "queue", "ended"}:
        raise typer.BadParameter("ORDER must be newest, due, queue or ended.")
    page: dict[str, Any] = {"next": ""}
    found: list[Any] = []
    while len(found) < limit:
        page = remote.search(" ".join(query or []), limit - len(found), page["next"] or "", order)
        found += page["jobs"]
        if not page["next"]:
            break
    columns: Columns = {
        name: name for name in ("number", "id", "queue", "kind", "state", "attempt")
    }
    columns["error"] = lambda job: job["failure"]["message"] if job["failure"] else ""
    _show_list({**page, "jobs": found}, "jobs", columns, json=json)


@operator_command
def job_command(remote: "Remote", jid: JobId, *, json: bool) -> None:
    """Show a job: its fields, its failure, and the reasons why it is not running.

    Examples:
    - `millrace job 6ba7b810-9dad-11d1-80b4-00c04fd430c4`
    - `millrace job 17 --json`

    """
    detail = remote.job(jid)
    if json:
        print_json(detail)
        return
    job = detail["job"]
    failure = job.pop("failure") or {}
    hidden = {"truncated", "tracked", "wrapped_class"}
    print_fields([(name, value) for name, value in job.items() if name not in hidden])
    print_fields(
        [
            ("error", failure.get("group")),
            ("message", failure.get("message")),
            ("payload error", detail.get("payload_error")),
            ("result", detail.get("result", detail.get("result_base64"))),
        ]
    )
    _print_backtrace(detail["backtrace"])
    for earlier in detail["earlier_failures"]:
        error = ": ".join(filter(None, (earlier["group"], earlier["message"])))
        sys.stdout.write(printable(f"attempt {earlier['attempt']} failed: {error}") + "\n")
        _print_backtrace(earlier["backtrace"])
    for reason in detail["reasons"]:
        sys.stdout.write(f"- {printable(reason['text'])}\n")


@operator_command
def result_command(
    remote: "Remote",
    jid: JobId,
    wait: Annotated[
        float, typer.Option("--wait", min=0, help="Seconds to wait for the end of the job.")
    ] = 0,
    *,
    json: bool,
) -> int:
    """Print the result of a completed job.

    The exit code is 0 for a completed job, 1 for a dead or unfinished one, and 4 if the job does
    not exist: it may have ended without being retained.

    Examples:
    - `millrace result 6ba7b810-9dad-11d1-80b4-00c04fd430c4 --wait 30`
    - `millrace result 17 --json | jq .result`

    """
    until = time.monotonic() + wait
    detail = remote.job(jid)
    while detail["job"]["state"] not in {"done", "dead"} and time.monotonic() < until:
        time.sleep(RESULT_INTERVAL)
        detail = remote.job(jid)
    job, failure = detail["job"], detail["job"]["failure"] or {}
    encoded = detail.get("result_base64")
    if json:
        answer = {"id": job["id"], "state": job["state"], "result": detail.get("result")}
        answer |= {"result_base64": encoded} if encoded is not None else {}
        print_json(answer | ({"error": failure} if job["state"] == "dead" else {}))
    elif job["state"] == "done":
        if encoded is not None:
            sys.stdout.buffer.write(base64.b64decode(encoded))
        elif detail.get("result") is not None:
            print_json(detail["result"])
    if job["state"] == "done":
        return 0
    text = f": {failure.get('group')}: {failure.get('message')}" if failure else "."
    return fail(f"Job {printable(jid)} is {job['state']}{printable(text)}", EXIT_FAILED)


@operator_command
def workers_command(remote: "Remote", limit: Limit = 100, *, json: bool) -> None:
    """List workers and the jobs that they hold.

    Examples:
    - `millrace workers`
    - `millrace workers --json | jq '.workers[].jobs'`

    """
    columns = {
        "protocol": "protocol",
        "worker": "id",
        "host": "hostname",
        "pid": "pid",
        "state": "state",
        "jobs": "count",
        "last heartbeat": "beat_at",
    }
    _show_list(remote.read_list("workers", limit=limit), "workers", columns, json=json)


@operator_command
def limits_command(remote: "Remote", *, json: bool) -> None:
    """List limits and the number of jobs that hold them or wait for them.

    Examples:
    - `millrace limits`

    """
    columns = {
        "limit": _limit_name,
        "maximum": "maximum",
        "held": lambda limit: len(limit["holders"]),
        "waiting": lambda limit: len(limit["waiting"]),
        "expires": "expires_at",
    }
    _show_list(remote.read_list("limits"), "throttles", columns, json=json)


def _limit_name(limit: Any) -> str:
    """The limit of a queue has a name with a prefix of Qless."""
    name: str = limit["name"]
    queue = name.removeprefix(QUEUE_LIMIT)
    return name if queue == name else f"queue {queue}"


@operator_command
def recurring_command(remote: "Remote", limit: Limit = 100, *, json: bool) -> None:
    """List recurring jobs.

    Examples:
    - `millrace recurring`

    """
    columns = {
        "id": "id",
        "kind": "kind",
        "queue": "queue",
        "every (s)": "interval",
        "next": "next_at",
        "jobs": "count",
    }
    _show_list(remote.read_list("recurring", limit=limit), "recurring", columns, json=json)


@operator_command
def stats_command(remote: "Remote", *, json: bool) -> None:
    """Show the number of jobs by state, the totals and the memory of the server.

    Examples:
    - `millrace stats`
    - `millrace stats --json | jq .jobs.ready`

    """
    found = remote.read_list("overview")
    if json:
        print_json(found)
        return
    print_fields(
        [
            *((f"jobs {state}", count) for state, count in found["jobs"].items()),
            ("retrying", found["retrying"]),
            ("processed", found["processed"]),
            ("failures", found["failures"]),
            ("queues", found["queues"]),
            ("paused queues", found["paused_queues"]),
            ("workers", found["workers"]),
            ("memory (MiB)", found["memory_mb"]),
            ("started", found["started_at"]),
            ("halted", found["halted"]),
        ]
    )


@operator_command
def events_command(
    remote: "Remote",
    count: Annotated[
        int, typer.Option("--last", min=0, max=1000, help="Number of past events to show.")
    ] = 10,
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep running and show new events.")
    ] = False,
    json: bool,
) -> int:
    """Show the newest events of the journal that are not shipped yet.

    Without `--url`, the command reads the data folder and needs no running server. For the history
    of one job, see the job's page or `GET /api/v1/jobs/ID/events`.

    Examples:
    - `millrace events --last 20`
    - `millrace events --follow --json | jq 'select(.type == "failed")'`
    - `millrace events --follow --url http://queue.example.com:7420`

    """
    try:
        page = remote.events(0, count)
        while True:
            for event in page["events"]:
                _print_event(event, json=json)
            sys.stdout.flush()
            if not follow:
                return 0
            if not page["events"]:
                time.sleep(FOLLOW_INTERVAL)
            page = remote.events(page["next"], EVENT_PAGE_SIZE)
    except KeyboardInterrupt:
        return 0


def _print_event(event: dict[str, Any], *, json: bool) -> None:
    if json:
        print_json(event)
        return
    parts = [event["time"], f"{event['type']:<9}", event["id"], event["queue"], event["kind"]]
    if event["error"] and event["type"] in {"failed", "expired"}:
        parts.append(f"{event['error']}: {event['message']}")
    sys.stdout.write("  ".join(printable(part) for part in parts).rstrip() + "\n")


def _show_list(page: Any, member: str, columns: Columns, *, json: bool) -> Any:
    """Print a page of records as JSON or as a table, and return it."""
    if json:
        print_json(page)
    else:
        rows = [
            [row[of] if isinstance(of, str) else of(row) for of in columns.values()]
            for row in page[member]
        ]
        print_table([*columns], rows)
    return page


def _print_backtrace(lines: list[str]) -> None:
    for line in lines:
        sys.stdout.write(f"  {printable(line)}\n")

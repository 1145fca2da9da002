"""A running server as the operator commands see it: over its admin socket, or over HTTP.

Both give the records of the HTTP API as plain JSON values, so that a command prints the same for
`--data` and for `--url`.
"""

import base64
import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from millrace.admin.errors import AdminError
from millrace.admin.query_language import parse
from millrace.cli.control import NotAnswered, ask_why, converse
from millrace.records import (
    ActionRequest,
    BulkProgress,
    ExplainedJobs,
    FailurePage,
    GetJob,
    GetQueue,
    JobDetail,
    JobExplanation,
    JobPage,
    LimitPage,
    ListFailures,
    ListQueues,
    Overview,
    PageRequest,
    PushedJobs,
    PushJob,
    PushJobs,
    QueueAction,
    QueueDetail,
    QueuePage,
    ReasonRecord,
    Record,
    RecurringPage,
    SearchJobs,
    WorkerPage,
)
from millrace.records.forms import to_http
from millrace.records.types import AdminRequest

API: Final = "/api/v1"
HTTP_TIMEOUT: Final = 30.0
#: Variable with a token for `--url`.
TOKEN: Final = "MILLRACE_TOKEN"  # noqa: S105 - the name of a variable
#: Jobs that one request changes.
ACTION_BATCH_SIZE: Final = 500
SEARCH_PAGE_SIZE: Final = 200
#: Seconds between two questions about a running action.
POLL_INTERVAL: Final = 0.2

Json = Any
Progress = Callable[[int, int], None]


class NotFoundError(NotAnswered):
    """The job or queue does not exist."""


class Query(NamedTuple):
    """One question in both forms: the operation of the admin socket, and the path of the API."""

    record: type[Record]
    operation: dict[str, Any]
    path: str
    parameters: Mapping[str, Any] = MappingProxyType({})


class Changed(NamedTuple):
    """The result of an action on several jobs."""

    done: int
    skipped: int
    #: Pairs of a job and the reason, of the first ones.
    reasons: list[tuple[str, str]]


#: Lists that take the same parameters in both forms, by their operation.
_LISTS: Final[dict[str, tuple[type[Record], type[AdminRequest] | None, str]]] = {
    "overview": (Overview, None, "/overview"),
    "queues": (QueuePage, ListQueues, "/queues"),
    "failures": (FailurePage, ListFailures, "/failures"),
    "workers": (WorkerPage, PageRequest, "/workers"),
    "recurring": (RecurringPage, PageRequest, "/recurring"),
    "limits": (LimitPage, None, "/throttles"),
}


class Remote(Protocol):
    def read(self, query: Query) -> Json:
        """The HTTP form of a record."""
        ...

    def events(self, first: int, limit: int) -> Json:
        """Events from number `first` on; 0: the newest ones."""
        ...

    def explain(self, name: str) -> ExplainedJobs:
        """The reasons why the jobs with this ID or number are not running."""
        ...

    def push(self, jobs: list[dict[str, Any]], key: str) -> Json:
        """Push jobs in the form of the HTTP API."""
        ...

    def act(self, action: str, numbers: Sequence[int], arguments: dict[str, Any]) -> Changed:
        """Change the jobs with these numbers."""
        ...

    def act_on_queue(self, name: str, action: str, arguments: dict[str, float | None]) -> int:
        """Change a queue; the number of removed jobs."""
        ...

    def read_list(self, operation: str, **parameters: Any) -> Json:
        """A page of queues, workers and so on; without a page, the overview or all limits."""
        record, request, path = _LISTS[operation]
        arguments = True if request is None else request(**parameters)
        return self.read(Query(record, {operation: arguments}, path, parameters))

    def search(self, text: str, limit: int, cursor: str = "", order: Any = "newest") -> Json:
        """A page of the jobs that match a search."""
        parameters = {"q": text, "limit": limit, "cursor": cursor, "order": order}
        request = SearchJobs(parse(text), order, cursor, limit)
        return self.read(Query(JobPage, {"search": request}, "/jobs", parameters))

    def job(self, name: str) -> Json:
        """The job with this ID or number."""
        return self.read(Query(JobDetail, {"job": GetJob(name)}, f"/jobs/{quote(name)}"))

    def queue(self, name: str) -> Json:
        """The queue with this name."""
        return self.read(Query(QueueDetail, {"queue": GetQueue(name)}, f"/queues/{quote(name)}"))

    def find_numbers(self, text: str, progress: Progress) -> list[int]:
        """The numbers of all jobs that match a search."""
        numbers: list[int] = []
        cursor = ""
        while True:
            page = self.search(text, SEARCH_PAGE_SIZE, cursor)
            numbers += (job["number"] for job in page["jobs"])
            progress(page["looked"], page["of"])
            cursor = page["next"] or ""
            if not cursor:
                return numbers


def connect(url: str | None, folder: Callable[[], Path]) -> Remote:
    return SocketRemote(folder()) if url is None else HttpRemote(url)


class SocketRemote(Remote):
    """A server on this machine, by its data folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, query: Query) -> Json:
        record = self._ask(query.record, query.operation)
        return to_builtins(record)

    def events(self, first: int, limit: int) -> Json:
        from millrace.journal import tail  # noqa: PLC0415 - loads the store

        if not tail.has_journal(self._folder):
            raise NotFoundError(f"There is no data in {self._folder}.")
        try:
            return to_builtins(tail.read_page(self._folder, first, limit))
        except tail.JournalUnreadable as error:
            raise NotAnswered(str(error)) from error

    def explain(self, name: str) -> ExplainedJobs:
        return ask_why(self._folder, name)

    def push(self, jobs: list[dict[str, Any]], key: str) -> Json:
        request = PushJobs([_new_job(job) for job in jobs], user_name(), key, json.dumps(jobs))
        return self.read(Query(PushedJobs, {"push": request}, ""))

    def act(self, action: str, numbers: Sequence[int], arguments: dict[str, Any]) -> Changed:
        request = ActionRequest(action, seqs=list(numbers), by=user_name(), **arguments)
        acted = self._ask(BulkProgress, {"act": request})
        reasons = [(each.job, each.reason) for each in acted.skipped]
        return Changed(acted.done, acted.skipped_count, reasons)

    def act_on_queue(self, name: str, action: str, arguments: dict[str, float | None]) -> int:
        seconds, limit = arguments.get("keep_results"), arguments.get("limit")
        period = -1 if seconds is None else round(seconds * 1_000_000)
        request = QueueAction(name, action, user_name(), period, int(limit or 0))
        acted: BulkProgress = self._ask(BulkProgress, {"act_on_queue": request})
        return acted.done

    def _ask(self, type_: type[Any], operation: dict[str, Any]) -> Any:
        try:
            *_, last = converse(self._folder, operation)
        except NotAnswered as error:
            if isinstance(error.__cause__, AdminError) and error.__cause__.code == "not found":
                raise NotFoundError(str(error.__cause__)) from error
            raise
        return msgspec.json.decode(last, type=type_)


class HttpRemote(Remote):
    """A server by the address of its web interface."""

    def __init__(self, url: str) -> None:
        parts = urllib.parse.urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise NotAnswered(f"Invalid URL {url}. Use http://HOST:PORT.")
        self._headers = {"Content-Type": "application/json"}
        if parts.password is not None:
            pair = f"{parts.username or ''}:{urllib.parse.unquote(parts.password)}".encode()
            self._headers["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
        elif token := os.environ.get(TOKEN):
            self._headers["Authorization"] = f"Bearer {token}"
        host = parts.netloc.rpartition("@")[2]
        self._root = f"{parts.scheme}://{host}{parts.path.rstrip('/')}{API}"

    def read(self, query: Query) -> Json:
        given = {name: value for name, value in query.parameters.items() if value not in {"", None}}
        suffix = f"?{urllib.parse.urlencode(given)}" if given else ""
        return self._request("GET", query.path + suffix)

    def events(self, first: int, limit: int) -> Json:
        return self._request("GET", f"/events?first={first}&limit={limit}")

    def explain(self, name: str) -> ExplainedJobs:
        try:
            found = self._request("GET", f"/jobs/{quote(name)}")
        except NotFoundError:
            return ExplainedJobs([], 0, known=False)
        job = found["job"]
        reasons = [ReasonRecord(each["code"], each["text"]) for each in found["reasons"]]
        explained = JobExplanation(
            job["id"],
            job["number"],
            job["queue"],
            job["kind"],
            job["protocol"],
            job["state"],
            job["attempt"],
            reasons,
        )
        return ExplainedJobs([explained], 0, known=True, more=found["twins"])

    def push(self, jobs: list[dict[str, Any]], key: str) -> Json:
        headers = {"Idempotency-Key": key} if key else {}
        return self._request("POST", "/jobs", jobs, headers)

    def act(self, action: str, numbers: Sequence[int], arguments: dict[str, Any]) -> Changed:
        body = {"action": action, "numbers": list(numbers), **arguments}
        status = self._wait(self._request("POST", "/actions", body))
        reasons = [(each["id"], each["reason"]) for each in status["refusals"]]
        return Changed(status["done"], status["refused"], reasons)

    def act_on_queue(self, name: str, action: str, arguments: dict[str, float | None]) -> int:
        reply = self._request("POST", f"/queues/{quote(name)}/{action}", arguments or None)
        return int(self._wait(reply)["done"]) if "refusals" in reply else 0

    def _wait(self, status: Json) -> Json:
        """The status of an action at its end; an interrupt stops the action."""
        path = f"/actions/{status['number']}"
        try:
            while status["state"] == "running":
                time.sleep(POLL_INTERVAL)
                status = self._request("GET", path)
        except KeyboardInterrupt:
            self._request("POST", path + "/stop")
            raise
        if status["state"] == "failed":
            raise NotAnswered(status["error"])
        return status

    def _request(
        self, method: str, path: str, body: Json = None, headers: dict[str, str] | None = None
    ) -> Json:
        request = urllib.request.Request(  # noqa: S310 - the scheme was checked
            self._root + path,
            None if body is None else json.dumps(body).encode(),
            self._headers | (headers or {}),
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=HTTP_TIMEOUT) as reply:  # noqa: S310
                return json.load(reply)
        except urllib.error.HTTPError as error:
            detail = _problem(error)
            kind = NotFoundError if error.code == 404 else NotAnswered
            raise kind(detail) from error
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise NotAnswered(f"Cannot reach the server at {self._root}: {reason}") from error


def to_builtins(record: Any) -> Json:
    """The HTTP form of a record as plain values."""
    return msgspec.to_builtins(to_http(record), builtin_types=(msgspec.Raw,), str_keys=True)


def quote(name: str) -> str:
    return urllib.parse.quote(name, safe="")


def _problem(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["detail"])
    except (ValueError, KeyError, TypeError):
        return f"The server replied {error.code} {error.reason}."


def user_name() -> str:
    return f"command line of {os.environ.get('USER') or os.getuid()}"


def _new_job(job: dict[str, Any]) -> PushJob:
    """A job of the HTTP form for the admin socket."""
    micros = 1_000_000
    delay = job.get("delay", 0)
    return PushJob(
        job["queue"],
        json.dumps(job["payload"], ensure_ascii=False, separators=(",", ":")).encode(),
        job.get("kind", ""),
        job.get("id", ""),
        job.get("priority", 0),
        round((time.time() + delay) * micros) if delay else 0,
        job.get("retries", 25),
        tags=job.get("tags", []),
        waits_for=job.get("waits_for", []),
        retention=round(job["keep_result"] * micros) if "keep_result" in job else -1,
    )

"""A web application with scripted replies of the server, and a client without a browser."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, NamedTuple
from urllib.parse import unquote, urlencode

import msgspec

from millrace.admin.errors import AdminError
from millrace.records import (
    DayTotals,
    DurationSpread,
    FailurePage,
    FailureRecord,
    JobDetail,
    JobPage,
    JobRecord,
    LatencySummary,
    OldestJob,
    Overview,
    PortStatus,
    QueueDetail,
    QueuePage,
    QueueRecord,
    QueueStatistics,
    RecurringPage,
    RelatedJobs,
    Sample,
    TrackedPage,
    WorkerPage,
)
from millrace.web.app import application
from millrace.web.live import LiveStream
from millrace.web.long_actions import BulkActions
from millrace.web.settings import WebSettings
from millrace.web.state import AppState

SECOND = 1_000_000
NOW = 1_790_000_000 * SECOND
TODAY = NOW // (86_400 * SECOND)

SETTINGS = WebSettings(
    control="/nowhere/control",
    data="",
    lake="",
    host="127.0.0.1",
    password="",
    tokens=[],
    read_only=False,
    hosts=[],
    session=3600,
    cert="",
    key="",
    sockets=[],
)


class Told:
    """Replaces the admin client of the web process. `heard` has the requests."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.heard: list[tuple[str, Any]] = []

    async def ask(self, type_: type[Any], **request: Any) -> Any:
        return msgspec.json.decode(await self.raw(**request), type=type_)

    async def raw(self, **request: Any) -> bytes:
        return msgspec.json.encode(self._answer(request)) + b"\n"

    async def follow(self, type_: type[Any], **request: Any) -> AsyncIterator[Any]:
        for each in self._answer(request):
            if each is None:
                await asyncio.Event().wait()  # a long action
            yield each

    def close(self) -> None:
        pass

    def _answer(self, request: dict[str, Any]) -> Any:
        ((name, asked),) = request.items()
        self.heard.append((name, asked))
        answer = self.answers[name]
        if callable(answer):
            answer = answer(asked)
        if isinstance(answer, AdminError):
            raise answer
        return answer


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    text: str

    @property
    def said(self) -> str:
        """The notice on the next page."""
        cookie = self.headers.get("set-cookie", "").partition(";")[0]
        return unquote(unquote(cookie.partition("=")[2].strip('"')))


def go(
    told: Told,
    path: str,
    form: Any = None,
    *,
    json: Any = None,
    settings: WebSettings = SETTINGS,
    prefix: str = "",
) -> Answer:
    """GET a page, or POST a form or JSON to it."""
    body = None if form is None else urlencode(form).encode()
    if json is not None:
        body = msgspec.json.encode(json)
    kind = b"application/x-www-form-urlencoded" if json is None else b"application/json"
    return asyncio.run(_go(told, path, body, kind, settings, prefix))


async def _go(
    told: Told, path: str, body: bytes | None, kind: bytes, settings: WebSettings, prefix: str
) -> Answer:
    room = AppState(settings)
    room.control = told
    room.live, room.tasks = LiveStream(told), BulkActions(told)
    plain, _, query = path.partition("?")
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET" if body is None else "POST",
        "scheme": "http",
        "path": unquote(plain),
        "raw_path": plain.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [
            (b"host", b"127.0.0.1:7420"),
            (b"content-type", kind),
            *([(b"x-script-name", prefix.encode())] if prefix else []),
        ],
        "client": ("127.0.0.1", 50000),
        "server": ("127.0.0.1", 7420),
    }
    heard: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": body or b"", "more_body": False}

    async def send(message: Any) -> None:
        heard.append(message)

    await application(room)(scope, receive, send)
    start = heard[0]
    text = b"".join(message.get("body", b"") for message in heard[1:]).decode()
    return Answer(
        start["status"], {name.decode(): value.decode() for name, value in start["headers"]}, text
    )


# Sample records


def spans(
    count: int = 4, p50: int = 1200, p95: int = 90_000, p99: int = 2 * SECOND
) -> LatencySummary:
    return LatencySummary(count, p50, p95, p99)


def queue_row(name: str = "mail", **more: Any) -> QueueRecord:
    row = QueueRecord(
        name=name,
        paused=False,
        counts=[3, 2, 1234, 5, 7, 6],
        oldest=NOW - 90 * SECOND,
        wait=spans(),
        run=spans(),
        limit=10,
        waiters=0,
        last_fetch_at=NOW,
        depths=[0, 5, 10],
    )
    return msgspec.structs.replace(row, **more)


def queue_detail(row: QueueRecord | None = None, **more: Any) -> QueueDetail:
    spread = DurationSpread(3, 61.5, 8.0, {0: 5, 12: 2, 60: 1, 119: 1, 147: 3})
    row = row or queue_row()
    detail = QueueDetail(
        queue=row,
        day=QueueStatistics(row.name, TODAY, spread, spread, failures=9, failed=4, retries=2),
        days=[TODAY - 1, TODAY],
        stalled=1,
        recurring=0,
        throttled=2,
    )
    return msgspec.structs.replace(detail, **more)


def job_row(number: int = 1, **more: Any) -> JobRecord:
    row = JobRecord(
        seq=number,
        jid=f"job-{number}",
        queue="mail",
        kind="Send",
        state="ready",
        protocol="faktory",
        priority=0,
        created=NOW - 100 * SECOND,
        due=0,
        ready_at=NOW - 90 * SECOND,
        leased_at=0,
        deadline=0,
        ended_at=0,
        attempt=0,
        failures=0,
        retries=25,
        worker="",
        worker_protocol="",
        failure=None,
        tags=[],
        tracked=False,
        payload=b'["hello"]',
        size=9,
    )
    failure = {name: more.pop(name) for name in ("group", "message") if name in more}
    if "failed_at" in more:
        failure["at"] = more.pop("failed_at")
    if failure:
        more["failure"] = FailureRecord(**failure)
    return msgspec.structs.replace(row, **more)


def job_detail(row: JobRecord | None = None, **more: Any) -> JobDetail:
    detail = JobDetail(
        job=row or job_row(),
        backtrace=[],
        first_failed_at=0,
        waits_for=RelatedJobs([], 0),
        waited_for_by=RelatedJobs([], 0),
        lease_for=0,
        expires_at=0,
        max_attempts=0,
        dead_queue="",
        protocol_data={},
        history=[],
        reasons=[],
        same_id_count=0,
        backtrace_truncated=False,
        result_size=-1,
        result_truncated=False,
        result=None,
    )
    return msgspec.structs.replace(detail, **more)


def an_overview(**more: Any) -> Overview:
    overview = Overview(
        now=NOW,
        samples=[
            Sample(NOW - (9 - i) * 5 * SECOND, 100 * i, 80 * i, 4 * i, 50 + i, 3) for i in range(10)
        ],
        counts=[30, 4, 50, 3, 70, 6],
        retrying=10,
        processed=123_456,
        failures=789,
        queues=4,
        paused_queues=1,
        oldest_job=OldestJob("job/1", "a/b", NOW - 300 * SECOND, 7),
        workers=2,
        protocols=[
            PortStatus("faktory", 7419, 5, 2, 1000, 3),
            PortStatus("control", 0, 4, 0, 9, 0),
        ],
        commit=spans(),
        days=[DayTotals(TODAY - 1, 500, 20), DayTotals(TODAY, 700, 3)],
        halted="",
        memory_mb=120,
        started_at=NOW - 3600 * SECOND,
    )
    return msgspec.structs.replace(overview, **more)


def world(**more: Any) -> Told:
    """A server with one object of each kind."""
    answers = {
        "overview": an_overview(),
        "failures": FailurePage([], 0, 0),
        "tracked": TrackedPage([], 0, ""),
        "workers": WorkerPage([], 0, ""),
        "recurring": RecurringPage([], 0, ""),
        "queues": QueuePage([queue_row()], 1, ""),
        "queue": queue_detail(),
        "search": JobPage([job_row()], 1, 1, ""),
    }
    return Told(**answers | more)

"""Analytics: the pipeline's tables as a page, and the button that runs it."""

import asyncio
import re
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.parse import quote

import msgspec
import pytest
from api_caller import validator
from asgi_client import AppClient
from scripted_app import GUARDED, OPERATOR, READER, Answer, get, post, refusing, scripted_app

import report_lake
from millrace.pipeline.lake import Lake
from millrace.pipeline.report import build
from millrace.pipeline.report.model import Report
from millrace.pipeline.snapshot import Snapshot
from millrace.records import PipelineRun, QueuePage
from millrace.web.analytics import REPORT_CACHE_SIZE, Analytics, ReportRange, ReportUnavailable
from millrace.web.routes import analytics

FIRST = report_lake.FIRST
IDLE = PipelineRun(True, False, 0, 0, -1, [], 900.0)
RUNNING = PipelineRun(True, True, 1_800_000_000_000_000, 0, -1, ["reading <b>"], 0.0)
FAILED = PipelineRun(True, False, 1, 2, 1, ["no Java"], 0.0)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return report_lake.fill(tmp_path_factory.mktemp("lake"), report_lake.simulate(2, 10))


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analytics, "REPORT_TIMEOUT", 60.0)


def room(lake: Lake | None, status: PipelineRun = IDLE, **more: Any) -> AppClient:
    where = {"lake": str(lake.root) if lake else ""}
    return scripted_app(where | more, pipeline=status, queues=QueuePage([], 0, ""))


def numbers(answer: Answer) -> Report:
    found = re.search(r'<script type="application/json" id="report">(.*?)</script>', answer.text)
    assert found is not None
    return msgspec.json.decode(found[1], type=Report)


def test_the_page_has_the_report(lake: Lake) -> None:
    answer = get(room(lake), f"/analytics?first={FIRST}&last={FIRST}")
    assert answer.status == 200
    page_numbers = numbers(answer)
    assert page_numbers.headline == build.build(Snapshot(lake.root), FIRST, FIRST).headline
    for id_ in re.findall(r'"(plot-[a-z-]+)":', get(room(lake), "/static/report.js").text):
        assert f'id="{id_}"' in answer.text
    assert "<img src=x" not in answer.text
    assert "style-src 'self' 'unsafe-inline'" in answer.headers["content-security-policy"]


def test_the_report_for_one_queue(lake: Lake) -> None:
    answer = get(room(lake), "/analytics?queue=billing&days=2")
    assert numbers(answer).range.queue == "billing"
    assert [row.queue for row in numbers(answer).queues.rows] == ["billing"]


def test_days_without_events(lake: Lake) -> None:
    answer = get(room(lake), "/analytics?first=2020-01-01&last=2020-01-02")
    assert answer.status == 200
    assert "No events in these days" in answer.text


@pytest.mark.parametrize(
    "query",
    [
        "days=0",
        "days=x",
        "days=999",
        "days=" + "1" * 5000,
        "days=²",
        "first=yesterday",
        "first=2026-02-30",
        "first=2026-02-02&last=2026-02-01",
        "first=1999-01-01&last=2026-01-01",
    ],
)
def test_invalid_days(lake: Lake, query: str) -> None:
    assert get(room(lake), "/analytics?" + query.replace("²", "%C2%B2")).status == 400


def test_no_lake_no_tables_no_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "stores no data on disk" in get(room(None), "/analytics").text
    empty = get(room(Lake(tmp_path)), "/analytics")
    assert empty.status == 200
    assert "has no tables yet" in empty.text
    assert "<code>millrace pipeline run</code>.</p>" in empty.text
    assert "Run now" in empty.text
    missing = ModuleNotFoundError(name="pyarrow")
    monkeypatch.setattr(build, "chosen_days", Mock(side_effect=missing))
    assert "This page requires pyarrow" in get(room(Lake(tmp_path)), "/analytics").text


def test_a_report_is_built_once_for_the_same_tables(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    make = build.build
    monkeypatch.setattr(build, "build", lambda *args: made.append(args) or make(*args))
    page_app = room(lake)
    for _ in range(3):
        get(page_app, f"/analytics?first={FIRST}&last={FIRST}")
    assert len(made) == 1
    report_lake.ran(lake)
    get(page_app, f"/analytics?first={FIRST}&last={FIRST}")
    assert len(made) == 2


def test_a_slow_report(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analytics, "REPORT_TIMEOUT", 0.0)
    answer = get(room(lake), "/analytics")
    assert answer.status == 200
    assert "Preparing the report" in answer.text
    assert '<meta http-equiv="refresh"' in answer.text


def test_a_report_in_progress_is_available_later(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    make = build.build
    monkeypatch.setattr(build, "build", lambda *args: made.append(args) or make(*args))

    async def asked() -> None:
        reports = Analytics()
        assert await reports.made(str(lake.root), ReportRange(), 0.0) is None
        later = await reports.made(str(lake.root), ReportRange())
        assert later == await reports.made(str(lake.root), ReportRange())
        assert len(made) == 1

    asyncio.run(asked())


def test_the_error_of_a_report_is_repeated(tmp_path: Path) -> None:
    async def asked() -> None:
        reports = Analytics()
        assert await reports.made(str(tmp_path), ReportRange(), 0.0) is None
        with pytest.raises(ReportUnavailable, match="no tables"):
            await reports.made(str(tmp_path), ReportRange())

    asyncio.run(asked())


def test_the_number_of_concurrent_reports_is_limited(lake: Lake) -> None:
    async def asked() -> None:
        reports = Analytics()
        wanted = [reports.made(str(lake.root), ReportRange(queue=str(n)), 0.0) for n in range(20)]
        page_numbers = await asyncio.gather(*wanted, return_exceptions=True)
        assert page_numbers[-REPORT_CACHE_SIZE:] == [None] * REPORT_CACHE_SIZE
        assert {type(each) for each in page_numbers[:-REPORT_CACHE_SIZE]} == {ReportUnavailable}

    asyncio.run(asked())


def test_the_report_as_a_file(lake: Lake) -> None:
    page = get(room(lake), f"/analytics/report.html?first={FIRST}&last={FIRST}")
    assert page.headers["content-disposition"].startswith("attachment;")
    assert "What the queues did" in page.text
    page_numbers = get(room(lake), f"/analytics/report.json?first={FIRST}&last={FIRST}")
    assert msgspec.json.decode(page_numbers.body, type=Report).range.first == FIRST
    assert get(room(lake), "/analytics/report.pdf").status == 404
    assert get(room(None), "/analytics/report.json").status == 409


def test_the_status_of_the_pipeline() -> None:
    assert "Not run since" in get(room(None), "/analytics/pipeline").text
    assert "every 15 min" in get(room(None), "/analytics/pipeline").text
    running = get(room(None, RUNNING), "/analytics/pipeline").text
    assert "data-running" in running
    assert "reading &lt;b&gt;" in running
    assert "disabled" in running
    failed = get(room(None, FAILED), "/analytics/pipeline").text
    assert "Last run failed" in failed
    assert "no Java" in failed


def test_running_the_pipeline() -> None:
    page_app = room(None)
    assert post(page_app, "/analytics/run", {}).status == 303
    assert page_app.control.asked[-1][0] == "run_pipeline"
    page_app.control.answers["run_pipeline"] = refusing("it runs already")
    answer = post(page_app, "/analytics/run", {})
    assert (answer.status, "it runs already" in answer.text) == (503, True)


def test_a_reader_cannot_run_the_pipeline() -> None:
    page_app = room(None, **GUARDED)
    assert post(page_app, "/analytics/run", {}, READER.secret).status == 403
    assert "Run now" not in get(page_app, "/analytics/pipeline", READER.secret).text
    assert "Run now" in get(page_app, "/analytics/pipeline", OPERATOR.secret).text


# The HTTP API


def test_the_api_has_the_report(lake: Lake) -> None:
    web_app = room(lake)
    days = f"first={FIRST}&last={FIRST}"
    answer = get(web_app, f"/api/v1/analytics?{days}")
    assert answer.status == 200
    validator("/api/v1/analytics", "get", 200).validate(msgspec.json.decode(answer.body))
    page = get(web_app, f"/analytics/report.json?{days}")
    assert msgspec.json.decode(answer.body) == msgspec.json.decode(page.body)
    queue = msgspec.json.decode(answer.body, type=Report).queues.rows[0].queue
    one = get(web_app, f"/api/v1/analytics?{days}&queue={quote(queue, safe='')}")
    assert msgspec.json.decode(one.body, type=Report).range.queue == queue


def test_the_api_reports_the_reason_for_a_missing_report(tmp_path: Path) -> None:
    for web_app in (room(None), room(Lake(tmp_path))):
        answer = get(web_app, "/api/v1/analytics")
        assert answer.status == 409
        assert "stores no data" in answer.text or "no tables yet" in answer.text

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
from knocking import House
from pretended import GUARDED, OPERATOR, READER, Answer, get, post, pretended, refusing

import report_lake
from millrace.pipeline import refreshed
from millrace.pipeline.lake import Lake
from millrace.pipeline.report import making
from millrace.pipeline.report.model import Report
from millrace.records import PipelineRun, QueuePage
from millrace.web.analytics import KEPT, Analytics, Choice, Unable
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
    monkeypatch.setattr(analytics, "PATIENCE", 60.0)


def room(lake: Lake | None, status: PipelineRun = IDLE, **more: Any) -> House:
    where = {"lake": str(lake.root) if lake else ""}
    return pretended(where | more, pipeline=status, queues=QueuePage([], 0, ""))


def numbers(answer: Answer) -> Report:
    found = re.search(r'<script type="application/json" id="report">(.*?)</script>', answer.text)
    assert found is not None
    return msgspec.json.decode(found[1], type=Report)


def test_the_page_has_the_report(lake: Lake) -> None:
    answer = get(room(lake), f"/analytics?first={FIRST}&last={FIRST}")
    assert answer.status == 200
    told = numbers(answer)
    assert told.headline == making.make(lake, FIRST, FIRST).headline
    for id_ in re.findall(r'"(plot-[a-z-]+)":', get(room(lake), "/static/report.js").text):
        assert f'id="{id_}"' in answer.text
    assert "<img src=x" not in answer.text
    assert "style-src 'self' 'unsafe-inline'" in answer.headers["content-security-policy"]


def test_the_report_of_one_queue(lake: Lake) -> None:
    answer = get(room(lake), "/analytics?queue=billing&days=2")
    assert numbers(answer).range.queue == "billing"
    assert [row.queue for row in numbers(answer).queues.rows] == ["billing"]


def test_days_without_anything(lake: Lake) -> None:
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
def test_days_that_cannot_be(lake: Lake, query: str) -> None:
    assert get(room(lake), "/analytics?" + query.replace("²", "%C2%B2")).status == 400


def test_no_lake_no_tables_no_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "stores no data on disk" in get(room(None), "/analytics").text
    empty = get(room(Lake(tmp_path)), "/analytics")
    assert empty.status == 200
    assert "has no tables yet" in empty.text
    assert "Run now" in empty.text
    missing = ModuleNotFoundError(name="pyarrow")
    monkeypatch.setattr(making, "chosen", Mock(side_effect=missing))
    assert "This page requires pyarrow" in get(room(Lake(tmp_path)), "/analytics").text


def test_a_report_is_made_once_for_the_same_tables(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    make = making.make
    monkeypatch.setattr(making, "make", lambda *args: made.append(args) or make(*args))
    here = room(lake)
    for _ in range(3):
        get(here, f"/analytics?first={FIRST}&last={FIRST}")
    assert len(made) == 1
    refreshed.record(lake, refreshed.Mark(form=refreshed.FORM, batch=1, flushes=[]))
    get(here, f"/analytics?first={FIRST}&last={FIRST}")
    assert len(made) == 2


def test_a_report_that_takes_a_while(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analytics, "PATIENCE", 0.0)
    answer = get(room(lake), "/analytics")
    assert answer.status == 200
    assert "Preparing the report" in answer.text
    assert '<meta http-equiv="refresh"' in answer.text


def test_what_was_begun_is_there_later(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    make = making.make
    monkeypatch.setattr(making, "make", lambda *args: made.append(args) or make(*args))

    async def asked() -> None:
        reports = Analytics()
        assert await reports.made(str(lake.root), Choice(), 0.0) is None
        later = await reports.made(str(lake.root), Choice())
        assert later == await reports.made(str(lake.root), Choice())
        assert len(made) == 1

    asyncio.run(asked())


def test_what_became_of_it_is_told_once_more(tmp_path: Path) -> None:
    async def asked() -> None:
        reports = Analytics()
        assert await reports.made(str(tmp_path), Choice(), 0.0) is None
        with pytest.raises(Unable, match="no tables"):
            await reports.made(str(tmp_path), Choice())

    asyncio.run(asked())


def test_too_many_at_once(lake: Lake) -> None:
    async def asked() -> None:
        reports = Analytics()
        wanted = [reports.made(str(lake.root), Choice(queue=str(n)), 0.0) for n in range(20)]
        told = await asyncio.gather(*wanted, return_exceptions=True)
        assert told[-KEPT:] == [None] * KEPT
        assert {type(each) for each in told[:-KEPT]} == {Unable}

    asyncio.run(asked())


def test_the_report_to_keep(lake: Lake) -> None:
    page = get(room(lake), f"/analytics/report.html?first={FIRST}&last={FIRST}")
    assert page.headers["content-disposition"].startswith("attachment;")
    assert "What the queues did" in page.text
    told = get(room(lake), f"/analytics/report.json?first={FIRST}&last={FIRST}")
    assert msgspec.json.decode(told.body, type=Report).range.first == FIRST
    assert get(room(lake), "/analytics/report.pdf").status == 404
    assert get(room(None), "/analytics/report.json").status == 409


def test_how_the_pipeline_stands() -> None:
    assert "Not run since" in get(room(None), "/analytics/pipeline").text
    assert "every 15 min" in get(room(None), "/analytics/pipeline").text
    running = get(room(None, RUNNING), "/analytics/pipeline").text
    assert "data-running" in running
    assert "reading &lt;b&gt;" in running
    assert "disabled" in running
    failed = get(room(None, FAILED), "/analytics/pipeline").text
    assert "Last run failed" in failed
    assert "no Java" in failed


def test_running_it() -> None:
    here = room(None)
    assert post(here, "/analytics/run", {}).status == 303
    assert here.control.asked[-1][0] == "run_pipeline"
    here.control.answers["run_pipeline"] = refusing("it runs already")
    answer = post(here, "/analytics/run", {})
    assert (answer.status, "it runs already" in answer.text) == (503, True)


def test_one_who_may_only_look_does_not_run_it() -> None:
    here = room(None, **GUARDED)
    assert post(here, "/analytics/run", {}, READER.secret).status == 403
    assert "Run now" not in get(here, "/analytics/pipeline", READER.secret).text
    assert "Run now" in get(here, "/analytics/pipeline", OPERATOR.secret).text


# The same by HTTP's API


def test_the_api_has_the_report(lake: Lake) -> None:
    house = room(lake)
    days = f"first={FIRST}&last={FIRST}"
    answer = get(house, f"/api/v1/analytics?{days}")
    assert answer.status == 200
    validator("/api/v1/analytics", "get", 200).validate(msgspec.json.decode(answer.body))
    page = get(house, f"/analytics/report.json?{days}")
    assert msgspec.json.decode(answer.body) == msgspec.json.decode(page.body)
    queue = msgspec.json.decode(answer.body, type=Report).queues.rows[0].queue
    one = get(house, f"/api/v1/analytics?{days}&queue={quote(queue, safe='')}")
    assert msgspec.json.decode(one.body, type=Report).range.queue == queue


def test_the_api_says_why_there_is_no_report(tmp_path: Path) -> None:
    for house in (room(None), room(Lake(tmp_path))):
        answer = get(house, "/api/v1/analytics")
        assert answer.status == 409
        assert "stores no data" in answer.text or "no tables yet" in answer.text

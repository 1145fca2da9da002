import re
from html import unescape
from pathlib import Path

import msgspec
import pytest
from told_room import NOW, Told, an_overview, go, job_row, spans, world

from millrace.admin.errors import AdminError
from millrace.records import (
    FailureGroup,
    FailurePage,
    TrackedJob,
    TrackedPage,
    WorkerPage,
    WorkerRecord,
)
from millrace.records.forms import to_http
from millrace.web.charts import Rates
from millrace.web.render import NONE
from millrace.web.routes import overview

XSS = "<script>hacked()</script>"


def text(told: Told, path: str = "/") -> str:
    answer = go(told, path)
    assert answer.status == 200
    return answer.text


def number(html: str, name: str) -> str:
    found = re.search(rf'data-number="{name}">([^<]*)<', html)
    assert found, name
    return found[1]


def test_all_numbers():
    html = text(world())
    expected = {
        "pushed": "20",
        "completed": "16",
        "failed": "0.8",
        "error_rate": "4.8%",
        "backlog": "84",
        "commit_p50": "1.2 ms",
        "commit_p99": "2 s",
        "processed": "123,456",
        "failures": "789",
        "leased": "3",
        "retrying": "10",
        "scheduled": "20",
        "dead": "6",
        "connections": "5",
    }
    assert {name: number(html, name) for name in expected} == expected


def test_numbers_link_to_their_pages():
    html = text(world())
    for path in ("/queues", "/busy", "/retries", "/scheduled", "/morgue", "/completed"):
        assert f'<a href="{path}" data-number=' in html


def test_the_oldest_ready_job_and_its_queue():
    html = text(world())
    assert 'href="/jobs/job%2F1?seq=7"' in html
    assert 'href="/queues/a%2Fb"' in html
    assert "no ready jobs" in text(world(overview=an_overview(oldest_job=None)))


@pytest.mark.parametrize("path", ["/", "/queues", "/morgue", "/tasks"])
def test_every_page_has_placeholders_for_the_counts(path):
    html = text(world(), path)
    for counted in ("/queues", "/busy", "/retries", "/scheduled", "/morgue"):
        assert f'data-count="{counted}"' in html


def test_problems_are_shown():
    html = text(world(overview=an_overview(halted="the disk is full", paused_queues=0)))
    assert re.search(r'id="halted" role="alert">.*the disk is full', html)
    assert 'id="paused" hidden' in html
    assert 'id="halted" role="alert" hidden' in text(world())


def test_before_the_first_commit():
    html = text(world(overview=an_overview(commit=spans(0), samples=[], days=[])))
    assert number(html, "commit_p50") == NONE
    assert number(html, "error_rate") == NONE


@pytest.mark.parametrize(("query", "days"), [("", 30), ("?days=7", 7), ("?days=999", 180)])
def test_the_number_of_days_in_the_history(query, days):
    assert text(world(), f"/{query}").count("&#34;date&#34;") == days


@pytest.mark.parametrize("days", ["x", "-1", "1e3", "²", "9" * 30])
def test_an_invalid_number_of_days(days):
    assert go(world(), f"/?days={days}").status == 400


def test_failures_workers_and_tracked_jobs():
    group = FailureGroup("f/1", XSS, XSS, 4, 2, NOW, "a", ["mail"], 1)
    worker = WorkerRecord("qless", XSS, "h", 1, [], 0, "", NOW, NOW, 1, 7, 2, [])
    tracked = [TrackedJob("a", NOW, job_row(1, state="dead")), TrackedJob("b", NOW, None)]
    html = text(
        world(
            failures=FailurePage([group], 9, 20),
            workers=WorkerPage([worker], 30, "more"),
            tracked=TrackedPage(tracked, 2, ""),
        )
    )
    assert 'href="/failures/f%2F1"' in html
    assert "All 9 groups" in html
    assert 'href="/workers/qless/%3Cscript%3E' in html
    assert "All 30 workers" in html
    assert ">dead 1</a>" in html
    assert ">gone 1</a>" in html
    assert XSS not in html


def test_behind_a_proxy_links_have_its_prefix():
    answer = go(world(), "/", prefix="/jobs-of-ours")
    assert 'href="/jobs-of-ours/morgue"' in answer.text
    assert 'href="/morgue"' not in answer.text


def test_a_server_that_does_not_answer():
    told = world(overview=AdminError("the server cannot be asked", "unavailable"))
    assert go(told, "/").status == 503


def test_a_young_server_has_no_rates():
    html = text(world(overview=an_overview(samples=an_overview().samples[:1])))
    assert number(html, "pushed") == "0.0"


def test_the_script_reads_members_that_the_live_stream_sends() -> None:
    """The scripts read the overview by the names of its HTTP form, and no member by its position."""
    folder = Path(overview.__file__).parents[1] / "static"
    sent = msgspec.to_builtins(to_http(an_overview()))
    for name in ("base.js", "overview.js"):
        script = (folder / name).read_text()
        assert not re.search(r"\[[0-9]\]\W|counts\[", re.sub(r"samples\[0\]", "", script)), name
        read = re.findall(r"\b(?:o|overview)\.(\w+)(?:\.(\w+))?", script)
        assert read
        for member, inner in read:
            if member == "rates":  # added by base.js
                assert inner in {"", *Rates._fields}
                continue
            assert member in sent, (name, member)
            if isinstance(sent[member], dict) and inner:
                assert inner in sent[member], (name, member, inner)
    assert "({ oldest: job })" in script
    assert set(re.findall(r"\bjob\.(\w+)", script)) <= sent["oldest"].keys()
    assert set(re.findall(r"\bsample\.(\w+)", script)) <= sent["samples"][0].keys() | {"time"}


def test_the_charts_have_the_samples_and_days_in_the_form_of_the_api() -> None:
    html = unescape(text(world()))
    sent = msgspec.to_builtins(to_http(an_overview()))
    found = re.search(r'data-samples="(\[.*?\])"></div>', html)
    assert found
    assert msgspec.json.decode(found[1]) == sent["samples"]
    days = re.search(r'data-days="(\[.*?\])"></div>', html)
    assert days
    assert msgspec.json.decode(days[1])[-2:] == sent["days"]

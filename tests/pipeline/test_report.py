"""The report: its numbers equal the numbers of the tables, and its page shows them without foreign
code.
"""

import base64
import gzip
import hashlib
import json
import re
import shutil
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from deltalake import QueryBuilder
from playwright.sync_api import sync_playwright
from typer.testing import CliRunner

import report_lake
from millrace import extras
from millrace.cli.app import app
from millrace.extras import missing_package
from millrace.pipeline import tables
from millrace.pipeline.audit.results import Compared, Findings, Numbers
from millrace.pipeline.buckets import bucket_of, bucket_sql, percentiles
from millrace.pipeline.lake import Lake, write_json
from millrace.pipeline.report import page, status
from millrace.pipeline.report.build import build, chosen_days
from millrace.pipeline.report.latency import over_time
from millrace.pipeline.report.model import DurationPercentiles, Report
from millrace.pipeline.report.percentiles import added
from millrace.pipeline.report.rows import ReportRows
from millrace.pipeline.report.time_axis import DAY, HOUR, MINUTE, axis
from millrace.pipeline.snapshot import Snapshot
from millrace.pipeline.tables import PERCENTS
from report_lake import ERRORS, HOSTILE, SERVER, Lease, fill, ran, write

FIRST = report_lake.FIRST
LAST = FIRST + timedelta(days=2)
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
DAYS = 3


@pytest.fixture(scope="module")
def leases() -> list[Lease]:
    return report_lake.simulate(DAYS, 25)


@pytest.fixture(scope="module")
def lake(leases: list[Lease], tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return fill(tmp_path_factory.mktemp("lake"), leases)


@pytest.fixture(scope="module")
def report(lake: Lake) -> Report:
    return build(Snapshot(lake.root), FIRST, LAST, now=NOW)


@pytest.fixture(scope="module")
def html(report: Report) -> str:
    return page.render(report)


def nearest(spans: list[float], q: float) -> float:
    return sorted(spans)[max(0, -(-round(q * 100) * len(spans) // 100) - 1)]


def assert_spread(found: DurationPercentiles, spans: list[float]) -> None:
    assert found.n == len(spans)
    assert found.mean == pytest.approx(sum(spans) / len(spans))
    assert found.max == pytest.approx(max(spans))
    for value, q in ((found.p50, 0.5), (found.p90, 0.9), (found.p95, 0.95), (found.p99, 0.99)):
        assert value == pytest.approx(nearest(spans, q), rel=0.01)


def waits(leases: list[Lease]) -> list[float]:
    return [(each.leased - each.pushed).total_seconds() for each in leases]


def runs(leases: list[Lease]) -> list[float]:
    return [
        (each.ended - each.leased).total_seconds() for each in leases if each.outcome == "completed"
    ]


# The numbers


def test_the_headline_counts_events(report: Report, leases: list[Lease]) -> None:
    outcomes = Counter(each.outcome for each in leases)
    output = report.headline
    assert output.pushed == output.started == len(leases)
    assert output.completed == outcomes["completed"]
    assert output.failures == outcomes["failed"] + outcomes["died"]
    assert output.died == outcomes["died"]
    assert output.backlog == outcomes["failed"]
    assert output.workers == len({(e.worker, e.protocol) for e in leases if e.worker})
    by_minute = Counter(
        e.ended.replace(second=0, microsecond=0) for e in leases if e.outcome == "completed"
    )
    assert output.peak_completed == max(by_minute.values())
    assert output.peak_at == min(m for m, n in by_minute.items() if n == output.peak_completed)
    assert_spread(output.wait, waits(leases))
    assert_spread(output.run, runs(leases))


def test_queues_days_and_kinds_have_separate_numbers(report: Report, leases: list[Lease]) -> None:
    assert {row.queue for row in report.queues.rows} == {each.queue for each in leases}
    for row in report.queues.rows:
        own = [each for each in leases if each.queue == row.queue]
        assert (row.pushed, row.completed) == (len(own), len(runs(own)))
        assert row.backlog == sum(each.outcome == "failed" for each in own)
        assert_spread(row.wait, waits(own))
    assert [row.day for row in report.days] == [FIRST, FIRST + timedelta(days=1), LAST]
    for day in report.days:
        assert day.pushed == sum(each.pushed.date() == day.day for each in leases)
        assert_spread(day.wait, waits([each for each in leases if each.leased.date() == day.day]))
    slowest = [row.run.p95 or 0 for row in report.kinds.rows]
    assert slowest == sorted(slowest, reverse=True)
    for kind in report.kinds.rows:
        own = [each for each in leases if each.kind == kind.kind]
        assert_spread(kind.run, runs(own))
        assert kind.run_total == pytest.approx(sum(runs(own)))


def test_each_step_has_its_own_events(report: Report, leases: list[Lease]) -> None:
    output = report.timeline
    step = timedelta(seconds=output.step)
    assert 2 <= len(output.at) <= 200
    for name in ("pushed", "leased", "ended"):
        times = [getattr(each, name) for each in leases]
        counts = {
            "pushed": output.pushed,
            "leased": output.started,
            "ended": [a + b for a, b in zip(output.completed, output.failures, strict=True)],
        }
        wanted = [sum(at <= time < at + step for time in times) for at in output.at]
        assert counts[name] == wanted
    for index, at in enumerate(output.at):
        end = at + step
        failed = sum(e.outcome == "failed" and e.ended < end for e in leases)
        waiting = sum(e.pushed < end <= e.leased for e in leases)
        assert output.backlog[index] == failed + waiting
        of_queues = sum(line.backlog[index] for line in output.queues) + output.others[index]
        assert of_queues == output.backlog[index]


def test_a_later_range_starts_with_the_existing_backlog(
    lake: Lake, report: Report, leases: list[Lease]
) -> None:
    of_last = build(Snapshot(lake.root), LAST, LAST, now=NOW)
    assert of_last.headline.backlog == report.headline.backlog
    assert of_last.timeline.backlog[-1] == report.timeline.backlog[-1]
    assert of_last.headline.pushed == sum(each.pushed.date() == LAST for each in leases)
    assert {row.queue: row.backlog for row in of_last.queues.rows} == {
        row.queue: row.backlog for row in report.queues.rows
    }


def test_one_queue_alone(lake: Lake, leases: list[Lease]) -> None:
    output = build(Snapshot(lake.root), FIRST, LAST, "billing", now=NOW)
    own = [each for each in leases if each.queue == "billing"]
    assert output.headline.pushed == sum(output.timeline.pushed) == len(own)
    assert_spread(output.headline.wait, waits(own))
    assert sum(output.latency.wait.n) == len(own)
    assert {row.kind for row in output.kinds.rows} == {"charge", "invoice"}
    assert {name for row in output.failures.rows for name in row.queues} == {"billing"}
    assert [row.queue for row in output.queues.rows] == ["billing"]


def test_percentiles_over_time_are_those_of_the_attempts(
    report: Report, leases: list[Lease]
) -> None:
    output = report.latency
    step = timedelta(seconds=output.step)
    assert output.by == "lease"
    assert (sum(output.wait.n), sum(output.run.n)) == (len(leases), len(runs(leases)))
    for index, at in enumerate(output.at):
        own = waits([each for each in leases if at <= each.leased < at + step])
        assert output.wait.n[index] == len(own)
        wanted = pytest.approx(nearest(own, 0.95), rel=0.01) if own else None
        assert output.wait.p95[index] == wanted


def test_the_heat_map_has_every_wait_once_in_its_row(report: Report, leases: list[Lease]) -> None:
    heat = report.latency.wait.heat
    assert [sum(column) for column in zip(*heat.counts, strict=True)] == report.latency.wait.n
    assert len(heat.edges) == len(heat.counts) + 1
    for (low, high), row in zip(pairwise(heat.edges), heat.counts, strict=True):
        # A bucket is 2 % wide, so a wait may be beyond an edge by as much.
        at_least = sum(low * 1.02 <= wait < high * 0.98 for wait in waits(leases))
        at_most = sum(low * 0.98 <= wait < high * 1.02 for wait in waits(leases))
        assert at_least <= sum(row) <= at_most


def test_above_a_number_of_attempts_percentiles_are_by_day(lake: Lake, leases: list[Lease]) -> None:
    output = over_time(ReportRows(Snapshot(lake.root), FIRST, LAST), max_attempts=10)
    assert (output.by, output.step, len(output.at)) == ("event", DAY, DAYS)
    assert output.wait.n == [
        sum(each.leased.date() == FIRST + timedelta(days=n) for each in leases) for n in range(DAYS)
    ]


def test_failure_groups_are_added_over_queues_and_days(report: Report, leases: list[Lease]) -> None:
    failed = [each for each in leases if each.outcome != "completed"]
    assert len(report.failures.rows) == len(ERRORS)
    counts = [row.n for row in report.failures.rows]
    assert counts == sorted(counts, reverse=True)
    for row in report.failures.rows:
        own = [each for each in failed if each.error == int(row.fingerprint, 16)]
        assert (row.n, row.first) == (len(own), min(each.ended for each in own))
        assert row.last == max(each.ended for each in own)
        assert (row.error_group, row.sample_message) == ERRORS[own[0].error]
        by_day = Counter(each.ended.date() for each in own)
        assert {seen.day: seen.n for seen in row.days} == by_day


def test_the_busy_time_of_workers(report: Report, leases: list[Lease]) -> None:
    output = report.workers
    busy = sum((each.ended - each.leased).total_seconds() for each in leases)
    assert sum(output.held) * output.step == pytest.approx(busy)
    for row in output.rows:
        own = [e for e in leases if (e.worker, e.protocol) == (row.worker, row.protocol)]
        assert row.attempts == len(own)
        assert row.busy == pytest.approx(sum((e.ended - e.leased).total_seconds() for e in own))
        assert sum(row.held) * output.step == pytest.approx(row.busy)


def test_protocols_by_pusher_and_worker(report: Report, leases: list[Lease]) -> None:
    found = {(row.origin, row.actor): row.completed for row in report.protocols if row.completed}
    wanted = Counter((e.origin, e.protocol) for e in leases if e.outcome == "completed")
    assert found == wanted
    assert sum(row.pushed for row in report.protocols) == len(leases)


def test_servers_are_summed(lake: Lake, leases: list[Lease], tmp_path: Path) -> None:
    again = [row | {"server": "other"} for row in report_lake.latency_day(leases)]
    both = Lake(tmp_path)
    write(both, tables.LATENCY_DAY, [*report_lake.latency_day(leases), *again])
    write(both, tables.QUEUE_DAY, report_lake.queue_day(leases))
    ran(both)
    output = build(Snapshot(both.root), FIRST, LAST, now=NOW)
    assert output.headline.wait.n == 2 * len(leases)
    one = build(Snapshot(lake.root), FIRST, LAST, now=NOW)
    assert output.headline.wait.p95 == one.headline.wait.p95


def test_percentiles_are_those_of_the_buckets(lake: Lake) -> None:
    selection = ReportRows(Snapshot(lake.root), FIRST, LAST)
    for spans in added(selection, "queue", "metric", "day").values():
        wanted = [percentiles(spans.buckets, [percent])[0] for percent in PERCENTS]
        assert percentiles(spans.buckets, PERCENTS) == wanted


def test_buckets_match_the_tables(leases: list[Lease]) -> None:
    spans = [round(wait * 1e6) for wait in waits(leases)] + [0, 1, 2, 10**6, 10**15]
    values = ", ".join(f"({us})" for us in spans)
    query = f"SELECT {bucket_sql('us')} AS bucket FROM (VALUES {values}) AS spans(us)"
    found = pa.table(QueryBuilder().execute(query).read_all())
    assert found["bucket"].to_pylist() == [bucket_of(us) for us in spans]


# The state of the lake


def test_the_report_names_the_run_and_later_events(lake: Lake, tmp_path: Path) -> None:
    copy = Lake(shutil.copytree(lake.root, tmp_path / "lake"))
    run = ran(copy)
    found = status.coverage(Snapshot(copy.root))
    assert (found.first, found.last, found.days) == (FIRST, LAST, DAYS)
    assert (found.servers, found.events) == ([SERVER], 100)
    assert (found.ran_at, found.behind) == (run.time, 0)  # this lake has no events


def verdicts(lake: Lake) -> dict[str, str]:
    return {check.name: check.verdict for check in status.checks(Snapshot(lake.root))}


def test_checks_are_unknown_before_the_first_audit(tmp_path: Path) -> None:
    assert verdicts(Lake(tmp_path)) == dict.fromkeys(("Tables", "Events and jobs"), "unknown")


def test_the_checks_of_the_last_run_count(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    ran(lake)
    assert verdicts(lake)["Tables"] == "good"
    ran(lake, "Server a has 3 events.")
    assert verdicts(lake)["Tables"] == "good"
    ran(lake, "kind_hour.events: <b>.", failed=1)
    (tables_, _) = status.checks(Snapshot(lake.root))
    assert (tables_.verdict, tables_.detail) == ("bad", "Run 3: kind_hour.events: <b>.")
    ran(lake)
    assert verdicts(lake)["Tables"] == "good"


def test_audit_findings_are_shown(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    whole = Numbers("a", 1, 10, 10, 0, 0, [])
    same = Compared("a", 10, 4, 1, 1, stored=True, differing=0, differences=[], left_out=[])
    audited(lake, Findings([whole], {}, [], 0, same))
    assert verdicts(lake) == {
        "Tables": "unknown", "Events": "good", "Jobs": "good", "Server": "good",
    }  # fmt: skip
    same.differing = 1000
    torn = Numbers("b", 1, 12, 9, 4, 1, [])
    audited(lake, Findings([whole, torn], {"lost": 2, "ended twice": 3}, [], 0, same))
    assert [(check.verdict, check.detail) for check in status.checks(Snapshot(lake.root))[1:]] == [
        ("bad", "Of 19 events, 4 are missing and 1 are duplicates."),
        ("bad", "Inconsistent events: ended twice (3), lost (2). See the table audit_jobs."),
        ("bad", "1,000 values differ on the server."),
    ]


def audited(lake: Lake, found: Findings) -> None:
    write_json(lake.ops / "audit.json", found)


# Steps and days


@pytest.mark.parametrize(
    ("seconds", "width", "count"),
    [(0, MINUTE, 1), (59, MINUTE, 1), (60, MINUTE, 2), (3600, MINUTE, 61), (86_399, 900, 96),
     (7 * DAY - 1, HOUR, 168), (30 * DAY - 1, 6 * HOUR, 120), (500 * DAY, 3 * DAY, 168)],
)  # fmt: skip
def test_steps_have_the_smallest_displayable_width(seconds: int, width: int, count: int) -> None:
    start = int(datetime(2025, 1, 2, tzinfo=UTC).timestamp())
    found = axis(start, start + seconds)
    assert (found.width, found.count) == (width, count)
    times = ", ".join(f"to_timestamp_micros({at}000000)" for at in (start, start + seconds))
    steps = f"SELECT {found.step_of('at')} AS step FROM (SELECT unnest([{times}]) AS at)"
    rows = pa.table(QueryBuilder().execute(steps).read_all())
    assert rows["step"].to_pylist() == [0, count - 1]


def test_the_last_days_end_at_the_newest_day(lake: Lake) -> None:
    assert chosen_days(Snapshot(lake.root), 2, today=date(2027, 1, 1)) == (
        FIRST + timedelta(days=1),
        LAST,
    )
    assert chosen_days(Snapshot(lake.root), today=date(2027, 1, 1)) == (
        LAST - timedelta(days=6),
        LAST,
    )
    assert chosen_days(Snapshot(lake.root), first=FIRST, today=date(2027, 1, 1)) == (FIRST, LAST)
    # A day in the future is caused by a client's clock.
    assert chosen_days(Snapshot(lake.root), 1, today=FIRST) == (FIRST, FIRST)


# The page


class Texts(HTMLParser):
    """A browser's view of a page: its elements, and its text outside of scripts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.scripts: list[str] = []
        self._in = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._in = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._in = ""

    def handle_data(self, data: str) -> None:
        if self._in == "script":
            self.scripts[-1] += data
        elif self._in != "style":
            self.text += data


def test_names_from_clients_stay_text(html: str) -> None:
    seen = Texts(html)
    assert HOSTILE in seen.text
    assert '<a href="https://evil.example/">mail</a> & </script><b>%{x}</b>' in seen.text
    assert "\u202e" not in seen.text
    tags = Counter(tag for tag, _ in seen.tags)
    assert tags["img"] == tags["b"] == 0
    assert tags["script"] == 3
    assert all((attrs.get("href") or "#").startswith("#") for _, attrs in seen.tags)
    assert not any(
        "src" in attrs or name.startswith("on") for _, attrs in seen.tags for name in attrs
    )


def test_the_page_runs_its_two_scripts_without_requests(html: str) -> None:
    seen = Texts(html)
    policy = next(a["content"] for _, a in seen.tags if a.get("http-equiv"))
    assert policy is not None
    numbers, packed, own = seen.scripts
    plotly = gzip.decompress(base64.b64decode(packed))
    assert b"plotly.js v" in plotly[:100]
    sums = [base64.b64encode(hashlib.sha256(s).digest()).decode() for s in (own.encode(), plotly)]
    assert policy.startswith(
        f"default-src 'none'; script-src 'sha256-{sums[0]}' 'sha256-{sums[1]}';"
    )
    assert "unsafe-eval" not in policy
    assert "connect-src" not in policy
    assert json.loads(numbers)["version"] == 1


def test_the_numbers_in_the_page_are_the_report(html: str, report: Report) -> None:
    numbers = Texts(html).scripts[0]
    assert msgspec.json.decode(numbers, type=Report) == report


def test_the_page_is_small_enough_to_mail(html: str) -> None:
    assert len(html.encode()) < 2_500_000


def test_the_same_report_gives_the_same_page(html: str, lake: Lake) -> None:
    assert page.render(build(Snapshot(lake.root), FIRST, LAST, now=NOW)) == html


def test_the_tables_are_readable_without_scripts(html: str, report: Report) -> None:
    text = Texts(html).text
    assert f"{report.headline.pushed:,}" in text
    for row in report.queues.rows:
        assert page.shown(row.queue) in text
    for group in report.failures.rows:
        assert page.shown(group.sample_message, 400) in text
    for at in report.timeline.at:
        assert page.at(at) in text
    assert "All times and days are UTC." in text


def test_everything_can_be_reached_by_keyboard(html: str) -> None:
    seen = Texts(html)
    ids = {attrs["id"] for _, attrs in seen.tags if "id" in attrs}
    targets = [(a["href"] or "")[1:] for tag, a in seen.tags if tag == "a"]
    assert targets
    assert set(targets) <= ids
    scrolled = [attrs for _, attrs in seen.tags if attrs.get("class") == "wide"]
    assert scrolled
    assert all(a.get("tabindex") == "0" and a.get("aria-label") for a in scrolled)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "\N{EN DASH}"), (0.0, "0 µs"), (0.00045, "450 µs"), (0.9996, "1 s"), (0.3041, "304 ms"),
     (59.9, "59.9 s"), (59.97, "1 min"), (87.5, "1 min 28 s"), (3599.7, "1 h"), (7500, "2 h 5 min"),
     (86_400 * 3 + 3600, "3 d 1 h"), (86_400 * 4000, "4,000 d")],
)  # fmt: skip
def test_durations_have_suitable_units(seconds: float | None, text: str) -> None:
    assert page.span(seconds) == text


def test_names_are_cut_and_cleaned() -> None:
    assert page.shown("a\x00b\u202ec\n") == "a\ufffdb\ufffdc\n"
    assert page.shown("x" * 200) == "x" * 119 + "…"


# In a browser


@pytest.mark.slow
def test_a_browser_renders_the_page_without_errors(html: str, tmp_path: Path) -> None:
    """The page's policy reports any resource that would be fetched or executed."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium here; install the Debian package chromium")
    file = tmp_path / "report.html"
    file.write_text(html, "utf-8")
    errors: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        shown = browser.new_page()
        shown.on("console", lambda message: errors.append(message.text))
        shown.on("pageerror", lambda error: errors.append(str(error)))
        shown.goto(file.as_uri(), timeout=90_000)
        shown.wait_for_function(
            "[...document.querySelectorAll('.js-plotly-plot')]"
            ".filter((plot) => plot.querySelector('.main-svg')).length === 11",
            timeout=90_000,
        )
        title, drawn = shown.title(), shown.content()
        hidden = shown.evaluate(
            "[...document.querySelectorAll('details[open] .wide')]"
            ".filter((table) => table.scrollWidth > table.clientWidth)"
            ".map((table) => table.closest('section').id)"
        )
        browser.close()
    assert errors == []
    seen = Texts(drawn)
    plots = [a["id"] for _, a in seen.tags if "js-plotly-plot" in (a.get("class") or "")]
    assert len(plots) == 11, plots
    assert "pwned" not in title
    assert hidden == [], "these tables are wider than the page"
    # A queue's name in a plot is text as well: neither a link nor bold.
    assert '<img src=x onerror="documen…' in seen.text
    named = {name for _, a in seen.tags for name, value in a.items() if "evil" in (value or "")}
    assert named <= {"data-unformatted"}


# The command


def command(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["pipeline", *arguments])
    return done.exit_code, done.stdout, done.stderr


def test_the_command_writes_a_page(lake: Lake, tmp_path: Path) -> None:
    out = tmp_path / "week.html"
    code, output, _ = command("report", "--lake", str(lake.root), "--days", "3", "--out", str(out))
    assert code == 0
    assert re.fullmatch(rf"{out}  2026-11-10 to 2026-11-12, 2\.\d MiB\n", output)
    assert out.read_text("utf-8").startswith("<!doctype html>")
    assert [path.name for path in tmp_path.iterdir()] == ["week.html"]


def test_the_command_prints_json(lake: Lake, report: Report) -> None:
    code, output, _ = command("report", "--lake", str(lake.root), "--json", "--days", "3")
    assert code == 0
    found = msgspec.json.decode(output, type=Report)
    assert (found.headline, found.timeline) == (report.headline, report.timeline)


def test_days_without_events_give_a_page_with_a_note(lake: Lake, tmp_path: Path) -> None:
    out = tmp_path / "empty.html"
    days = ("--from", "2020-01-01", "--to", "2020-01-02")
    code, output, _ = command("report", "--lake", str(lake.root), *days, "--out", str(out))
    assert code == 0
    assert output.endswith("no events in these days\n")
    text = Texts(out.read_text("utf-8")).text
    assert "No events on these days" in text
    assert "--from 2026-11-10 --to 2026-11-12" in text
    assert json.loads(command("report", "--lake", str(lake.root), *days, "--json")[1])["days"] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--lake", "/nowhere"), "No lake at /nowhere."),
        (("--days", "0"), "--days must be between 1 and 36500, not 0"),
        (("--days", "soon"), "--days must be a day such as 2026-11-16"),
        (("--days", "3", "--from", "2026-11-01"), "Use either --days"),
        (("--from", "2026-11-31"), "--from must be a day such as 2026-11-16, not 2026-11-31"),
        (("--from", "2026-11-12", "--to", "2026-11-11"), "The first day, 2026-11-12, is after"),
        (("--out", "/nowhere/x.html"), "cannot write /nowhere/x.html: No such file or directory"),
    ],
)
def test_an_error_is_one_line(lake: Lake, arguments: tuple[str, ...], message: str) -> None:
    given = arguments if "--lake" in arguments else ("--lake", str(lake.root), *arguments)
    code, output, stderr = command("report", *given)
    assert (code, output) == (1, "")
    assert message in stderr
    assert stderr.count("\n") == 1


@pytest.mark.parametrize("missing", ["pyarrow", "plotly"])
def test_a_missing_package_is_named(
    lake: Lake, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = extras.find_spec
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == missing else found(name))
    code, _, stderr = command("report", "--lake", str(lake.root))
    assert (code, stderr) == (1, f"{missing_package(missing)}\n")


# The documentation


def names_of(kind: type) -> set[str]:
    """Every key of the JSON, at any depth."""
    found: set[str] = set()
    schema = msgspec.json.schema(kind)
    for definition in schema["$defs"].values():
        found |= definition.get("properties", {}).keys()
    return found


def test_the_documentation_names_every_key() -> None:
    text = (Path(__file__).parents[2] / "docs/how-to/report.md").read_text("utf-8")
    part = text.partition("## JSON output")[2].partition("\n## ")[0]
    documented = set(re.findall(r"`([a-z0-9_]+)", part))
    assert len(names_of(Report)) > 50
    assert names_of(Report) <= documented

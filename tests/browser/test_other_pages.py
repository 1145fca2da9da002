"""Workers, recurring and tracked jobs, settings, the server and analytics, with real clicks."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from demo import XSS, World
from playwright.sync_api import BrowserContext, Page, expect

import report_lake
from millrace.pipeline.lake import Lake, locked
from raw_faktory import RawFaktory
from server_process import running_server


def sure(page: Page) -> None:
    """Confirm the question."""
    page.locator("#confirm button[value=yes]").click()


def notice(page: Page) -> str:
    return page.inner_text(".notice")


def beat(faktory: RawFaktory, wid: str) -> str:
    answer = faktory.command("BEAT", {"wid": wid})
    return "" if answer == "OK" else json.loads(answer or b"{}").get("state", "")


# Workers


def test_a_worker_receives_quiet_and_terminate(own_world: World, context: BrowserContext) -> None:
    page = context.new_page()
    page.goto(f"{own_world.url}/busy")
    row = page.locator("#workers tr", has_text="mailer-1").first
    row.get_by_role("button", name="Quiet").click()
    page.locator("#confirm button[value=no]").click()
    assert beat(own_world.faktory, "mailer-1") == ""
    row.get_by_role("button", name="Quiet").click()
    sure(page)
    assert "signalled to stop fetching" in notice(page)
    assert beat(own_world.faktory, "mailer-1") == "quiet"
    page.goto(f"{own_world.url}/workers/faktory/mailer-1")
    expect(page.locator("h1 .state")).to_have_text("quiet")
    page.get_by_role("button", name="Terminate").click()
    sure(page)
    assert "mailer-1" in notice(page)
    assert beat(own_world.faktory, "mailer-1") == "terminate"
    page.goto(f"{own_world.url}/audit")
    expect(page.locator("#audit")).to_contain_text("mailer-1")


def test_the_list_of_workers_is_updated(own_world: World, context: BrowserContext) -> None:
    page = context.new_page()
    page.goto(f"{own_world.url}/busy")
    with RawFaktory(own_world.server.ports["faktory"], wid=f"later {XSS[:30]}") as later:
        beat(later, f"later {XSS[:30]}")
        expect(page.locator("#workers")).to_contain_text("later <img", timeout=15_000)


def test_a_worker_has_a_page(page: Page, world: World) -> None:
    page.goto(f"{world.url}/busy")
    for protocol in ("Faktory", "Qless", "Masenko", "Workq"):
        expect(page.locator("#workers table").first).to_contain_text(protocol)
    for index in range(page.locator("#workers table").first.locator("tbody tr").count()):
        page.locator("#workers table").first.locator("tbody tr").nth(index).locator("a").click()
        expect(page.locator("#worker")).to_contain_text("Current jobs")
        assert "/workers/" in page.url
        page.go_back()


# Recurring, tracked


def changed(page: Page, act: Callable[[], None]) -> str:
    page.locator("#recurring summary").first.click()
    act()
    page.wait_for_selector(".notice")
    return notice(page)


def test_a_recurring_job_is_changed(own_world: World, context: BrowserContext) -> None:
    page = context.new_page()
    page.goto(f"{own_world.url}/recurring")
    row = page.locator("#recurring .below")

    def move() -> None:
        row.get_by_label("To queue").fill("a/b <i>")
        row.get_by_role("button", name="Move", exact=True).click()

    def rank() -> None:
        row.get_by_label("Priority").fill("25")
        row.get_by_role("button", name="Set priority", exact=True).click()

    def tag() -> None:
        row.get_by_label("Tags").fill("nightly, <b>")
        row.get_by_role("button", name="Add tags", exact=True).click()

    def cancel() -> None:
        row.get_by_role("button", name="Cancel").click()
        sure(page)

    assert "a/b <i>" in changed(page, move)
    assert "25" in changed(page, rank)
    changed(page, tag)
    recurring = own_world.qless.jobs["sweep"]
    assert (recurring.queue_name, recurring.priority) == ("a/b <i>", 25)
    assert {"nightly", "<b>"} <= set(recurring.tags)
    changed(page, cancel)
    expect(page.locator("#recurring")).to_contain_text("No recurring jobs")
    assert own_world.qless.jobs["sweep"] is None


def test_a_job_is_untracked(own_world: World, context: BrowserContext) -> None:
    page = context.new_page()
    page.goto(f"{own_world.url}/track")
    assert page.url.endswith("/tracked")
    page.get_by_label("parse-1").check()
    page.get_by_role("button", name="Untrack").click()
    assert "1 job untracked" in notice(page)
    assert own_world.qless.jobs.tracked()["jobs"] == []


def test_a_tag_links_to_its_jobs(page: Page, world: World) -> None:
    page.goto(f"{world.url}/tags")
    page.get_by_role("link", name="bulk").click()
    expect(page.locator("main")).to_contain_text("load-3")
    page.goto(f"{world.url}/tag?tag=bulk")
    expect(page.locator("main")).to_contain_text("load-3")


# The server


def test_qless_settings(own_world: World, context: BrowserContext) -> None:
    page = context.new_page()
    page.goto(f"{own_world.url}/config")
    row = page.locator("tr", has_text="heartbeat").first
    row.locator("input[name=value]").fill("33")
    row.get_by_role("button", name="Set", exact=True).click()
    assert "Set heartbeat to 33" in notice(page)
    assert int(own_world.qless.config["heartbeat"]) == 33
    page.locator("tr", has_text="heartbeat").first.get_by_role("button", name="Unset").click()
    sure(page)
    page.wait_for_selector(".notice:not(:has-text('to 33'))")  # not the notice of the previous page
    assert int(own_world.qless.config["heartbeat"]) == 60


def test_a_flush_requires_a_typed_confirmation(own_world: World, context: BrowserContext) -> None:
    page = context.new_page()
    page.goto(f"{own_world.url}/server")
    page.get_by_label("Type FLUSH to confirm").fill("flush")
    page.get_by_role("button", name="Delete all data").click()
    assert page.locator("input[name=sure]:invalid").count() == 1
    page.get_by_label("Type FLUSH to confirm").fill("FLUSH")
    page.get_by_role("button", name="Delete all data").click()
    sure(page)
    assert "Deleted all jobs" in notice(page)
    info = json.loads(own_world.faktory.command("INFO"))
    assert info["faktory"]["total_enqueued"] == 0
    page.goto(f"{own_world.url}/audit")
    expect(page.locator("#audit tbody tr").first).to_contain_text("flush")


def test_shipping_now(own_world: World, context: BrowserContext) -> None:
    page = context.new_page()
    page.goto(f"{own_world.url}/server")
    expect(page.locator("#journal-title + dl")).to_contain_text("Pending")
    page.get_by_role("button", name="Ship now").click()
    page.wait_for_selector(".notice", timeout=30_000)
    assert "in the lake" in notice(page)
    expect(page.locator("#server")).to_contain_text("0 events")


# Analytics


def test_the_charts_of_analytics(own_world: World, context: BrowserContext) -> None:
    report_lake.fill(own_world.server.data / "lake", report_lake.simulate(2, 20))
    page = context.new_page()
    page.goto(f"{own_world.url}/analytics?first={report_lake.FIRST}")
    page.wait_for_selector("#plot-throughput .main-svg", timeout=30_000)
    drawn = page.locator(".report .plot .main-svg").count()
    assert drawn >= page.locator(".report .plot").count() > 8
    blank = page.locator(".report .plot").evaluate_all(
        "plots => plots.map(plot => plot.getBoundingClientRect().bottom -"
        " plot.querySelector('.main-svg').getBoundingClientRect().bottom)"
    )
    assert max(blank) < 1, "a chart has blank space below"
    with page.expect_download() as download:
        page.get_by_role("link", name="as JSON").click()
    assert json.loads(download.value.path().read_text())["headline"]["completed"] > 0


def test_analytics_without_any_table(page: Page, world: World) -> None:
    page.goto(f"{world.url}/analytics")
    expect(page.locator("main")).to_contain_text("No report yet", timeout=15_000)
    expect(page.get_by_role("button", name="Run now")).to_be_enabled()


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[str]:
    """The address of a server without events."""
    with running_server(tmp_path / "data") as server:
        yield f"http://127.0.0.1:{server.ports['web']}"


def test_the_pipeline_is_run(empty: str, context: BrowserContext) -> None:
    """Without events the pipeline needs no Spark and has no work."""
    page = context.new_page()
    page.goto(f"{empty}/analytics")
    page.get_by_role("button", name="Run now").click()
    assert "Pipeline started" in notice(page)
    expect(page.locator("#pipeline")).to_contain_text("Last run succeeded", timeout=30_000)
    page.goto(f"{empty}/audit")
    expect(page.locator("#audit")).to_contain_text("run pipeline")


def test_an_unavailable_pipeline(own_world: World, context: BrowserContext) -> None:
    page = context.new_page()
    with locked(Lake(own_world.server.data / "lake")):
        page.goto(f"{own_world.url}/analytics")
        page.get_by_role("button", name="Run now").click()
        expect(page.locator("#pipeline")).to_contain_text("Last run failed", timeout=120_000)
        expect(page.locator("#pipeline pre")).to_contain_text("Another run")

"""The overview in a real browser: its numbers and charts follow the server."""

import re

import pytest
from demo import World
from playwright.sync_api import BrowserContext, Page, expect


@pytest.fixture
def tab(own_world: World, context: BrowserContext) -> Page:
    page = context.new_page()
    page.goto(own_world.url)
    return page


def live(page: Page, name: str):
    return page.locator(f'[data-number="{name}"]')


def test_the_charts_are_drawn(page: Page, world: World) -> None:
    page.goto(world.url)
    for name in ("rates", "backlog", "history"):
        expect(page.locator(f"#{name} svg")).to_be_visible()
    expect(page.locator("#history .bar.s2").nth(29)).to_be_visible()  # today


def test_a_chart_shows_the_values_under_the_pointer(page: Page, world: World) -> None:
    page.goto(world.url)
    chart = page.locator("#history")
    chart.locator("svg").hover()
    expect(chart.locator(".values")).to_contain_text("processed")
    expect(chart.locator(".values")).to_contain_text("failed")
    page.locator("h1").hover()
    expect(chart.locator(".values")).to_be_hidden()


def test_the_overview_transfers_less_than_150_kb(page: Page, world: World) -> None:
    page.goto(world.url)
    expect(page.locator("#status")).to_contain_text("ready")
    entries = "['navigation', 'resource'].flatMap((type) => performance.getEntriesByType(type))"
    size = page.evaluate(f"{entries}.reduce((sum, entry) => sum + entry.transferSize, 0)")
    assert 0 < size < 150_000


def test_numbers_are_updated_live(tab: Page, own_world: World) -> None:
    ready = int(live(tab, "ready").inner_text())
    assert ready > 50
    for number in range(10):
        job = {"jid": f"while-{number:04}", "jobtype": "X", "queue": "live", "args": []}
        own_world.faktory.push(job)
    expect(live(tab, "ready")).to_have_text(str(ready + 10))
    expect(live(tab, "pushed")).not_to_have_text("0.0")
    expect(tab.locator("#status")).to_contain_text(f"{ready + 10} ready")
    expect(tab.locator("[data-count='/queues']")).to_have_text(str(ready + 10))
    for _ in range(10):
        own_world.faktory.ack(own_world.faktory.fetch("live")["jid"])
    expect(live(tab, "ready")).to_have_text(str(ready))


def test_every_page_has_the_counts_of_faktory(page: Page, world: World) -> None:
    page.goto(world.url)
    for path, name in (("/retries", "retrying"), ("/scheduled", "scheduled"), ("/morgue", "dead")):
        shown_text = live(page, name).inner_text()
        count = page.locator(f"[data-count='{path}']")
        expect(count).to_have_text(shown_text)
        expect(count).to_have_attribute(
            "title", f"{shown_text} {name} {'job' if shown_text == '1' else 'jobs'}"
        )
    page.goto(f"{world.url}/tags")
    line = page.locator("#status")
    before = page.locator("main").bounding_box()
    for label in ("processed", "failed", "ready", "leased"):
        expect(line).to_contain_text(label)
    expect(page.locator("[data-count='/busy']")).to_have_text(re.compile(r"^\d+$"))
    assert page.locator("main").bounding_box() == before, "the layout has shifted"


def test_the_oldest_ready_job(tab: Page, own_world: World) -> None:
    oldest = tab.locator("#oldest")
    oldest.get_by_role("link").last.click()
    expect(tab.locator("h1")).not_to_have_text("Overview")
    tab.go_back()
    own_world.faktory.command("FLUSH")
    expect(oldest).to_contain_text("no ready jobs")
    own_world.qless.queues["a/b?"].put("X", {}, jid="the-only-one")
    expect(oldest).to_contain_text("in a/b?")
    oldest.get_by_role("link", name="a/b?").click()
    expect(tab.locator("h1")).to_have_text("a/b?")


def test_a_paused_queue_is_reported(tab: Page, own_world: World) -> None:
    note = tab.locator("#paused")
    expect(note).to_be_hidden()
    own_world.faktory.command("QUEUE PAUSE mail")
    expect(note).to_contain_text("Paused queues: 1")
    note.get_by_role("link").click()
    expect(tab.locator("#queues td.name > a")).to_have_text(["mail"])


def test_a_hidden_page_receives_no_updates(tab: Page, own_world: World) -> None:
    tab.evaluate("""() => document.addEventListener('overview', () => {
        document.body.dataset.heard = Number(document.body.dataset.heard || 0) + 1;
    })""")
    hide = """(hidden) => {
        Object.defineProperty(document, 'hidden', { value: hidden, configurable: true });
        document.dispatchEvent(new Event('visibilitychange'));
        return Number(document.body.dataset.heard);
    }"""
    at_least = "(number) => Number(document.body.dataset.heard) >= number"
    tab.wait_for_function(at_least, arg=2)
    heard = tab.evaluate(hide, arg=True)
    tab.wait_for_timeout(2500)  # long enough for two more updates
    assert tab.evaluate("Number(document.body.dataset.heard)") in {heard, heard + 1}
    tab.evaluate(hide, arg=False)
    tab.wait_for_function(at_least, arg=heard + 2)


def test_history_by_day(page: Page, world: World) -> None:
    page.goto(world.url)
    page.get_by_role("link", name="7 days").click()
    page.get_by_text("As a table").click()
    rows = page.locator("details tbody tr")
    expect(rows).to_have_count(7)
    today = rows.first.locator("td")
    assert live(page, "failures").inner_text() != "0"
    expect(today.nth(1)).to_have_text(live(page, "processed").inner_text())
    expect(today.nth(2)).to_have_text(live(page, "failures").inner_text())


def test_light_and_dark(browser, world: World) -> None:
    """Charts follow the color scheme."""
    context = browser.new_context(color_scheme="light")
    page = context.new_page()
    page.goto(world.url)
    line = page.locator("#backlog .line").first
    expect(line).to_have_css("stroke", "rgb(37, 99, 168)")
    page.emulate_media(color_scheme="dark")
    expect(line).to_have_css("stroke", "rgb(110, 168, 232)")
    context.close()

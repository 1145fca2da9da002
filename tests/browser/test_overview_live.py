"""The overview in a real browser: its numbers and charts follow what happens."""

import pytest
from demo import World
from playwright.sync_api import BrowserContext, Page, expect


@pytest.fixture
def tab(context: BrowserContext, own_world: World) -> Page:
    page = context.new_page()
    page.goto(own_world.url)
    return page


def live(page: Page, name: str):
    return page.locator(f'[data-live="{name}"]')


def test_its_charts_are_drawn(page: Page, world: World) -> None:
    page.goto(world.url)
    for name in ("rates", "backlog", "history"):
        expect(page.locator(f"#{name} .main-svg").first).to_be_visible()
    expect(page.locator("#history .bars .point path").first).to_be_visible()


def test_numbers_arrive_while_one_looks(tab: Page, own_world: World) -> None:
    ready = int(live(tab, "ready").inner_text())
    assert ready > 50
    for number in range(10):
        job = {"jid": f"while-{number:04}", "jobtype": "X", "queue": "live", "args": []}
        own_world.faktory.push(job)
    expect(live(tab, "ready")).to_have_text(str(ready + 10))
    expect(live(tab, "pushed")).not_to_have_text("0.0")
    expect(tab.locator("#standing")).to_contain_text(f"{ready + 10} ready")
    for _ in range(10):
        own_world.faktory.ack(own_world.faktory.fetch("live")["jid"])
    expect(live(tab, "ready")).to_have_text(str(ready))


def test_the_one_that_waits_longest(tab: Page, own_world: World) -> None:
    oldest = tab.locator("#oldest")
    oldest.get_by_role("link").last.click()
    expect(tab.locator("h1")).not_to_have_text("Overview")
    tab.go_back()
    own_world.faktory.command("FLUSH")
    expect(oldest).to_contain_text("no job is ready")
    own_world.faktory.push({"jid": "the-only-one", "jobtype": "X", "queue": "a/b?", "args": []})
    expect(oldest).to_contain_text("in a/b?")
    oldest.get_by_role("link", name="a/b?").click()
    expect(tab.locator("h1")).to_have_text("a/b?")


def test_a_paused_queue_is_told_of(tab: Page, own_world: World) -> None:
    note = tab.locator("#paused")
    expect(note).to_be_hidden()
    own_world.faktory.command("QUEUE PAUSE", "mail")
    expect(note).to_contain_text("1 of the queues are paused")
    note.get_by_role("link").click()
    assert tab.locator("#queues td.name > a").all_inner_texts() == ["mail"]


def test_a_hidden_page_is_sent_nothing(tab: Page, own_world: World) -> None:
    heard = "window.heard = 0; document.addEventListener('overview', () => { window.heard += 1; });"
    tab.evaluate(heard)
    tab.wait_for_function("window.heard > 1")
    hide = """(hidden) => {
        Object.defineProperty(document, 'hidden', { value: hidden, configurable: true });
        document.dispatchEvent(new Event('visibilitychange'));
    }"""
    tab.evaluate(hide, arg=True)
    tab.wait_for_timeout(200)
    before = tab.evaluate("window.heard")
    tab.wait_for_timeout(2500)
    assert tab.evaluate("window.heard") == before
    tab.evaluate(hide, arg=False)
    tab.wait_for_function(f"window.heard > {before}")


def test_history_by_day(page: Page, world: World) -> None:
    page.goto(world.url)
    page.get_by_role("link", name="7 days").click()
    page.get_by_text("As a table").click()
    rows = page.locator("details tbody tr")
    expect(rows).to_have_count(7)
    expect(rows.first).to_contain_text("14")  # processed today: 13 succeeded... see below


def test_light_and_dark(browser, world: World) -> None:
    """Charts are drawn anew in the colours of the night."""
    context = browser.new_context(color_scheme="light")
    page = context.new_page()
    page.goto(world.url)
    line = page.locator("#rates .scatterlayer .js-line").first
    expect(line).to_be_attached()
    day = line.evaluate("line => getComputedStyle(line).stroke")
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(
        "day => getComputedStyle(document.querySelector('#rates .scatterlayer .js-line')).stroke !== day",
        arg=day,
    )
    context.close()

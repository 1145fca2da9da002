"""Queues in a real browser: the contents of the pages and their actions."""

import re

import pytest
from demo import XSS_QUEUE, World
from playwright.sync_api import BrowserContext, Page, expect


@pytest.fixture
def tab(own_world: World, context: BrowserContext) -> Page:
    return context.new_page()


def row(page: Page, name: str):
    return page.locator("#queues tbody tr").filter(
        has=page.get_by_role("link", name=name, exact=True)
    )


def test_every_queue_has_a_row_and_a_page(page: Page, world: World) -> None:
    page.goto(f"{world.url}/queues")
    names = page.locator("#queues td.name > a").all_inner_texts()
    assert {"mail", "billing", "images", "imports", "odd", XSS_QUEUE} <= set(names)
    for name in names:
        page.goto(f"{world.url}/queues")
        row(page, name).get_by_role("link", name=name, exact=True).click()
        expect(page.locator("h1")).to_have_text(name)


def test_filter(page: Page, world: World) -> None:
    page.goto(f"{world.url}/queues")
    page.get_by_label("Filter by name").fill("IM")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator("#queues td.name > a")).to_have_text(["images", "imports"])


@pytest.mark.parametrize("name", ["mail", XSS_QUEUE])
def test_pause_and_resume(tab: Page, own_world: World, name: str) -> None:
    tab.goto(f"{own_world.url}/queues")
    row(tab, name).get_by_role("button", name="Pause").click()
    expect(tab.locator(".notice")).to_contain_text(f"Paused queue {name}")
    expect(row(tab, name).locator(".state.paused")).to_be_visible()
    assert own_world.qless.queues[name].pop() is None
    tab.get_by_label("Only paused").check()
    tab.get_by_role("button", name="Filter").click()
    expect(tab.locator("#queues td.name > a")).to_have_text([name])
    row(tab, name).get_by_role("button", name="Resume").click()
    expect(tab.locator("#queues")).to_contain_text("No paused queues")
    assert own_world.qless.queues[name].pop()


def test_clear_requires_confirmation_and_shows_the_count(tab: Page, own_world: World) -> None:
    tab.goto(f"{own_world.url}/queues/mail")
    tab.get_by_role("button", name="Clear").click()
    expect(tab.locator("#confirm-text")).to_contain_text("It has 46 ready jobs.")
    tab.get_by_role("button", name="No", exact=True).click()
    expect(tab.locator("#queue")).to_contain_text("Ready 46")
    tab.get_by_role("button", name="Clear").click()
    tab.get_by_role("button", name="Yes", exact=True).click()
    expect(tab.locator(".notice")).to_have_text("Cleared queue mail. 46 jobs removed.")
    expect(tab.locator("#queue")).to_contain_text("Ready 0")
    expect(tab.locator("#queue")).to_contain_text("Leased 2")
    assert own_world.faktory.fetch("mail") is None


def test_remove(tab: Page, own_world: World) -> None:
    tab.goto(f"{own_world.url}/queues")
    row(tab, "plain").get_by_role("button", name="Remove").click()
    tab.get_by_role("button", name="Yes", exact=True).click()
    expect(tab.locator(".notice")).to_contain_text("Removed queue plain. 3 jobs removed.")
    expect(row(tab, "plain")).to_have_count(0)


def test_actions_on_selected_jobs(tab: Page, own_world: World) -> None:
    tab.goto(f"{own_world.url}/queues/mail")
    tab.locator("tbody input[type=checkbox]").nth(0).check()
    tab.locator("tbody input[type=checkbox]").nth(1).check()
    tab.get_by_role("button", name="Kill", exact=True).click()
    tab.get_by_role("button", name="Yes", exact=True).click()
    expect(tab.locator(".notice")).to_contain_text("2 jobs were killed")
    expect(tab.locator("#queue")).to_contain_text("Ready 44")
    expect(tab.locator("#queue")).to_contain_text("Dead 2")


def test_an_action_on_all_jobs_of_a_state(tab: Page, own_world: World) -> None:
    tab.goto(f"{own_world.url}/queues/billing?state=dead")
    tab.get_by_label(re.compile("All matching jobs")).check()
    tab.get_by_role("button", name="Retry", exact=True).click()
    tab.get_by_role("button", name="Yes", exact=True).click()
    expect(tab.locator(".notice")).to_contain_text("3 jobs were made ready")
    expect(tab.locator("#queue")).to_contain_text("Ready 3")


def test_jobs_by_state_are_paged(page: Page, world: World) -> None:
    page.goto(f"{world.url}/queues/mail")
    first = page.locator("#jobs tbody a.mono").all_inner_texts()
    page.get_by_role("link", name="Next page").click()
    expect(page.get_by_role("link", name="First page")).to_be_visible()
    second = page.locator("#jobs tbody a.mono").all_inner_texts()
    assert len(first) == 25
    assert len({*first, *second}) == 46


def test_statistics_are_drawn(page: Page, world: World) -> None:
    page.goto(f"{world.url}/queues/mail?state=statistics")
    expect(page.locator(".chart svg").first).to_be_visible()
    expect(page.locator(".chart .bar").first).to_be_visible()
    page.get_by_role("button", name="Show").click()
    assert "day=20" in page.url


def test_numbers_are_updated_and_the_focus_stays(tab: Page, own_world: World) -> None:
    tab.goto(f"{own_world.url}/queues")
    button = row(tab, "mail").get_by_role("button", name="Pause")
    button.focus()
    own_world.faktory.push({"jid": "brand-new-1", "jobtype": "X", "queue": "brand-new", "args": []})
    expect(row(tab, "brand-new")).to_be_visible()
    expect(button).to_be_focused()


def test_without_scripts(browser, own_world: World) -> None:
    plain = browser.new_context(java_script_enabled=False).new_page()
    plain.goto(f"{own_world.url}/queues")
    row(plain, "mail").get_by_role("button", name="Clear").click()
    expect(plain.locator("h1")).to_have_text("Clear queue mail?")
    plain.get_by_role("button", name="Yes").click()
    expect(plain.locator(".notice")).to_have_text("Cleared queue mail. 46 jobs removed.")
    plain.context.close()


def test_an_unknown_queue(page: Page, world: World) -> None:
    page.goto(f"{world.url}/queues/nowhere")
    assert page.url == f"{world.url}/queues"
    expect(page.locator(".notice")).to_have_text('Queue "nowhere" not found.')

"""Every page renders, says nothing to the console, and takes nobody's words for markup."""

import pytest
from demo import World
from playwright.sync_api import Page, expect

PAGES = [
    "/",
    "/?days=180",
    "/queues",
    "/queues/mail",
    "/jobs",
    "/jobs?q=state:dead",
    "/busy",
    "/retries",
    "/scheduled",
    "/morgue",
    "/failures",
    "/completed",
    "/recurring",
    "/tracked",
    "/tags",
    "/throttles",
    "/analytics",
    "/server",
    "/configuration",
    "/audit",
    "/tasks",
    "/jobs/mail-0059",
    "/jobs/fails-0000",
    "/jobs/parse-1",
]


@pytest.mark.parametrize("path", PAGES)
def test_a_page(page: Page, world: World, path: str) -> None:
    response = page.goto(world.url + path)
    assert response is not None
    assert response.status == 200
    assert page.locator("h1").count() == 1
    expect(page.locator("#standing")).to_contain_text("ready")
    wide = page.evaluate("document.documentElement.scrollWidth > innerWidth")
    assert not wide, "the page is wider than the window"


@pytest.mark.parametrize("path", PAGES)
def test_a_page_on_a_phone(page: Page, world: World, path: str) -> None:
    page.set_viewport_size({"width": 375, "height": 800})
    page.goto(world.url + path)
    assert not page.evaluate("document.documentElement.scrollWidth > innerWidth")


def test_a_page_that_is_not_there(page: Page, world: World) -> None:
    response = page.goto(f"{world.url}/nowhere")
    assert response is not None
    assert response.status == 404
    assert "No page matches this address" in page.inner_text("main")
    page.context.watched.complaints.clear()  # Chromium tells of every 404

"""Every page renders, writes nothing to the console, and escapes client text."""

import pytest
from demo import World
from playwright.sync_api import Page, expect

PAGES = [
    "/",
    "/?days=180",
    "/queues",
    "/queues/mail",
    "/queues/imports?state=statistics",
    "/queues/imports?state=recurring",
    "/jobs",
    "/jobs?q=state:dead",
    "/busy",
    "/workers/faktory/mailer-1",
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
    "/configuration/qless",
    "/audit",
    "/tasks",
    "/jobs/mail-0059",
    "/jobs/fails-0000",
    "/jobs/parse-1",
]


@pytest.mark.parametrize("path", PAGES)
def test_a_page_on_a_desktop_and_on_a_phone(page: Page, world: World, path: str) -> None:
    response = page.goto(world.url + path)
    assert response is not None
    assert response.status == 200
    assert page.locator("h1").count() == 1
    expect(page.locator("#status")).to_contain_text("ready")
    fits = "document.documentElement.scrollWidth <= innerWidth"
    assert page.evaluate(fits), "the page is wider than the window"
    page.set_viewport_size({"width": 375, "height": 800})
    page.wait_for_function(fits)  # charts are drawn again after a change of the size


def test_the_menu_shows_the_current_page_on_a_phone(page: Page, world: World) -> None:
    page.set_viewport_size({"width": 375, "height": 800})
    page.goto(f"{world.url}/audit")
    box = page.locator(".menu [aria-current]").bounding_box()
    assert box is not None
    assert 0 <= box["x"] <= 375 - box["width"]


@pytest.mark.parametrize(
    ("path", "label"),
    [
        ("/server", "Ports"),
        ("/", "Ports"),
        ("/tasks", "Actions"),
        ("/jobs/fails-0000", "Attempts"),
        ("/queues/imports?state=recurring", "Recurring jobs"),
    ],
)
def test_a_table_fits_on_a_phone(page: Page, world: World, path: str, label: str) -> None:
    if label == "Actions":
        body = {"action": "track", "q": "queue:plain"}
        page.request.post(f"{world.url}/api/v1/actions", data=body)
    page.set_viewport_size({"width": 375, "height": 800})
    page.goto(world.url + path)
    table = page.locator(f"[aria-label='{label}']")
    assert table.evaluate("each => each.scrollWidth <= each.clientWidth")
    expect(table.locator("td").nth(1)).to_have_css("display", "block")


def test_an_unknown_page(page: Page, world: World) -> None:
    response = page.goto(f"{world.url}/nowhere")
    assert response is not None
    assert response.status == 404
    assert "No page matches this address" in page.inner_text("main")
    page.context.watched.complaints.clear()  # Chromium reports every 404

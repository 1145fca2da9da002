"""Chromium and a server. A message in the console of a page fails its test."""

from collections.abc import Iterator

import pytest
from demo import CHROMIUM, World, filled
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    expect,
    sync_playwright,
)

from server_process import running_server

expect.set_options(timeout=15_000)


#: Connections stay open while the tests of a module read pages.
PATIENT = {"MILLRACE_MASENKO_HEARTBEAT": "1h"}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Playwright runs an event loop until it is stopped: later tests of the same process could not
    run their own.
    """
    if not CHROMIUM:
        pytest.skip("no Chromium on this machine: `apt-get install chromium` brings it")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A server with jobs of every kind, shared by tests that only read."""
    with (
        running_server(tmp_path_factory.mktemp("look") / "data", **PATIENT) as server,
        filled(server) as made,
    ):
        yield made


@pytest.fixture
def own_world(tmp_path: pytest.TempPathFactory) -> Iterator[World]:
    """The same for a test that changes data."""
    with running_server(tmp_path / "data", **PATIENT) as server, filled(server) as made:
        yield made


#: Marks a page whose scripts have run.
MARK_LOADED = (
    "addEventListener('load', () => { document.documentElement.dataset.loaded = 'yes'; });"
)


def wait_for_scripts(page: Page) -> None:
    """Delay every action until the scripts of the page have run. A click that follows a link reaches
    the new page earlier, and the page then behaves as without scripts.
    """
    page.add_locator_handler(page.locator("html:not([data-loaded])"), lambda: None)


class Watched:
    """Console messages and errors of the pages of a context."""

    def __init__(self, context: BrowserContext) -> None:
        self.complaints: list[str] = []
        context.on("console", self._on_console)
        context.on("weberror", lambda error: self.complaints.append(f"error: {error.error}"))
        context.on("page", wait_for_scripts)
        context.add_init_script(MARK_LOADED)
        context.add_init_script(
            "addEventListener('securitypolicyviolation', (event) =>"
            " console.error('CSP', event.violatedDirective, event.blockedURI, event.sourceFile));"
        )

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.complaints.append(f"{message.type}: {message.text}")


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    """A browser context of this test, in Tokyo. A test that expects messages clears
    `context.watched.complaints`.
    """
    made = browser.new_context(viewport={"width": 1280, "height": 900}, timezone_id="Asia/Tokyo")
    made.set_default_timeout(30_000)  # a busy machine is no failure
    watched = Watched(made)
    made.watched = watched
    yield made
    pages = [page for page in made.pages if not page.is_closed()]
    hacked = [page.url for page in pages if page.evaluate("window.hacked === 1")]
    made.close()
    assert watched.complaints == []
    assert hacked == [], "client text was not escaped"


@pytest.fixture
def page(context: BrowserContext, world: World) -> Page:
    """An empty page; pages of the shared server are at `world.url`."""
    return context.new_page()

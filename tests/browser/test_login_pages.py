"""Login and logout in a browser, the pages of each role, and cross-site requests."""

import http.server
import json
import signal
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from server_process import ServerProcess, running_server

PASSWORD, READ = "a password of the pages", "read-0123456789abcdef"


class Guarded(NamedTuple):
    server: ServerProcess
    url: str
    secret: Path


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    secret = tmp_path / "password"
    secret.write_text(PASSWORD, "utf-8")
    settings = {
        "MILLRACE_WEB_PASSWORD": str(secret),
        "MILLRACE_WEB_TOKENS": f"read looker {READ}",
    }
    with running_server(tmp_path / "data", **settings) as server:
        url = f"http://localhost:{server.ports['web']}"
        job = {"id": "behind-a-login", "queue": "a/b", "kind": "pack", "payload": []}
        headers = {"Authorization": f"Bearer {PASSWORD}", "Content-Type": "application/json"}
        dialogs = urllib.request.Request(f"{url}/api/v1/jobs", json.dumps(job).encode(), headers)
        with urllib.request.urlopen(dialogs, timeout=20) as answer:
            assert answer.status < 300
        yield Guarded(server, url, secret)


@pytest.fixture
def tab(guarded: Guarded, context: BrowserContext) -> Page:
    """Closed before the server stops."""
    return context.new_page()


def log_in(tab: Page, secret: str) -> None:
    tab.get_by_label("Password or token").fill(secret)
    tab.get_by_role("button", name="Sign in").click()


def test_a_browser_logs_in_sees_the_requested_page_and_logs_out(tab: Page, guarded: Guarded):
    tab.goto(f"{guarded.url}/queues/a%2Fb?x=1")
    assert tab.url.startswith(f"{guarded.url}/login?next=")
    assert "behind-a-login" not in tab.content()
    log_in(tab, "wrong")
    expect(tab.get_by_role("alert")).to_contain_text("Invalid password or token")
    tab.context.watched.complaints.clear()  # Chromium reports every 403
    log_in(tab, PASSWORD)
    expect(tab).to_have_url(f"{guarded.url}/queues/a%2Fb?x=1")
    assert "behind-a-login" in tab.content()
    expect(tab.locator("#status")).to_contain_text("ready")
    assert tab.evaluate("document.cookie") == ""
    tab.get_by_role("button", name="Sign out").click()
    expect(tab).to_have_url(f"{guarded.url}/login")
    tab.goto(f"{guarded.url}/jobs")
    assert tab.url.startswith(f"{guarded.url}/login?next=")


def test_a_reader_sees_no_forms(tab: Page, guarded: Guarded):
    tab.goto(f"{guarded.url}/queues")
    log_in(tab, READ)
    for path in ("/queues", "/queues/a%2Fb", "/jobs", "/jobs/behind-a-login", "/busy", "/server"):
        tab.goto(guarded.url + path)
        for form in tab.locator("form[method=post]").all():
            assert (form.get_attribute("action") or "").endswith("/logout"), path
    answer = tab.goto(f"{guarded.url}/audit")
    assert answer is not None
    assert answer.status == 403
    tab.context.watched.complaints.clear()


def test_an_expired_session_leads_to_the_login_without_a_browser_dialog(
    tab: Page, guarded: Guarded
):
    dialogs: list[str] = []
    tab.on("dialog", lambda dialog: dialogs.append(dialog.message))
    tab.goto(f"{guarded.url}/queues")
    log_in(tab, PASSWORD)
    expect(tab.locator("#status")).to_contain_text("ready")
    guarded.secret.write_text("another password", "utf-8")
    with tab.expect_response(
        lambda response: response.status == 401, timeout=20_000
    ) as response_info:
        guarded.server.signal(signal.SIGHUP)
    assert response_info.value.url == f"{guarded.url}/live"
    assert response_info.value.header_value("www-authenticate") == 'Bearer realm="Millrace"'
    tab.goto(f"{guarded.url}/queues")
    log_in(tab, "another password")
    expect(tab.locator("#status")).to_contain_text("ready")
    assert dialogs == []
    tab.context.watched.complaints.clear()


class Elsewhere(http.server.BaseHTTPRequestHandler):
    """Another site, on another port of this machine: the same site for a browser, another origin."""

    page = b""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(self.page)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def elsewhere() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) as site:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        yield f"http://localhost:{site.server_address[1]}"
        site.shutdown()


def test_a_page_of_another_site_changes_and_reads_nothing(
    tab: Page, guarded: Guarded, elsewhere: str, monkeypatch: pytest.MonkeyPatch
):
    tab.goto(f"{guarded.url}/queues")
    log_in(tab, PASSWORD)
    expect(tab.locator("#status")).to_contain_text("ready")
    target = f"{guarded.url}/queues/a%2Fb"
    page = f'<form method="post" action="{target}"><input name="action" value="pause"></form>'
    monkeypatch.setattr(Elsewhere, "page", page.encode())
    tab.goto(elsewhere)
    with tab.expect_navigation():
        tab.evaluate("document.forms[0].submit()")
    assert "Cross-site request refused." in tab.inner_text("main")
    tab.goto(elsewhere)
    read = "fetch(%s, {credentials: 'include'}).then((r) => r.text(), () => 'not to be read')"
    assert tab.evaluate(read % json.dumps(f"{guarded.url}/jobs")) == "not to be read"
    framed = tab.evaluate(
        """(url) => new Promise((done) => {
            const frame = document.createElement('iframe');
            frame.onload = () => { try { done(frame.contentDocument.title) } catch { done('') } };
            frame.src = url;
            document.body.append(frame);
        })""",
        f"{guarded.url}/jobs",
    )
    assert not framed
    tab.goto(f"{guarded.url}/queues")
    expect(tab.get_by_role("button", name="Pause")).to_have_count(1)
    expect(tab.get_by_role("button", name="Resume")).to_have_count(0)
    tab.context.watched.complaints.clear()  # Chromium reports all of that

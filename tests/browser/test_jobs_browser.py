"""Jobs in Chromium: search, details and actions."""

import re
import signal

import pytest
from demo import XSS, XSS_QUEUE, World
from playwright.sync_api import BrowserContext, Page, Route, expect


@pytest.fixture
def own(own_world: World, context: BrowserContext) -> Page:
    """A page of a server that this test can change."""
    made = context.new_page()
    made.set_default_timeout(10_000)
    return made


def yes(page: Page) -> str:
    """Confirm the question and return its text."""
    dialog = page.locator("#confirm")
    expect(dialog).to_be_visible()
    question = dialog.locator("p").first.inner_text()
    dialog.get_by_role("button", name="Yes").click()
    return question


def notice(page: Page) -> str:
    return page.locator(".notice").inner_text()


def rows(page: Page) -> int:
    return page.locator("#found tbody tr").count()


def push(world: World, count: int, queue: str = "many") -> None:
    for first in range(0, count, 1000):
        jobs = [
            {"jid": f"{queue}-{n:07}", "jobtype": "Bulk", "queue": queue, "args": [n]}
            for n in range(first, min(count, first + 1000))
        ]
        world.faktory.command("PUSHB", jobs)


# Reading


def test_search(page: Page, world: World) -> None:
    page.goto(f"{world.url}/jobs")
    page.locator(".search input").fill("queue:billing state:dead")
    page.get_by_role("button", name="Search", exact=True).click()
    expect(page.locator("#examined")).to_have_text("3 jobs")
    assert rows(page) == 3
    page.locator(".search input").fill("statee:dead")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text('Did you mean "state:"?')
    page.get_by_role("link", name="state:dead", exact=True).click()
    expect(page.locator("#examined")).to_have_text("4 jobs")


def test_hostile_names_link_to_their_jobs(page: Page, world: World) -> None:
    page.goto(f"{world.url}/jobs?q=protocol:qless kind:{XSS[:60]}".replace("<", "%3C"))
    page.goto(f"{world.url}/jobs")
    page.locator(".search input").fill('id:"odd/<i>?#&"')
    page.keyboard.press("Enter")
    page.get_by_role("link", name="odd/<i>?#&").click()
    expect(page.locator("h1")).to_contain_text("odd/<i>?#&")
    assert XSS_QUEUE in page.locator("main").inner_text()
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    assert XSS.replace('"', '\\"') in download.value.path().read_text()


def test_a_payload_is_exact(page: Page, world: World) -> None:
    page.goto(f"{world.url}/jobs/mail-0059")
    assert "12345678901234567890123" in page.locator("pre.payload").first.inner_text()


def test_a_job_shows_its_history(page: Page, world: World) -> None:
    page.goto(f"{world.url}/jobs/fails-0000")
    drawn = page.locator("svg.timeline").text_content() or ""
    assert "ready" in drawn
    assert "dead" in drawn
    attempts = page.locator("section", has=page.locator("#attempts"))
    assert "Timeout::Error" in attempts.inner_text()
    assert "app/mailer.rb:42" in attempts.locator("pre").inner_text()


def test_a_removed_job_has_a_history(page: Page, world: World) -> None:
    page.goto(f"{world.url}/jobs/mail-0000")
    assert "This job was completed" in page.locator("main").inner_text()
    assert "mailer-1" in page.locator("main").inner_text()


@pytest.mark.parametrize(
    "path", ["/jobs/odd%2F%3Ci%3E%3F%23%26", "/jobs?q=state:ready", "/failures"]
)
def test_on_a_phone(page: Page, world: World, path: str) -> None:
    page.set_viewport_size({"width": 375, "height": 800})
    page.goto(world.url + path)
    assert not page.evaluate("document.documentElement.scrollWidth > innerWidth")


# Changing


def test_selected_jobs_are_deleted(own: Page, own_world: World) -> None:
    own.goto(f"{own_world.url}/morgue")
    delete = own.get_by_role("button", name="Delete")
    expect(delete).to_be_disabled()
    boxes = own.locator("tbody input[type=checkbox]")
    boxes.nth(0).check()
    boxes.nth(1).check()
    delete.click()
    assert "2 selected" in yes(own)
    expect(own.locator(".notice")).to_have_text("2 jobs were deleted.")
    assert rows(own) == 2


def test_a_question_can_be_declined(own: Page, own_world: World) -> None:
    own.goto(f"{own_world.url}/morgue")
    own.locator("[data-all]").check()
    own.get_by_role("button", name="Delete").click()
    own.locator("#confirm").get_by_role("button", name="No").click()
    expect(own.locator("#confirm")).to_be_hidden()
    assert rows(own) == 4


def test_all_matching_jobs_are_killed_and_no_other(own: Page, own_world: World) -> None:
    own.goto(f"{own_world.url}/jobs?q=tag:bulk state:ready")
    found = rows(own)
    assert found == 3
    own.get_by_label("All matching jobs").check()
    own.get_by_role("button", name="Kill").click()
    assert "all matching jobs (3)" in yes(own)
    expect(own.locator(".notice")).to_have_text("3 jobs were killed.")
    own.goto(f"{own_world.url}/jobs?q=state:dead tag:bulk")
    assert rows(own) == 4
    own.goto(f"{own_world.url}/jobs?q=state:dead")
    assert rows(own) == 7


def test_without_scripts_the_server_requests_confirmation(browser, own_world: World) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{own_world.url}/retries")
    page.get_by_label("All matching jobs").check()
    page.get_by_role("button", name="Delete").click()
    assert "Delete all jobs that match is:retrying?" in page.locator("h1").inner_text()
    page.get_by_role("button", name="Yes").click()
    assert "deleted" in notice(page)
    assert "No retrying jobs" in page.locator("main").inner_text()
    context.close()


def test_a_selection_made_before_the_scripts_run_counts(own: Page, own_world: World) -> None:
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    own.route("**/static/base.js", hold, times=1)
    with own.expect_request("**/static/base.js"):
        own.goto(f"{own_world.url}/morgue", wait_until="commit")
    own.wait_for_function("document.querySelectorAll('tbody tr').length === 4")
    own.evaluate("document.querySelector('[data-all]').click()")
    held[0].continue_()
    own.wait_for_load_state()
    assert own.locator("tbody input[name=job]:checked").count() == 4
    own.get_by_role("button", name="Retry").click()
    expect(own.locator(".notice")).to_have_text("4 jobs were made ready.")


def test_move_priority_and_tags_of_selected(own: Page, own_world: World) -> None:
    own.goto(f"{own_world.url}/jobs?q=queue:reports")
    for fill, value, button, expected in [
        ("Tags", "urgent, odd one", "Add tags", "8 jobs were tagged."),
        ("Priority", "7", "Set priority", "8 jobs were given a new priority."),
        ("To queue", "night/shift", "Move", "8 jobs were moved."),
    ]:
        own.locator("[data-all]").check()
        own.get_by_text("Move, priority, tags").click()
        own.get_by_label(fill).fill(value)
        own.get_by_role("button", name=button, exact=True).click()
        expect(own.locator(".notice")).to_have_text(expected)
    own.goto(f'{own_world.url}/jobs?q=queue:night/shift tag:"odd one"')
    assert rows(own) == 8


def test_the_actions_of_a_job_page(own: Page, own_world: World) -> None:
    own.goto(f"{own_world.url}/jobs/mail-0050")
    own.get_by_role("button", name="Track").click()
    expect(own.locator(".notice")).to_have_text("1 job was marked as tracked.")
    expect(own.get_by_role("button", name="Stop tracking")).to_be_visible()
    own.get_by_role("button", name="High").click()
    expect(own.locator("#priority")).to_have_value("25")
    own.locator("#tags").fill("checked")
    own.get_by_role("button", name="Add tags", exact=True).click()
    expect(own.locator(".tags a", has_text="checked")).to_be_visible()
    own.get_by_role("button", name="Remove the tag checked").click()
    expect(own.locator(".notice")).to_have_text("1 job was untagged.")
    own.locator("#queue").fill("other")
    own.get_by_role("button", name="Move", exact=True).click()
    expect(own.locator("main > p a").nth(1)).to_have_text("other")
    own.get_by_role("button", name="Kill").click()
    yes(own)
    expect(own.locator("#job .state").first).to_have_text("dead")
    own.get_by_role("button", name="Retry").click()
    expect(own.locator("#job .state").first).to_have_text("ready")
    own.get_by_role("button", name="Delete").click()
    yes(own)
    expect(own.locator(".notice")).to_have_text("1 job was deleted.")
    own.goto(f"{own_world.url}/jobs/mail-0050")
    assert "was removed: cancelled" in own.locator("main").inner_text()


def test_a_worker_loses_its_job(own: Page, own_world: World) -> None:
    own.goto(f"{own_world.url}/jobs?q=queue:mail state:leased")
    own.locator("#found tbody a.mono").first.click()
    own.get_by_role("button", name="Time out").click()
    yes(own)
    expect(own.locator("#job .state").first).not_to_have_text("leased")


def test_a_job_is_unblocked(own: Page, own_world: World) -> None:
    own.goto(f"{own_world.url}/jobs?q=state:blocked queue:images")
    own.locator("#found tbody a.mono").first.click()
    expect(own.get_by_role("heading", name="Depends on")).to_be_visible()
    own.get_by_role("button", name="Remove dependency").first.click()
    yes(own)
    expect(own.locator("#job .state").first).to_have_text("ready")


def test_a_group_of_failures_is_retried(own: Page, own_world: World) -> None:
    own.goto(f"{own_world.url}/failures")
    row = own.locator("tbody tr", has_text="Timeout::Error").first
    row.get_by_role("button", name="Retry").click()
    assert "Timeout::Error" in yes(own)
    expect(own.locator(".notice")).to_have_text("4 jobs were made ready.")
    own.goto(f"{own_world.url}/jobs?q=queue:billing state:ready")
    assert rows(own) == 4
    own.goto(f"{own_world.url}/failures")
    own.get_by_role("link", name=re.compile("database-gone")).click()
    expect(own.locator("h1")).to_have_text("database-gone")
    assert rows(own) == 1


def test_a_job_page_is_live(own: Page, own_world: World) -> None:
    own_world.faktory.push({"jid": "watched1", "jobtype": "W", "queue": "w", "args": []})
    own.goto(f"{own_world.url}/jobs/watched1")
    expect(own.locator("#job .state").first).to_have_text("ready")
    assert own_world.faktory.fetch("w")
    expect(own.locator("#job .state").first).to_have_text("leased")
    expect(own.locator("#attempts + .wide")).to_contain_text("mailer-1")


def test_a_long_search_continues_automatically(own: Page, own_world: World) -> None:
    push(own_world, 45_000)
    own.goto(f"{own_world.url}/jobs?q=fetch-1 tasks.Fetch")
    expect(own.locator("#examined")).to_have_text("1 job", timeout=20_000)
    assert rows(own) == 1
    expect(own.locator("#stop")).to_be_hidden()
    own.locator("tbody input[name=job]").check()
    expect(own.get_by_role("button", name="Kill")).to_be_enabled()


def test_a_long_action_shows_its_progress_and_can_be_stopped(own: Page, own_world: World) -> None:
    push(own_world, 100_000)
    own.goto(f"{own_world.url}/jobs?q=queue:many")
    own.get_by_label("All matching jobs").check()
    own.get_by_role("button", name="Delete").click()
    yes(own)
    own.wait_for_url(re.compile(r"/tasks/\d+$"))
    own_world.server.signal(signal.SIGSTOP)  # a browser may be slower than the server
    assert "Delete all jobs that match queue:many" in own.locator("h1").inner_text()
    own.get_by_role("button", name="Stop").click()
    expect(own.locator("#task [role=status]")).to_contain_text("Stopped.")
    own_world.server.signal(signal.SIGCONT)
    own.goto(f"{own_world.url}/tasks")
    expect(own.locator("tbody tr")).to_contain_text("stopped")
    own.goto(f"{own_world.url}/jobs?q=queue:many")
    assert rows(own) == 50

import base64
import html
import json
import re
from urllib.parse import quote, unquote

import msgspec
import pytest
from told_room import NOW, SECOND, SETTINGS, Told, go, job_row, queue_detail, queue_row, world

from millrace.admin.errors import AdminError
from millrace.records import (
    ActionRequest,
    BulkProgress,
    GetQueue,
    JobFilter,
    JobPage,
    ListQueues,
    QueueAction,
    QueuePage,
    RecurringPage,
    RecurringRecord,
    SearchJobs,
)
from millrace.web.routes import queues as subject

HOSTILE = [
    "a/b",
    "a b?c#d&e=f%25",
    "<script>hacked()</script>",
    '"\'onmouseover="x',
    "тест",
    ".",
    "..",
    "a/../b",
    "%2F",
    "mail/pause",
    "a/",
    "/",
    "mail\n",
    "a\nb",
    "\n",
    "a\r\n",
]
BY = "anybody from 127.0.0.1"


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    monkeypatch.setattr(subject, "_now", lambda: NOW)


def text(told: Told, path: str) -> str:
    answer = go(told, path)
    assert answer.status == 200, answer.text
    return answer.text


class TestAll:
    def test_a_row(self):
        found = text(world(), "/queues")
        assert "1 queue." in found
        for state, shown in (("ready", "1,234"), ("leased", "5"), ("dead", "6")):
            assert f'href="/queues/mail?state={state}">{shown}</a>' in found
        assert ">1,239</td>" in found  # depth
        assert "1.2 ms, 90 ms" in found
        assert "of 10</small>" in found  # limit
        assert '<path d="M0 23 L50 12 L100 1"/>' in found

    @pytest.mark.parametrize(("seconds", "retention"), [("1.5", 1_500_000), ("", -1), ("0", 0)])
    def test_the_retention_of_results(self, seconds, retention):
        told = world(act_on_queue=BulkProgress(1, []))
        answer = go(told, "/queues/mail", [("action", "retain"), ("keep_results", seconds)])
        assert told.heard == [("act_on_queue", QueueAction("mail", "retain", BY, retention))]
        assert answer.said == "Changed queue mail."
        for wrong in ("soon", "-1", "nan", "1e300"):
            form = [("action", "retain"), ("keep_results", wrong)]
            assert go(world(), "/queues/mail", form).status == 400

    def test_clear_shows_the_number_of_jobs(self):
        assert "It has 1,234 ready jobs." in text(world(), "/queues")
        told = world(queues=QueuePage([queue_row(counts=[0, 0, 1, 0, 0, 0])], 1, ""))
        assert "It has 1 ready job." in text(told, "/queues")

    def test_part_of_the_name_and_the_next_page(self):
        told = world(queues=QueuePage([queue_row()], 120, 'm"x&'))
        found = text(told, "/queues?text=a%26b&after=c")
        assert told.heard == [("queues", ListQueues("a&b", limit=50, cursor="c"))]
        assert 'href="/queues?text=a%26b&amp;after=m%22x%26"' in found
        assert "First page" in found

    def test_only_paused_queues(self):
        told = world(
            queues=QueuePage([queue_row(paused=True)], 60, "x"), act_on_queue=BulkProgress(1, [])
        )
        found = text(told, "/queues?paused=yes")
        assert told.heard == [("queues", ListQueues(paused=True, limit=50))]
        assert "60 paused queues" in found
        assert 'href="/queues?paused=yes&amp;after=x"' in found
        answer = go(told, "/queues/mail", [("action", "resume"), ("paused", "yes")])
        assert answer.headers["location"] == "/queues?paused=yes"

    def test_no_queues(self):
        told = world(queues=QueuePage([], 0, ""))
        assert "No queues yet" in text(told, "/queues")
        assert "No matching queues" in text(told, "/queues?text=x")
        assert "No paused queues" in text(told, "/queues?paused=yes")

    @pytest.mark.parametrize(
        ("row", "said"),
        [
            (queue_row(last_fetch_at=0), "no workers"),
            (queue_row(last_fetch_at=NOW - 61 * SECOND), "no workers"),
            (queue_row(last_fetch_at=NOW - SECOND), "last fetch"),
            (queue_row(last_fetch_at=0, waiters=2), "2 wait"),
            (queue_row(last_fetch_at=0, paused=True), ">paused<"),
        ],
    )
    def test_the_last_fetch_is_shown(self, row, said):
        found = text(world(queues=QueuePage([row], 1, "")), "/queues")
        assert said in found
        assert ("no workers" in found) == (said == "no workers")

    @pytest.mark.parametrize("name", HOSTILE)
    def test_every_name_survives_the_round_trip(self, name):
        told = world(queues=QueuePage([queue_row(name)], 1, ""))
        found = text(told, "/queues")
        assert "<script>hacked" not in found
        link = re.search(r'<td class="name"><a href="([^"]*)"', found)[1]
        assert "//" not in link
        go(told, html.unescape(link))
        assert ("queue", GetQueue(name)) in told.heard
        action = re.search(r'<form method="post" action="([^"]*)"', found)[1]
        told.answers["act_on_queue"] = [BulkProgress(1, [])]
        go(told, html.unescape(action), [("action", "clear")])
        assert told.heard[-1] == ("act_on_queue", QueueAction(name, "clear", BY))

    def test_a_reader_has_no_buttons(self):
        told, settings = world(), msgspec.structs.replace(SETTINGS, read_only=True)
        for path in ("/queues", "/queues/mail"):
            answer = go(told, path, settings=settings)
            assert answer.status == 200
            assert 'method="post"' not in answer.text
        assert go(told, "/queues/mail", [("action", "pause")], settings=settings).status == 403


class TestOne:
    def test_its_numbers(self):
        found = text(world(), "/queues/mail")
        assert "p95 90 ms, p99 2 s" in found
        assert "Overdue" in found
        assert "Throttled" in found
        assert 'href="/queues/mail?state=ready" aria-current="page">Ready 1,234</a>' in found

    @pytest.mark.parametrize(
        ("state", "order"),
        [
            ("ready", "queue"),
            ("leased", "newest"),
            ("scheduled", "due"),
            ("blocked", "newest"),
            ("dead", "ended"),
            ("done", "ended"),
        ],
    )
    def test_its_jobs_by_state(self, state, order):
        told = world(search=JobPage([job_row(7 + n, state=state) for n in range(25)], 1, 1, "c/2"))
        found = text(told, f"/queues/mail?state={state}&cursor=c1")
        query = JobFilter(queue="mail", state=state)
        assert told.heard[-1] == ("search", SearchJobs(query, order, "c1", 25))
        assert "/jobs/job-7" in found
        assert f'value="queue:mail state:{state}"' in found
        assert f'href="/queues/mail?state={state}&amp;cursor=c%2F2">Next page' in found
        assert "First page" in found

    def test_a_sparse_result_is_collected_over_pages(self):
        pages = {
            "": JobPage([job_row(1)], 20_000, 90_000, "a"),
            "a": JobPage([], 40_000, 90_000, "b"),
            "b": JobPage([job_row(2)], 90_000, 90_000, ""),
        }
        told = world(search=lambda asked: pages[asked.cursor])
        found = text(told, "/queues/mail")
        assert [asked.limit for name, asked in told.heard if name == "search"] == [25, 24, 24]
        assert found.index("/jobs/job-1") < found.index("/jobs/job-2")
        assert "Next page" not in found

    def test_a_search_stops_after_its_timeout(self, monkeypatch):
        monkeypatch.setattr(subject, "SEARCH_TIMEOUT", 0)
        told = world(search=JobPage([], 20_000, 90_000, "a"))
        found = text(told, "/queues/mail?state=done")
        assert "No matches in 20,000 of 90,000 jobs so far." in found
        assert "Continue search" in found

    def test_none_in_that_state(self):
        told = world(search=JobPage([], 0, 0, ""))
        assert "No dead jobs." in text(told, "/queues/mail?state=dead")

    def test_paused_queues_and_queues_without_workers_have_a_notice(self):
        paused = world(queue=queue_detail(queue_row(paused=True)))
        assert "This queue is paused" in text(paused, "/queues/mail")
        lonely = world(queue=queue_detail(queue_row(last_fetch_at=0)))
        assert "no worker fetches from this queue" in text(lonely, "/queues/mail")

    def test_recurring_jobs_of_this_queue(self):
        def row(jid: str, queue: str) -> RecurringRecord:
            return RecurringRecord(jid, "Sweep", queue, 3600, 0, 5, 0, ["t"], NOW, 3, [], 2, b"{}")

        pages = {
            "": RecurringPage([row("one", "mail"), row("two", "other")], 3, "two"),
            "two": RecurringPage([row("three", "mail")], 3, ""),
        }
        told = world(recurring=lambda asked: pages[asked.cursor])
        found = text(told, "/queues/mail?state=recurring")
        assert ">one<" in found
        assert ">three<" in found
        assert ">two<" not in found
        assert "1 h" in found

    def test_statistics_of_a_day(self):
        told = world()
        found = text(told, "/queues/mail?state=statistics&day=2026-03-01")
        assert told.heard == [("queue", GetQueue("mail", 20513))]
        assert "1 min 2 s" in found  # the mean
        assert "deviation 2 s" in found
        slots = json.loads(html.unescape(re.search(r'data-slots="([^"]*)"', found)[1]))
        assert slots[:2] == [[0, "0 to 1 s", 5], [12, "12 to 13 s", 2]]
        assert "<td>6 to 7 d</td>" in found
        assert found.count("<option") == 2

    @pytest.mark.parametrize("day", ["yesterday", "2026-13-01", "1", "'", "1969-12-31"])
    def test_an_invalid_day(self, day):
        assert go(world(), f"/queues/mail?state=statistics&day={day}").status == 400

    def test_an_unknown_list_is_not_found(self):
        assert go(world(), "/queues/mail?state=lost").status == 404

    def test_an_unknown_queue_redirects_to_the_list(self):
        told = world(queue=AdminError("there is no such queue", "not found"))
        answer = go(told, "/queues/nowhere")
        assert (answer.status, answer.headers["location"]) == (302, "/queues")
        assert answer.said == 'Queue "nowhere" not found.'

    @pytest.mark.parametrize(
        ("last", "state"), [("running", "leased"), ("depends", "blocked"), ("stats", "statistics")]
    )
    def test_urls_of_qless_redirect(self, last, state):
        told = world(queue=AdminError("there is no such queue", "not found"))
        answer = go(told, f"/queues/a%20b/{last}")
        assert (answer.status, answer.headers["location"]) == (302, f"/queues/a%20b?state={state}")

    @pytest.mark.parametrize("name", ["mail", "a/b", "mail.json"])
    def test_json_urls_of_qless_redirect(self, name):
        told = world(queue=AdminError("there is none", "not found"))
        answer = go(told, f"/queues/{name}.json")
        assert answer.status == 302
        assert answer.headers["location"] == "/api/v1/queues/" + quote(name, safe="")
        assert go(world(), f"/queues/{name}.json").status == 200  # a queue with this name exists


class TestActing:
    @pytest.mark.parametrize("action", ["pause", "resume"])
    def test_pause_and_resume(self, action):
        told = world(act_on_queue=BulkProgress(1, []))
        form = [("action", action), ("back", "queue"), ("state", "dead")]
        answer = go(told, "/queues/a%2Fb", form)
        assert told.heard == [("act_on_queue", QueueAction("a/b", action, BY))]
        assert answer.status == 303
        assert answer.headers["location"] == "/queues/a%2Fb?state=dead"
        assert f"{action}d queue a/b".lower() in answer.said.lower()

    def test_the_redirect_keeps_the_filter(self):
        told = world(act_on_queue=BulkProgress(1, []))
        form = [("action", "pause"), ("text", "x y"), ("after", "&")]
        assert go(told, "/queues/m", form).headers["location"] == "/queues?text=x+y&after=%26"

    def test_clear(self):
        told = world(act_on_queue=[BulkProgress(500, [], finished=False), BulkProgress(1234, [])])
        answer = go(told, "/queues/mail", [("action", "clear"), ("back", "queue")])
        assert answer.headers["location"] == "/queues/mail"
        assert answer.said == "Cleared queue mail. 1,234 jobs removed."

    def test_remove_redirects_to_the_list(self):
        told = world(act_on_queue=[BulkProgress(1, [])])
        answer = go(told, "/queues/mail", [("action", "remove"), ("back", "queue")])
        assert answer.headers["location"] == "/queues"
        assert answer.said == "Removed queue mail. 1 job removed."

    @pytest.mark.parametrize("action", ["clear", "remove"])
    def test_without_scripts_the_server_requests_confirmation(self, action):
        told = world(act_on_queue=[BulkProgress(1234, [])])
        form = [("action", action), ("ask", "yes")]
        answer = go(told, "/queues/a%2Fb", form)
        assert answer.status == 200
        assert "1,234 jobs" in answer.text
        assert 'action="/queues/a%2Fb"' in answer.text
        assert all(name != "act_on_queue" for name, _ in told.heard)
        assert go(told, "/queues/a%2Fb", [*form, ("sure", "yes")]).status == 303

    def test_a_long_action_has_its_own_page(self, monkeypatch):
        monkeypatch.setattr("millrace.web.long_actions.SYNC_WAIT", 0)
        told = world(act_on_queue=[None])
        answer = go(told, "/queues/mail", [("action", "clear")])
        assert answer.headers["location"] == "/tasks/1"

    def test_a_failed_action(self):
        def refuse(_):
            raise AdminError("the disk is full", "unavailable")

        told = world(act_on_queue=refuse)
        assert go(told, "/queues/mail", [("action", "pause")]).status == 503
        assert go(told, "/queues/mail", [("action", "clear")]).status == 409

    def test_an_unknown_action(self):
        answer = go(world(), "/queues/mail", [("action", "<b>")])
        assert answer.status == 400
        assert "Unknown action: &lt;b&gt;" in answer.text


class TestFormsOfFaktory:
    def test_delete_is_remove(self):
        told = world(act_on_queue=[BulkProgress(3, [])])
        answer = go(told, "/queues/mail", [("action", "delete")])
        assert told.heard == [("act_on_queue", QueueAction("mail", "remove", BY))]
        assert answer.status == 303
        assert answer.headers["location"] == "/queues"

    def test_single_jobs(self):
        told = world(act=[BulkProgress(1, [])])
        keys = [
            base64.urlsafe_b64encode(json.dumps({"jid": jid, "args": [1]}).encode()).decode()
            for jid in ("a?>", "bb")
        ]
        form = [("action", "delete"), *(("bkey", key.rstrip("=")) for key in keys)]
        answer = go(told, "/queues/mail", form)
        only = JobFilter(queue="mail", state="ready")
        assert told.heard == [("act", ActionRequest("delete", ["a?>", "bb"], only=only, by=BY))]
        assert unquote(answer.headers["location"]) == "/queues/mail"
        assert answer.said == "1 job was deleted."

    @pytest.mark.parametrize("key", ["?", "e30", "W10", "eyJqaWQiOjF9", ""])
    def test_invalid_keys(self, key):
        answer = go(world(), "/queues/mail", [("action", "delete"), ("bkey", key)])
        assert answer.status == 400

"""Jobs: the search, the actions on its results, and their progress."""

import re
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
import pytest
from told_room import NOW, SECOND, SETTINGS, Told, go, job_detail, job_row, world

from millrace.admin.errors import AdminError
from millrace.records import (
    ActionRequest,
    BulkProgress,
    EarlierFailureRecord,
    FailureGroup,
    FailurePage,
    JobDetail,
    JobFilter,
    JobPage,
    JobRecord,
    ReasonRecord,
    RelatedJob,
    RelatedJobs,
    SearchJobs,
    SkippedJob,
)
from millrace.records.types import Doc, Time
from millrace.web.long_actions import BulkAction
from millrace.web.urls import job_url, own_path

XSS = '<img src=x onerror="hacked()">'
READ_ONLY = msgspec.structs.replace(SETTINGS, read_only=True)
DONE = [BulkProgress(3, [])]


def request_of(told: Told, name: str) -> Any:
    return next(request_of for each, request_of in told.heard if each == name)


def detail(row: Any = None, **more: Any) -> JobDetail:
    """`payload`, `blockers` and `dependents` are set in the record."""
    row = row or job_row()
    if "payload" in more:
        row = msgspec.structs.replace(row, payload=more.pop("payload"))
    for old, new in (("blockers", "waits_for"), ("dependents", "waited_for_by")):
        if old in more:
            more[new] = RelatedJobs(more.pop(old), more.pop(f"{old}_more", 0))
    if "why" in more:
        more["reasons"] = [ReasonRecord("queued", text) for text in more.pop("why")]
    return job_detail(row, lease_for=1800 * SECOND, **more)


# The search


def test_the_search_sends_the_parsed_query() -> None:
    told = world()
    answer = go(told, "/jobs?q=" + quote('queue:mail "two words"'))
    assert answer.status == 200
    assert request_of(told, "search") == SearchJobs(
        JobFilter(queue="mail", terms=["two words"]), limit=50, max_examined=10_000
    )
    assert "job-1" in answer.text
    assert "1 job" in answer.text


def test_a_search_for_a_state_offers_its_actions() -> None:
    told = world(search=JobPage([job_row()], 1, 1, ""))
    every = go(told, "/jobs?q=queue:mail").text
    dead = go(told, "/jobs?q=state:dead").text
    for name, is_offered in (
        ("retry", True),
        ("delete", True),
        ("timeout", False),
        ("kill", False),
    ):
        assert f'name="action" value="{name}"' in every
        assert (f'name="action" value="{name}"' in dead) is is_offered


def test_an_invalid_search_is_reported_without_a_request() -> None:
    told = world()
    answer = go(told, "/jobs?q=quue:mail")
    assert answer.status == 200
    assert "Did you mean &#34;queue:&#34;?" in answer.text
    assert told.heard == []


def test_an_unfinished_search_has_a_link_to_continue() -> None:
    answer = go(world(search=JobPage([job_row()], 20_000, 1_000_000, "abc_-")), "/jobs?q=timeout")
    assert "found; searched 20,000 of 1,000,000 jobs" in answer.text
    assert "/jobs?q=timeout&amp;cursor=abc_-" in answer.text
    assert "Continue search" in answer.text
    assert "1 or more" in answer.text


def test_a_search_continues_at_its_cursor() -> None:
    told = world()
    go(told, "/jobs?q=timeout&cursor=abc")
    assert (request_of(told, "search").cursor, request_of(told, "search").max_examined) == (
        "abc",
        40_000,
    )


def test_no_results() -> None:
    assert (
        "No job matches queue:x." in go(world(search=JobPage([], 0, 0, "")), "/jobs?q=queue:x").text
    )
    assert "No jobs." in go(world(search=JobPage([], 0, 0, "")), "/jobs").text
    unfinished = go(world(search=JobPage([], 5, 9, "c")), "/jobs?q=x").text
    assert "Continue the search" in unfinished


def test_client_text_is_escaped() -> None:
    row = job_row(
        jid=XSS,
        kind=XSS,
        queue=XSS,
        tags=[XSS],
        payload=XSS.encode(),
        group=XSS,
        message=XSS,
        worker=XSS,
    )
    pages = [
        go(world(search=JobPage([row], 1, 1, "")), path).text
        for path in ("/jobs", "/retries", "/scheduled", "/morgue", "/completed", "/failures/x")
    ]
    blockers = [RelatedJob(XSS, 1, "dead")]
    pages.append(
        go(
            world(
                job=detail(
                    row,
                    backtrace=[XSS],
                    earlier_failures=[EarlierFailureRecord(1, 1, XSS, XSS, [XSS])],
                    blockers=blockers,
                    dependents=blockers,
                    why=[XSS],
                    protocol_data={XSS: XSS},
                    history=[(1.0, XSS, {XSS: XSS})],
                    result=XSS.encode(),
                    load=XSS,
                    dead_queue=XSS,
                )
            ),
            "/jobs/x",
        ).text
    )
    for text in pages:
        assert "<img src=x" not in text
        assert "hacked" in text


def test_a_reader_has_no_buttons() -> None:
    for settings in (READ_ONLY,):
        text = go(world(), "/jobs", settings=settings).text
        assert "checkbox" not in text
        assert 'name="action"' not in text
        text = go(world(job=detail()), "/jobs/job-1", settings=settings).text
        assert 'name="action"' not in text


# Actions on jobs


def act(form: list[tuple[str, str]], told: Told | None = None) -> tuple[Any, Told]:
    told = told or world(act=DONE)
    return go(told, "/jobs/act", form), told


def test_selected_jobs_are_identified_by_seq() -> None:
    answer, told = act([("action", "retry"), ("job", "7"), ("job", "9"), ("back", "/jobs?q=a%20b")])
    assert (answer.status, answer.headers["location"]) == (303, "/jobs?q=a%20b")
    assert answer.said == "3 jobs were made ready."
    assert request_of(told, "act") == ActionRequest(
        "retry", seqs=[7, 9], by="anybody from 127.0.0.1"
    )


@pytest.mark.parametrize(
    ("form", "wanted"),
    [
        ([("action", "move"), ("queue", "a/b")], ActionRequest("move", seqs=[1], queue="a/b")),
        (
            [("action", "priority"), ("priority", "-25")],
            ActionRequest("priority", seqs=[1], priority=-25),
        ),
        (
            [("action", "tag"), ("tags", "a, b c,,")],
            ActionRequest("tag", seqs=[1], tags=["a", "b c"]),
        ),
        ([("action", "untag"), ("tag", "a,b")], ActionRequest("untag", seqs=[1], tags=["a,b"])),
        (
            [("action", "undepend"), ("waits_for", "x")],
            ActionRequest("undepend", seqs=[1], waits_for=["x"]),
        ),
        ([("action", "undepend")], ActionRequest("undepend", seqs=[1])),
        ([("action", "run")], ActionRequest("retry", seqs=[1])),
        ([("action", "timeout")], ActionRequest("timeout", seqs=[1])),
    ],
)
def test_the_form_becomes_the_action(form: list[tuple[str, str]], wanted: ActionRequest) -> None:
    answer, told = act([*form, ("job", "1")])
    assert answer.status == 303
    assert request_of(told, "act") == msgspec.structs.replace(wanted, by="anybody from 127.0.0.1")


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        ([("action", "retry")], "No jobs selected"),
        ([("action", "explode"), ("job", "1")], "Unknown action: explode"),
        ([("action", "retry"), ("job", "one")], "Invalid job number"),
        ([("action", "move"), ("job", "1")], "Name the target queue"),
        (
            [("action", "priority"), ("job", "1"), ("priority", "nan")],
            "The priority must be a number",
        ),
        ([("action", "tag"), ("job", "1"), ("tags", " , ")], "Name one or more tags"),
        ([("action", "retry"), ("scope", "all"), ("q", "quue:x")], "Did you mean"),
        ([("action", "retry"), *[("job", "1")] * 1001], "More than 1000"),
    ],
)
def test_invalid_forms_are_refused(form: list[tuple[str, str]], reason: str) -> None:
    answer, told = act(form)
    assert answer.status == 400
    assert reason in answer.text
    assert told.heard == []


def test_an_action_on_all_matches_requires_confirmation() -> None:
    form = [("action", "delete"), ("scope", "all"), ("q", "queue:mail"), ("back", "/jobs")]
    answer, told = act(form)
    assert answer.status == 200
    assert "Delete all jobs that match queue:mail?" in answer.text
    assert 'action="/jobs/act"' in answer.text
    assert [name for name, _ in told.heard] == ["search"]
    answer, told = act([*form, ("sure", "yes")])
    assert answer.status == 303
    assert request_of(told, "act").query == JobFilter(queue="mail")
    assert request_of(told, "act").seqs == []


@pytest.mark.parametrize("text", ["", "  ", '""', 'error:""'])
def test_an_action_on_all_jobs_requires_a_second_confirmation(text: str) -> None:
    form = [("action", "delete"), ("scope", "all"), ("q", text)]
    answer, told = act([*form, ("sure", "yes")])
    assert "Delete all jobs?" in answer.text
    assert 'name="sure" value="everything"' in answer.text
    assert [name for name, _ in told.heard] == ["search"]
    answer, told = act([*form, ("sure", "everything")])
    assert answer.status == 303
    assert [name for name, _ in told.heard] == ["act"]


def test_refusals_are_reported() -> None:
    refused = [BulkProgress(1, [SkippedJob("a1", "a worker has it")], 2)]
    answer, _ = act([("action", "cancel"), ("job", "1")], world(act=refused))
    assert answer.said == (
        "1 job was cancelled. 2 were not: a1: a worker has it (action 1 lists more)"
    )


@pytest.mark.parametrize(
    ("done", "said"),
    [(0, "No job was tagged."), (1, "1 job was tagged."), (2, "2 jobs were tagged.")],
)
def test_the_notice_has_the_count(done: int, said: str) -> None:
    form = [("action", "tag"), ("tags", "x"), ("job", "1")]
    assert act(form, world(act=[BulkProgress(done, [])]))[0].said == said


def test_redirects_stay_on_this_site() -> None:
    for target in ("//evil.example", "https://evil.example", "/\\evil", "", "/a\r\nb"):
        answer, _ = act([("action", "retry"), ("job", "1"), ("back", target)])
        assert answer.headers["location"] == "/jobs"
        assert own_path(target, "/x") == "/x"
    assert own_path("/jobs?q=1") == "/jobs?q=1"


def test_remaining_retries_follow_the_protocol() -> None:
    """Faktory's `remaining` equals `retry` after the first failure: 3 retries are 4 attempts."""
    row = job_row(failures=1, retries=3)
    assert "3, 3 remaining" in go(world(job=detail(row)), "/jobs/1").text
    row = job_row(failures=4, retries=3)
    assert "3, 0 remaining" in go(world(job=detail(row)), "/jobs/1").text


def test_a_job_has_one_url() -> None:
    assert job_url("a/b?", 7) == "/jobs/a%2Fb%3F?seq=7"
    for odd in ("", ".", "..", "x" * 300):
        assert job_url(odd, 7) == "/jobs/7?seq=7"


def test_a_failed_action_has_its_reason() -> None:
    def refuse(_: Any) -> Any:
        raise AdminError("nothing can be written: the disk is full", "unavailable")

    answer, _ = act([("action", "retry"), ("job", "1")], world(act=refuse))
    assert answer.status == 409
    assert "the disk is full" in answer.text


# Tasks


def test_no_actions_and_unknown_actions() -> None:
    assert "No actions" in go(world(), "/tasks").text
    assert go(world(), "/tasks/7").status == 404
    assert go(world(), "/tasks/7/stop", []).status == 404
    for number in ("9" * 5000, "\u0663", "-1", "x", "4%0A"):
        assert go(world(), f"/tasks/{number}").status == 404
        assert go(world(), f"/tasks/{number}/stop", []).status == 404


def test_the_progress_of_an_action(monkeypatch: pytest.MonkeyPatch) -> None:

    from millrace.web import long_actions as tasks

    task = BulkAction(4, f"Delete {XSS}", "me")
    task.progress = BulkProgress(500, [SkippedJob("a", "held")], 150, 600, 2000, finished=False)
    monkeypatch.setattr(tasks.BulkActions, "known", {4: task}, raising=False)
    monkeypatch.setattr(tasks.BulkActions, "__init__", lambda *_: None)
    text = go(world(), "/tasks/4").text
    for words in ("Running.", 'max="2000" value="600"', "held", "The first 1 of 150", "Stop"):
        assert words in text
    assert "<img" not in text.partition("<h1>")[2]
    assert "running" in go(world(), "/tasks").text
    task.ended, task.stopped = task.began + 1, True
    assert "Stopped." in go(world(), "/tasks/4").text
    task.error = "no"
    assert "Failed:" in go(world(), "/tasks/4").text
    assert go(world(), "/tasks/4/stop", []).said == "The action had already finished."


# Sets


@pytest.mark.parametrize(
    ("path", "query", "order"),
    [
        ("/retries", JobFilter(state="scheduled", retrying=True), "due"),
        ("/scheduled", JobFilter(state="scheduled", retrying=False), "due"),
        ("/morgue", JobFilter(state="dead"), "ended"),
        ("/completed", JobFilter(state="done"), "ended"),
    ],
)
def test_a_set(path: str, query: JobFilter, order: str) -> None:
    told = world(search=JobPage([job_row()], 1, 9, "next"))
    answer = go(told, path)
    assert answer.status == 200
    assert request_of(told, "search") == SearchJobs(query, order=order, limit=50)  # type: ignore[arg-type]
    assert f"{path}?cursor=next" in answer.text
    assert "none card" in go(world(search=JobPage([], 0, 0, "")), path).text


def numbered(count: int) -> Any:
    """Answer a search over this number of jobs; a cursor is the number of jobs before it."""

    def search(request_of: SearchJobs) -> JobPage:
        start = int(request_of.cursor or 0)
        # The jid contains the seq.
        rows = [
            job_row(jid=f"numbered-{n}") for n in range(start, min(count, start + request_of.limit))
        ]
        end = start + len(rows)
        return JobPage(rows, end, count, str(end) if end < count else "")

    return search


@pytest.mark.parametrize(
    ("path", "size"), [("/retries", 50), ("/scheduled", 50), ("/morgue", 50), ("/queues/mail", 25)]
)
def test_a_page_by_its_number(path: str, size: int) -> None:
    """The URLs of Faktory: `?page=N`, from 1."""

    def shown(number: str) -> list[int]:
        answer = go(world(search=numbered(720)), f"{path}?page={number}")
        assert answer.status == 200
        return sorted({int(n) for n in re.findall(r"numbered-(\d+)", answer.text)})

    assert shown("1") == list(range(size))
    assert shown("2") == list(range(size, 2 * size))
    last = 720 // size
    assert shown(str(last)) == list(range((last - 1) * size, last * size))
    assert shown(str(last + 1)) == list(range(last * size, 720))
    assert shown(str(last + 2)) == []
    for wrong in ("0", "-1", "x", "1.5", "%C2%B2", "99999"):
        assert go(world(search=numbered(720)), f"{path}?page={wrong}").status == 400


def test_forms_of_faktory() -> None:
    told = world(act=DONE)
    form = [("key", "1790000000.5|job|1"), ("key", "1|b"), ("action", "kill")]
    answer = go(told, "/retries", form)
    assert (answer.status, answer.headers["location"]) == (303, "/retries")
    assert request_of(told, "act").jobs == ["job|1", "b"]
    assert request_of(told, "act").action == "kill"
    assert request_of(told, "act").only == JobFilter(state="scheduled", retrying=True)
    told = world(act=DONE)
    go(told, "/scheduled", [("key", "all"), ("action", "add_to_queue")])
    assert request_of(told, "act").query == JobFilter(state="scheduled", retrying=False)
    assert request_of(told, "act").action == "retry"
    told = world(act=DONE)
    assert go(told, "/morgue/1%7Ca%2Fb", [("action", "delete")]).status == 303
    assert request_of(told, "act").jobs == ["a/b"]
    assert request_of(told, "act").only == JobFilter(state="dead")


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        ([("action", "retry")], "No jobs selected"),
        ([("key", "1|a"), ("action", "explode")], "Unknown action: explode"),
        ([("key", "a"), ("action", "retry")], "Invalid key"),
    ],
)
def test_invalid_forms_of_faktory(form: list[tuple[str, str]], reason: str) -> None:
    answer = go(world(act=DONE), "/retries", form)
    assert answer.status == 400
    assert reason in answer.text


def test_keys_of_faktory_redirect_to_the_job() -> None:
    answer = go(world(job=detail()), "/retries/1790000000.5%7Cjob-1")
    assert (answer.status, answer.headers["location"]) == (302, "/jobs/job-1?seq=1")
    missing = world(job=AdminError("there is no such job", "not found"))
    assert go(missing, "/morgue/1%7Cx").headers["location"] == "/morgue"


# Failures

GROUP = FailureGroup("f1", "Timeout", "no answer", 1200, 34, NOW, "job-1", ["mail", "a/b"], 1)


def test_failures() -> None:
    text = go(world(failures=FailurePage([GROUP], 1, 1234)), "/failures").text
    for words in (
        "Timeout",
        "1,200",
        "34",
        "/failures/f1",
        "/queues/a%2Fb",
        "1,234 jobs in 1 group",
    ):
        assert words in text
    assert "No failures" in go(world(), "/failures").text


def test_a_group() -> None:
    told = world(failures=FailurePage([GROUP], 1, 1234))
    answer = go(told, "/failures/f1")
    assert answer.status == 200
    assert request_of(told, "search").query == JobFilter(fingerprint="f1", failing=True)
    assert "no answer" in answer.text
    assert "1,234" in answer.text
    assert go(world(search=JobPage([], 0, 0, "")), "/failures/f2").status == 404


def test_a_group_is_retried_after_a_confirmation() -> None:
    form = [("fingerprint", "f1"), ("group", "Timeout"), ("action", "retry"), ("total", "1,234")]
    answer = go(world(act=DONE), "/failures/act", form)
    assert "Retry all jobs that failed with Timeout?" in answer.text
    assert 'action="/failures/act"' in answer.text
    assert "1,234" in answer.text
    told = world(act=DONE)
    answer = go(told, "/failures/act", [*form, ("sure", "yes")])
    assert (answer.status, answer.headers["location"]) == (303, "/failures")
    assert request_of(told, "act").query == JobFilter(fingerprint="f1", failing=True)
    told = world(act=DONE)
    go(told, "/failures/act", [("action", "retry"), ("sure", "yes")])
    assert request_of(told, "act").query == JobFilter(state="dead")
    assert go(world(), "/failures/act", [("action", "move")]).status == 400


# A job


def test_a_job() -> None:
    row = job_row(
        jid="a/b",
        state="dead",
        failures=3,
        group="E",
        message="no",
        payload=b'{"n":1e400,"n":2}',
        size=17,
    )
    told = world(
        job=detail(
            row,
            backtrace=["line 1"],
            same_id_count=2,
            why=["Failed permanently."],
            earlier_failures=[EarlierFailureRecord(2, 1, "ValueError", "too old", ["line 0"])],
        )
    )
    answer = go(told, "/jobs/a%2Fb?seq=4")
    assert answer.status == 200
    assert request_of(told, "job") == {"id": "a/b", "seq": 4} or request_of(told, "job").seq == 4
    for words in (
        "1e400",
        "line 1",
        "Backtrace of attempt 2: ValueError: too old",
        "line 0",
        "Failed permanently.",
        "2 other jobs have this ID",
        "Retry",
    ):
        assert words in answer.text
    assert 'name="back" value="/jobs/a%2Fb?seq=1"' in answer.text
    assert 'value="delete"' in answer.text
    assert 'value="cancel"' not in answer.text  # the job has ended


class JobWithColor(JobRecord, kw_only=True):
    """A job with two fields more, as a change of records/jobs.py would add them."""

    color: Annotated[str, Doc("Color", "A new field.")] = ""
    painted_at: Annotated[Time, Doc("Painted", "Another one.")] = 0


def test_a_new_field_of_a_job_is_on_its_page(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = msgspec.structs.asdict(job_row(jid="a"))
    row = JobWithColor(**plain, color="<red>", painted_at=1_000_000)
    told = world(job=detail())
    original = told.ask

    async def ask(type_: type, **request: Any) -> Any:
        answer = await original(type_, **request)
        if isinstance(answer, JobDetail):
            answer.job = row
        return answer

    monkeypatch.setattr(told, "ask", ask)
    text = go(told, "/jobs/a").text
    assert "<dt>Color</dt><dd>&lt;red&gt;</dd>" in text
    assert '<dt>Painted</dt><dd><time class="" datetime="1970-01-01T00:00:01.000Z">' in text
    row = JobWithColor(**plain)
    assert "Color" not in go(told, "/jobs/a").text


def test_ready_since_is_for_ready_jobs_only() -> None:
    for state, label in (("ready", "Ready since"), ("dead", "Last ready")):
        text = go(world(job=detail(job_row(state=state, ready_at=1_000_000))), "/jobs/job-1").text
        assert f"<dt>{label}</dt>" in text


def test_the_confirmation_names_the_consequences() -> None:
    assert "starts again" not in go(world(job=detail()), "/jobs/job-1").text
    text = go(world(job=detail(job_row(state="dead"))), "/jobs/job-1").text
    assert "It is dead and starts again in the new queue" in text
    assert "wait for it" not in text
    waiting = RelatedJob("b", 2, "blocked")
    text = go(world(job=detail(dependents=[waiting])), "/jobs/job-1").text
    assert "1 job depends on it." in text
    text = go(world(job=detail(dependents=[waiting], dependents_more=1233)), "/jobs/job-1").text
    assert "1,234 jobs depend on it" in text


def test_an_unknown_job() -> None:
    missing = world(job=AdminError("there is no such job", "not found"))
    assert go(missing, "/jobs/x").status == 404
    assert go(missing, "/jobs/x?seq=-1").status == 400
    broken = world(job=AdminError("the server cannot be asked", "unavailable"))
    assert go(broken, "/jobs/x").status == 503


def test_the_payload_as_a_file() -> None:
    row = job_row(jid='a"\r\nb')
    answer = go(world(job=detail(row)), "/jobs/x/payload")
    assert answer.text == '["hello"]'
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-disposition"] == 'attachment; filename="a_b.payload"'


def test_a_damaged_payload() -> None:
    """The page shows the job with the error. The API and the download return it."""
    text = "the payload of job 1 is damaged: it does not match its checksum"
    told = world(job=detail(job_row(state="dead"), payload_error=text))
    step = "Run `millrace check` on the server."
    page = go(told, "/jobs/a")
    assert page.status == 200
    assert "The payload of job 1 is damaged: it does not match its checksum." in page.text
    assert 'value="delete"' in page.text
    for path in ("/api/v1/jobs/a", "/api/v1/jobs/a/payload", "/jobs/a/payload"):
        answer = go(told, path)
        assert answer.status == 500
        assert "he payload of job 1 is damaged: it does not match its checksum." in answer.text
        assert step in answer.text


def test_a_large_payload_is_sent_in_parts() -> None:
    data, row = b"0123456789", job_row(size=10)
    told = world(job=lambda request_of: detail(row, payload=data[request_of.offset :][:4]))
    assert go(told, "/jobs/x/payload").text == "0123456789"
    changed = world(
        job=lambda request_of: detail(row, payload=b"0123" if not request_of.offset else b"")
    )
    assert go(changed, "/jobs/x/payload").status == 409


def test_a_large_payload_can_be_downloaded_from_the_page() -> None:
    row = job_row(size=9 << 20)
    assert "/jobs/job-1/payload?seq=1" in go(world(job=detail(row)), "/jobs/job-1").text
    row = job_row(size=0, payload=b"")
    assert "/payload" not in go(world(job=detail(row)), "/jobs/job-1").text


def test_an_id_that_ends_like_a_path() -> None:
    told = world(job=detail())
    assert go(told, "/jobs/x%2Fpayload").headers["content-type"].startswith("text/html")
    assert request_of(told, "job").id == "x/payload"

"""The pages Recurring, Tracked, Tags and Throttles."""

import pytest
from scripted_app import GUARDED, READER, get, post, scripted_app

from millrace.records import (
    BulkProgress,
    FailureRecord,
    JobRecord,
    LimitPage,
    LimitRecord,
    RecurringPage,
    RecurringRecord,
    SkippedJob,
    TagCount,
    TagPage,
    TrackedJob,
    TrackedPage,
)

XSS = '<img src=x onerror="hacked">'
NOW = 1_800_000_000_000_000


def job(jid: str = "j1", state: str = "ready", **more: object) -> JobRecord:
    values = dict.fromkeys(
        (
            "created", "due", "ready_at", "leased_at", "deadline", "ended_at", "attempt",
            "failures", "retries", "size",
        ),
        0,
    ) | dict.fromkeys(("kind", "worker", "worker_protocol"), "")  # fmt: skip
    values |= {"seq": 5, "queue": "mail", "protocol": "qless", "priority": 0.0, "tags": []}
    values |= {"tracked": True, "payload": b"{}", "failure": None}
    return JobRecord(jid=jid, state=state, **values | more)  # type: ignore[arg-type]


def recurring(jid: str = "every", **more: object) -> RecurringRecord:
    values = {
        "kind": "Sweep",
        "queue": "mail",
        "interval": 60.0,
        "priority": 3.0,
        "retries": 5,
        "backlog": 0.0,
        "tags": ["nightly"],
        "next_at": NOW,
        "count": 12,
        "payload": b'{"deep": true}',
        "limits": [],
        "size": 14,
    }
    return RecurringRecord(jid=jid, **values | more)  # type: ignore[arg-type]


# Recurring


def test_no_recurring_jobs() -> None:
    answer = get(scripted_app(recurring=RecurringPage([], 0, "")), "/recurring")
    assert answer.status == 200
    assert "No recurring jobs" in answer.text


def test_recurring_jobs_are_listed() -> None:
    found = RecurringPage([recurring(), recurring(XSS, kind=XSS, queue=XSS, tags=[XSS])], 2, "x y")
    answer = get(scripted_app(recurring=found), "/recurring")
    for expected_text in ("Sweep", "1 min", "{&#34;deep&#34;: true}", "nightly", "after=x%20y"):
        assert expected_text in answer.text
    assert "<img src=x" not in answer.text


@pytest.mark.parametrize(
    ("form", "wanted"),
    [
        ({"action": "cancel"}, {"action": "cancel"}),
        ({"action": "move", "queue": "a/b"}, {"action": "move", "queue": "a/b"}),
        ({"action": "priority", "priority": "-2.5"}, {"action": "priority", "priority": -2.5}),
        ({"action": "tag", "tags": "a, b c,,"}, {"action": "tag", "tags": ["a", "b c"]}),
        ({"action": "untag", "tags": "a"}, {"action": "untag", "tags": ["a"]}),
    ],
)
def test_a_recurring_job_is_changed(form: dict[str, str], wanted: dict[str, object]) -> None:
    room = scripted_app()
    answer = post(room, "/recurring", {"jid": "every"} | form)
    assert (answer.status, answer.headers["location"]) == (303, "/recurring")
    (name, asked) = room.control.asked[0]
    assert name == "act_on_recurring"
    assert asked.jid == "every"
    assert {key: getattr(asked, key) for key in wanted} == wanted
    assert asked.by


@pytest.mark.parametrize(
    "form",
    [
        {"action": "explode"},
        {"action": "move", "queue": ""},
        {"action": "priority", "priority": "high"},
        {"action": "priority", "priority": "nan"},
        {"action": "priority", "priority": "1e300"},
        {"action": "tag", "tags": " , "},
        {},
    ],
)
def test_invalid_changes_of_a_recurring_job_are_refused(form: dict[str, str]) -> None:
    room = scripted_app()
    assert post(room, "/recurring", {"jid": "every"} | form).status == 400
    assert room.control.asked == []


# Tracked


def tracked() -> TrackedPage:
    rows = [
        TrackedJob("j1", NOW, job("j1", "ready")),
        TrackedJob("j2", NOW, job("j2", "leased", deadline=1, worker="w1")),
        TrackedJob("j3", NOW, job("j3", "dead", failure=FailureRecord("Boom", XSS))),
        TrackedJob("j4", NOW, None),
    ]
    return TrackedPage(rows, 4, "")


def test_no_tracked_jobs() -> None:
    answer = get(scripted_app(tracked=TrackedPage([], 0, "")), "/tracked")
    assert answer.status == 200
    assert "No tracked jobs" in answer.text


def test_tracked_jobs_by_state() -> None:
    room = scripted_app(tracked=tracked())
    text = get(room, "/tracked").text
    for expected_text in ("All 4", "Ready 1", "Overdue 1", "Dead 1", "Removed 1", "Leased 0", "j4"):
        assert expected_text in text
    assert "<img src=x" not in text
    dead = get(room, "/tracked?state=dead").text
    assert "j3" in dead
    assert "j1" not in dead
    assert "No tracked jobs in this state" in get(room, "/tracked?state=done").text


def test_untracking() -> None:
    acted = BulkProgress(1, [SkippedJob("j2", "it is not tracked")], 1)
    room = scripted_app(act=acted)
    answer = post(room, "/tracked", {"job": ["j1", "j2"]})
    assert answer.status == 303
    (name, asked) = room.control.asked[0]
    assert (name, asked.action, asked.jobs) == ("act", "untrack", ["j1", "j2"])
    assert "it%20is%20not%20tracked" in answer.headers["set-cookie"]
    assert post(room, "/tracked", {}).status == 400


# Tags and throttles


def test_tags_link_to_their_jobs() -> None:
    assert "No tags" in get(scripted_app(tags=TagPage([], 0)), "/tags").text
    found = TagPage([TagCount("plain", 3), TagCount('two "words"', 1), TagCount(XSS, 1)], 900)
    text = get(scripted_app(tags=found), "/tags").text
    assert 'href="/jobs?q=tag%3Aplain"' in text
    assert 'href="/jobs?q=tag%3A%22two%20%5C%22words%5C%22%22"' in text
    assert "900 tags" in text
    assert "<img src=x" not in text


def test_throttles() -> None:
    assert "No limits" in get(scripted_app(limits=LimitPage([])), "/throttles").text
    rows = [LimitRecord(XSS, 2, 0, ["a/b"], [f"w{n}" for n in range(30)])]
    text = get(scripted_app(limits=LimitPage(rows)), "/throttles").text
    assert 'href="/jobs/a%2Fb"' in text
    assert "and 20 more" in text
    assert "<img src=x" not in text


def test_a_reader_cannot_change_anything() -> None:
    found = RecurringPage([recurring()], 1, "")
    room = scripted_app(GUARDED, recurring=found, tracked=tracked())
    assert "Cancel it" not in get(room, "/recurring", READER.secret).text
    assert "Untrack" not in get(room, "/tracked", READER.secret).text
    for path in ("/recurring", "/tracked"):
        assert post(room, path, {"jid": "x", "action": "cancel"}, READER.secret).status == 403

"""Recurring, Tracked, Tags, Throttles."""

import pytest
from pretended import GUARDED, READER, get, post, pretended

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
        "next": NOW,
        "count": 12,
        "payload": b'{"deep": true}',
        "throttles": [],
        "size": 14,
    }
    return RecurringRecord(jid=jid, **values | more)  # type: ignore[arg-type]


# Recurring


def test_nothing_recurs() -> None:
    answer = get(pretended(recurring=RecurringPage([], 0, "")), "/recurring")
    assert answer.status == 200
    assert "No recurring jobs" in answer.text


def test_what_recurs() -> None:
    found = RecurringPage([recurring(), recurring(XSS, kind=XSS, queue=XSS, tags=[XSS])], 2, "x y")
    answer = get(pretended(recurring=found), "/recurring")
    for told in ("Sweep", "1 min", "{&#34;deep&#34;: true}", "nightly", "after=x%20y"):
        assert told in answer.text
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
    room = pretended()
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
def test_what_cannot_be_done_to_a_recurring_job(form: dict[str, str]) -> None:
    room = pretended()
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


def test_nothing_is_tracked() -> None:
    answer = get(pretended(tracked=TrackedPage([], 0, "")), "/tracked")
    assert answer.status == 200
    assert "No tracked jobs" in answer.text


def test_tracked_jobs_by_state() -> None:
    room = pretended(tracked=tracked())
    text = get(room, "/tracked").text
    for told in ("All 4", "Waiting 1", "Stalled 1", "Dead 1", "Gone 1", "Running 0", "j4"):
        assert told in text
    assert "<img src=x" not in text
    dead = get(room, "/tracked?state=dead").text
    assert "j3" in dead
    assert "j1" not in dead
    assert "No tracked jobs in this state" in get(room, "/tracked?state=done").text


def test_untracking() -> None:
    acted = BulkProgress(1, [SkippedJob("j2", "it is not tracked")], 1)
    room = pretended(act=acted)
    answer = post(room, "/tracked", {"job": ["j1", "j2"]})
    assert answer.status == 303
    (name, asked) = room.control.asked[0]
    assert (name, asked.action, asked.jobs) == ("act", "untrack", ["j1", "j2"])
    assert "it%20is%20not%20tracked" in answer.headers["set-cookie"]
    assert post(room, "/tracked", {}).status == 400


# Tags and throttles


def test_tags_lead_to_their_jobs() -> None:
    assert "No tags" in get(pretended(tags=TagPage([], 0)), "/tags").text
    found = TagPage([TagCount("plain", 3), TagCount('two "words"', 1), TagCount(XSS, 1)], 900)
    text = get(pretended(tags=found), "/tags").text
    assert 'href="/jobs?q=tag%3Aplain"' in text
    assert 'href="/jobs?q=tag%3A%22two%20%5C%22words%5C%22%22"' in text
    assert "900 tags" in text
    assert "<img src=x" not in text


def test_throttles() -> None:
    assert "No limits" in get(pretended(throttles=LimitPage([])), "/throttles").text
    rows = [LimitRecord(XSS, 2, 0, ["a/b"], [f"w{n}" for n in range(30)])]
    text = get(pretended(throttles=LimitPage(rows)), "/throttles").text
    assert 'href="/jobs/a%2Fb"' in text
    assert "and 20 more" in text
    assert "<img src=x" not in text


def test_one_who_may_only_look_changes_nothing() -> None:
    found = RecurringPage([recurring()], 1, "")
    room = pretended(GUARDED, recurring=found, tracked=tracked())
    assert "Cancel it" not in get(room, "/recurring", READER.secret).text
    assert "Untrack" not in get(room, "/tracked", READER.secret).text
    for path in ("/recurring", "/tracked"):
        assert post(room, path, {"jid": "x", "action": "cancel"}, READER.secret).status == 403

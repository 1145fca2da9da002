"""Workers, and what they are told."""

import pytest
from pretended import GUARDED, OPERATOR, READER, get, post, pretended

from millrace.records import HeldJob, WorkerPage, WorkerRecord

XSS = '<img src=x onerror="hacked">'
NOW = 1_800_000_000_000_000


def held(jid: str = "j1", **more: object) -> HeldJob:
    values = {"seq": 7, "queue": "mail", "kind": "Send", "leased_at": NOW, "deadline": NOW}
    return HeldJob(jid=jid, payload=b'["a"]', **values | more)  # type: ignore[arg-type]


def row(wid: str = "w1", protocol: str = "faktory", **more: object) -> WorkerRecord:
    values = {
        "hostname": "host",
        "pid": 4711,
        "labels": ["ruby"],
        "rss_kb": 2048,
        "state": "",
        "started_at": NOW,
        "beat_at": NOW,
        "connections": 3,
        "held": [],
        "count": 0,
        "stalled": 0,
    }
    return WorkerRecord(protocol=protocol, wid=wid, **values | more)  # type: ignore[arg-type]


def test_nobody_works() -> None:
    answer = get(pretended(workers=WorkerPage([], 0, "")), "/busy")
    assert answer.status == 200
    assert "No active workers" in answer.text


def test_what_is_told_of_a_worker() -> None:
    found = row(state="quiet", held=[held(deadline=1)], count=1, stalled=1)
    text = get(pretended(workers=WorkerPage([found], 1, "")), "/busy").text
    for told in ("host</bdi>:4711", "ruby", "quiet", "2 MiB", "1 stalled", "/jobs/j1", "Faktory"):
        assert told in text
    assert 'value="terminate"' in text


def test_strangers_words_stay_words() -> None:
    found = row(XSS, hostname=XSS, labels=[XSS], state=XSS, held=[held(XSS, queue=XSS, kind=XSS)])
    room = pretended(workers=WorkerPage([found], 1, ""))
    for path in ("/busy", "/workers/faktory/" + XSS.replace("<", "%3C").replace(" ", "%20")):
        answer = get(room, path)
        assert answer.status == 200
        assert "<img" not in answer.text.replace('<img src="/static/millrace.svg"', "")


def test_one_who_may_only_look_is_shown_no_buttons() -> None:
    room = pretended(GUARDED, workers=WorkerPage([row()], 1, ""))
    assert "Terminate" not in get(room, "/busy", READER.secret).text
    assert "Terminate" in get(room, "/busy", OPERATOR.secret).text


@pytest.mark.parametrize("signal", ["quiet", "terminate"])
@pytest.mark.parametrize("wid", ["w1", "all"])
def test_a_signal(wid: str, signal: str) -> None:
    room = pretended()
    answer = post(room, "/busy", {"wid": wid, "signal": signal})
    assert (answer.status, answer.headers["location"]) == (303, "/busy")
    (name, asked) = room.control.asked[0]
    assert (name, asked.wid, asked.action) == ("act_on_worker", wid, signal)
    assert asked.by == "anybody from 127.0.0.1"


@pytest.mark.parametrize("form", [{"wid": "w1", "signal": "kill"}, {"signal": "quiet"}, {}])
def test_no_signal(form: dict[str, str]) -> None:
    room = pretended()
    assert post(room, "/busy", form).status == 400
    assert room.control.asked == []


def test_a_signal_needs_a_role() -> None:
    room = pretended(GUARDED)
    assert post(room, "/busy", {"wid": "all", "signal": "quiet"}, READER.secret).status == 403
    assert room.control.asked == []


def test_a_worker_of_any_name() -> None:
    wid = "a/b?c#d é"
    room = pretended(workers=WorkerPage([row(wid)], 1, ""))
    answer = get(room, "/workers/faktory/a%2Fb%3Fc%23d%20%C3%A9")
    assert answer.status == 200
    assert room.control.asked[0][1].wid == wid


def test_a_worker_that_is_not_there() -> None:
    room = pretended(workers=WorkerPage([], 0, ""))
    assert get(room, "/workers/faktory/w2").status == 404


def test_more_workers_than_a_page_has() -> None:
    room = pretended(workers=WorkerPage([row()], 200, "faktory/w1"))
    text = get(room, "/busy?after=x").text
    assert 'href="/busy?after=faktory%2Fw1"' in text
    assert room.control.asked[0][1].after == "x"

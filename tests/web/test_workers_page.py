"""Workers and the signals to them."""

import pytest
from scripted_app import GUARDED, OPERATOR, READER, get, post, scripted_app

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
        "heartbeat_at": NOW,
        "connections": 3,
        "held": [],
        "count": 0,
        "stalled": 0,
    }
    return WorkerRecord(protocol=protocol, wid=wid, **values | more)  # type: ignore[arg-type]


def test_no_workers() -> None:
    answer = get(scripted_app(workers=WorkerPage([], 0, "")), "/busy")
    assert answer.status == 200
    assert "No active workers" in answer.text


def test_the_details_of_a_worker() -> None:
    found = row(state="quiet", held=[held(deadline=1)], count=1, stalled=1)
    text = get(scripted_app(workers=WorkerPage([found], 1, "")), "/busy").text
    for expected_text in (
        "host</bdi>:4711",
        "ruby",
        "quiet",
        "2 MiB",
        "1 overdue",
        "/jobs/j1",
        "Faktory",
    ):
        assert expected_text in text
    assert 'value="terminate"' in text


def test_client_text_is_escaped() -> None:
    found = row(XSS, hostname=XSS, labels=[XSS], state=XSS, held=[held(XSS, queue=XSS, kind=XSS)])
    room = scripted_app(workers=WorkerPage([found], 1, ""))
    for path in ("/busy", "/workers/faktory/" + XSS.replace("<", "%3C").replace(" ", "%20")):
        answer = get(room, path)
        assert answer.status == 200
        assert "<img" not in answer.text.replace('<img src="/static/millrace.svg"', "")


def test_a_reader_has_no_buttons() -> None:
    room = scripted_app(GUARDED, workers=WorkerPage([row()], 1, ""))
    assert "Terminate" not in get(room, "/busy", READER.secret).text
    assert "Terminate" in get(room, "/busy", OPERATOR.secret).text


@pytest.mark.parametrize("signal", ["quiet", "terminate"])
@pytest.mark.parametrize("wid", ["w1", "all"])
def test_a_signal(wid: str, signal: str) -> None:
    room = scripted_app()
    answer = post(room, "/busy", {"wid": wid, "signal": signal})
    assert (answer.status, answer.headers["location"]) == (303, "/busy")
    (name, asked) = room.control.asked[0]
    assert (name, asked.wid, asked.action) == ("act_on_worker", wid, signal)
    assert asked.by == "anybody from 127.0.0.1"


@pytest.mark.parametrize("form", [{"wid": "w1", "signal": "kill"}, {"signal": "quiet"}, {}])
def test_no_signal(form: dict[str, str]) -> None:
    room = scripted_app()
    assert post(room, "/busy", form).status == 400
    assert room.control.asked == []


def test_a_signal_needs_a_role() -> None:
    room = scripted_app(GUARDED)
    assert post(room, "/busy", {"wid": "all", "signal": "quiet"}, READER.secret).status == 403
    assert room.control.asked == []


def test_any_worker_name() -> None:
    wid = "a/b?c#d é"
    room = scripted_app(workers=WorkerPage([row(wid)], 1, ""))
    answer = get(room, "/workers/faktory/a%2Fb%3Fc%23d%20%C3%A9")
    assert answer.status == 200
    assert room.control.asked[0][1].wid == wid


def test_an_unknown_worker() -> None:
    room = scripted_app(workers=WorkerPage([], 0, ""))
    assert get(room, "/workers/faktory/w2").status == 404


def test_more_workers_than_a_page_has() -> None:
    room = scripted_app(workers=WorkerPage([row()], 200, "faktory/w1"))
    text = get(room, "/busy?after=x").text
    assert 'href="/busy?after=faktory%2Fw1"' in text
    assert room.control.asked[0][1].cursor == "x"

"""Every operation of the HTTP API on a real server. Every response is compared with the OpenAPI
document.
"""

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import pytest
import qless
from api_caller import Caller, document

from millrace.admin.samples import MAX_SAMPLED_QUEUES
from millrace.records.types import MAX_LARGE_PAGE_SIZE, MAX_PAGE_SIZE
from millrace.web.analytics import MAX_DAYS
from raw_faktory import RawFaktory
from server_process import ServerProcess, running_server

BIG = b'{"n" : 12345678901234567890123,  "e":1e400, "n":1}'
ODD = 'a/b ?#%"\n\u00fc'


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with running_server(tmp_path_factory.mktemp("life") / "data") as server:
        yield server


@pytest.fixture(scope="module")
def api(served: ServerProcess) -> Caller:
    return Caller(served.ports["web"])


def push(api: Caller, queue: str, *names: str, **more: object) -> None:
    jobs = [{"queue": queue, "id": name, "payload": [name], **more} for name in names]
    api.post("/jobs", jobs, 201)


def lease(api: Caller, queue: str) -> str:
    (leased,) = api.post("/leases", {"queues": [queue], "worker": "w"})["leases"]
    token: str = leased["token"]
    return token


def state(api: Caller, name: str) -> str:
    found: str = api.get(f"/jobs/{quote(name, safe='')}")["job"]["state"]
    return found


def waiters(api: Caller, queue: str) -> int:
    found: int = api.get(f"/queues/{queue}")["queue"]["waiters"]
    return found


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# Pushing and working


def test_a_job_is_pushed_and_worked(api: Caller) -> None:
    pushed = api.post(
        "/jobs", {"queue": "work", "kind": "k", "id": "w1", "payload": {"a": 1}, "tags": ["t"]}, 201
    )
    (job,) = pushed["jobs"]
    assert (job["id"], job["state"], job["protocol"]) == ("w1", "ready", "http")
    assert job["payload"] == {"a": 1}
    assert job["tags"] == ["t"]
    answer = api.post("/leases", {"queues": ["none", "work"], "worker": "w", "lease_for": 60})
    (leased,) = answer["leases"]
    assert leased["job"]["id"] == "w1"
    assert leased["job"]["worker"] == "w"
    token = leased["token"]
    renewed = api.post(f"/leases/{token}/renew", {"lease_for": 600})
    assert renewed["job"]["deadline"] > leased["deadline"]
    api.post(f"/leases/{token}/complete", {"result": [1]})
    job_events = api.get("/jobs/w1/events", thorough=1)
    assert [event["type"] for event in job_events["events"]] == [
        "pushed",
        "leased",
        "renewed",
        "completed",
    ]
    api.get("/jobs/nobody/events", 404)
    api.post(f"/leases/{token}/complete", None, 409)
    api.post("/leases/nonsense/complete", None, 400)
    api.post("/leases/99999999-1-1-00/complete", None, 404)


def test_a_payload_is_returned_unchanged(api: Caller) -> None:
    api.post("/jobs", b'{"queue": "exact", "id": "e1", "payload": %s}' % BIG, 201)
    assert api.ask("GET", "/jobs/e1/payload").body == BIG
    assert b'"payload":' + BIG in api.ask("GET", "/jobs/e1").body
    api.post("/jobs", {"queue": "exact", "id": "e2", "payload_base64": "AP8="}, 201)
    assert api.get("/jobs/e2")["job"]["payload_base64"] == "AP8="
    assert api.ask("GET", "/jobs/e2/payload").body == b"\x00\xff"
    large = b'"' + b"x" * 3_000_000 + b'"'
    api.post("/jobs", b'{"queue": "exact", "id": "e4", "payload": %s}' % large, 201)
    assert api.ask("GET", "/jobs/e4/payload").body == large
    assert "payload" not in api.get("/jobs/e4")["job"]
    long = "x" * 300
    api.post("/jobs", {"queue": "exact", "id": "e3", "payload": long}, 201)
    (row,) = api.get("/jobs", id="e3")["jobs"]
    assert "payload" not in row
    assert api.get("/jobs/e3")["job"]["payload"] == long


def test_a_job_is_pushed_once(api: Caller) -> None:
    push(api, "once", "o1")
    api.post("/jobs", {"queue": "once", "id": "o1", "payload": 1}, 409)
    api.post("/jobs", [{"queue": "once", "id": name, "payload": 1} for name in ("o2", "o1")], 409)
    api.get("/jobs/o2", 404)


def test_a_failed_job_is_retried(api: Caller) -> None:
    push(api, "fail", "f1")
    job_events = {"group": "Gone", "message": "away", "backtrace": ["here"]}
    job = api.post(f"/leases/{lease(api, 'fail')}/fail", job_events)["job"]
    assert (job["state"], job["failure"]["group"]) == ("scheduled", "Gone")
    assert api.get("/jobs/f1")["backtrace"] == ["here"]
    push(api, "fail", "f2")
    api.post(f"/leases/{lease(api, 'fail')}/fail", {"retry_at": "2099-01-01T01:00:00+01:00"})
    assert api.get("/jobs/f2")["job"]["due_at"] == "2099-01-01T00:00:00Z"
    push(api, "fail", "f3")
    assert api.post(f"/leases/{lease(api, 'fail')}/release")["job"]["state"] == "ready"


def test_a_lease_waits_for_a_job(api: Caller) -> None:
    request_body = {"queues": ["nothing"], "worker": "w", "wait": 0.05}
    assert api.post("/leases", request_body) == {"leases": []}


def test_a_disconnected_client_receives_no_job(api: Caller, served: ServerProcess) -> None:
    push(api, "left", "first")
    api.post(f"/leases/{lease(api, 'left')}/complete")
    body = b'{"queues": ["left"], "worker": "gone", "wait": 60}'
    head = b"POST /api/v1/leases HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", served.ports["web"])) as caller:
        caller.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        until(lambda: waiters(api, "left") == 1)
    until(lambda: waiters(api, "left") == 0)
    push(api, "left", "left")
    assert api.get("/jobs/left")["job"]["state"] == "ready"


@pytest.mark.parametrize("to_pages", [False, True])
def test_a_waiting_client_is_answered_when_the_server_stops(tmp_path: Path, to_pages: bool) -> None:
    """The signal goes to the server, or to its web process, as when a whole service is stopped."""
    with running_server(tmp_path / "data") as server:
        api = Caller(server.ports["web"])
        push(api, "stop", "first")
        api.post(f"/leases/{lease(api, 'stop')}/complete")
        with ThreadPoolExecutor() as pool:
            request_body = {"queues": ["stop"], "worker": "w", "wait": 60}
            waiting = pool.submit(api.post, "/leases", request_body, 503)
            until(lambda: waiters(api, "stop") == 1)
            os.kill(only_child(server.pid) if to_pages else server.pid, signal.SIGTERM)
            assert "is stopping" in waiting.result(20)["detail"]


def only_child(pid: int) -> int:
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


@pytest.mark.parametrize(
    "body",
    [
        {"queue": "q"},
        {"queue": "q", "payload": 1, "payload_base64": ""},
        {"queue": "q", "payload": 1, "delay": 5, "at": "2099-01-01T00:00:00Z"},
        {"queue": "\u00fc" * 200, "payload": 1},
        b"{",
        b'{"queue": "\xff"}',
        b'{"queue": "q", "payload": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_conflicting_fields_are_a_bad_request(api: Caller, body: object) -> None:
    api.post("/jobs", body, 400)


@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        {"queue": "", "payload": 1},
        {"queue": "q", "payload": 1, "more": 1},
        {"queue": "q", "payload": 1, "at": "tomorrow"},
        {"queue": "q", "payload": 1, "retries": 1.5},
        {"queue": "q", "payload": 1, "retries": -1},
        {"queue": "q", "payload_base64": "?"},
    ],
)
def test_wrong_types_are_unprocessable(api: Caller, body: object) -> None:
    api.post("/jobs", body, 422)


def test_a_body_above_the_limit(api: Caller) -> None:
    api.post("/jobs/x/move", b" " * (1 << 20) + b"{}", 413)


# One job


def test_actions_on_one_job(api: Caller) -> None:
    push(api, "acts", "a1", "a2", "a3")
    assert api.post("/jobs/a1/move", {"queue": ODD}) == {"done": 1}
    api.post("/jobs/a1/priority", {"priority": 7})
    api.post("/jobs/a1/tag", {"tags": ["x", "y"]})
    api.post("/jobs/a1/untag", {"tags": ["x"]})
    api.post("/jobs/a1/track")
    job = api.get("/jobs/a1")["job"]
    assert (job["queue"], job["priority"], job["tags"]) == (ODD, 7, ["y"])
    assert job["tracked"]
    assert [each["id"] for each in api.get("/tracked")["tracked"]] == ["a1"]
    api.post("/jobs/a1/untrack")
    api.post("/jobs/a1/kill")
    assert state(api, "a1") == "dead"
    api.post("/jobs/a1/retry")
    assert state(api, "a1") == "ready"
    api.post("/jobs/a1/cancel")
    api.get("/jobs/a1", 404)
    api.post("/jobs/a1/cancel", None, 404)
    push(api, "acts", "a4", waits_for=["a2"])
    assert api.get("/jobs/a4")["waits_for"]["jobs"][0]["jid"] == "a2"
    assert api.get("/jobs/a2")["waited_for_by"]["jobs"][0]["jid"] == "a4"
    api.post("/jobs/a4/undepend", {"waits_for": ["a2"]})
    assert state(api, "a4") == "ready"
    lease(api, "acts")
    api.post("/jobs/a2/kill", None, 409)
    api.post("/jobs/a2/timeout")
    api.post("/jobs/a2/delete")
    number = api.get("/jobs/a3")["job"]["number"]
    assert api.get(f"/jobs/{number}")["job"]["id"] == "a3"
    api.post(f"/jobs/whatever/delete?number={number}")
    api.get("/jobs/a3", 404)


@pytest.mark.parametrize("name", [ODD, "x/payload", "x/retry", "%2F", "\u202e"])
def test_names_of_any_characters(api: Caller, name: str) -> None:
    """A job and its queue, by URL."""
    push(api, name, name)
    encoded = quote(name, safe="")
    assert api.get(f"/jobs/{encoded}")["job"]["id"] == name
    assert api.get(f"/queues/{encoded}")["queue"]["name"] == name
    assert api.post(f"/queues/{encoded}/pause")["name"] == name
    assert api.ask("GET", f"/jobs/{encoded}/payload").json == [name]
    api.post(f"/jobs/{encoded}/delete")


# Queues


def test_queues(api: Caller) -> None:
    push(api, "q-one", "q1", "q2")
    push(api, "q-two", "q3")
    found = api.get("/queues", text="q-", limit=1)
    assert [queue["name"] for queue in found["queues"]] == ["q-one"]
    assert found["queues"][0]["jobs"]["ready"] == 2
    found = api.get("/queues", text="q-", limit=1, cursor=found["next"])
    assert [queue["name"] for queue in found["queues"]] == ["q-two"]
    assert found["next"] is None
    assert api.get("/queues", text="q-", paused=True)["count"] == 0
    assert api.post("/queues/q-one/pause")["paused"]
    (queue,) = api.get("/queues", text="q-", paused=True)["queues"]
    assert queue["name"] == "q-one"
    assert api.post("/leases", {"queues": ["q-one"], "worker": "w"}) == {"leases": []}
    assert not api.post("/queues/q-one/resume")["paused"]
    assert api.post("/queues/q-one/retain", {"keep_results": 60})["keep_results"] == 60
    assert api.post("/queues/q-one/retain", {"keep_results": None})["keep_results"] is None
    assert api.post("/queues/q-one/limit", {"limit": 7})["limit"] == 7
    (limit,) = api.get("/throttles")["throttles"]
    assert (limit["name"], limit["maximum"]) == ("ql:q:q-one", 7)
    assert api.post("/queues/q-one/limit", {"limit": None})["limit"] is None
    assert api.get("/throttles")["throttles"] == []
    api.post("/queues/q-one/limit", {"limit": 0}, 422)
    cleared = api.post("/queues/q-one/clear")
    assert (cleared["state"], cleared["done"]) == ("done", 2)
    api.post("/queues/q-two/remove")
    api.get("/queues/q-two", 404)
    api.post("/queues/q-two/clear", None, 404)
    api.post("/queues/nowhere/pause", None, 404)
    api.get("/queues/q-one", 400, date="2026-99-01")
    api.get("/queues/q-one", 400, date="1969-12-31")
    assert api.get("/queues/q-one", date="2026-01-01")["statistics"]["wait"]["count"] == 0


# Searches and bulk actions


def test_pages_of_jobs(api: Caller) -> None:
    push(api, "paged", *(f"p{number}" for number in range(7)))
    seen, address = [], "/jobs?queue=paged&limit=3"
    while address:
        answer = api.ask("GET", address)
        seen += [job["id"] for job in answer.json["jobs"]]
        link = answer.headers.get("link")
        assert (link is None) == (answer.json["next"] is None)
        address = link.partition(">")[0].removeprefix("<") if link else ""
    assert seen == [f"p{number}" for number in reversed(range(7))]
    api.get("/jobs", 400, cursor="nonsense")


def test_a_search(api: Caller) -> None:
    push(api, "find", "needle-1", "needle-2", "hay")
    assert len(api.get("/jobs", q="queue:find needle")["jobs"]) == 2
    assert len(api.get("/jobs", queue="find", text=["needle", "2"])["jobs"]) == 1
    assert len(api.get("/jobs", q="needle", queue="find", state="dead")["jobs"]) == 0
    assert "state" in api.get("/jobs", 400, q="stat:dead")["detail"]
    api.get("/jobs", 422, state="asleep")
    assert "null" in api.get("/jobs", 422, state="null")["detail"]
    api.get("/jobs", 422, retrying="null")
    assert api.get("/jobs", queue="null")["jobs"] == []
    api.get("/jobs", 422, limit=0)
    api.get("/jobs", 422, colour="blue")
    api.ask("GET", "/jobs?limit=1&limit=2", None, 422)


def test_a_filter_given_twice_is_combined(api: Caller) -> None:
    push(api, "twice", "twice")
    assert len(api.get("/jobs", q="queue:twice", queue="twice")["jobs"]) == 1
    assert "`queue`" in api.get("/jobs", 422, q="queue:twice", queue="other")["detail"]
    api.get("/jobs", 422, q="is:retrying", state="dead")
    api.get("/jobs", 422, q="not:tracked", tracked=True)


def test_a_bulk_action(api: Caller) -> None:
    push(api, "many", *(f"m{number}" for number in range(5)))
    acted = api.post("/actions", {"action": "kill", "q": "queue:many"})
    assert (acted["state"], acted["done"], acted["refused"]) == ("done", 5, 0)
    number = acted["number"]
    assert api.get(f"/actions/{number}") == acted
    assert api.get("/actions")["actions"][0] == acted
    assert api.post(f"/actions/{number}/stop") == acted
    query = {"queue": "many", "state": "dead"}
    assert api.post("/actions", {"action": "retry", "query": query})["done"] == 5
    acted = api.post("/actions", {"action": "delete", "jobs": ["m1", "nobody"]})
    assert (acted["done"], acted["refusals"][0]["id"]) == (1, "nobody")
    found = api.get("/jobs", queue="many")["jobs"]
    numbers = [job["number"] for job in found[:2]]
    assert api.post("/actions", {"action": "kill", "numbers": numbers})["done"] == 2
    assert state(api, found[0]["id"]) == state(api, found[1]["id"]) == "dead"
    api.post("/actions", {"action": "kill", "numbers": numbers, "jobs": ["m2"]}, 400)
    for body in ({}, {"q": "x", "jobs": ["x"]}, {"jobs": ["m2"], "action": "move"}):
        api.post("/actions", {"action": "tag", **body}, 400)
    api.get("/actions/9999", 404)
    api.get("/actions/" + "9" * 5000, 404)


@pytest.mark.parametrize(
    "which",
    [
        {"q": "  "},
        {"q": '""'},
        {"q": "\u3000\n"},
        {"q": 'error:""'},
        {"query": {}},
        {"query": {"error": ""}},
        {"q": " ", "all": True},
        {"jobs": ["spared"], "all": True},
        {"query": {"queue": "spared"}, "all": True},
        {"all": True},
    ],
)
def test_an_empty_filter_selects_no_job(api: Caller, which: dict[str, object]) -> None:
    if not api.get("/jobs", id="spared")["jobs"]:
        push(api, "spared", "spared")
    api.post("/actions", {"action": "kill", **which}, 400)
    assert state(api, "spared") == "ready"


def test_all_jobs_are_selected_only_with_a_flag(api: Caller) -> None:
    push(api, "every", "every")
    acted = api.post("/actions", {"action": "track", "query": {}, "all": True})
    assert acted["title"] == "Track all jobs"
    assert api.get("/jobs/every")["job"]["tracked"]
    api.post("/actions", {"action": "untrack", "query": {}, "all": True})


def test_failures(api: Caller) -> None:
    for number in range(3):
        push(api, "failing", f"failing{number}")
        failed = {"group": "Net", "message": f"no answer from 10.0.0.{number}"}
        api.post(f"/leases/{lease(api, 'failing')}/fail", failed)
    (group,) = [each for each in api.get("/failures")["failures"] if each["group"] == "Net"]
    assert (group["retrying"], group["dead"], group["queues"]) == (3, 0, ["failing"])
    assert len(api.get("/jobs", queue="failing", failing=True)["jobs"]) == 3
    assert api.get("/jobs", queue="failing", failing=False)["jobs"] == []
    query = {"queue": "failing", "failing": True}
    assert api.post("/actions", {"action": "track", "query": query})["done"] == 3
    encoded = "/failures/" + quote(group["fingerprint"], safe="")
    assert len(api.get(encoded, limit=2)["jobs"]) == 2
    assert api.post(encoded + "/retry")["done"] == 3
    api.get(encoded, 404)
    lease_again = lease(api, "failing")
    api.post(f"/leases/{lease_again}/fail", failed)
    assert api.post(encoded + "/delete")["done"] == 1


# Other routes


def test_workers(api: Caller, served: ServerProcess) -> None:
    with RawFaktory(served.port, wid="worker/1") as worker:
        worker.push({"jid": "held-job", "jobtype": "t", "queue": "held", "args": []})
        assert worker.fetch("held")
        (found,) = [each for each in api.get("/workers")["workers"] if each["id"] == "worker/1"]
        assert (found["protocol"], found["jobs"][0]["id"]) == ("faktory", "held-job")
        assert api.get("/workers/faktory/worker%2F1")["jobs"] == found["jobs"]
        api.get("/workers/qless/worker%2F1", 404)
        api.get("/workers/faktory/nobody", 404)
        api.post("/workers/faktory/worker%2F1/quiet")
        api.post("/workers/faktory/worker%2F1/terminate")
        api.post("/workers/qless/worker%2F1/quiet", None, 409)
        api.post("/workers/faktory/nobody/quiet", None, 404)


def test_routes_of_qless(api: Caller, served: ServerProcess) -> None:
    client = qless.Client(f"redis://127.0.0.1:{served.ports['qless']}")
    client.queues["imports"].recur("Sweep", {"keep": 7}, interval=3600, jid="sweep/1")
    (found,) = api.get("/recurring")["recurring"]
    assert (found["id"], found["payload"]) == ("sweep/1", {"keep": 7})
    api.post("/recurring/sweep%2F1/move", {"queue": "elsewhere"})
    api.post("/recurring/sweep%2F1/priority", {"priority": 3})
    api.post("/recurring/sweep%2F1/tag", {"tags": ["x", "y"]})
    api.post("/recurring/sweep%2F1/untag", {"tags": ["x"]})
    (found,) = api.get("/recurring")["recurring"]
    assert (found["queue"], found["priority"], found["tags"]) == ("elsewhere", 3, ["y"])
    api.post("/recurring/sweep%2F1/cancel")
    api.post("/recurring/sweep%2F1/cancel", None, 404)
    push(api, "tagged", "tagged", tags=["often"])
    assert {"tag": "often", "count": 1} in api.get("/tags")["tags"]
    assert api.get("/throttles")["throttles"] == []
    api.post("/configuration/qless", {"option": "heartbeat", "value": "90"})
    assert str(api.get("/configuration")["qless"]["heartbeat"]) == "90"
    api.post("/configuration/qless", {"option": "heartbeat", "value": None})


def test_the_server(api: Caller) -> None:
    assert api.get("/server")["durability"] == "fsync"
    assert api.get("/overview")["protocols"]
    assert not api.get("/pipeline")["running"]
    assert any(each["key"] == "web.password" for each in api.get("/configuration")["settings"])
    push(api, "audited", "audited")
    api.post("/queues/audited/pause")
    first = api.get("/audit", limit=1)
    assert "pause" in first["audit"][0]["action"]
    second = api.get("/audit", limit=1, cursor=first["next"])
    assert second["audit"][0]["number"] < first["audit"][0]["number"]


def test_the_journal_is_shipped(api: Caller) -> None:
    push(api, "shipped", "shipped")
    shipped = api.post("/ship")
    assert (shipped["waiting_events"], shipped["failing"]) == (0, "")
    assert api.get("/audit", limit=1)["audit"][0]["action"] == "ship"
    assert "no tables yet" in api.get("/analytics", 409, queue="shipped")["detail"]


@pytest.mark.parametrize(
    "request_body",
    [
        {"first": "2026-02-30"},
        {"last": "0000-01-01"},
        {"first": "2026-11-02", "last": "2026-11-01"},
    ],
)
def test_invalid_days_are_refused(api: Caller, request_body: dict[str, str]) -> None:
    api.get("/analytics", 400, **request_body)


@pytest.mark.parametrize(
    ("path", "maximum"),
    [
        ("/queues", MAX_SAMPLED_QUEUES),
        ("/failures", MAX_LARGE_PAGE_SIZE),
        ("/audit", MAX_LARGE_PAGE_SIZE),
        ("/tags", MAX_PAGE_SIZE),
        ("/analytics", MAX_DAYS),
    ],
)
def test_the_documented_maximum_is_enforced(api: Caller, path: str, maximum: int) -> None:
    name = "days" if path == "/analytics" else "limit"
    fits = api.send("GET", f"/api/v1{path}?{name}={maximum}")
    assert fits.status == (409 if path == "/analytics" else 200)
    api.get(path, 422, **{name: maximum + 1})


def test_health(api: Caller) -> None:
    health = api.get("/health")
    assert set(health["server"]) == {
        "command_count",
        "connections",
        "description",
        "faktory_version",
    }
    assert api.get("/ready") == {"ready": True}
    assert "total_enqueued" in api.get("/stats")["faktory"]


def test_unknown_paths_and_methods(api: Caller) -> None:
    for method, path, status in (
        ("GET", "/api/v1/nowhere", 404),
        ("GET", "/api", 404),
        ("DELETE", "/api/v1/jobs", 405),
        ("GET", "/api/v1/jobs/x/retry", 405),
        ("POST", "/health", 405),
        ("BREW", "/api/v1/overview", 405),
    ):
        answer = api.send(method, path)
        assert (answer.status, answer.headers["content-type"]) == (
            status,
            "application/problem+json",
        )
        assert answer.json["status"] == status
    assert api.send("DELETE", "/api/v1/jobs").headers["allow"] == "GET, HEAD, OPTIONS, POST"
    assert api.send("OPTIONS", "/api/v1/jobs").status == 204
    head = api.send("HEAD", "/api/v1/jobs")
    assert (head.status, head.body) == (200, b"")


def test_a_form_is_refused(api: Caller) -> None:
    for headers in (
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "text/plain"},
        {},
    ):
        answer = api.send("POST", "/api/v1/queues/audited/resume", b"{}", headers)
        assert answer.status == 415
    answer = api.send("POST", "/api/v1/queues/audited/resume", None, {"Origin": "http://evil.test"})
    assert answer.status == 403


def test_the_newest_events_of_the_journal(api: Caller) -> None:
    api.post("/jobs", {"queue": "journal", "id": "newest", "payload": []}, 201)
    events = api.get("/events")["events"]
    assert (events[-1]["id"], events[-1]["type"]) == ("newest", "pushed")
    assert [each["event"] for each in events] == sorted(each["event"] for each in events)


def test_a_flush_removes_all_jobs(api: Caller) -> None:
    api.post("/flush", None, 400)
    api.post("/flush", {"confirm": "yes"}, 422)
    api.post("/flush", {"confirm": "flush"})
    assert api.get("/jobs")["jobs"] == []


def test_every_operation_was_tested(api: Caller) -> None:
    """The browser tests run the pipeline, because it takes a minute. test_analytics_page.py reads
    its report.
    """
    if len(api.done) < 40:
        pytest.skip("only some tests were run")
    job_events = {
        f"{method.upper()} {path}" for path, item in document()["paths"].items() for method in item
    }
    assert job_events - api.done == {"POST /api/v1/pipeline/run", "GET /api/v1/analytics"}

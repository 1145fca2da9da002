"""A value at its exact limit is accepted, and the next one is refused: by every route of the HTTP API,
the pages, the admin socket, the command line and the protocols.
"""

import subprocess
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
import qless
from api_caller import Caller

from millrace.admin.client import request
from millrace.admin.errors import AdminError
from millrace.records import (
    MAX_OPTION_NAME,
    MAX_OPTION_VALUE,
    MAX_PRIORITY,
    ActionRequest,
    PushJob,
    PushJobs,
    RecurringAction,
    SetQlessOption,
)
from raw_faktory import RawFaktory, RefusedError
from server_process import MILLRACE, ServerProcess, running_server

#: The next float; 2**53 + 1 is not a float.
BEYOND = MAX_PRIORITY + 2
LIMITS = pytest.mark.parametrize("sign", [1, -1])
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with running_server(tmp_path_factory.mktemp("bounds") / "data") as server:
        yield server


@pytest.fixture(scope="module")
def api(served: ServerProcess) -> Caller:
    caller = Caller(served.ports["web"])
    caller.post("/jobs", {"queue": "bounds", "id": "job", "payload": 1}, 201)
    queue = qless.Client(f"redis://127.0.0.1:{served.ports['qless']}").queues["bounds"]
    queue.recur("Sweep", {}, interval=3600, jid="sweep")
    return caller


def priority_of(api: Caller, name: str = "job") -> int:
    found = api.get(f"/jobs/{name}")["job"]["priority"]
    assert found == int(found)
    return int(found)


def admin(served: ServerProcess, **request_fields: Any) -> None:
    list(request(served.data / "control", request_fields))


# Priorities


@LIMITS
def test_routes_have_the_limit_of_a_priority(api: Caller, sign: int) -> None:
    body = {"queue": "pushed", "id": f"pushed{sign}", "payload": 1}
    api.post("/jobs", body | {"priority": sign * MAX_PRIORITY}, 201)
    assert priority_of(api, f"pushed{sign}") == sign * MAX_PRIORITY
    api.post("/jobs", body | {"priority": sign * BEYOND}, 422)
    for path, more in (
        ("/jobs/job/priority", {}),
        ("/actions", {"action": "priority", "jobs": ["job"]}),
        ("/recurring/sweep/priority", {}),
    ):
        api.post(path, more | {"priority": 0})
        api.post(path, more | {"priority": sign * MAX_PRIORITY})
        api.post(path, more | {"priority": sign * BEYOND}, 422)
    assert priority_of(api) == sign * MAX_PRIORITY
    assert api.get("/recurring")["recurring"][0]["priority"] == sign * MAX_PRIORITY


@LIMITS
def test_pages_have_the_limit_of_a_priority(api: Caller, sign: int) -> None:
    number = api.get("/jobs/job")["job"]["number"]
    api.post("/jobs/job/priority", {"priority": 0})
    for path, target in (("/jobs/act", {"job": number}), ("/recurring", {"jid": "sweep"})):
        for priority, status in ((sign * MAX_PRIORITY, 303), (sign * BEYOND, 400)):
            form = urlencode({"action": "priority", "priority": priority, **target})
            assert api.send("POST", path, form.encode(), FORM).status == status
    assert priority_of(api) == sign * MAX_PRIORITY


@LIMITS
def test_the_socket_has_the_limit_of_a_priority(
    api: Caller, served: ServerProcess, sign: int
) -> None:
    for priority in (sign * MAX_PRIORITY, sign * BEYOND):
        for request_fields in (
            {"act": ActionRequest("priority", ["job"], priority=priority)},
            {"act_on_recurring": RecurringAction("sweep", "priority", priority=priority)},
            {"push": PushJobs([PushJob("socket", b"1", priority=priority)])},
        ):
            if abs(priority) == MAX_PRIORITY:
                admin(served, **request_fields)
            else:
                with pytest.raises(AdminError, match="Expected `float`"):
                    admin(served, **request_fields)
    assert priority_of(api) == sign * MAX_PRIORITY


@LIMITS
def test_the_command_line_has_the_limit_of_a_priority(
    api: Caller, served: ServerProcess, sign: int
) -> None:
    api.post("/jobs/job/priority", {"priority": 0})
    for priority, status in ((sign * MAX_PRIORITY, 0), (sign * BEYOND, 1)):
        command = [MILLRACE, "priority", "job", f"--priority={priority}", "--yes"]
        ended = subprocess.run([*command, "--data", served.data], capture_output=True, check=False)
        assert ended.returncode == status, ended.stderr
    assert priority_of(api) == sign * MAX_PRIORITY


@LIMITS
def test_faktory_has_the_limit_of_a_priority(api: Caller, served: ServerProcess, sign: int) -> None:
    job = {"jobtype": "K", "args": [], "queue": "faktory"}
    with RawFaktory(served.ports["faktory"]) as wire:
        for priority, jid in (
            (sign * MAX_PRIORITY, f"high-priority{sign}"),
            (sign * BEYOND, "beyond-the-limit"),
        ):
            pushed = {**job, "jid": jid, "custom": {"millrace": {"priority": priority}}}
            recurring = {"id": jid, "jobtype": "K", "args": [], "every": 60, "priority": priority}
            for command in (("PUSH", pushed), ("MILLRACE", {"recur": recurring})):
                if jid != "beyond-the-limit":
                    wire.command(*command)
                else:
                    with pytest.raises(RefusedError, match="priority"):
                        wire.command(*command)
    assert priority_of(api, f"high-priority{sign}") == sign * MAX_PRIORITY
    found = {each["id"]: each["priority"] for each in api.get("/recurring")["recurring"]}
    assert found[f"high-priority{sign}"] == sign * MAX_PRIORITY


@LIMITS
def test_qless_keeps_a_priority_at_the_limit(api: Caller, served: ServerProcess, sign: int) -> None:
    client = qless.Client(f"redis://127.0.0.1:{served.ports['qless']}")
    jid = client.queues["qless"].put("K", {}, priority=sign * MAX_PRIORITY)
    assert priority_of(api, jid) == sign * MAX_PRIORITY
    api.post(f"/jobs/{jid}/priority", {"priority": 0})
    client.jobs[jid].priority = sign * MAX_PRIORITY
    assert priority_of(api, jid) == sign * MAX_PRIORITY


# Settings of Qless


@pytest.mark.parametrize(
    ("name", "value", "good"),
    [
        (MAX_OPTION_NAME, MAX_OPTION_VALUE, True),
        (MAX_OPTION_NAME + 1, MAX_OPTION_VALUE, False),
        (MAX_OPTION_NAME, MAX_OPTION_VALUE + 1, False),
    ],
)
def test_a_setting_of_qless_has_its_limits(
    api: Caller, served: ServerProcess, name: int, value: int, good: bool
) -> None:
    for way in ("a", "p", "s"):
        option, text = way * name, "\u00fc" * value
        match way:
            case "a":
                api.post(
                    "/configuration/qless", {"option": option, "value": text}, 200 if good else 422
                )
            case "p":
                form = urlencode({"option": option, "value": text}).encode()
                answer = api.send("POST", "/configuration/qless", form, FORM)
                assert answer.status == (303 if good else 400)
            case "s":
                if good:
                    admin(served, set_qless=SetQlessOption(option, text))
                else:
                    with pytest.raises(AdminError):
                        admin(served, set_qless=SetQlessOption(option, text))
        assert (api.get("/configuration")["qless"].get(option) == text) == good
        if good:
            api.post("/configuration/qless", {"option": option, "value": None})

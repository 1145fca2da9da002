"""Shipping by a real server: on schedule, on demand, at shutdown, and after either process is
killed.
"""

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import event_tables
from millrace.admin.client import request
from millrace.admin.errors import AdminError
from millrace.engine.events import EVENT_VERSION, EventTuple
from millrace.journal.crash_points import STEPS
from millrace.journal.identity import identity
from raw_faktory import RawFaktory
from server_process import MILLRACE, ServerProcess, running_server, server_process

#: The server ships on demand only.
NEVER = {"MILLRACE_LAKE_SHIP_EVERY": "0"}
SOON = {"MILLRACE_LAKE_SHIP_EVERY": "100ms"}
LATE = {"MILLRACE_LAKE_SHIP_EVERY": "1h"}


def send_request(data: Path, line: str) -> dict[str, Any]:
    """The reply of the server on its control socket."""
    try:
        *_, answer = request(data / "control", json.loads(line), 60)
    except AdminError as error:
        return {"error": str(error), "code": error.code}
    found: dict[str, Any] = json.loads(bytes(answer))
    return found


def journal(data: Path) -> dict[str, Any]:
    return send_request(data, '{"journal": true}')


def until(wanted: Callable[[], bool], condition: str, within: float = 40.0) -> None:
    """Poll until another process has reached the condition."""
    end = time.monotonic() + within
    while not wanted():
        assert time.monotonic() < end, f"the condition was not reached:{condition}"
        time.sleep(0.02)


def push(port: int, count: int, prefix: str = "job") -> None:
    with RawFaktory(port, wid="w") as connection:
        for number in range(count):
            connection.push({"jid": f"{prefix}-{number:08}", "jobtype": "x", "args": []})


def work(port: int, count: int, prefix: str = "job") -> None:
    """Each job causes three events."""
    push(port, count, prefix)
    with RawFaktory(port, wid="w") as connection:
        for _ in range(count):
            job = connection.fetch("default")
            assert job is not None
            connection.ack(job["jid"])


def outbox_events(data: Path) -> dict[int, EventTuple]:
    """The events in the outbox, by number."""
    db = sqlite3.connect(f"file:{data / 'millrace.db'}?mode=ro", uri=True)
    try:
        rows = db.execute("SELECT first, events FROM outbox ORDER BY first").fetchall()
    finally:
        db.close()
    return {
        first + n: event
        for first, blob in rows
        for n, event in enumerate(msgspec.msgpack.decode(blob))
    }


def shipped(lake: Path) -> list[dict[str, Any]]:
    """Every row of the table `events`, by server and number."""
    found: list[dict[str, Any]] = event_tables.in_lake(lake).to_pylist()
    return found


def commits(lake: Path) -> int:
    """The number of commits to the table `events`, without its creation."""
    return max(0, len(list((lake / "events" / "_delta_log").glob("*.json"))) - 1)


def expected_rows(data: Path, events: dict[int, EventTuple]) -> list[dict[str, Any]]:
    """The expected rows for these events of the store."""
    numbers = sorted(events)
    rows = [events[number] for number in numbers]
    found: list[dict[str, Any]] = event_tables.table(
        identity(data), numbers[0], EVENT_VERSION, rows
    ).to_pylist()
    return found


def shipper_of(server: ServerProcess) -> int | None:
    """The shipper process of the server."""
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    for child in children:
        with contextlib.suppress(OSError):
            if b"millrace.journal.shipper" in Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
    return None


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def lake(data: Path) -> Path:
    return data / "lake"


# Normal operation


def test_events_are_shipped_on_time_and_removed_from_the_outbox(data: Path, lake: Path) -> None:
    with running_server(data, **SOON) as server:
        work(server.port, 3)
        until(lambda: journal(data)["events"] == 0, "all is shipped")
        until(lambda: journal(data)["bytes"] == 0, "the outbox is empty")
        state = journal(data)
        assert (state["next_event"], state["next_shipped"], state["dropped"]) == (10, 10, 0)
        assert (state["lake"], state["failing"], state["seconds"]) == (str(lake), "", 0.0)
        assert state["server"] == identity(data)
        assert state["files"] == len(list((lake / "events").rglob("*.parquet"))) >= 1
        server.stop()  # the last removal is committed
    assert [row["event_id"] for row in shipped(lake)] == list(range(1, 10))
    assert outbox_events(data) == {}


def test_a_full_batch_is_shipped_immediately(data: Path, lake: Path) -> None:
    with running_server(data, MILLRACE_LAKE_SHIP_EVENTS="5", **LATE) as server:
        push(server.port, 4)
        assert journal(data)["events"] == 4
        assert shipper_of(server) is None, "no shipper runs without a batch"
        push(server.port, 1, "more")
        until(lambda: journal(data)["next_shipped"] == 6, "five events are enough")
        server.kill()


def test_remaining_events_are_shipped_at_shutdown(data: Path, lake: Path) -> None:
    with running_server(data, **LATE) as server:
        work(server.port, 2)
        events = outbox_events(data)
        assert server.stop() == 0
    assert shipped(lake) == expected_rows(data, events)
    assert outbox_events(data) == {}


def test_an_idle_server_ships_no_events_at_shutdown(data: Path, lake: Path) -> None:
    with running_server(data, **LATE) as server:
        assert server.stop() == 0
    assert not lake.exists()
    assert not (data / "journal-id").exists()


def test_shipping_can_be_disabled(data: Path, lake: Path) -> None:
    with running_server(data, **NEVER) as server:
        work(server.port, 2)
        assert server.stop() == 0
    assert not lake.exists()
    assert len(outbox_events(data)) == 6


def test_events_are_shipped_on_demand(data: Path, lake: Path) -> None:
    with running_server(data, **NEVER) as server:
        work(server.port, 2)
        events = outbox_events(data)
        state = send_request(data, '{"ship": true}')
        assert (state["events"], state["next_shipped"]) == (0, 7)
        assert shipped(lake) == expected_rows(data, events)
        again = send_request(data, '{"ship": true}')
        assert (again["files"], again["next_shipped"]) == (1, 7)
        work(server.port, 1, "more")
        assert send_request(data, '{"ship": true}')["next_shipped"] == 10
        assert commits(lake) == 2
        until(lambda: not outbox_events(data), "the outbox is empty")


def test_events_of_a_killed_server_are_shipped_by_the_next(data: Path, lake: Path) -> None:
    with running_server(data, **LATE) as server:
        work(server.port, 2)
        events = outbox_events(data)
        server.restart(**SOON)
        until(lambda: journal(data)["next_shipped"] == 7, "the old events are shipped")
    assert shipped(lake) == expected_rows(data, events)


def test_a_restored_copy_is_detected_before_its_first_event(tmp_path: Path, data: Path) -> None:
    """This holds even if the server is killed before it ships: the lake is ahead by more events
    than the copy created.
    """
    lake = tmp_path / "lake"
    environment = {"MILLRACE_LAKE_PATH": str(lake)}
    with running_server(data, **SOON, **environment) as server:
        push(server.port, 3, "before")
        assert server.stop() == 0
        shutil.copytree(data, tmp_path / "copy")
        server.start()
        push(server.port, 50, "lost")
        assert server.stop() == 0
    original = identity(data)
    shutil.rmtree(data)
    shutil.move(tmp_path / "copy", data)
    with running_server(data, **LATE, **environment) as server:
        push(server.port, 20, "after")
        assert "it was restored from an older copy" in server.stderr
        server.kill()
        server.start(**SOON)
        assert server.stop() == 0
    rows = shipped(lake)
    after = {row["jid"] for row in rows if row["jid"].startswith("after")}
    assert len(after) == 20
    assert identity(data) != original
    assert {row["server"] for row in rows} == {original, identity(data)}


def test_a_folder_that_is_not_a_copy_keeps_its_identity(data: Path) -> None:
    with running_server(data, **SOON) as server:
        push(server.port, 3)
        assert server.stop() == 0
        before = identity(data)
        server.start()
        assert server.stop() == 0
        assert identity(data) == before


def test_the_statistics_outlive_their_events(data: Path) -> None:
    """Shipped events are not read again."""

    def processed(server: ServerProcess) -> dict[str, Any]:
        return send_request(data, '{"counters": true}')

    with running_server(data, **NEVER) as server:
        work(server.port, 3)
        before = processed(server)
        send_request(data, '{"ship": true}')
        until(lambda: not outbox_events(data), "the outbox is empty")
        server.restart()
        after = processed(server)
        assert after["days"] == before["days"]
        assert after["days"][0][2][0] == 3


def test_a_server_imports_no_lake_library() -> None:
    """The libraries of the lake and Spark take longer to import than the whole startup."""
    source = (
        "import sys, millrace.server.app; "
        "print({'pyarrow', 'pyspark', 'deltalake', 'arro3'} & set(sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert ran.stdout == "set()\n"


# The ship command


def ship(data: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [MILLRACE, "ship", "--data", data, *more], capture_output=True, text=True, timeout=60
    )


def test_the_command_with_a_running_server(data: Path, lake: Path) -> None:
    with running_server(data, **NEVER) as server:
        work(server.port, 2)
        status = json.loads(ship(data, "--status", "--json").stdout)
        assert (status["events"], status["next_shipped"]) == (6, 1)
        ran = ship(data)
        assert (ran.returncode, ran.stderr) == (0, "")
        assert ran.stdout.splitlines() == [
            f"server       {identity(data)}",
            f"lake         {lake}",
            "shipped      6 of 6 events",
        ]
        assert [row["event_id"] for row in shipped(lake)] == list(range(1, 7))


def test_the_command_without_a_server(data: Path, lake: Path) -> None:
    with running_server(data, **NEVER) as server:
        work(server.port, 2)
        server.stop()
    events = outbox_events(data)
    status = json.loads(ship(data, "--status", "--json").stdout)
    assert (status["events"], status["next_shipped"], status["server"]) == (6, 1, "")
    ran = ship(data, "--json")
    assert json.loads(ran.stdout)["events"] == 0
    assert shipped(lake) == expected_rows(data, events)
    assert outbox_events(data) == {}
    assert ship(data).stdout.splitlines()[-1] == "shipped      6 of 6 events"
    assert commits(lake) == 1
    with running_server(data, **SOON) as server:
        work(server.port, 1, "more")
        until(lambda: journal(data)["next_shipped"] == 10, "the server goes on from there")


def test_the_command_with_another_lake(data: Path, tmp_path: Path) -> None:
    with running_server(data, **NEVER) as server:
        push(server.port, 1)
        server.stop()
    assert ship(data, "--lake", str(tmp_path / "else")).returncode == 0
    assert commits(tmp_path / "else") == 1


def test_the_command_without_a_data_folder(tmp_path: Path) -> None:
    ran = ship(tmp_path / "nowhere")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "does not exist or is empty" in ran.stderr


# Failures


def test_a_failing_lake_is_reported_once_and_retried(data: Path, lake: Path) -> None:
    data.mkdir()
    lake.write_text("a file, where a folder must be")
    with running_server(data, **SOON) as server:
        work(server.port, 2)
        until(lambda: bool(journal(data)["failing"]), "it fails")
        work(server.port, 1, "more")
        until(lambda: journal(data)["seconds"] > 1.5, "it was tried again")
        state = journal(data)
        assert state["events"] == 9
        assert "lake" in state["failing"]
        by_hand = ship(data)
        assert by_hand.returncode == 1
        assert "lake" in by_hand.stderr
        events = outbox_events(data)
        lake.unlink()
        until(lambda: journal(data)["next_shipped"] == 10, "it is tried again")
        assert journal(data)["failing"] == ""
        lines = [record["message"] for record in server.log_records()]
    assert shipped(lake) == expected_rows(data, events)
    assert len([line for line in lines if line.startswith("Shipping failed: ")]) == 1
    assert "Shipping works again." in lines


def test_a_shipper_that_is_killed_is_started_again(data: Path, lake: Path) -> None:
    with running_server(data, **SOON) as server:
        work(server.port, 1)
        until(lambda: journal(data)["next_shipped"] == 4, "shipped")
        shipper = shipper_of(server)
        assert shipper is not None
        os.kill(shipper, signal.SIGSTOP)
        work(server.port, 1, "more")
        until(lambda: journal(data)["seconds"] > 0.3, "it waits")
        os.kill(shipper, signal.SIGKILL)
        until(lambda: journal(data)["next_shipped"] == 7, "shipped by another")
        assert shipper_of(server) != shipper
        assert "the shipper was killed by signal 9" in server.stderr
    assert [row["event_id"] for row in shipped(lake)] == list(range(1, 7))


def test_a_shipper_ends_with_its_server(data: Path) -> None:
    with running_server(data, **SOON) as server:
        work(server.port, 1)
        until(lambda: journal(data)["next_shipped"] == 4, "shipped")
        shipper = shipper_of(server)
        assert shipper is not None
        os.kill(shipper, signal.SIGSTOP)  # the shipper cannot react
        server.kill()
        until(lambda: _has_ended(shipper), "the shipper has ended")


def _has_ended(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().split()[2] == "Z"
    except FileNotFoundError:
        return True


def test_the_outbox_is_bounded_when_shipping_fails(data: Path, lake: Path) -> None:
    """The oldest events are deleted, counted and reported."""
    data.mkdir()
    lake.write_text("a file, where a folder must be")
    # Only events before the last written statistics are deleted. Inline payloads soon fill a
    # generation, and its end writes the statistics.
    limits = {"JOURNAL_OUTBOX_MAX": "64KiB", "SERVER_MAX_INLINE_PAYLOAD": "1MiB"}
    with running_server(data, **{f"MILLRACE_{k}": v for k, v in limits.items()}, **SOON) as server:
        with RawFaktory(server.port, wid="w") as connection:
            blob = "x" * 200_000
            while not journal(data)["dropped"]:
                for _ in range(20):
                    job = {"jid": os.urandom(12).hex(), "jobtype": "x", "args": [blob]}
                    connection.command("PUSH", job | {"queue": os.urandom(400).hex()})
        until(lambda: "were deleted before they were shipped" in server.stderr, "it is reported")
        lake.unlink()
        state = send_request(data, '{"ship": true}')
        assert state["failing"] == ""
    first = shipped(lake)[0]["event_id"]
    assert first == state["dropped"] + 1


def test_without_deltalake_the_log_names_the_remedy_once(data: Path, tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(
        "import sys, importlib.util as u\n"
        "find = u.find_spec\n"
        "u.find_spec = lambda name, *more: None if name == 'deltalake' else find(name, *more)\n"
        "sys.modules['deltalake'] = None\n"
    )
    path = os.pathsep.join([str(hidden), *filter(None, [os.environ.get("PYTHONPATH")])])
    with running_server(data, PYTHONPATH=path, **SOON) as server:
        work(server.port, 2)
        until(lambda: bool(journal(data)["failing"]), "it is logged")
        work(server.port, 1, "more")
        assert "error" in send_request(data, '{"ship": true}')
        assert server.stop() == 0
        lines = [record["message"] for record in server.log_records()]
    assert len([line for line in lines if "millrace[lake]" in line]) == 1
    assert len(outbox_events(data)) == 9


# Kills


@pytest.mark.parametrize("step", STEPS)
def test_killed_after_each_step(step: str, data: Path, lake: Path) -> None:
    """Kills of the shipper, and after the last step of its server."""
    with server_process(data, MILLRACE_LAKE_SHIP_EVENTS="4") as server:
        server.start(**NEVER)
        work(server.port, 4)
        events = outbox_events(data)
        server.kill()
        server.start(CRASH_MILLRACE=step, **SOON)
        if step == "trimmed":
            assert server.wait(40) == -signal.SIGKILL
        else:
            until(lambda: "killed by signal 9" in server.stderr, "the shipper was killed")
            server.kill()
        assert (commits(lake) == 0) == (step == "written")
        server.start(CRASH_MILLRACE=None, **SOON)
        until(lambda: journal(data)["next_shipped"] == 13, "all is shipped")
        work(server.port, 1, "more")
        until(lambda: journal(data)["next_shipped"] == 16, "and the later events")
        server.stop()
    found = shipped(lake)
    assert found[:12] == expected_rows(data, events)
    assert [row["event_id"] for row in found] == list(range(1, 16))
    assert outbox_events(data) == {}


@pytest.fixture
def loaded(data: Path) -> Iterator[ServerProcess]:
    with server_process(data, MILLRACE_LAKE_SHIP_EVENTS="7") as server:
        server.start(**SOON)
        yield server


def test_kills_of_both_processes_under_load(loaded: ServerProcess, data: Path, lake: Path) -> None:
    """Commits of seven events: there is always one in progress."""
    server = loaded
    for number in range(6):
        work(server.port, 20, f"round{number}")
        shipper = shipper_of(server)
        if number % 3 == 0 and shipper is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(shipper, signal.SIGKILL)
        elif number % 3 == 1:
            server.restart(**SOON)
    until(lambda: journal(data)["events"] == 0, "all is shipped", within=60)
    assert server.stop() == 0
    numbers = [row["event_id"] for row in shipped(lake)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) == 6 * 60
    ran = subprocess.run([MILLRACE, "check", "--data", data], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr

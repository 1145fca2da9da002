"""`millrace top`: its view on a real server, and the program in a real terminal."""

import json
import os
import pty
import select
import subprocess
import time

import pytest
from rich.console import Console, ConsoleDimensions

from millrace.cli.remote import SocketRemote
from millrace.cli.top import Keyboard, QueueRate, TopView, sparkline
from raw_faktory import RawFaktory
from server_process import MILLRACE, ServerProcess, StartedCommand


@pytest.fixture
def view(server: ServerProcess, faktory: RawFaktory) -> TopView:
    for number, queue in enumerate(("mail", "mail", "images")):
        unit = {"jid": f"job-0000{number}", "jobtype": "t", "args": [], "queue": queue, "retry": -1}
        faktory.push(unit)
    faktory.fetch("images")
    faktory.fail("job-00002", "no such file")
    view = TopView(SocketRemote(server.data))
    view.update(1.0)
    return view


def text_of(view: TopView, width: int = 120, height: int = 40) -> str:
    console = Console(width=width, record=True, file=open(os.devnull, "w"))
    console.print(view.render(ConsoleDimensions(width, height)))
    return console.export_text()


def test_the_view_shows_queues_and_failures(view: TopView) -> None:
    text = text_of(view)
    assert "ready 2" in text
    assert "no such file" in text
    assert [queue["name"] for queue in view.shown()] == ["mail", "images"]
    view.press("s")
    assert [queue["name"] for queue in view.shown()] == ["images", "mail"]


def test_the_view_shows_the_rate_of_each_queue(view: TopView, faktory: RawFaktory) -> None:
    for jid in ("job-00000", "job-00001"):
        faktory.fetch("mail")
        faktory.command("ACK", {"jid": jid})
    view.update(5.0)
    (line,) = (line for line in text_of(view).splitlines() if line.strip().startswith("mail"))
    assert " 0.5 " in line  # two attempts in four seconds
    for _ in range(4):
        view.press("s")
    assert [queue["name"] for queue in view.shown()] == ["mail", "images"]


def test_the_rate_survives_a_move_of_the_window() -> None:
    rate = QueueRate()
    assert rate.latest == 0
    for now, count in ((1, 100), (2, 110), (3, 40), (4, 42)):
        rate.add(now, count)
    assert list(rate.all) == [10, 10, 2]


def test_the_view_shows_workers(view: TopView, faktory: RawFaktory) -> None:
    faktory.fetch("mail")
    view.update(2.0)
    text = text_of(view)
    assert "raw-worker" in text
    assert "1 worker\n" in text.replace(" \n", "\n").replace("  ", "")


def test_keys_that_arrive_together_all_count() -> None:
    reading, writing = os.pipe()
    keyboard = Keyboard(reading)
    os.write(writing, b"/ma\x1b[A\x1b[Zq\r")
    assert [keyboard.read(0) for _ in range(7)] == ["/", "m", "a", "up", "", "q", "enter"]
    assert keyboard.read(0) == ""
    os.close(reading)
    os.close(writing)


def test_the_filter(view: TopView) -> None:
    for key in ("/", "i", "m", "x", "erase"):
        view.press(key)
    assert "filter: im_" in text_of(view)
    view.press("enter")
    assert [queue["name"] for queue in view.shown()] == ["images"]
    view.press("q")
    assert view.ended


def test_a_queue_is_paused_and_dead_jobs_are_retried(view: TopView) -> None:
    view.press("p")
    assert "paused" in text_of(view)
    view.update(2.0)
    assert [queue["paused"] for queue in view.shown()] == [True, False]
    view.press("p")
    view.press("down")
    view.press("r")
    assert "1 job was made ready." in text_of(view)
    view.update(3.0)
    assert view.overview["jobs"]["dead"] == 0


@pytest.mark.parametrize(
    ("width", "has_rates", "has_depth"), [(80, False, False), (100, True, False), (120, True, True)]
)
def test_a_narrow_terminal_has_whole_columns(
    view: TopView, width: int, has_rates: bool, has_depth: bool
) -> None:
    view.update(2.0)
    lines = text_of(view, width).splitlines()
    (head,) = (line for line in lines if line.split()[:1] == ["queue"])
    expected = ["queue", "ready", "scheduled", "leased", "dead", "ended/s", "p95", "run"]
    assert head.split() == expected + ["depth"] * has_depth
    (row,) = (line for line in lines if line.strip().startswith("mail"))
    assert ("▁" in row) == has_rates  # the server has no sample of the depth yet
    assert max(map(len, lines)) <= width


def test_more_queues_than_rows(view: TopView, faktory: RawFaktory) -> None:
    for number in range(30):
        unit = {"jid": f"many-{number:04}", "jobtype": "t", "args": [], "queue": f"q{number:02}"}
        faktory.push(unit)
    view.update(2.0)
    view.press("s")  # by name
    for _ in range(32):
        view.press("down")
    lines = text_of(view, height=20).splitlines()
    assert len(lines) <= 20
    assert any(line.strip().startswith("q29") for line in lines)
    assert "q quit" in lines[-1]


def test_the_view_survives_a_restart_of_the_server(view: TopView, server: ServerProcess) -> None:
    server.kill()
    view.try_update(2.0)
    assert "No server is running" in text_of(view)
    assert "mail" in text_of(view)
    server.restart()
    view.try_update(3.0)
    assert "q quit" in text_of(view)


def test_a_sparkline() -> None:
    assert sparkline([0, 1, 7]) == "▁▂█"
    assert sparkline([0, 0]) == "▁▁"


def test_in_a_terminal(server: ServerProcess, faktory: RawFaktory) -> None:
    faktory.push({"jid": "job-00001", "jobtype": "t", "args": [], "queue": "mail"})
    main, terminal = pty.openpty()
    command = [MILLRACE, "top", "--data", server.data]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "30"}
    with StartedCommand(
        command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment
    ) as top:
        output, deadline = b"", time.monotonic() + 40
        while b"mail" not in output and time.monotonic() < deadline:
            if select.select([main], [], [], 1)[0]:
                output += os.read(main, 65536)
        os.write(main, b"q")
        assert top.wait(20) == 0
    os.close(main)
    os.close(terminal)
    assert b"mail" in output


def test_without_a_terminal(server: ServerProcess) -> None:
    command = [MILLRACE, "top", "--data", server.data]
    ran = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert ran.returncode == 2
    shown = subprocess.run([*command, "--json"], capture_output=True, text=True)
    assert json.loads(shown.stdout)["queues"] == []

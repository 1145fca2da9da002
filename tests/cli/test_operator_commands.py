"""Operator commands against a running server, over the admin socket and over HTTP."""

import contextlib
import io
import itertools
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import typer

from millrace.cli import main
from millrace.cli.app import app
from millrace.cli.remote import HttpRemote, SocketRemote
from millrace.records.actions import JOB_ACTIONS, QUEUE_ACTIONS
from raw_faktory import RawFaktory
from server_process import MILLRACE, ServerProcess, StartedCommand


class Cli:
    """Runs commands on one server."""

    def __init__(self, server: ServerProcess, *, http: bool) -> None:
        port = server.ports["web"]
        self.server = server
        self.http = http
        self.target = (
            ["--url", f"http://127.0.0.1:{port}"] if http else ["--data", str(server.data)]
        )

    def run(self, *arguments: str, code: int = 0, stdin: str = "") -> str:
        """The output of a command, which runs in this process: a process takes 0.25 s to start."""
        output, errors = (io.TextIOWrapper(io.BytesIO(), write_through=True) for _ in range(2))
        with (
            mock.patch.object(sys, "argv", ["millrace", *arguments, *self.target]),
            mock.patch.object(sys, "stdin", io.StringIO(stdin)),
            contextlib.redirect_stdout(output),
            contextlib.redirect_stderr(errors),
        ):
            try:
                found: int | str | None = main()
            except SystemExit as ended:
                found = ended.code
        text = "".join(each.buffer.getvalue().decode() for each in (output, errors))
        assert (found or 0) == code, (found, text)
        return text

    def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self.run(*arguments, "--json", code=code))


@pytest.fixture(params=["socket", "http"])
def cli(server: ServerProcess, request: pytest.FixtureRequest) -> Cli:
    return Cli(server, http=request.param == "http")


def dead_jobs(faktory: RawFaktory, count: int) -> None:
    for number in range(count):
        faktory.push(
            {"jid": f"dead-{number:05}", "jobtype": "t", "args": [], "queue": "mail", "retry": -1}
        )
        faktory.fetch("mail")
        faktory.fail(f"dead-{number:05}", "no such file")


def test_a_job_from_push_to_result(cli: Cli, faktory: RawFaktory) -> None:
    jid = cli.run("push", "mail", '{"to": "ada"}', "--kind", "send", "--tag", "a").strip()
    assert cli.json("job", jid)["job"]["payload"] == {"to": "ada"}
    assert "No worker" in cli.run("job", jid)
    assert cli.json("queues")["queues"][0]["jobs"]["ready"] == 1
    assert cli.run("queues").splitlines()[1].split()[:2] == ["mail", "1"]
    assert cli.json("jobs", "queue:mail")["jobs"][0]["id"] == jid
    assert jid in cli.run("jobs", "tag:a")
    assert cli.run("result", jid, code=1) == f"Job {jid} is ready.\n"
    faktory.fetch("mail")
    faktory.command("ACK", {"jid": jid, "result": "[1,2]"})
    assert cli.run("result", jid, "--wait", "5").strip() == "[1,2]"
    assert cli.json("result", jid) == {"id": jid, "state": "done", "result": [1, 2]}
    assert "nobody" in cli.run("result", "nobody", code=4)
    assert cli.json("stats")["jobs"]["done"] == 1
    assert "processed" in cli.run("stats")


def test_a_job_shows_the_backtrace_of_each_attempt(cli: Cli, faktory: RawFaktory) -> None:
    faktory.push({"jid": "failing-1", "jobtype": "t", "args": [], "queue": "mail", "retry": 5})
    for line in ("first.py:1", "second.py:2"):
        faktory.fetch("mail")
        failure = {"jid": "failing-1", "errtype": "E", "message": "no", "backtrace": [line]}
        faktory.command("FAIL", failure)
        cli.run("retry", "state:scheduled", "--yes")
    shown = cli.run("job", "failing-1").splitlines()
    assert shown.index("  second.py:2") < shown.index("attempt 1 failed: E: no")
    assert shown[shown.index("attempt 1 failed: E: no") + 1] == "  first.py:1"
    (earlier,) = cli.json("job", "failing-1")["earlier_failures"]
    assert (earlier["attempt"], earlier["backtrace"]) == (1, ["first.py:1"])


def test_an_idempotency_key(cli: Cli) -> None:
    first = cli.run("push", "mail", "[1]", "--key", "k")
    assert cli.run("push", "mail", "[1]", "--key", "k") == first
    assert "not JSON" in cli.run("push", "mail", "{", code=2)
    assert cli.run("push", "mail", "-", "--id", "from-stdin", stdin="[2]") == "from-stdin\n"


def test_bulk_commands_print_the_number_and_need_a_confirmation(
    cli: Cli, faktory: RawFaktory
) -> None:
    dead_jobs(faktory, 3)
    output = cli.run("retry", "queue:mail", "state:dead", code=2)
    assert "3 jobs match." in output
    assert "--yes" in output
    assert cli.json("queues")["queues"][0]["jobs"]["dead"] == 3
    assert "3 jobs were made ready." in cli.run("retry", "queue:mail", "state:dead", "--yes")
    assert "Move 3 jobs to other?" in cli.run("move", "queue:mail", "--to", "other", code=2)
    moved = cli.json("move", "queue:mail", "--to", "other", "--yes")
    assert (moved["matched"], moved["done"], moved["skipped"]) == (3, 3, 0)
    assert "No jobs match." in cli.run("kill", "queue:mail", "--yes")
    assert cli.json("tag", "queue:other", "--tag", "x", "--yes")["done"] == 3
    skipped = cli.json("retry", "tag:x", "--yes", code=3)
    assert (skipped["done"], skipped["skipped"], len(skipped["skipped_jobs"])) == (0, 3, 3)
    assert "search" in cli.run("delete", "--yes", code=2)
    assert cli.json("delete", "--all", "--yes")["done"] == 3
    assert "Invalid search" in cli.run("jobs", "quueue:mail", code=2)


def during_batch(
    monkeypatch: pytest.MonkeyPatch, cli: Cli, number: int, event: Callable[[], object]
) -> None:
    """Change two jobs per batch. `event` happens at the start of a batch."""
    remote_type = HttpRemote if cli.http else SocketRemote
    real, count = remote_type.act, itertools.count(1)

    def act(*arguments: Any) -> Any:
        if next(count) == number:
            event()
        return real(*arguments)

    monkeypatch.setattr(remote_type, "act", act)
    monkeypatch.setattr("millrace.cli.remote.ACTION_BATCH_SIZE", 2)


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def test_an_interrupted_bulk_command_reports_exact_numbers(
    cli: Cli, faktory: RawFaktory, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead_jobs(faktory, 7)
    during_batch(monkeypatch, cli, 2, interrupt)
    output = cli.run("retry", "state:dead", "--yes", code=130)
    assert "4 jobs were made ready.\n" in output
    assert "Interrupted. 3 jobs were not changed.\n" in output
    jobs = cli.json("queues")["queues"][0]["jobs"]
    assert (jobs["ready"], jobs["dead"]) == (4, 3)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_bulk_command_that_is_interrupted_in_its_last_batch_is_complete(
    cli: Cli, faktory: RawFaktory, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead_jobs(faktory, 3)
    during_batch(monkeypatch, cli, 2, interrupt)
    done = cli.json("delete", "state:dead", "--yes")
    assert (done["done"], done["interrupted"]) == (3, False)


def test_a_second_interrupt_stops_within_a_batch(
    cli: Cli, faktory: RawFaktory, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead_jobs(faktory, 5)
    during_batch(monkeypatch, cli, 2, lambda: (interrupt(), interrupt()))
    output = cli.run("retry", "state:dead", "--yes", code=130)
    assert "2 jobs were made ready.\n" in output
    assert "Interrupted. At most 3 jobs were not changed.\n" in output


def test_a_bulk_command_reports_its_progress_if_the_server_ends(
    cli: Cli, faktory: RawFaktory, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead_jobs(faktory, 5)
    during_batch(monkeypatch, cli, 2, cli.server.kill)
    output = cli.run("retry", "state:dead", "--yes", code=1)
    assert "2 jobs were made ready.\n" in output
    assert "At most 3 jobs were not changed.\n" in output
    assert "server" in output


def test_a_running_job_is_cancelled(cli: Cli, faktory: RawFaktory) -> None:
    jid = cli.run("push", "mail", "[]").strip()
    faktory.fetch("mail")
    assert cli.json("cancel", f"id:{jid}", "--yes")["done"] == 1
    cli.run("job", jid, code=4)


def test_queues_are_paused_and_cleared(cli: Cli) -> None:
    cli.run("push", "mail", "[]")
    assert cli.run("pause", "mail") == 'Queue "mail" was paused.\n'
    assert cli.json("queues")["queues"][0]["paused"]
    cli.run("resume", "mail")
    assert not cli.json("queues")["queues"][0]["paused"]
    cli.run("retain", "mail", "60")
    assert cli.json("queues")["queues"][0]["keep_results"] == 60
    assert "1 job" in cli.run("clear", "mail", code=2)
    assert cli.json("clear", "mail", "--yes")["removed"] == 1
    cli.run("limit", "mail", "5")
    assert cli.run("limits").splitlines()[1].split() == ["queue", "mail", "5", "0", "0", "-"]
    assert cli.json("queues")["queues"][0]["limit"] == 5
    assert cli.run("limit", "mail", "default") == 'Queue "mail" was changed.\n'
    assert cli.json("queues")["queues"][0]["limit"] is None
    assert "Give a number" in cli.run("limit", "mail", "many", code=2)
    cli.run("push", "mail", "[]")
    assert "1 job" in cli.run("remove", "mail", code=2)
    assert "1 job was removed." in cli.run("remove", "mail", "--yes")
    assert not cli.json("queues")["queues"]
    for command in (["pause"], ["clear", "--yes"]):
        assert cli.run(*command, "nowhere", code=4) == 'Queue "nowhere" not found.\n'


def test_lists(cli: Cli, faktory: RawFaktory) -> None:
    for command in ("limits", "recurring", "workers"):
        assert isinstance(cli.json(command), dict)
        cli.run(command)


@pytest.mark.parametrize("over", ["--data", "--url"])
def test_events_are_followed(server: ServerProcess, faktory: RawFaktory, over: str) -> None:
    faktory.push({"jid": "job-00001", "jobtype": "t", "args": []})
    url = f"http://127.0.0.1:{server.ports['web']}"
    target = str(server.data) if over == "--data" else url
    command = [MILLRACE, "events", "--follow", "--json", over, target]
    with StartedCommand(command, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        assert json.loads(following.stdout.readline())["type"] == "pushed"
        faktory.fetch("default")
        assert json.loads(following.stdout.readline())["type"] == "leased"
        following.send_signal(signal.SIGINT)
        assert following.wait(20) == 0


#: Commands of the pipeline print tables and files; `serve` prints JSON if it has no terminal.
WITHOUT_JSON = {"serve"}


def test_every_command_has_examples_and_json() -> None:
    for name, command in commands(typer.main.get_command(app)):
        assert "Example" in (command.help or ""), name
        if not name.startswith("pipeline ") and name not in WITHOUT_JSON:
            assert any("--json" in each.opts for each in command.params), name


def commands(command: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if children := getattr(command, "commands", None):
        for name, child in children.items():
            yield from commands(child, f"{path} {name}".strip())
    else:
        yield path, command


def test_a_confirmation_in_a_terminal(server: ServerProcess, faktory: RawFaktory) -> None:
    dead_jobs(faktory, 2)
    main, terminal = pty.openpty()
    command = [MILLRACE, "retry", "state:dead", "--data", server.data]
    with StartedCommand(
        command, stdin=terminal, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as asking:
        os.write(main, b"y\n")
        output, errors = asking.communicate(timeout=30)
    os.close(main)
    os.close(terminal)
    assert output.strip() == "2 jobs were made ready."
    assert "2 jobs match." in errors


def test_no_server(tmp_path: Path) -> None:
    for target in (["--data", str(tmp_path)], ["--url", "http://127.0.0.1:1"]):
        ran = subprocess.run([MILLRACE, "queues", *target], capture_output=True, text=True)
        assert ran.returncode == 1
        assert "server" in ran.stderr


def test_every_action_has_a_command_with_examples() -> None:
    commands = {each.name: each for each in app.registered_commands}
    assert {*JOB_ACTIONS, *QUEUE_ACTIONS} <= set(commands)
    for name, command in commands.items():
        assert command.callback is not None
        if name != "version":
            assert "Examples:" in (command.callback.__doc__ or ""), name

"""The pipeline on a schedule: one run at a time, its output in the log, ended with the server."""

import asyncio
import logging
import os
import sys
import time
from collections.abc import Coroutine
from pathlib import Path

import pytest

from millrace.config import Config
from millrace.config.sections import LakeConfig, PipelineConfig, ServerConfig
from millrace.server.pipeline_runner import PipelineRunner, pipeline_command
from server_process import running_server


@pytest.fixture(autouse=True)
def _log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def python(source: str) -> list[str]:
    """A command that replaces the pipeline command."""
    return [sys.executable, "-c", source]


async def until(caplog: pytest.LogCaptureFixture, text: str, times: int = 1) -> None:
    for _ in range(2000):
        if sum(text in message for message in caplog.messages) >= times:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{text!r} was not logged: {caplog.messages}")


def run(act: Coroutine[object, object, None]) -> None:
    asyncio.run(act)


def has_ended(process: int) -> bool:
    """The process may remain a zombie until init reaps it."""
    try:
        return Path(f"/proc/{process}/stat").read_text().split()[2] == "Z"
    except FileNotFoundError:
        return True


def test_the_pipeline_runs_periodically_and_its_output_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def act() -> None:
        schedule = PipelineRunner(
            0.05, python("print('a table'); import sys; sys.stderr.write('oh\\n')")
        )
        schedule.start()
        assert caplog.messages == [], "the first run waits for its period"
        await until(caplog, "The pipeline run finished after ", times=2)
        await schedule.stop()

    run(act())
    assert {"pipeline: a table", "pipeline: oh"} <= set(caplog.messages)


def test_a_failed_run_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def act() -> None:
        schedule = PipelineRunner(0.05, python("raise SystemExit('no Java')"))
        schedule.start()
        await until(caplog, "The pipeline run failed after")
        await schedule.stop()

    run(act())
    assert "pipeline: no Java" in caplog.messages


def test_a_missing_command_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def act() -> None:
        schedule = PipelineRunner(0.05, ["/no/such/command"])
        schedule.start()
        await until(caplog, "Cannot start the pipeline: No such file", times=2)
        await schedule.stop()

    run(act())


def test_runs_do_not_overlap(caplog: pytest.LogCaptureFixture) -> None:
    async def act() -> None:
        schedule = PipelineRunner(
            0.05, python("import time; print('begun', flush=True); time.sleep(60)")
        )
        schedule.start()
        await until(caplog, "pipeline: begun")
        await until(caplog, "Skipped a scheduled pipeline run", times=2)
        await schedule.stop()

    run(act())
    assert caplog.messages.count("pipeline: begun") == 1


def test_stop_ends_the_run_with_its_child_processes(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    source = (
        "import os, subprocess, sys, time\n"
        "other = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(other.pid))\n"
        "print('begun', flush=True); time.sleep(60)"
    )

    async def act() -> None:
        schedule = PipelineRunner(0.05, python(source))
        schedule.start()
        await until(caplog, "pipeline: begun")
        await schedule.stop()
        await schedule.stop()

    began = time.monotonic()
    run(act())
    assert time.monotonic() - began < 30
    process = int((tmp_path / "pid").read_text())
    for _ in range(500):
        if has_ended(process):
            break
        time.sleep(0.01)
    assert has_ended(process)


def test_a_run_that_ignores_sigterm_is_killed(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace.server.pipeline_runner.STOP_TIMEOUT", 0.2)
    source = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('begun', flush=True); time.sleep(60)"
    )

    async def act() -> None:
        schedule = PipelineRunner(0.05, python(source))
        schedule.start()
        await until(caplog, "pipeline: begun")
        assert schedule._child is not None
        process = schedule._child.pid
        await schedule.stop()
        assert has_ended(process)

    run(act())


def test_the_command_has_every_setting_as_a_flag() -> None:
    config = Config(
        server=ServerConfig(data=Path("/srv/data")),
        lake=LakeConfig(path="/srv/lake"),
        pipeline=PipelineConfig(memory=1 << 30, master="spark://host:7077"),
    )
    assert pipeline_command(config)[2:] == [
        "-m", "millrace.cli.background", "pipeline", "run", "--data", "/srv/data",
        "--lake", "/srv/lake", "--memory", str(1 << 30), "--resident", str(os.getpid()),
        "--master", "spark://host:7077",
    ]  # fmt: skip


def test_a_server_runs_the_pipeline(tmp_path: Path) -> None:
    """The real command on a lake without events: it needs no Spark."""
    with running_server(tmp_path / "data", MILLRACE_PIPELINE_EVERY="200ms") as server:
        for _ in range(3000):
            if "The pipeline run finished after" in server.stderr:
                break
            time.sleep(0.01)
        lines = [record["message"] for record in server.log_records()]
        assert any(line.startswith("The pipeline run finished after") for line in lines), lines
        assert any(line.startswith("pipeline: No new events") for line in lines), lines
        assert server.stop() == 0


def test_a_run_ends_with_a_killed_server(tmp_path: Path) -> None:
    """The process that holds the other end of its input has ended."""
    reading, writing = os.pipe()
    process = os.posix_spawn(
        sys.executable,
        [sys.executable, "-m", "millrace.cli.background", "serve", "--data", str(tmp_path / "data")]
        + [f"--{name}-port=0" for name in ("faktory", "workq", "masenko", "goqueue", "qless")],
        dict(os.environ),
        file_actions=[(os.POSIX_SPAWN_DUP2, reading, 0), (os.POSIX_SPAWN_CLOSE, writing)],
        setpgroup=0,
    )
    os.close(reading)
    for _ in range(3000):
        if (tmp_path / "data" / "control").exists():
            break
        time.sleep(0.01)
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpriority(os.PRIO_PROCESS, process) == min(19, own + 10)
    os.close(writing)
    _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == 0, "ended by the signal"


def test_a_run_on_demand(caplog: pytest.LogCaptureFixture) -> None:
    async def act() -> None:
        schedule = PipelineRunner(0, python("for n in range(30): print('table', n)"))
        schedule.start()
        before = schedule.status()
        assert (before.available, before.running, before.code, before.lines) == (
            True,
            False,
            -1,
            [],
        )
        assert schedule.run_now() == ""
        assert schedule.status().running
        assert schedule.run_now().startswith("The pipeline is already running")
        await until(caplog, "The pipeline run finished after ")
        after = schedule.status()
        assert (after.running, after.code, after.every_seconds) == (False, 0, 0)
        assert after.lines == [f"table {number}" for number in range(10, 30)]
        assert 0 < after.started_at <= after.ended_at
        assert schedule.run_now() == "", "the next run"
        await until(caplog, "The pipeline run finished after ", times=2)
        await schedule.stop()
        assert schedule.run_now() == "The server is stopping."

    run(act())


def test_the_status_has_the_failed_run(caplog: pytest.LogCaptureFixture) -> None:
    async def act() -> None:
        schedule = PipelineRunner(0, python("raise SystemExit('no Java')"))
        assert schedule.run_now() == ""
        await until(caplog, "The pipeline run failed after")
        assert (schedule.status().code, schedule.status().lines) == (1, ["no Java"])
        await schedule.stop()

    run(act())


def test_an_unavailable_pipeline_reports_the_reason() -> None:
    async def act() -> None:
        schedule = PipelineRunner(
            0, python("print('never')"), unavailable_reason="there is no lake"
        )
        assert schedule.run_now() == "there is no lake"
        assert schedule.status().available is False
        assert schedule.status().lines == ["there is no lake"]
        lost = PipelineRunner(0, ["/no/such/command"])
        assert lost.run_now() == "Cannot start the pipeline: No such file or directory."
        assert lost.status().running is False

    run(act())

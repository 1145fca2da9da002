"""The pipeline on a schedule: one run at a time, its words in the log, ended with the server."""

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
    """A command that stands for the pipeline's."""
    return [sys.executable, "-c", source]


async def until(caplog: pytest.LogCaptureFixture, words: str, times: int = 1) -> None:
    for _ in range(2000):
        if sum(words in message for message in caplog.messages) >= times:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{words!r} was not logged: {caplog.messages}")


def run(act: Coroutine[object, object, None]) -> None:
    asyncio.run(act)


def is_gone(process: int) -> bool:
    """Nobody but the first process of the machine may be left to bury it."""
    try:
        return Path(f"/proc/{process}/stat").read_text().split()[2] == "Z"
    except FileNotFoundError:
        return True


def test_it_runs_again_and_again_and_what_it_says_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def act() -> None:
        schedule = PipelineRunner(
            0.05, python("print('a table'); import sys; sys.stderr.write('oh\\n')")
        )
        schedule.start()
        assert caplog.messages == [], "not at once"
        await until(caplog, "The pipeline run finished after ", times=2)
        await schedule.stop()

    run(act())
    assert {"pipeline: a table", "pipeline: oh"} <= set(caplog.messages)


def test_a_run_that_fails_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async def act() -> None:
        schedule = PipelineRunner(0.05, python("raise SystemExit('no Java')"))
        schedule.start()
        await until(caplog, "The pipeline run failed after")
        await schedule.stop()

    run(act())
    assert "pipeline: no Java" in caplog.messages


def test_a_command_that_is_not_there_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async def act() -> None:
        schedule = PipelineRunner(0.05, ["/no/such/command"])
        schedule.start()
        await until(caplog, "Cannot start the pipeline: No such file", times=2)
        await schedule.stop()

    run(act())


def test_one_at_a_time(caplog: pytest.LogCaptureFixture) -> None:
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


def test_stopping_ends_it_with_all_that_it_has_started(
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
        if is_gone(process):
            break
        time.sleep(0.01)
    assert is_gone(process)


def test_who_does_not_want_to_end_is_killed(
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
        assert is_gone(process)

    run(act())


def test_the_command_has_every_setting_as_a_flag() -> None:
    config = Config(
        server=ServerConfig(data=Path("/srv/data")),
        lake=LakeConfig(path="/srv/lake"),
        pipeline=PipelineConfig(memory=1 << 30, master="spark://host:7077"),
    )
    assert pipeline_command(config)[2:] == [
        "-m", "millrace.cli.background", "pipeline", "run", "--data", "/srv/data",
        "--lake", "/srv/lake", "--memory", str(1 << 30), "--master", "spark://host:7077",
    ]  # fmt: skip


def test_a_server_runs_it(tmp_path: Path) -> None:
    """The real command, of a lake that nothing was shipped to: that is known without Spark."""
    with running_server(tmp_path / "data", MILLRACE_PIPELINE_EVERY="200ms") as server:
        for _ in range(3000):
            if "The pipeline run finished after" in server.stderr:
                break
            time.sleep(0.01)
        lines = [record["message"] for record in server.log_records()]
        assert any(line.startswith("The pipeline run finished after") for line in lines), lines
        assert any(line.startswith("pipeline: No new events") for line in lines), lines
        assert server.stop() == 0


def test_it_does_not_outlive_a_killed_server(tmp_path: Path) -> None:
    """Whoever has the other end of its input is gone."""
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
    assert os.waitstatus_to_exitcode(status) == 0, "told to end, and ended"


def test_a_run_that_somebody_wants_now(caplog: pytest.LogCaptureFixture) -> None:
    async def act() -> None:
        schedule = PipelineRunner(0, python("for n in range(30): print('table', n)"))
        schedule.start()
        before = schedule.status()
        assert (before.able, before.running, before.code, before.lines) == (True, False, -1, [])
        assert schedule.run_now() == ""
        assert schedule.status().running
        assert schedule.run_now().startswith("The pipeline is already running")
        await until(caplog, "The pipeline run finished after ")
        after = schedule.status()
        assert (after.running, after.code, after.every) == (False, 0, 0)
        assert after.lines == [f"table {number}" for number in range(10, 30)]
        assert 0 < after.began_at <= after.ended_at
        assert schedule.run_now() == "", "and once more"
        await until(caplog, "The pipeline run finished after ", times=2)
        await schedule.stop()
        assert schedule.run_now() == "The server is stopping."

    run(act())


def test_a_run_that_fails_is_remembered(caplog: pytest.LogCaptureFixture) -> None:
    async def act() -> None:
        schedule = PipelineRunner(0, python("raise SystemExit('no Java')"))
        assert schedule.run_now() == ""
        await until(caplog, "The pipeline run failed after")
        assert (schedule.status().code, schedule.status().lines) == (1, ["no Java"])
        await schedule.stop()

    run(act())


def test_where_it_cannot_run_it_says_why() -> None:
    async def act() -> None:
        schedule = PipelineRunner(0, python("print('never')"), unable="there is no lake")
        assert schedule.run_now() == "there is no lake"
        assert schedule.status().able is False
        assert schedule.status().lines == ["there is no lake"]
        lost = PipelineRunner(0, ["/no/such/command"])
        assert lost.run_now() == "Cannot start the pipeline: No such file or directory."
        assert lost.status().running is False

    run(act())

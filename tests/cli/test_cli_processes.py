"""The `millrace` command in a process of its own."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from millrace import __version__

MILLRACE = Path(sys.executable).with_name("millrace")


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def modules_after(program: str) -> set[str]:
    """The modules that a fresh interpreter has after `program`."""
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program) + "\nprint(*sys.modules)"],
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    return set(ran.stdout.split())


def test_serve_starts_without_the_slow_modules_that_other_commands_use():
    """A server listens within 0.3 s; typer alone would take a quarter of that."""
    modules = modules_after("""
        import sys, types
        start = sys.modules["millrace.server.start"] = types.ModuleType("start")
        start.run = lambda loaded, reload, json: 0
        from millrace.cli import main
        sys.argv = ["millrace", "serve", "--data", "x", "--faktory-port", "0"]
        assert main() == 0
        """)
    assert "millrace.config" in modules
    slow = {"argparse", "asyncio", "difflib", "hashlib", "rich", "ssl", "tomllib", "typer"}
    assert modules & slow == set()


def test_the_installed_command_is_this_one():
    ran = subprocess.run([MILLRACE, "--version"], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (0, f"millrace {__version__}\n")


def test_completion_of_a_command():
    environment = {
        **os.environ,
        "_MILLRACE_COMPLETE": "complete_bash",
        "COMP_WORDS": "millrace que",
        "COMP_CWORD": "1",
    }
    ran = subprocess.run([MILLRACE], env=environment, capture_output=True, text=True, timeout=60)
    assert ran.stdout.split() == ["queues"]


@pytest.mark.parametrize("command", ["enqueue", "drain", "loads"])
def test_without_the_extra_spark_it_is_said_how_to_get_it(command: str):
    """In a process of its own, whose Python finds no pyspark."""
    (Path("pyspark.py")).write_text("raise ModuleNotFoundError('no pyspark', name='pyspark')")
    flags = {"enqueue": ["--from", "x"], "drain": ["--to", "x"]}.get(command, [])
    program = "import sys; from millrace.cli import main; sys.exit(main())"
    ran = subprocess.run(
        [sys.executable, "-c", program, "pipeline", command, *flags],
        env={"PYTHONPATH": os.getcwd(), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    told = 'This command requires pyspark. Install it with: pip install "millrace[spark]"\n'
    assert (ran.returncode, ran.stderr) == (1, told)

"""The `millrace` command in a process of its own."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from millrace import __version__
from millrace.cli.app import app
from millrace.cli.commands import application

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


def modules_of_command(*arguments: str) -> set[str]:
    return modules_after(f"""
        import io, sys
        from contextlib import redirect_stdout
        from millrace.cli import main
        sys.argv = ["millrace", *{arguments}]
        try:
            with redirect_stdout(io.StringIO()):
                main()
        except SystemExit as end:
            assert end.code == 0, end
        """)


@pytest.mark.parametrize(
    ("arguments", "module"),
    [
        (["version"], "commands"),
        (["--version"], "commands"),
        (["config", "--help"], "config"),
        (["queues", "--help"], "listings"),
        (["pause", "--help"], "verbs"),
        (["faktory", "quiet", "--help"], "workers"),
    ],
)
def test_a_command_imports_only_its_own_module(arguments: list[str], module: str):
    modules = modules_of_command(*arguments)
    assert f"millrace.cli.{module}" in modules
    own_modules = {"config", "listings", "ship", "top", "verbs", "worker", "workers", "pipeline"}
    others = {f"millrace.cli.{name}" for name in own_modules - {module}}
    if module == "verbs":
        others.remove("millrace.cli.listings")  # verbs have the same search
    assert modules & others == set()
    assert "millrace.engine.engine" not in modules


def test_the_help_of_a_command_is_the_same_without_the_other_commands():
    for name in get_command(app).commands:
        alone = application(name)
        assert name == "serve" or set(get_command(alone).commands) == {name}
        helps = [CliRunner().invoke(each, [name, "--help"]).output for each in (alone, app)]
        assert helps[0] == helps[1], name


def test_an_unknown_command_suggests_a_similar_one():
    ran = subprocess.run([MILLRACE, "queuse"], capture_output=True, text=True)
    assert ran.returncode == 2
    assert "queues" in ran.stderr


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

"""Runs the commands and programs of a page in order, as a reader would, in a separate folder.

The folder is similar to a clone: it has `.venv` and `docs`. A free port replaces each default port
of a protocol, such as 7419. A page without a server command uses a running server, started like
`make run`.
"""

import contextlib
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import conversations
from pages import ROOT, Block

from millrace.config import keys
from server_process import _die_with_parent

VENV = Path(sys.executable).parents[1]
TIMEOUT = 40.0
CONVERSATIONS = {"faktory", "workq", "masenko"}
PORTS = [key for key in keys().values() if key.name == "port"]
READY = (
    "ready  "
    + "".join(
        f"{key.section} {'http://' if key.section == 'web' else ''}127.0.0.1:{key.default}  "
        for key in PORTS
    )
    + "data data (durability: fsync)  (press Ctrl-C to stop)"
)

_VARYING = (
    (re.compile(r"\b(?:[0-9a-f]{32}|[0-9a-f]{24})\b"), "<jid>"),
    (re.compile(r"\b\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}\b"), "<moment>"),
    (re.compile(r"\bWorker [0-9a-f]{12}\b"), "Worker <wid>"),
    (re.compile(r"\b\d{4}-\d\d-\d\d to \d{4}-\d\d-\d\d, \d+\.\d MiB"), "<days>, <size>"),
    (re.compile(r"\b\d\d:\d\d:\d\d\b"), "<clock>"),
    (re.compile(r"\bin \d+\.\d+ ?s\b"), "in <seconds>"),
    (re.compile(r'"pid": \d+'), '"pid": <number>'),
)


class Command(NamedTuple):
    text: str
    prints: list[str]


def commands(block: Block) -> list[Command]:
    """`$ ` starts a command, `> ` continues it, all other lines are its output."""
    found: list[Command] = []
    for line in block.lines:
        if line.startswith("$ "):
            found.append(Command(line[2:], []))
        elif line.startswith("> ") and found and not found[-1].prints:
            found[-1] = Command(f"{found[-1].text}\n{line[2:]}", [])
        else:
            assert found, f"{block.where}: no command before {line!r}"
            found[-1].prints.append(line)
    return found


def form(line: str) -> str:
    line = conversations.form(line.rstrip())
    for pattern, word in _VARYING:
        line = pattern.sub(word, line)
    return line


def make_run() -> str:
    """The command that `make run` runs."""
    makefile = (ROOT / "Makefile").read_text("utf-8")
    match = re.search(r"^run:.*\n(?:\t@echo .*\n)?\t@exec \$\(BIN\)/(.*)$", makefile, re.MULTILINE)
    assert match, "the Makefile has no `run` as it used to"
    return match.group(1)


class Terminal:
    """A background command of a page, and its output so far."""

    def __init__(self, command: str, folder: Path, env: dict[str, str]) -> None:
        self.lines: list[str] = []
        self._screen, inner = pty.openpty()
        self._process = subprocess.Popen(
            ["bash", "-c", command],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=inner,
            stderr=inner,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
        os.close(inner)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        rest = b""
        with contextlib.suppress(OSError):  # the error of a terminal whose program has ended
            while chunk := os.read(self._screen, 65536):
                *whole, rest = (rest + chunk).split(b"\n")
                self.lines += [line.decode(errors="replace").rstrip("\r") for line in whole]

    def expect(self, lines: list[str]) -> None:
        """Wait until the output contains these lines in order; other lines may be between them."""
        wanted = [form(line) for line in lines]
        deadline = time.monotonic() + TIMEOUT
        while not in_order(wanted, [form(line) for line in self.lines]):
            assert time.monotonic() < deadline, f"expected {wanted}\nthe output is {self.lines}"
            time.sleep(0.02)

    def wait(self) -> None:
        self._process.wait(TIMEOUT)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join(1.0)
        os.close(self._screen)


def in_order(wanted: list[str], actual: list[str]) -> bool:
    rest = iter(actual)
    return all(line in rest for line in wanted)


class Story:
    #: Values of `run` that are skipped.
    skipped = frozenset({"install", "long"})

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._ports = {str(key.default): str(_free_port()) for key in PORTS}
        self._background: list[tuple[Block, Terminal, list[str]]] = []
        own = ("MILLRACE_", "FAKTORY_", "PYTEST_")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(own)}
        self._env = kept | {
            "PATH": self._path(folder),
            **{key.variable: self._ports[str(key.default)] for key in PORTS},
            "FAKTORY_URL": f"tcp://127.0.0.1:{self._ports['7419']}",
            "NO_COLOR": "1",
            "PYTHONUNBUFFERED": "1",
            "COLUMNS": "80",
        }

    def _path(self, folder: Path) -> str:
        """Prepare the folder, and return the value of PATH for its commands."""
        (folder / ".venv").symlink_to(VENV)
        (folder / "docs").symlink_to(ROOT / "docs")
        return f"{VENV / 'bin'}:{_with_nc(folder)}:{os.environ['PATH']}"

    def tell(self, blocks: list[Block]) -> None:
        blocks = [block for block in blocks if block.language not in CONVERSATIONS]
        if not any(block.directive == "server" for block in blocks):
            self._start(make_run(), [READY])
        for block, following in zip(blocks, [*blocks[1:], None], strict=True):
            if block.directive == "server":
                (command,) = commands(block)
                self._start(command.text.replace("make run", make_run()), command.prints)
            elif block.directive == "file":
                (self._folder / block.value).write_text(self._here(block.text) + "\n", "utf-8")
            elif block.directive == "run" and block.language == "python":
                shown = following.lines if following and following.directive == "output" else []
                self._run_python(block, shown)
            elif block.directive == "run" and block.value not in self.skipped:
                self._run_console(block)
        for block, terminal, prints in self._background:
            terminal.expect(prints)
            if "ends" in block.value:
                terminal.wait()

    def _start(self, command: str, prints: list[str]) -> Terminal:
        terminal = Terminal(self._here(command), self._folder, self._env)
        self._stack.callback(terminal.close)
        terminal.expect([self._here(line) for line in prints])
        return terminal

    def _run_python(self, block: Block, shown: list[str]) -> None:
        script = self._folder / "example.py"
        script.write_text(self._here(block.text), "utf-8")
        self._compare(block, f"{sys.executable} {script}", shown)

    def _run_console(self, block: Block) -> None:
        for command in commands(block):
            if block.value.startswith("background"):
                terminal = self._start(command.text, [])
                prints = [self._here(line) for line in command.prints]
                self._background.append((block, terminal, prints))
            elif block.value == "soon":
                self._compare_soon(block, command)
            else:
                self._compare(block, command.text, command.prints)

    def _compare_soon(self, block: Block, command: Command) -> None:
        """The expected output may appear later."""
        deadline = time.monotonic() + TIMEOUT
        while True:
            try:
                self._compare(block, command.text, command.prints)
            except AssertionError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
            else:
                return

    def _compare(self, block: Block, command: str, prints: list[str]) -> None:
        ran = subprocess.run(
            ["bash", "-c", self._here(command)],
            cwd=self._folder,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT,
        )
        expected = [form(self._here(line)) for line in prints]
        actual = [form(line) for line in ran.stdout.splitlines()]
        assert actual == expected, f"{block.where}: {command}\nprints\n{ran.stdout}"

    def _here(self, text: str) -> str:
        return re.sub(rf"\b({'|'.join(self._ports)})\b", lambda port: self._ports[port[0]], text)


@contextlib.contextmanager
def story(folder: Path) -> Iterator[Story]:
    with contextlib.ExitStack() as stack:
        yield Story(folder, stack)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


_NC = """\
import shutil, socket, sys, threading
wire = socket.create_connection((sys.argv[1], int(sys.argv[2])))
pump = lambda: shutil.copyfileobj(sys.stdin.buffer, wire.makefile("wb", 0))
threading.Thread(target=pump, daemon=True).start()
shutil.copyfileobj(wire.makefile("rb", 0), sys.stdout.buffer)
"""


def _with_nc(folder: Path) -> Path:
    """A folder with a replacement of `nc`, for machines without it."""
    tools = folder / "tools"
    tools.mkdir()
    (tools / "nc.py").write_text(_NC, "utf-8")
    if not any((Path(entry) / "nc").exists() for entry in os.environ["PATH"].split(":")):
        (tools / "nc").write_text(f'#!/bin/sh\nexec {sys.executable} {tools}/nc.py "$@"\n', "utf-8")
        (tools / "nc").chmod(0o755)
    return tools

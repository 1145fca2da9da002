"""The measured servers: how to start, watch and stop each of them.

All listen on 127.0.0.1 only, keep their data in separate folders, and stop when their `with` block
ends.
"""

import contextlib
import ctypes
import importlib.metadata
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from modes import Beanstalkd, Faktory, Goqueue, Masenko, Mode, Qless, QlessScript, Redis, Workq

START_SECONDS = 20.0
RECOVERY_SECONDS = 1800.0  # Millrace loads a full store before it listens
STOP_SECONDS = 40.0  # Millrace waits up to 30 s for its workers
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
PR_SET_PDEATHSIG = 1

LIBC = ctypes.CDLL(None)


class StartError(Exception):
    """The server did not start; the message gives the reason."""


class NotInstalledError(Exception):
    """The server's program is not installed; the message names the package."""


@dataclass(frozen=True)
class Server:
    """One line of the table. `command` gets the data folder and a free port."""

    name: str
    keeps: str  # failures that an acknowledged command survives
    mode: type[Mode]
    program: str
    install: str
    command: Callable[[Path, int], list[str]]
    durability: str = ""  # Millrace's setting
    protocol: str = "faktory"  # which of Millrace's ports

    @property
    def is_millrace(self) -> bool:
        return bool(self.durability)

    def find(self) -> str:
        """The program's path; Millrace's program is in the folder of the running Python."""
        beside = Path(sys.executable).parent / self.program
        found = str(beside) if beside.exists() else shutil.which(self.program)
        if not found:
            raise NotInstalledError(f"{self.name}: no {self.program} here; {self.install}")
        return found

    def version(self) -> str:
        if self.is_millrace:
            return importlib.metadata.version("millrace")
        flag = "-v" if self.program == "beanstalkd" else "--version"
        shown = subprocess.run([self.find(), flag], capture_output=True, text=True, timeout=10)
        words = shown.stdout.split()
        return next((word.removeprefix("v=") for word in words if word[-1:].isdigit()), "?")


def beanstalkd_command(*options: str) -> Callable[[Path, int], list[str]]:
    def command(folder: Path, port: int) -> list[str]:
        filled = [option.format(folder=folder) for option in options]
        return ["-l", "127.0.0.1", "-p", str(port), *filled]

    return command


def redis_command(*options: str) -> Callable[[Path, int], list[str]]:
    def command(folder: Path, port: int) -> list[str]:
        network = ["--bind", "127.0.0.1", "--port", str(port), "--maxclients", "10000"]
        return [*network, "--dir", str(folder), "--save", "", *options]

    return command


def millrace_command(folder: Path, _port: int) -> list[str]:
    return ["serve", "--data", str(folder)]


def millrace(durability: str, keeps: str, protocol: str = "faktory") -> Server:
    return Server(
        name=f"millrace-{durability}" if protocol == "faktory" else f"{protocol}-{durability}",
        keeps=keeps,
        mode=MILLRACE_MODES[protocol],
        program="millrace",
        install="make setup",
        command=millrace_command,
        durability=durability,
        protocol=protocol,
    )


#: Millrace's protocols; each is measured with the other ports disabled.
MILLRACE_MODES: dict[str, type[Mode]] = {
    "faktory": Faktory,
    "workq": Workq,
    "masenko": Masenko,
    "goqueue": Goqueue,
    "qless": Qless,
}
DEBIAN_BEANSTALKD = "install the Debian package beanstalkd"
DEBIAN_REDIS = "install the Debian package redis-server"

SERVERS = (
    Server(
        name="beanstalkd-memory",
        keeps="nothing",
        mode=Beanstalkd,
        program="beanstalkd",
        install=DEBIAN_BEANSTALKD,
        command=beanstalkd_command(),
    ),
    Server(
        name="beanstalkd-f0",
        keeps="power loss",
        mode=Beanstalkd,
        program="beanstalkd",
        install=DEBIAN_BEANSTALKD,
        command=beanstalkd_command("-b", "{folder}", "-f0"),
    ),
    Server(
        name="redis-memory",
        keeps="nothing",
        mode=Redis,
        program="redis-server",
        install=DEBIAN_REDIS,
        command=redis_command("--appendonly", "no"),
    ),
    Server(
        name="redis-always",
        keeps="power loss",
        mode=Redis,
        program="redis-server",
        install=DEBIAN_REDIS,
        command=redis_command("--appendonly", "yes", "--appendfsync", "always"),
    ),
    millrace("fsync", "power loss"),
    millrace("os", "kill -9"),
    millrace("memory", "nothing"),
    millrace("fsync", "power loss", "workq"),
    millrace("memory", "nothing", "workq"),
    millrace("fsync", "power loss", "masenko"),
    millrace("memory", "nothing", "masenko"),
    millrace("fsync", "power loss", "goqueue"),
    millrace("memory", "nothing", "goqueue"),
    Server(
        name="qless-redis",
        keeps="nothing",
        mode=QlessScript,
        program="redis-server",
        install=DEBIAN_REDIS,
        command=redis_command("--appendonly", "no"),
    ),
    Server(
        name="qless-redis-always",
        keeps="power loss",
        mode=QlessScript,
        program="redis-server",
        install=DEBIAN_REDIS,
        command=redis_command("--appendonly", "yes", "--appendfsync", "always"),
    ),
    millrace("fsync", "power loss", "qless"),
    millrace("memory", "nothing", "qless"),
)


def choose(names: str) -> list[Server]:
    """The servers named, in the table's order: full names, or a family such as `redis`."""
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if not wanted:
        return list(SERVERS)
    chosen = [s for s in SERVERS if any(s.name == w or s.name.startswith(f"{w}-") for w in wanted)]
    for name in wanted:
        if not any(s.name == name or s.name.startswith(f"{name}-") for s in SERVERS):
            known = ", ".join(server.name for server in SERVERS)
            raise NotInstalledError(f"there is no server named {name!r}; known are {known}")
    return chosen


@dataclass(frozen=True)
class Running:
    """A server that listens. `started` is its start time in seconds."""

    port: int
    pid: int
    started: float

    def cpu_seconds(self) -> float:
        """User and system time of all its threads, including ended ones."""
        stat = Path(f"/proc/{self.pid}/stat").read_text()
        fields = stat.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS

    def memory(self) -> dict[str, int]:
        """Bytes, by the names of /proc: VmRSS, VmHWM, RssAnon, RssFile."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        pairs = (line.split(":", 1) for line in lines if line.startswith(("Vm", "Rss")))
        return {name: int(value.split()[0]) * 1024 for name, value in pairs}


@contextlib.contextmanager
def running(
    server: Server, folder: Path, settings: dict[str, str] | None = None
) -> Iterator[Running]:
    """Start the server with its data in this folder; stop it with SIGTERM at the end.

    `settings` are additional MILLRACE_* variables. Call it from the main thread: the server ends
    when that thread ends.
    """
    program = server.find()
    data = folder / "data"
    data.mkdir(parents=True, exist_ok=True)
    port = free_port()
    out, err = folder / "stdout", folder / "stderr"
    began = time.monotonic()
    with out.open("wb") as stdout, err.open("wb") as stderr:
        # Output goes to files, because a pipe would fill up during the run. The server has its own
        # session, because Ctrl-C must reach the generator first. Its working folder contains no
        # configuration file.
        process = subprocess.Popen(
            [program, *server.command(data, port)],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            cwd=folder,
            env=environment(server) | (settings or {}),
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509, there are no threads here
        )
    try:
        if server.is_millrace:
            port = wait_ready(process, server.protocol, out, err)
        else:
            wait_listening(process, port, err)
        yield Running(port, process.pid, time.monotonic() - began)
    finally:
        stop(process)


def environment(server: Server) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MILLRACE_")}
    # Without bytecode files, each start would compile the sources that it imports, for 0.2 s.
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    if server.is_millrace:
        for protocol in MILLRACE_MODES:
            port = "0" if protocol == server.protocol else "off"
            kept[f"MILLRACE_{protocol.upper()}_PORT"] = port
        kept["MILLRACE_SERVER_DURABILITY"] = server.durability
    return kept


def die_with_parent() -> None:
    """Kill the server when the benchmark is killed."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def wait_ready(process: subprocess.Popen[bytes], protocol: str, out: Path, err: Path) -> int:
    """Millrace prints `{"ready": true, "ports": {"faktory": N}}` once every port listens."""
    deadline = time.monotonic() + RECOVERY_SECONDS
    while time.monotonic() < deadline:
        for line in out.read_bytes().splitlines(keepends=True):
            if b'"ready"' in line and line.endswith(b"\n"):
                ports = json.loads(line)["ports"]
                if protocol not in ports:
                    raise StartError(f"it has no port for {protocol}")
                return int(ports[protocol])
        check_alive(process, err, out)
        time.sleep(0.002)
    raise StartError("not ready in time" + tail(err, out))


def wait_listening(process: subprocess.Popen[bytes], port: int, err: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        check_alive(process, err)
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.01)
        else:
            return
    raise StartError("not listening in time" + tail(err))


def check_alive(process: subprocess.Popen[bytes], *logs: Path) -> None:
    if process.poll() is not None:
        raise StartError(f"it ended with exit code {process.returncode}" + tail(*logs))


def tail(*logs: Path) -> str:
    lines = [line for log in logs for line in log.read_text(errors="replace").splitlines()[-3:]]
    return "".join(f"\n    {line}" for line in lines)


def stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextlib.contextmanager
def scratch(parent: str) -> Iterator[Path]:
    """A folder for the servers' data, removed at the end."""
    above = Path(parent or "data").absolute()
    above.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=above))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)

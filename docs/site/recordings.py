"""Records `top`, `worker` and `demo` in a real terminal, as animated SVG files in docs/pictures.

    make recordings

The commands run on a pseudo-terminal; pyte interprets their output. A file contains text, colors
and times only: browsers play it without scripts and without a network.
"""

import argparse
import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import tempfile
import termios
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Final

import pyte

ROOT: Final = Path(__file__).parents[2]
COLUMNS: Final = 120
ROWS: Final = 30
#: Seconds between two frames.
FRAME_SECONDS: Final = 0.25
#: Seconds for which the last frame stays.
LAST_SECONDS: Final = 3.0
START_SECONDS: Final = 30.0

CELL_WIDTH: Final = 8
CELL_HEIGHT: Final = 17
MARGIN: Final = 12
BACKGROUND: Final = "#10161d"
FOREGROUND: Final = "#d7dde4"
COLORS: Final = {
    "black": "#3b4754",
    "red": "#f2736d",
    "green": "#79c77a",
    "brown": "#e0b45c",
    "blue": "#6ea8f0",
    "magenta": "#c990e8",
    "cyan": "#5fc6c9",
    "white": "#d7dde4",
    "brightblack": "#7b8794",
}

Screen = tuple[tuple["Run", ...], ...]


@dataclass(frozen=True)
class Run:
    """Adjacent characters of a line that look alike."""

    column: int
    text: str
    color: str
    background: str
    bold: bool


@dataclass
class Recording:
    """The screens of a terminal: each with its time in seconds from the start."""

    frames: list[tuple[float, Screen]] = field(default_factory=list)

    def add(self, at: float, screen: Screen) -> None:
        if not self.frames or self.frames[-1][1] != screen:
            self.frames.append((at, screen))


def record(
    command: list[str],
    seconds: float,
    env: dict[str, str],
    folder: Path,
    actions: tuple[tuple[float, Callable[[int], object]], ...] = (),
) -> Recording:
    """Run a command on a terminal for some seconds. Each action gets the terminal at its time."""
    terminal = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(terminal)
    recording = Recording()
    pid, descriptor = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execvpe(command[0], command, env)
    _resize(descriptor)
    started = time.monotonic()
    left = sorted(actions, key=lambda action: action[0])
    next_frame = 0.0
    with contextlib.suppress(OSError):  # the program ended
        while (now := time.monotonic() - started) < seconds:
            while left and left[0][0] <= now:
                left.pop(0)[1](descriptor)
            if select.select([descriptor], [], [], 0.05)[0]:
                stream.feed(os.read(descriptor, 65536))
            if now >= next_frame:
                recording.add(now, read_screen(terminal))
                next_frame = now + FRAME_SECONDS
    recording.add(time.monotonic() - started, read_screen(terminal))
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    os.close(descriptor)
    os.waitpid(pid, 0)
    return recording


def _resize(descriptor: int) -> None:
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))


def read_screen(terminal: pyte.Screen) -> Screen:
    return tuple(tuple(_runs(terminal, row)) for row in range(ROWS))


def _runs(terminal: pyte.Screen, row: int) -> Iterator[Run]:
    run: Run | None = None
    for column in range(COLUMNS):
        cell = terminal.buffer[row][column]
        color, background = _color(cell.fg, FOREGROUND), _color(cell.bg, "")
        if cell.reverse:
            color, background = background or BACKGROUND, color
        look = (color, background, cell.bold)
        if run is not None and look == (run.color, run.background, run.bold):
            run = Run(run.column, run.text + cell.data, *look)
        else:
            if run is not None and (run.text.strip() or run.background):
                yield run
            run = Run(column, cell.data, *look)
    if run is not None and (run.text.strip() or run.background):
        yield run


def _color(name: str, default: str) -> str:
    if name == "default":
        return default
    return COLORS.get(name) or COLORS.get(name.removeprefix("bright")) or f"#{name}"


def to_svg(recording: Recording, title: str) -> str:
    """The recording as an animation. With reduced motion, a browser shows the last screen only."""
    rows = max(_used_rows(screen) for _, screen in recording.frames)
    width, height = COLUMNS * CELL_WIDTH + 2 * MARGIN, rows * CELL_HEIGHT + 2 * MARGIN
    first = recording.frames[0][0]
    starts = [at - first for at, _ in recording.frames]
    total = starts[-1] + LAST_SECONDS
    styles, groups = [], []
    for number, (start, end) in enumerate(zip(starts, [*starts[1:], total], strict=True)):
        begin, finish = 100 * start / total, 100 * end / total
        hidden = "" if number == 0 else "0%{visibility:hidden}"
        close = "" if finish >= 100 else f"{finish:.2f}%{{visibility:hidden}}"
        styles.append(f"@keyframes k{number}{{{hidden}{begin:.2f}%{{visibility:visible}}{close}}}")
        styles.append(f"#f{number}{{animation-name:k{number}}}")
        lines = "".join(_lines(recording.frames[number][1]))
        groups.append(f'<g class="f" id="f{number}">{lines}</g>\n')
    last = len(recording.frames) - 1
    style = (
        f".f{{visibility:hidden;animation:{total:.2f}s step-end infinite}}"
        f"text{{white-space:pre;font:14px ui-monospace,'DejaVu Sans Mono',Menlo,monospace}}"
        f".b{{font-weight:700}}{''.join(styles)}"
        f"@media(prefers-reduced-motion:reduce){{.f{{animation:none}}#f{last}{{visibility:visible;"
        "animation:none}}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">\n'
        f"<title>{escape(title)}</title>\n<style>{style}</style>\n"
        f'<rect width="{width}" height="{height}" rx="8" fill="{BACKGROUND}"/>\n'
        f"{''.join(groups)}</svg>\n"
    )


def _used_rows(screen: Screen) -> int:
    return max((number + 1 for number, runs in enumerate(screen) if runs), default=1)


def _lines(screen: Screen) -> Iterator[str]:
    for number, runs in enumerate(screen):
        top = MARGIN + number * CELL_HEIGHT
        for run in runs:
            left, wide = MARGIN + run.column * CELL_WIDTH, len(run.text) * CELL_WIDTH
            if run.background:
                yield (
                    f'<rect x="{left}" y="{top}" width="{wide}" height="{CELL_HEIGHT}" '
                    f'fill="{run.background}"/>'
                )
            text = run.text.rstrip()
            if text:
                bold = ' class="b"' if run.bold else ""
                yield (
                    f'<text{bold} x="{left}" y="{top + 13}" fill="{run.color}" '
                    f'textLength="{len(text) * CELL_WIDTH}">{escape(text)}</text>'
                )


# The sessions


def record_worker(folder: Path, env: dict[str, str]) -> Recording:
    """A worker runs jobs of the tutorial: two that succeed, and one that fails."""
    page = (ROOT / "docs" / "tutorial.md").read_text("utf-8")
    for name, text in re.findall(r"<!-- file: (\S+) -->\n```python\n(.*?)```", page, re.DOTALL):
        (folder / name).write_text(text, "utf-8")
    ports = {f"MILLRACE_{name}_PORT": "off" for name in ("WORKQ", "MASENKO", "GOQUEUE", "QLESS")}
    port = free_port()
    env = env | {"MILLRACE_URL": f"tcp://127.0.0.1:{port}"}
    settings = ports | {"MILLRACE_FAKTORY_PORT": str(port), "MILLRACE_WEB_PORT": "off"}

    def run(script: str) -> Callable[[int], object]:
        return lambda _: subprocess.check_call(
            ["python", script], cwd=folder, env=env, stdout=subprocess.DEVNULL
        )

    with background(["millrace", "serve"], env | settings, folder, port):
        command = ["millrace", "worker", "shop:app", "-c", "2", "--queues", "default,cards"]
        interrupt = (9.0, lambda descriptor: os.write(descriptor, b"\x03"))
        pushes = (2.5, run("buy.py")), (4.5, run("charge.py")), (6.5, run("buy.py"))
        return record(command, 11.0, env, folder, (*pushes, interrupt))


def record_demo(folder: Path, env: dict[str, str]) -> Recording:
    """The demo, from its start to Ctrl-C."""
    command = ["millrace", "demo", "--web-port", str(free_port())]
    interrupt = (8.0, lambda descriptor: os.write(descriptor, b"\x03"))
    return record(command, 12.0, env, folder, (interrupt,))


def record_top(folder: Path, env: dict[str, str]) -> Recording:
    """The live view of a server with the workload of the demo."""
    port = free_port()
    with background(
        ["millrace", "demo", "--rate", "15", "--web-port", str(port)], env, folder, port
    ):
        time.sleep(15)  # until the rates have a history
        return record(["millrace", "top", "--url", f"http://127.0.0.1:{port}"], 12.0, env, folder)


@contextlib.contextmanager
def background(command: list[str], env: dict[str, str], folder: Path, port: int) -> Iterator[None]:
    """Run a command until the block ends. The block begins when the port accepts connections."""
    process = subprocess.Popen(
        command, env=env, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                if time.monotonic() > deadline or process.poll() is not None:
                    raise
                time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait(START_SECONDS)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


SESSIONS: Final = {
    "worker": (record_worker, "millrace worker runs jobs; one fails and will be retried"),
    "demo": (record_demo, "millrace demo starts a server with the workload of a shop"),
    "top": (record_top, "millrace top shows queues, rates and failures"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "pictures")
    parser.add_argument("names", nargs="*", help=f"recordings to make: {', '.join(SESSIONS)}")
    options = parser.parse_args()
    env = {k: v for k, v in os.environ.items() if not k.startswith(("MILLRACE_", "FAKTORY_"))}
    env |= {
        "PATH": f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}",
        "TERM": "xterm-256color",
        "LANG": "C.UTF-8",
    }
    for name in options.names or SESSIONS:
        session, title = SESSIONS[name]
        with tempfile.TemporaryDirectory(prefix="shop-") as folder:
            recording = session(Path(folder), env)
        path = options.out / f"{name}.svg"
        path.write_text(to_svg(recording, title), "utf-8")
        print(f"recordings: {path} ({len(recording.frames)} screens)")


if __name__ == "__main__":
    main()

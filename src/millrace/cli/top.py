"""`millrace top`: a live view of a server in a terminal."""

import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console, ConsoleDimensions, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from millrace.cli.operator_command import EXIT_USAGE, fail, operator_command
from millrace.cli.tables import plural, printable

if TYPE_CHECKING:
    from millrace.cli.remote import Remote

BARS: Final = "▁▂▃▄▅▆▇█"
#: Samples that the sparklines of depths and of rates show.
SPARK_WIDTH: Final = 24
RATE_WIDTH: Final = 12
#: Columns of a terminal from which on the sparklines of rates and of depths have room.
RATES_MIN_WIDTH: Final = 90
DEPTH_MIN_WIDTH: Final = 110
WIDE: Final = ConsoleDimensions(120, 40)
#: Queues that are shown even if the rest does not fit.
MIN_QUEUE_ROWS: Final = 3
MAX_QUEUES: Final = 200
MAX_FAILURES: Final = 5
MAX_WORKERS: Final = 5
MAX_RETRIED: Final = 500
SORTS: Final = ("ready", "name", "dead", "leased", "rate")
HELP: Final = "↑↓ select  s sort  / filter  p pause or resume  r retry dead jobs  q quit"
#: Arrow keys send this and one more character.
SEQUENCE: Final = "\x1b["
SEQUENCE_SIZE: Final = 3
KEYS: Final = {"\x1b[A": "up", "\x1b[B": "down", "\r": "enter", "\n": "enter", "\x7f": "erase"}


@operator_command
def top_command(
    remote: "Remote",
    interval: Annotated[
        float, typer.Option(min=0.2, max=60, help="Seconds between two updates.")
    ] = 1.0,
    *,
    json: bool,
) -> int:
    """Show queues, workers and failures live, and act on queues from the keyboard.

    `ended/s` counts attempts that ended since the last update, with a sparkline of the last twelve
    updates. `p95 run` covers the last five to ten minutes, and `depth` shows the jobs not yet
    leased, every five seconds. With `--json`, prints the current numbers once.

    Examples:
    - `millrace top`
    - `millrace top --url http://queue.example.com:7420`

    """
    from millrace.cli.tables import print_json  # noqa: PLC0415

    view = TopView(remote)
    if json:
        view.update(time.monotonic())
        print_json(
            {
                "overview": view.overview,
                "queues": view.queues,
                "workers": view.workers,
                "failures": view.failures,
            }
        )
        return 0
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return fail("`millrace top` needs a terminal. Use --json in scripts.", EXIT_USAGE)
    with _keyboard() as keys, Live(console=Console(), screen=True, auto_refresh=False) as live:
        view.update(time.monotonic())
        while not view.ended:
            live.update(view.render(live.console.size), refresh=True)
            until = time.monotonic() + interval
            while not view.ended and (left := until - time.monotonic()) > 0:
                if key := keys.read(left):
                    view.press(key)
                    live.update(view.render(live.console.size), refresh=True)
            if not view.ended:
                view.try_update(time.monotonic())
    return 0


class TopView:
    """What is shown, and what the keys do."""

    def __init__(self, remote: "Remote") -> None:
        self._remote = remote
        self.overview: dict[str, Any] = {}
        self.queues: list[dict[str, Any]] = []
        self.failures: list[dict[str, Any]] = []
        self.workers: list[dict[str, Any]] = []
        self.ended = False
        self._sort = 0
        self._filter = ""
        self._typing = False
        self._selected = 0
        self._notice = ""
        #: The notice says why the numbers are old.
        self._is_stale = False
        #: The last numbers of processed and failed attempts, with their time.
        self._last: tuple[float, int, int] | None = None
        self._rates = (0.0, 0.0)
        self._queue_rates: dict[str, QueueRate] = {}

    def update(self, now: float) -> None:
        """Read the numbers of the server."""
        read = self._remote.read_list
        self.overview = read("overview")
        self.queues = read("queues", limit=MAX_QUEUES)["queues"]
        self.failures = read("failures", limit=MAX_FAILURES)["failures"]
        self.workers = read("workers", limit=MAX_WORKERS)["workers"]
        processed, failed = self.overview["processed"], self.overview["failures"]
        if self._last is not None and now > self._last[0]:
            span = now - self._last[0]
            self._rates = ((processed - self._last[1]) / span, (failed - self._last[2]) / span)
        self._last = (now, processed, failed)
        known, self._queue_rates = self._queue_rates, {}
        for queue in self.queues:
            rate = self._queue_rates[queue["name"]] = known.get(queue["name"]) or QueueRate()
            rate.add(now, queue["run"]["count"])

    def try_update(self, now: float) -> None:
        """Update, or keep the last numbers and show the reason, for example during a restart."""
        from millrace.cli.control import NotAnswered  # noqa: PLC0415

        try:
            self.update(now)
        except NotAnswered as error:
            self._notice, self._is_stale = printable(str(error)), True
        else:
            if self._is_stale:
                self._notice, self._is_stale = "", False

    def shown(self) -> list[dict[str, Any]]:
        """The queues that match the filter, in their order."""
        found = [queue for queue in self.queues if self._filter in queue["name"]]
        sort = SORTS[self._sort]
        if sort == "name":
            return found
        if sort == "rate":
            return sorted(found, key=lambda queue: -self._queue_rates[queue["name"]].latest)
        return sorted(found, key=lambda queue: -queue["jobs"][sort])

    def press(self, key: str) -> None:
        self._notice = ""
        if self._typing:
            self._type(key)
        elif key == "q":
            self.ended = True
        elif key == "s":
            self._sort = (self._sort + 1) % len(SORTS)
        elif key == "/":
            self._typing, self._filter = True, ""
        elif key in {"up", "down"}:
            self._selected += 1 if key == "down" else -1
        elif key in {"p", "r"}:
            self._act(key)
        self._selected = max(0, min(self._selected, len(self.shown()) - 1))

    def _type(self, key: str) -> None:
        if key == "enter":
            self._typing = False
        elif key == "erase":
            self._filter = self._filter[:-1]
        elif len(key) == 1 and key.isprintable():
            self._filter += key

    def _act(self, key: str) -> None:
        from millrace.cli.control import NotAnswered  # noqa: PLC0415

        shown = self.shown()
        if not shown:
            return
        queue = shown[self._selected]
        try:
            if key == "p":
                action = "resume" if queue["paused"] else "pause"
                self._remote.act_on_queue(queue["name"], action, {})
                queue["paused"] = not queue["paused"]
                self._notice = f'Queue "{printable(queue["name"])}" was {action}d.'
            else:
                count = self._retry(queue["name"])
                self._notice = f"{plural(count)} {'was' if count == 1 else 'were'} made ready."
        except NotAnswered as error:
            self._notice = str(error)

    def _retry(self, name: str) -> int:
        """Retry dead jobs of a queue, up to a number that takes no noticeable time."""
        quoted = name.replace("\\", "\\\\").replace('"', '\\"')
        page = self._remote.search(f'queue:"{quoted}" state:dead', MAX_RETRIED)
        numbers = [job["number"] for job in page["jobs"]]
        return self._remote.act("retry", numbers, {}).done if numbers else 0

    # Drawing

    def render(self, size: ConsoleDimensions = WIDE) -> Group:
        jobs = self.overview.get("jobs", {})
        head = "  ".join(f"{state} {count:,}" for state, count in jobs.items())
        rates = "{:,.1f} attempts/s  {:,.1f} failures/s".format(*self._rates)
        count = self.overview.get("workers", 0)
        text = f"{head}\n{rates}  {plural(count, 'worker')}"
        # Two lines above the tables, one below, and the heads of three tables.
        rows = size.height - 6 - len(self.workers) - len(self.failures)
        return Group(
            Text(text, style="bold", no_wrap=True, overflow="ellipsis"),
            self._queue_table(size.width, max(MIN_QUEUE_ROWS, rows)),
            self._worker_table(),
            self._failure_table(),
            Text(self._footer(), style="reverse", no_wrap=True, overflow="ellipsis"),
        )

    def _queue_table(self, width: int, rows: int) -> Table:
        """The queues around the selected one. A narrow terminal shows no sparklines."""
        table = Table(box=None, expand=True, header_style="bold")
        table.add_column("queue", overflow="ellipsis", no_wrap=True)
        for name in ("ready", "scheduled", "leased", "dead", "ended/s"):
            table.add_column(name, justify="right", no_wrap=True)
        with_rates, with_depth = width >= RATES_MIN_WIDTH, width >= DEPTH_MIN_WIDTH
        if with_rates:
            table.add_column("", no_wrap=True)
        table.add_column("p95 run", justify="right", no_wrap=True)
        if with_depth:
            table.add_column("depth", no_wrap=True)
        table.add_column("", no_wrap=True)
        shown = self.shown()
        first = max(0, min(self._selected - rows // 2, len(shown) - rows))
        for place, queue in enumerate(shown[first : first + rows], first):
            jobs, rate = queue["jobs"], self._queue_rates[queue["name"]]
            table.add_row(
                Text(printable(queue["name"])),
                *(f"{jobs[name]:,}" for name in ("ready", "scheduled", "leased", "dead")),
                f"{rate.latest:,.1f}",
                *([sparkline(rate.all)] if with_rates else []),
                f"{queue['run']['p95']:.3f} s" if queue["run"]["count"] else "",
                *([sparkline(queue["depths"][-SPARK_WIDTH:])] if with_depth else []),
                "paused" if queue["paused"] else "",
                style="reverse" if place == self._selected else "",
            )
        return table

    def _worker_table(self) -> Table:
        table = Table(box=None, expand=True, header_style="bold")
        for name in ("worker", "protocol", "host", "state"):
            table.add_column(name, overflow="ellipsis", no_wrap=True)
        table.add_column("jobs", justify="right")
        table.add_column("running", overflow="ellipsis", no_wrap=True)
        for each in self.workers:
            kinds = ", ".join(sorted({job["kind"] or job["queue"] for job in each["jobs"]}))
            cells = (each["id"], each["protocol"], each["hostname"], each["state"] or "running")
            table.add_row(
                *(Text(printable(cell)) for cell in cells),
                f"{each['count']:,}",
                Text(printable(kinds)),
            )
        return table

    def _failure_table(self) -> Table:
        table = Table(box=None, expand=True, header_style="bold")
        for name in ("error", "message"):
            table.add_column(name, overflow="ellipsis", no_wrap=True)
        for name in ("dead", "retrying"):
            table.add_column(name, justify="right")
        for each in self.failures:
            table.add_row(
                Text(printable(each["group"])),
                Text(printable(each["message"])),
                f"{each['dead']:,}",
                f"{each['retrying']:,}",
            )
        return table

    def _footer(self) -> str:
        if self._typing:
            return f"filter: {self._filter}_  (Enter)"
        chosen = f"sorted by {SORTS[self._sort]}"
        if self._filter:
            chosen += f", filter {self._filter}"
        return f"{self._notice or HELP}  [{chosen}]"


class QueueRate:
    """Attempts that ended per second, of one queue."""

    def __init__(self) -> None:
        #: The newest rates, oldest first.
        self.all: deque[float] = deque(maxlen=RATE_WIDTH)
        self._last: tuple[float, int] | None = None

    @property
    def latest(self) -> float:
        return self.all[-1] if self.all else 0.0

    def add(self, now: float, count: int) -> None:
        """Add the number of attempts that ended in the server's window. When the window moves, the
        number falls; the rate is then the last one.
        """
        if self._last is not None and now > self._last[0]:
            since, before = self._last
            self.all.append((count - before) / (now - since) if count >= before else self.latest)
        self._last = (now, count)


def sparkline(values: Sequence[float]) -> str:
    """Numbers as bars of eight heights."""
    top = max(values, default=0)
    return "".join(BARS[int(value * (len(BARS) - 1) / top)] if top else BARS[0] for value in values)


class Keyboard:
    """Single keys of a terminal in cbreak mode."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        #: Characters that were read and not returned yet: a fast user types several at once.
        self._pending = ""

    def read(self, timeout: float) -> str:
        """The next key, or an empty text after the timeout."""
        if not self._pending:
            readable, _, _ = select.select([self._descriptor], [], [], timeout)
            if not readable:
                return ""
            self._pending = os.read(self._descriptor, 1024).decode(errors="ignore")
        size = SEQUENCE_SIZE if self._pending.startswith(SEQUENCE) else 1
        text, self._pending = self._pending[:size], self._pending[size:]
        return KEYS.get(text) or ("" if text.startswith(SEQUENCE) else text)


@contextlib.contextmanager
def _keyboard() -> Iterator[Keyboard]:
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield Keyboard(descriptor)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)

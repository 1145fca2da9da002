"""No command of any protocol, in its most expensive form, blocks the loop for long.

The rows are derived from the dispatch tables (command_tables.py), so a new command without a row
fails. The cost of a callback is the number of executed lines of Python: about 70,000 are 10 ms on
the machine of bench/README.md. The world here is 1/50 of the full size (`make abuse` uses 1,000,000
jobs and reports seconds), so a callback whose cost grows with the world exceeds the bound by far.
"""

import contextlib
import json
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import expensive_rows
import line_counter
import pytest
import web_rows
from command_rows import ROWS, Request, Stage
from command_tables import served
from measured_server import LargeWorld, Sizes, Slice

from millrace.protocols.qless import keys

SIZES = Sizes(20_000, 5_000, 5_000)
#: Lines of Python that one callback may execute.
MAX_UNITS = 30_000
#: Rows above the bound by name, with their ceiling and the reason. The list may only shrink: a row
#: that keeps the bound must not be here.
EXCEPTIONS: dict[str, tuple[int, str]] = {}
#: The start of the reply of a row that gets an error, or an empty one while it waits. Every other
#: row must take its expensive path.
ERROR_REPLIES = {
    "faktory FETCH": "",
    "faktory BATCH": "-ERR batch subsystem is only available",
    "faktory TRACK": "-ERR tracking subsystem is only available",
    "workq run": "-TIMEOUT",
    "workq lease": "-TIMEOUT",
    "redis SCRIPT KILL": "-NOTBUSY",
}
_ERRORS = {"masenko": ("ERROR", "FAIL"), "goqueue": ("ERROR",)}


@pytest.fixture(scope="module")
def world() -> LargeWorld:
    expensive_rows.use(SIZES)
    return LargeWorld(SIZES)


def rows() -> list[tuple[str, Callable[[Stage], Request]]]:
    """Dialect T has the commands of C and D, which have their own rows."""
    expensive_rows.use(SIZES)
    return [row for row in expensive_rows.rows() if not row[0].startswith("T ")]


def test_every_command_has_a_row() -> None:
    known = {(row.protocol, row.command) for row in ROWS}
    variants = {row for row in known if row[1].endswith(" scratch")}
    assert known - variants == served()
    assert set(expensive_rows.FORMS) <= known


@pytest.mark.parametrize("protocol", ["faktory", "workq", "masenko", "goqueue", "control", "GET"])
def test_a_callback_is_short(world: LargeWorld, protocol: str) -> None:
    _check(world, protocol)


@pytest.mark.parametrize("dialect", ["redis", "spec", "C", "D"])
def test_a_callback_of_the_qless_port_is_short(world: LargeWorld, dialect: str) -> None:
    _check(world, dialect)


def test_every_route_has_a_row() -> None:
    """A page or GET route without a request is a redirect, or listed with the reason."""
    known = {name.split(" ")[1] for name, _ in web_rows.rows()}
    room = web_rows.room()
    for path in web_rows.paths():
        if path not in web_rows.WITHOUT_REQUESTS and path not in known:
            assert web_rows.requests_of(path, room) == [], path
    assert set(web_rows.WITHOUT_REQUESTS) <= set(web_rows.paths())


def test_every_exception_is_a_row() -> None:
    names = {name for name, _ in rows()}
    assert set(EXCEPTIONS) <= names
    assert set(ERROR_REPLIES) <= names


def _check(world: LargeWorld, protocol: str) -> None:
    problems: list[str] = []
    for name, prepare in rows():
        if name.split(" ")[0] == protocol:
            found = world.measure(prepare, units=True)
            problems += _problems(name, protocol, found)
    assert not problems, "\n".join(problems)


def _problems(name: str, protocol: str, found: Slice) -> Iterator[str]:
    reply = found.reply[2:-1]
    if name in ERROR_REPLIES:
        if not reply.startswith(ERROR_REPLIES[name]):
            yield f"{name}: {reply}"
    elif _is_error(protocol, reply):
        yield f"{name} receives an error: {reply}"
    ceiling, _ = EXCEPTIONS.get(name, (MAX_UNITS, ""))
    if found.cost > ceiling:
        yield f"{name}: {found.cost} lines in one callback: {found.where}"
    elif name in EXCEPTIONS and found.cost <= MAX_UNITS:
        yield f"{name} needs no exception: {found.cost} lines"


def _is_error(protocol: str, reply: str) -> bool:
    if protocol in {"control", "GET"}:  # the measured server has no process to report about
        return reply.startswith('{"error"') and '"unavailable"' not in reply
    return not reply or reply.startswith(_ERRORS.get(protocol, ("-",)))


def test_the_measurement_detects_a_long_callback(
    world: LargeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that examines all jobs at once exceeds the bound: the test can fail."""
    prepare = dict(rows())["redis DBSIZE"]
    assert world.measure(prepare, units=True).cost <= MAX_UNITS
    monkeypatch.setattr(keys, "NAMES_BATCH_SIZE", SIZES.jobs)
    found = world.measure(prepare, units=True)
    assert found.cost > MAX_UNITS
    assert list(_problems("redis DBSIZE", "redis", found)) != []


def test_both_counters_agree() -> None:
    """The tests use the counter in C where a compiler is installed."""
    if line_counter.in_c() is None:
        pytest.skip("gcc or the header files of Python are missing")

    def call() -> None:
        for word in ("1", "x", "22"):
            with contextlib.suppress(ValueError):
                json.loads(word)
            textwrap.fill(word)

    tests = str(Path(__file__).parent)
    found = line_counter.counted(call, tests)
    assert found == line_counter.counted_in_python(call, tests)
    assert found.total() > 100
    assert not {code for code in found if code.co_filename.startswith(tests)}

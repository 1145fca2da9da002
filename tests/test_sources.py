"""Rules about the text of the sources. The limits for known offenders may only be lowered."""

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import millrace
from millrace.engine.job import Extra, Job, LeaseHistory
from millrace.engine.queues import Queue
from support.plain import field_names

PACKAGE = Path(millrace.__file__).parent
ROOT = PACKAGE.parents[1]

#: Fields that only engine/ assigns.
JOB_FIELDS = frozenset(field_names(Job) + field_names(LeaseHistory) + field_names(Extra))
QUEUE_FIELDS = frozenset(Queue.__slots__)
#: Packages that handle the engine's jobs and queues. Elsewhere `job` is a record of another type.
SCANNED = ("protocols", "server", "store", "journal", "admin")

BANNED = re.compile(
    r"\b(whoever|whomever|somebody|nobody|anybody|everybody|those who|so many|is told|are told"
    r"|be told|anew|seldom|lately|forsake\w*|forlorn|so-manieth|mend(?:ed|s|ing)?|haunt\w*"
    r"|corpses?|deafen\w*)\b",
    re.IGNORECASE,
)
#: Occurrences that are left in src/, and the packages that have none.
MAX_BANNED = 16
CLEAN: tuple[str, ...] = (
    "cli",
    "client",
    "config",
    "engine",
    "protocols",
    "records",
    "server",
    "store",
)

#: Folders outside src/ without banned words. Of tests/, also its modules except this one.
CLEAN_FOLDERS = (
    "bench",
    "tests/abuse",
    "tests/bench",
    "tests/clients",
    "tests/conformance",
    "tests/crash",
    "tests/disk",
    "tests/docs",
    "tests/fuzz",
    "tests/journal",
    "tests/pipeline",
    "tests/simulation",
    "tests/soak",
    "tests/speakers",
    "tests/support",
    "tools",
)

#: Names of the SDK that the server uses, too. An application imports only the SDK.
SDK_NAMES = frozenset({"Connection", "Job", "NewJob", "Worker"})


class Facts(NamedTuple):
    """What the rules need from a source, so that it is parsed once."""

    #: Names of the classes.
    classes: list[str]
    #: Line and field of each assignment to a field of `job` or `queue`.
    writes: list[tuple[int, str]]
    #: Docstrings and messages.
    texts: list[str]


@cache
def facts(source: str) -> Facts:
    found = Facts([], [], [])
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.ClassDef():
                found.classes.append(node.name)
            case ast.Constant(value=str(text)) if text.count(" ") >= 2:
                found.texts.append(text)
            case ast.Attribute() if not isinstance(node.ctx, ast.Load):
                found.writes.extend(write(node))
    return found


def write(node: ast.Attribute) -> Iterator[tuple[int, str]]:
    root = node.value
    while isinstance(root, ast.Attribute):
        root = root.value
    name = root.id if isinstance(root, ast.Name) else ""
    if (name == "job" and node.attr in JOB_FIELDS) or (
        name == "queue" and node.attr in QUEUE_FIELDS
    ):
        yield node.lineno, f"{name}.{node.attr}"


def writes(source: str) -> list[tuple[int, str]]:
    return facts(source).writes


def comments(source: str) -> Iterator[str]:
    if BANNED.search(source) is None:
        return  # a comment is one line of the source, so none of them has a banned word
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def banned(source: str) -> list[str]:
    """The banned words in docstrings, messages and comments."""
    prose = [*facts(source).texts, *comments(source)]
    return [found.group() for text in prose for found in BANNED.finditer(text)]


def modules(*packages: str) -> Iterator[tuple[str, str]]:
    for package in packages or ("",):
        for path in sorted((PACKAGE / package).rglob("*.py")):
            yield path.relative_to(PACKAGE).as_posix(), path.read_text()


def test_only_the_engine_assigns_fields_of_jobs_and_queues() -> None:
    found = {name: lines for name, source in modules(*SCANNED) if (lines := writes(source))}
    assert found == {}


def test_only_transitions_assign_the_state_of_a_job() -> None:
    found = {
        name
        for name, source in modules("engine")
        if any(field == "job.state" for _, field in writes(source))
    }
    assert found == {"engine/transitions.py"}


def test_class_names_are_unique() -> None:
    """A search for a class finds one definition."""
    found = defaultdict(list)
    for path in sorted(PACKAGE.parent.rglob("*.py")):
        for name in facts(path.read_text()).classes:
            found[name].append(path.relative_to(PACKAGE.parent).as_posix())
    twice = {name: paths for name, paths in found.items() if len(paths) > 1}
    assert {name: paths for name, paths in twice.items() if name not in SDK_NAMES} == {}
    assert all(sum("/client/" not in path for path in twice[name]) == 1 for name in SDK_NAMES)


def test_banned_words_become_fewer() -> None:
    found = {name: words for name, source in modules() if (words := banned(source))}
    assert sum(map(len, found.values())) <= MAX_BANNED
    assert {name: words for name, words in found.items() if name.split("/")[0] in CLEAN} == {}


@pytest.mark.parametrize("folder", [*CLEAN_FOLDERS, "tests/*.py"])
def test_tests_and_tools_have_no_banned_words(folder: str) -> None:
    pattern = folder if folder.endswith(".py") else f"{folder}/**/*.py"
    paths = [path for path in sorted(ROOT.glob(pattern)) if path != Path(__file__)]
    assert paths, "the folder does not exist"
    found = {path.name: words for path in paths if (words := banned(path.read_text("utf-8")))}
    assert found == {}


@pytest.mark.parametrize(
    "source",
    [
        "job.state = 1",
        "job.attempt += 1",
        "job.extra.tags = []",
        "a, job.kind = 1, 2",
        "del job.due_at",
        "queue.paused = True",
        "for job.state in range(3): pass",
    ],
)
def test_an_assignment_is_found(source: str) -> None:
    assert len(writes(source)) == 1


@pytest.mark.parametrize(
    "source", ["state = job.state", "job.other = 1", "row.state = 1", "queue.state == 1"]
)
def test_other_statements_are_not_found(source: str) -> None:
    assert writes(source) == []


@pytest.mark.parametrize(
    "source", ["# ask whoever", '"""Nobody is there."""', 'f("is told a lie")']
)
def test_a_banned_word_is_found(source: str) -> None:
    assert len(banned(source)) == 1


def test_identifiers_and_short_texts_are_not_prose() -> None:
    assert banned("lately = 'anew'\n") == []

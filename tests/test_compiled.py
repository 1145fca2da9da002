"""Silent changes by mypyc must not change the server. `make check` runs this file on the sources,
and on the compiled modules if they are up to date.
"""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random

import msgspec
import pytest
from typer.testing import CliRunner

import millrace
from millrace import compiled
from millrace.admin.errors import AdminError, TargetNotFound
from millrace.cli.app import app
from millrace.engine.engine import Engine
from millrace.engine.job import Job
from millrace.engine.policies import (
    LeaseRights,
    ProtocolRules,
    RetryDecision,
    RetryPolicy,
    RuleTable,
)
from millrace.engine.ready import ReadyQueue
from millrace.engine.states import DEAD, LEASED, READY, SCHEDULED
from millrace.engine.timers import TimerHeap
from millrace.protocols.connection import Hub
from millrace.protocols.faktory.connection import FaktoryConnection
from millrace.protocols.faktory.forms import WorkUnit
from millrace.protocols.faktory.hub import FaktoryHub
from millrace.protocols.masenko.forms import PushArguments
from millrace.protocols.registry import PROTOCOL_NAMES
from millrace.store import records
from scene import SECOND, Scene

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))
import compile as build  # noqa: E402 - the script of `make build`

SOURCES = build.sources()
UNCHECKED = tuple(f"millrace.{package}" for package in build.NOT_IMPORTED)
needs_compiled = pytest.mark.skipif(not compiled.is_in_use(), reason="runs from the sources")


@cache
def trees() -> list[tuple[str, ast.Module]]:
    return [(str(path.relative_to(build.SOURCES)), ast.parse(path.read_text())) for path in SOURCES]


@pytest.fixture(scope="module", autouse=True)
def without_trees_afterwards() -> Iterator[None]:
    yield
    trees.cache_clear()


# 1. Fixed-length tuples have no identity


def test_timers_fire_and_a_replaced_timer_fires_once() -> None:
    timers = TimerHeap()
    timers.set("a", 5)
    timers.set("b", 6)
    timers.set("a", 7)
    timers.set("c", 8)
    timers.cancel("b")
    assert timers.next() == 7
    assert list(timers.due(10, 10)) == ["a", "c"]
    assert timers.next() is None


def test_a_lease_expires_and_a_scheduled_job_becomes_due() -> None:
    scene = Scene()
    leased = scene.pushed_and_leased("leased")
    later = scene.push("later", due_at=scene.now + SECOND)
    assert (leased.state, later.state) == (LEASED, SCHEDULED)
    scene.now = leased.deadline
    scene.engine.tick(scene.now)
    assert leased.state != LEASED
    assert later.state == READY


def test_ranked_jobs_leave_the_ready_queue_in_their_order() -> None:
    scene = Scene()
    jobs = [scene.push(f"job-{rank}", rank=rank) for rank in (1, 5, 3, 2, 4)]
    ready = ReadyQueue()
    for job in jobs:
        ready.add(job)
    ready.remove(jobs[1])
    ready.add(jobs[1])
    ready.remove(jobs[2])
    assert [job.rank for job in iter(ready.pop, None)] == [5, 4, 2, 1]
    assert len(ready) == 0


# 2. Keywords of a class are dropped


def test_no_compiled_module_has_a_class_with_keywords() -> None:
    found = [
        f"{name}: {node.name}"
        for name, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and node.keywords
    ]
    assert found == []


@pytest.mark.parametrize("form", [WorkUnit, PushArguments])
def test_the_forms_of_commands_refuse_unknown_members(form: type) -> None:
    assert form.__struct_config__.forbid_unknown_fields
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"jid":"a","jobtype":"b","args":[],"other":1}', type=form)


def test_records_are_arrays() -> None:
    assert isinstance(records.decode_any(records.encode(Scene().push())), list)


# 3. One name for exceptions of two types


def test_no_function_has_one_name_for_exceptions_of_two_types() -> None:
    found = []
    for name, tree in trees():
        for function in ast.walk(tree):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            types: dict[str, set[str]] = {}
            for node in ast.walk(function):
                if isinstance(node, ast.ExceptHandler) and node.name and node.type:
                    types.setdefault(node.name, set()).add(ast.unparse(node.type))
            found += [f"{name}: {function.name}: {x}" for x, seen in types.items() if len(seen) > 1]
    assert found == []


# 4. Generator expressions are lists

#: Functions that read everything, or that mypyc compiles as a loop.
READS_ALL = {
    "all", "any", "dict", "extend", "frozenset", "fromkeys", "join", "list", "max", "min", "next",
    "set", "sorted", "sum", "tuple", "update", "Counter", "deque",
}  # fmt: skip


def test_generator_expressions_are_read_to_their_end() -> None:
    found = []
    for name, tree in trees():
        allowed: set[ast.AST] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                called = node.func.attr if isinstance(node.func, ast.Attribute) else node.func
                word = called.id if isinstance(called, ast.Name) else called
                if word in READS_ALL:
                    allowed.update(node.args)
            elif isinstance(node, ast.YieldFrom) or (
                isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple)
            ):
                allowed.add(node.value)
        found += [
            f"{name}:{node.lineno}"
            for node in ast.walk(tree)
            if isinstance(node, ast.GeneratorExp) and node not in allowed
        ]
    assert not found, found


def test_the_first_ready_jobs_cost_no_walk_of_the_queue() -> None:
    scene = Scene()
    for number in range(50):
        scene.push(f"job-{number}")
    queue = scene.engine.queues["default"].ready
    first = queue.first(3)
    assert not isinstance(first, list)
    assert [job.jid for job in first] == ["job-0", "job-1", "job-2"]


# 5. Annotations are enforced


@needs_compiled
def test_a_value_of_another_type_is_refused() -> None:
    job = Scene().push()
    with pytest.raises(TypeError):
        job.seq = "1"  # type: ignore[assignment]
    with pytest.raises(TypeError):
        TimerHeap().set("a", "1")  # type: ignore[arg-type]


def test_integers_stay_integers_and_ranks_keep_their_type() -> None:
    scene = Scene()
    assert records.encode(scene.push(rank=3).rank) == b"\x03"
    assert scene.push("other", rank=2.5).rank == 2.5


# 6. Attributes in the class body of a subclass that is not compiled


class _OwnPolicy(RetryPolicy):
    expiry_error = ("OwnGroup", "own message")
    dead_retention = 7

    def after_failure(self, job: Job, now: int, random: Random) -> RetryDecision:
        return RetryDecision(DEAD)


class _OwnHub(Hub):
    code = 1


def test_the_engine_uses_the_attributes_and_methods_of_an_interpreted_policy() -> None:
    rules = RuleTable([ProtocolRules(7, "own", "Own", _OwnPolicy(), LeaseRights())])
    scene = Scene(engine=Engine(Random(1), rules))
    job = scene.push(origin=7)
    scene.engine.lease(["default"], "holder", 7, scene.now)
    scene.now = job.deadline
    scene.engine.tick(scene.now)
    assert job.state == DEAD
    assert job.failure is not None
    assert (job.failure.group, job.due_at) == ("OwnGroup", scene.now + 7)


def test_a_hub_uses_the_code_of_its_subclass() -> None:
    assert _OwnHub(Scene().engine, 1).protocol == PROTOCOL_NAMES[1]


# 7. An abandoned generator does not run its `finally` clauses


def test_generators_with_a_finally_clause_are_listed() -> None:
    """Each of them must be closed explicitly, as `Connection.drop_long_command` does."""
    found = set()
    for name, tree in trees():
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef) and any(
                map(_yields_within, ast.walk(function))
            ):
                found.add(f"{name.removeprefix('millrace/')}: {function.name}")
    assert found == {
        "engine/removal.py: remove_queue_in_slices",  # closed by its only caller
        "protocols/faktory/operator_commands.py: _change_queues",
        "protocols/faktory/operator_commands.py: _remove_queues",  # closed by its only caller
        "protocols/masenko/connection.py: _apply_in_slices",
    }


def _yields_within(node: ast.AST) -> bool:
    if not isinstance(node, ast.With) and not (isinstance(node, ast.Try) and node.finalbody):
        return False
    inner = [each for part in node.body for each in ast.walk(part)]
    return any(isinstance(each, ast.Yield | ast.YieldFrom) for each in inner)


@pytest.mark.parametrize("end", ["drop_input", "connection_lost"])
def test_the_end_of_a_connection_closes_its_long_command(end: str) -> None:
    closed = []

    def work() -> Iterator[None]:
        try:
            yield
        finally:
            closed.append(end)

    hub = FaktoryHub(Scene().engine, started_at=0, challenge=lambda: (1, ""), memory_mb=lambda: 1)
    connection = FaktoryConnection(hub)
    connection.begin_long_command(work())
    connection.run_slice()
    if end == "drop_input":
        connection.drop_input()
    else:
        connection.connection_lost(0)
    assert closed == [end]


# 8. Methods of a compiled class refuse objects of interpreted subclasses that it does not expect


def test_classes_with_interpreted_subclasses_expect_them() -> None:
    """A method of a class without the attribute raises TypeError for such an object."""
    compiled_classes = {
        node.name: node
        for _, tree in trees()
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }
    found = set()
    for path in set((ROOT / "src" / "millrace").rglob("*.py")) - set(SOURCES):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found |= {base.id for base in node.bases if isinstance(base, ast.Name)}
    methods = {
        name: [each for each in node.body if isinstance(each, ast.FunctionDef)]
        for name, node in compiled_classes.items()
    }
    unexpected = {
        name
        for name in found & compiled_classes.keys()
        if methods[name]
        and not any(
            "allow_interpreted_subclasses" in ast.unparse(each)
            for each in compiled_classes[name].decorator_list
        )
    }
    assert unexpected == set()


def test_an_error_of_an_operator_is_created() -> None:
    assert AdminError("no such queue", "not found").code == "not found"
    assert str(TargetNotFound("no such job")) == "no such job"


# The build


def test_all_listed_modules_are_compiled_or_none() -> None:
    names = {build.module_name(path) for path in SOURCES}
    used = {
        name
        for name in names
        if str(getattr(sys.modules.get(name), "__file__", "")).endswith(".so")
    }
    loaded = names & sys.modules.keys()
    assert used == (loaded if compiled.is_in_use() else set())


@pytest.mark.parametrize("damage", ["source", "python", "missing"])
def test_a_build_of_other_sources_is_ignored(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "millrace" / "engine"
    package.mkdir(parents=True)
    (package / "job.py").write_text("a = 1\n")
    monkeypatch.setattr(compiled, "FOLDER", tmp_path / "millrace" / "_compiled")
    compiled.FOLDER.mkdir()
    (compiled.FOLDER / compiled.MANIFEST).write_text(
        compiled.make_manifest(["millrace.engine.job"])
    )
    assert compiled.fresh_modules() == {"millrace.engine.job"}
    if damage == "source":
        (package / "job.py").write_text("a = 2\n")
    elif damage == "python":
        monkeypatch.setattr(compiled, "BUILD", ".cpython-99.so")
    else:
        (compiled.FOLDER / compiled.MANIFEST).unlink()
    assert compiled.fresh_modules() == frozenset()


@pytest.fixture
def generated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Folders for which the check of the build generated code, from copies of some sources."""
    for name in ("engine/job.py", "cli/app.py"):
        (tmp_path / "millrace" / name).parent.mkdir(parents=True)
        (tmp_path / "millrace" / name).write_text("a = 1\n")
    folders: list[Path] = []
    monkeypatch.setattr(build, "SOURCES", tmp_path)
    monkeypatch.setattr(build, "CHECKED", tmp_path / "cache" / "codegen")
    monkeypatch.setattr(build, "generate", folders.append)
    build.check(1)
    return folders


@pytest.mark.parametrize(("change", "times"), [("", 1), ("cli/app.py", 1), ("engine/job.py", 2)])
def test_a_check_of_the_same_sources_generates_no_code(
    change: str, times: int, tmp_path: Path, generated: list[Path]
) -> None:
    if change:
        (tmp_path / "millrace" / change).write_text("a = 2\n")
    build.check(1)
    assert len(generated) == times


def test_a_failed_check_is_repeated(
    tmp_path: Path, generated: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Path) -> None:
        raise SystemExit(1)

    (tmp_path / "millrace" / "engine" / "job.py").write_text("a = 2\n")
    monkeypatch.setattr(build, "generate", refuse)
    for _ in range(2):
        with pytest.raises(SystemExit):
            build.check(1)


def test_the_compiled_modules_import_no_package_without_effect_on_the_check() -> None:
    names = {
        node.module
        for _, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
    }
    assert not {name for name in names if name.startswith(UNCHECKED)}


def test_the_version_reports_the_build() -> None:
    ran = CliRunner().invoke(app, ["version"])
    build_name = "compiled" if compiled.is_in_use() else "pure Python"
    assert ran.output.strip().endswith(f", {build_name})")
    assert millrace.__version__ in ran.output

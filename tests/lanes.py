"""The lane `check`: the tests that start no process, no Spark and no browser.

`pytest --lane check` skips a test file that imports one of NEEDS, directly or through a helper module
of tests/, and every test that uses a fixture which does. A test that starts a process in spite of
this fails.
"""

import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent
#: Modules that start processes, or are used only together with one.
NEEDS = frozenset({"server_process", "subprocess", "multiprocessing", "pyspark", "playwright"})
#: Tests that take more than two seconds of CPU, by file and the start of the name.
SLOW = (
    "test_kills.py::test_a_kill_at_any_step",
    "test_days.py::test_days_of_client",
    "test_job_positions.py::test_the_early_count_equals",
    "test_payload_text.py::test_large_payloads",
    "test_faktory_malformed.py::test_any_work_unit",
    "test_faktory_malformed.py::test_workers_that_come",
    "test_faktory_decisions.py::test_a_lost_worker",
    "test_workq_wire.py::test_names_of_one_lease",
    "test_workq_wire.py::test_a_lease_of_3000",
    "test_admin_slices.py::",
    "test_longest_slices.py::",
    "test_masenko_graphs.py::",
    "test_masenko_atomic.py::test_forty_thousand",
    "test_held.py::test_a_workq_lease",
    "test_consistency.py::test_a_history_of_all",
    "test_web_server.py::test_the_number_of_listeners",
    "test_large_transactions.py::test_long_reads_of_a_transaction_delay_no_other_client[999]",
)
_SLOW = re.compile("|".join(map(re.escape, SLOW)))
_IMPORT = re.compile(r"^\s*(?:from|import) +([\w.]+)(?: import (\([^)]*\)|[^\n]*))?", re.M)


@cache
def helpers() -> dict[str, Path]:
    """The modules of tests/ that are not tests, by the name under which tests import them."""
    return {
        path.stem: path
        for path in TESTS.rglob("*.py")
        if not path.name.startswith("test_") and path.name not in {"conftest.py", "lanes.py"}
    }


@cache
def needs_process(path: Path) -> bool:
    """Whether this file imports one of NEEDS, itself or through a helper."""
    return bool(_reached(path, set()))


def _reached(path: Path, seen: set[Path]) -> bool:
    seen.add(path)
    for found in _IMPORT.finditer(path.read_text()):
        names = {*found[1].split("."), *re.findall(r"\w+", found[2] or "")}
        if found[1].split(".")[0] in NEEDS:
            return True
        if found[1].split(".")[0] == "millrace":
            continue
        for name in names & helpers().keys():
            helper = helpers()[name]
            if helper not in seen and _reached(helper, seen):
                return True
    return False


@cache
def _starts_process(file: str, fixture: str) -> bool:
    path = Path(file)
    if not path.is_relative_to(TESTS):
        return False
    if path == TESTS / "conftest.py":
        return fixture in {"server", "faktory"}
    return needs_process(path)


class CheckLane:
    """Selects the tests of the lane, and fails one that starts a process."""

    def __init__(self) -> None:
        self._started = ""
        sys.addaudithook(self._on_event)

    def _on_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in {"subprocess.Popen", "os.fork", "os.posix_spawn"}:
            self._started = f"{event} {arguments[:2]}"

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        is_test = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
        return True if is_test and needs_process(collection_path) else None

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        left_out = {item for item in items if self._is_left_out(item)}
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]

    def _is_left_out(self, item: pytest.Item) -> bool:
        if _SLOW.search(item.nodeid) or item.get_closest_marker("slow") is not None:
            return True
        found = getattr(item, "_fixtureinfo", None)
        return found is not None and any(
            _starts_process(each.func.__code__.co_filename, each.argname)
            for defs in found.name2fixturedefs.values()
            for each in defs
        )

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Any:
        self._started = ""
        result = yield
        assert not self._started, f"a test of the lane `check` started a process: {self._started}"
        return result

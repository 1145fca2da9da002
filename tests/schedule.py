"""Distribution of the tests over the workers of pytest-xdist.

The tests of one file run on one worker, because they share fixtures. All files that use the Spark
session run on one worker, one after the other: a second Java process would start and compile the
same code again. Groups that take long start first, so that short ones fill up both workers at the
end.
"""

import re
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

ROOT = Path(__file__).parents[1]
SPARK = "spark"
#: Seconds of the files that take long, measured on two idle cores. The order counts, not the value.
SECONDS = {
    SPARK: 400,
    "tests/browser": 20,
    "tests/server/test_server.py": 55,
    "tests/docs/test_examples.py": 50,
    "tests/cli/test_operator_commands.py": 45,
    "tests/server/test_web_process.py": 45,
    "tests/abuse/test_longest_slices.py": 40,
    "tests/simulation/test_simulation.py": 40,
    "tests/bench/test_bench.py": 40,
    "tests/crash/test_crash.py": 40,
    "tests/server/test_journal_shipper.py": 35,
    "tests/server/test_workq_server.py": 35,
    "tests/crash/test_restart_table.py": 35,
    "tests/cli/test_check_and_backup.py": 30,
    "tests/abuse/test_abuse.py": 30,
    "tests/client/test_worker.py": 25,
    "tests/simulation/test_plants.py": 25,
    "tests/crash/test_atomic.py": 20,
    "tests/server/test_masenko_server.py": 15,
    "tests/client/test_faults.py": 15,
    "tests/cli/test_why_command.py": 15,
    "tests/clients": 15,
    "tests/store/test_check.py": 12,
    "tests/store/test_damage.py": 12,
    "tests/client": 10,
    "tests/soak": 10,
    "tests/protocols/test_large_transactions.py": 8,
    "tests/protocols/test_reqless_walks.py": 8,
    "tests/store/test_recovery.py": 8,
    "tests/engine/test_machine.py": 8,
    "tests/crash": 8,
    "tests/cli": 8,
    "tests/pipeline": 8,
    "tests/abuse": 8,
    "tests/server": 5,
    "tests/admin/test_idempotency.py": 5,
    "tests/web/test_api_schema.py": 10,
    "tests/web/test_web_server.py": 5,
    "tests/fuzz/test_targets.py": 5,
    "tests/journal": 4,
    "tests/test_wheel.py": 15,
}
_SESSION = re.compile(r"^\s*def \w+\([^)]*\bspark\b", re.MULTILINE)


class GroupScheduling(LoadFileScheduling):
    """Gives a worker the longest remaining group."""

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        super().__init__(config, log)
        self._groups: dict[str, str] = {}
        self._places: dict[WorkerController, dict[str, int]] = {}

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if file not in self._groups:
            self._groups[file] = group_of(file)
        return self._groups[file]

    def _assign_work_unit(self, node: WorkerController) -> None:
        if node not in self._places:
            tests = self.registered_collections[node]
            self._places[node] = {test: place for place, test in enumerate(tests)}
        group = max(self.workqueue, key=seconds)
        unit = self.workqueue.pop(group)
        self.assigned_work[node][group] = unit
        places = self._places[node]
        node.send_runtest_some([places[test] for test, done in unit.items() if not done])

    def mark_test_complete(
        self, node: WorkerController, item_index: int, duration: float = 0
    ) -> None:
        """Forget a finished group; the superclass counts all tests of a worker after each test."""
        super().mark_test_complete(node, item_index, duration)
        group = self._split_scope(self.registered_collections[node][item_index])
        work = self.assigned_work[node]
        if all(work[group].values()):
            del work[group]


def group_of(file: str) -> str:
    path = ROOT / file
    uses_spark = file.startswith("tests/pipeline/") and _SESSION.search(path.read_text("utf-8"))
    return SPARK if uses_spark else file


def seconds(group: str) -> float:
    """The expected time: that of the group, of its folder, or little."""
    return SECONDS.get(group) or SECONDS.get(group.rpartition("/")[0], 1)

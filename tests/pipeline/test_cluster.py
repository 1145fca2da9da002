"""The same tables on a cluster of several processes: no step depends on a shared process of driver
and workers. `make cluster` does this with a Spark master and two workers.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.oracle import TableOracle
from support.shipped_history import ship_all

EVENTS = 2_000
SCRIPT = Path(__file__).with_name("cluster_run.py")


@pytest.mark.long
def test_a_cluster_without_python_derives_the_same_tables(tmp_path):
    lake = tmp_path / "lake"
    events = sum(history.events for history in ship_all(lake, EVENTS))
    env = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    other = subprocess.run(
        [sys.executable, SCRIPT, lake, "local-cluster[2,1,1024]"],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert (other.returncode, other.stderr) == (0, "")
    assert other.stdout == f"{events} events, 2 executors\n"
    assert TableOracle(lake).all_differences() == []

"""The same tables on a cluster of several processes: nothing works only because driver and workers
share one. `make cluster` does it with a master and two workers of Spark's own.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from engine_history import land

from lake_tables import differences, tables
from millrace.pipeline import audit
from millrace.pipeline.lake import Lake
from millrace.pipeline.run import run
from millrace.pipeline.tables import TABLES

EVENTS = 2_000
SCRIPT = Path(__file__).with_name("cluster_run.py")


@pytest.mark.long
def test_a_cluster_of_processes_without_a_python_makes_the_same_tables(spark, tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    land(here, EVENTS, per_file=700)
    shutil.copytree(here, there)
    ran = run(Lake(here), lambda _: spark)
    assert audit.run(spark, Lake(here)).ok
    env = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    other = subprocess.run(
        [sys.executable, SCRIPT, there, "local-cluster[2,1,1024]"],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert (other.returncode, other.stderr) == (0, "")
    assert other.stdout == f"{ran.taken.events} events, 2 executors\n"
    assert differences(here, there) == []
    filled = {name for name, rows in tables(here).items() if rows}
    assert filled >= TABLES.keys() - {"events", "quarantine", "audit_jobs"}

"""Maintenance of the derived tables: the version of the last run stays readable."""

import os
from pathlib import Path

from millrace.journal import maintenance as journal_maintenance
from millrace.journal.location import LOG
from millrace.pipeline import delta, maintenance
from millrace.pipeline.lake import Lake
from millrace.pipeline.snapshot import Snapshot
from millrace.pipeline.tables import QUEUE_DAY
from report_lake import FIRST, ran, write
from support.shipped_history import rows_of

ROW = {"server": "a", "queue": "q", "day": FIRST}


def test_replaced_files_are_removed_and_the_last_run_stays_readable(
    tmp_path: Path, monkeypatch
) -> None:
    lake = Lake(tmp_path)
    write(lake, QUEUE_DAY, [ROW | {"pushed": 1}])
    table = delta.create(tmp_path, QUEUE_DAY)
    old = delta.files(table, tmp_path, QUEUE_DAY.name)
    delta.commit(tmp_path, QUEUE_DAY, table, delta.Change(None, [str(FIRST)], {}, 2))
    assert not list((tmp_path / QUEUE_DAY.name).glob("_staging-*"))
    write(lake, QUEUE_DAY, [ROW | {"pushed": 2}])
    ran(lake)
    table = delta.create(tmp_path, QUEUE_DAY)
    monkeypatch.setattr(
        maintenance, "checkpoint", lambda *given: journal_maintenance.checkpoint(*given, commits=1)
    )
    monkeypatch.setattr(
        maintenance,
        "vacuum",
        lambda *given, keep_versions: journal_maintenance.vacuum(
            *given, keep_versions=keep_versions, hours=0
        ),
    )
    maintenance.maintain(tmp_path, {QUEUE_DAY.name: table})
    assert old[0].path.exists()  # the first vacuum is due after a day
    assert (tmp_path / QUEUE_DAY.name / LOG / "_last_checkpoint").exists()
    os.utime(tmp_path / QUEUE_DAY.name / "_vacuumed", (0, 0))
    maintenance.maintain(tmp_path, {QUEUE_DAY.name: table})
    assert not old[0].path.exists()
    assert rows_of(Snapshot(tmp_path), QUEUE_DAY)["pushed"].to_pylist() == [2]
    delta.commit(tmp_path, QUEUE_DAY, table, delta.Change(None, None, {}, 3))

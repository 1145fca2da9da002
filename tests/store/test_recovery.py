"""After any crash the store recovers the acknowledged commits, with or without the commit in
progress. It recovers no other state and never refuses the folder. MILLRACE_RECOVERY_SEEDS=20 checks
this number of recorded runs, with several crashes at each point.
"""

import os
from pathlib import Path
from random import Random

import pytest
from recorded import State, Work, record_work, state_of

from disk.crashes import Disk, Files, write_folder
from disk.recording import FAILED, NOTE, SYNC, TRUNCATE, UNLINK
from failing_stores import FailingSqliteStore
from scene import Scene, recover

SEEDS = int(os.environ.get("MILLRACE_RECOVERY_SEEDS", "0"))


def recovered(files: Files, folder: Path) -> tuple[int, State]:
    write_folder(files, folder)
    store = FailingSqliteStore(folder, sync=False, outbox_max=20_000)
    try:
        scene = Scene(recover(store))
        return store._turn, state_of(store, scene)
    finally:
        store.close()


def check(files: Files, folder: Path, work: Work, acknowledged: int, where: str) -> int:
    """Return the recovered turn."""
    try:
        turn, state = recovered(files, folder)
    except Exception as error:
        raise AssertionError(f"{where}: refused without damage: {error}") from error
    assert turn in {acknowledged, acknowledged + 1}, where
    assert state == work.states[turn], where
    return turn


def check_every_prefix(work: Work, folder: Path, seed: int, crashes: int) -> None:
    """Check each prefix, also with its unsynced end lost or torn, in `crashes` ways."""
    rng, disk = Random(seed), Disk(work.before)
    first = min(work.states)
    turn = check(disk.as_it_is(), folder, work, first, "before anything")
    for k, operation in enumerate(work.operations):
        disk.do(operation)
        oldest = max(work.acknowledged[k], first)
        if operation.kind in {NOTE, SYNC, FAILED}:
            assert turn >= oldest, f"seed {seed}, killed after {k}"  # the files are unchanged
            continue
        turn = check(disk.as_it_is(), folder, work, oldest, f"seed {seed}, killed after {k}")
        for _ in range(crashes if disk.unsure else 0):
            check(disk.after_crash(rng), folder, work, oldest, f"seed {seed}, power cut after {k}")


def test_every_prefix_of_the_writes_is_recovered(tmp_path, quick_folder):
    work = record_work(tmp_path, turns=60, seed=1)
    kinds = {operation.kind for operation in work.operations}
    assert {SYNC, TRUNCATE, FAILED, UNLINK} <= kinds, "the recorded run lacks an operation"
    check_every_prefix(work, quick_folder, seed=1, crashes=1)


@pytest.mark.parametrize("version", [2])
def test_every_prefix_of_a_migration_is_recovered(tmp_path, quick_folder, version):
    work = record_work(tmp_path, turns=3, seed=version, version=version)
    check_every_prefix(work, quick_folder, seed=version, crashes=1)


@pytest.mark.skipif(not SEEDS, reason="set MILLRACE_RECOVERY_SEEDS, or use `make recovery`")
@pytest.mark.parametrize("seed", range(100, 100 + SEEDS))
def test_every_prefix_of_long_work_is_recovered(tmp_path, quick_folder, seed):
    work = record_work(tmp_path, turns=400, seed=seed)
    check_every_prefix(work, quick_folder, seed, crashes=4)

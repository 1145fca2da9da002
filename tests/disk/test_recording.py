"""The record of file operations: complete, in order, and with injected failures."""

from pathlib import Path

import pytest

from disk.crashes import disk_after, read_folder
from disk.recording import FAILED, NOTE, OPEN, RENAME, SYNC, TRUNCATE, UNLINK, WRITE, read_record


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "folder"


def test_all_operations_are_recorded_in_order(run_preloaded, folder):
    log = run_preloaded("""
        with recorder.record(folder, log):
            fd = os.open(folder / "a", os.O_RDWR | os.O_CREAT)
            os.write(fd, b"one")
            os.pwrite(fd, b"two", 10)
            os.fsync(fd)
            os.ftruncate(fd, 5)
            os.fdatasync(fd)
            os.close(fd)
            recorder.note("half-way")
            os.rename(folder / "a", folder / "b")
            fd = os.open(folder, os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)
            os.unlink(folder / "b")
        (folder / "later").write_bytes(b"not seen")
    """)
    operations = read_record(log)
    kinds = [OPEN, WRITE, WRITE, SYNC, TRUNCATE, SYNC, NOTE, RENAME, OPEN, SYNC, UNLINK]
    assert [operation.kind for operation in operations] == kinds
    assert operations[0].flag == 1
    assert [(op.offset, op.data) for op in operations[1:3]] == [(0, b"one"), (10, b"two")]
    assert operations[4].offset == 5
    assert operations[6].name == "half-way"
    assert operations[7].name == "a\0b"
    assert operations[8].name == "."


def test_other_folders_and_mapped_files_are_left_out(run_preloaded, folder):
    log = run_preloaded("""
        with recorder.record(folder, log):
            (folder.parent / "folder-beside").write_bytes(b"x")
            (folder / "db-shm").write_bytes(b"x")
            os.chdir(folder)
            Path("here").write_bytes(b"relative")
    """)
    opened = [op.name for op in read_record(log) if op.kind == OPEN]
    assert opened == ["here"]
    assert disk_after(read_record(log)).as_it_is()["here"] == b"relative"


@pytest.mark.parametrize("mode", ["WAL", "DELETE", "TRUNCATE"])
def test_sqlite_operations_can_be_replayed(run_preloaded, folder, mode):
    log = run_preloaded(f"""
        with recorder.record(folder, log):
            db = sqlite3.connect(folder / "db", isolation_level=None)
            db.execute("PRAGMA journal_mode = {mode}")
            db.execute("PRAGMA wal_autocheckpoint = 8")
            db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, b BLOB)")
            for n in range(60):
                db.execute("INSERT INTO t (b) VALUES (?)", (os.urandom(3000),))
                db.execute("DELETE FROM t WHERE id < ? AND id % 3 = 0", (n - 5,))
            db.execute("VACUUM")
            db.execute("INSERT INTO t (b) VALUES (?)", (os.urandom(3000),))
            os._exit(0)  # as if killed
    """)
    operations = read_record(log)
    assert sum(op.kind == SYNC for op in operations) > 60
    assert disk_after(operations).as_it_is() == read_folder(folder)


def test_a_second_record_continues_from_existing_files(run_preloaded, folder):
    log = run_preloaded("""
        for text in (b"first", b"the second"):
            with recorder.record(folder, log):
                (folder / "a").write_bytes(text)
                with open(folder / "more", "ab") as file:
                    file.write(text)
    """)
    operations = read_record(log)
    before = {"a": b"first", "more": b"first"}
    assert disk_after(operations, before).as_it_is() == read_folder(folder)
    assert read_folder(folder)["more"] == b"firstthe second"


def test_a_full_disk_accepts_half_a_write_until_it_is_healed(run_preloaded, folder):
    log = run_preloaded("""
        with recorder.record(folder, log):
            fd = os.open(folder / "a", os.O_RDWR | os.O_CREAT)
            recorder.fail(WRITES, errno.ENOSPC, after=1)
            assert os.pwrite(fd, b"x" * 4096, 0) == 4096
            assert os.pwrite(fd, b"y" * 4096, 4096) == 2048
            for refused in (lambda: os.pwrite(fd, b"y" * 2048, 6144), lambda: os.write(fd, b"y"),
                            lambda: os.posix_fallocate(fd, 0, 1 << 20),
                            lambda: os.ftruncate(fd, 1 << 20)):
                try:
                    refused()
                except OSError as error:
                    assert error.errno == errno.ENOSPC
                else:
                    raise AssertionError("it was to fail")
            os.fsync(fd)
            recorder.heal()
            os.pwrite(fd, b"z", 6144)
    """)
    operations = read_record(log)
    assert sum(op.kind == FAILED for op in operations) == 4
    assert disk_after(operations).as_it_is() == read_folder(folder)
    assert (folder / "a").read_bytes() == b"x" * 4096 + b"y" * 2048 + b"z"


def test_the_given_number_of_syncs_fails(run_preloaded):
    log = run_preloaded("""
        with recorder.record(folder, log):
            fd = os.open(folder / "a", os.O_RDWR | os.O_CREAT)
            recorder.fail(SYNCS, errno.EIO, count=2)
            for _ in range(2):
                try:
                    os.fsync(fd)
                except OSError as error:
                    assert error.errno == errno.EIO
            os.fsync(fd)
    """)
    kinds = [op.kind for op in read_record(log)]
    assert kinds == [OPEN, FAILED, FAILED, SYNC]


def test_sqlite_reports_a_full_disk(run_preloaded):
    run_preloaded("""
        db = sqlite3.connect(folder / "db", isolation_level=None)
        db.close()
        with recorder.record(folder, log):
            db = sqlite3.connect(folder / "db", isolation_level=None)
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("CREATE TABLE t (b)")
            recorder.fail(WRITES, after=3)
            try:
                for _ in range(9):
                    db.execute("INSERT INTO t VALUES (zeroblob(9000))")
            except sqlite3.Error as error:
                assert error.sqlite_errorcode == sqlite3.SQLITE_FULL, error
            else:
                raise AssertionError("it was to fail")
            recorder.heal()
            db.execute("INSERT INTO t VALUES (1)")
    """)


def test_a_missing_library_is_reported(monkeypatch):
    from disk.recording import Recorder, missing

    if reason := missing():
        pytest.skip(reason)
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    with pytest.raises(RuntimeError, match="without preloaded"):
        Recorder()

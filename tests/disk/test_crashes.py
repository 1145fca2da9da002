"""The data that the model of a disk keeps and may lose in a crash."""

from random import Random

from disk.crashes import SECTOR, Disk, read_folder, write_folder
from disk.recording import OPEN, RENAME, SYNC, TRUNCATE, UNLINK, WRITE, Operation


def op(kind: int, file: int = 1, data: bytes = b"", offset: int = 0, flag: int = 0) -> Operation:
    return Operation(kind, flag, file, offset, data)


def disk_of(*operations: Operation, **files: bytes) -> Disk:
    disk = Disk(files)
    for operation in (op(OPEN, 9, b"."), *operations):
        disk.do(operation)
    return disk


CREATED = (op(OPEN, 1, b"a", flag=1), op(SYNC, 9))


def outcomes(disk: Disk, rounds: int = 400) -> set[bytes | None]:
    return {disk.after_crash(Random(seed)).get("a") for seed in range(rounds)}


def test_synced_data_is_kept():
    disk = disk_of(*CREATED, op(WRITE, data=b"safe"), op(SYNC))
    assert outcomes(disk) == {b"safe"}
    assert not disk.unsure


def test_unsynced_data_is_kept_or_lost():
    disk = disk_of(*CREATED, op(WRITE, data=b"safe"), op(SYNC), op(WRITE, data=b"lost", offset=4))
    assert outcomes(disk) == {b"safe", b"safe\0\0\0\0", b"safelost"}
    assert disk.as_it_is() == {"a": b"safelost"}
    assert disk.as_synced() == {"a": b"safe"}
    assert disk.unsure


def test_writes_arrive_in_any_order():
    writes = [op(WRITE, data=b"1"), op(WRITE, data=b"2", offset=1), op(WRITE, data=b"3", offset=2)]
    found = outcomes(disk_of(*CREATED, *writes))
    assert {b"", b"1", b"12", b"123", b"\0\x003", b"1\x003", b"\x002"} <= found


def test_a_write_is_torn_at_its_sectors():
    data = b"a" * SECTOR + b"b" * SECTOR
    found = outcomes(disk_of(*CREATED, op(WRITE, data=data, offset=100)))
    whole = bytes(100) + data
    assert {b"", whole, whole[:SECTOR]} <= found
    assert all(len(content) in {0, SECTOR, 2 * SECTOR, len(whole)} for content in found)


def test_a_truncation_can_be_lost():
    disk = disk_of(op(OPEN, 1, b"a"), op(TRUNCATE, offset=1), a=b"long")
    assert outcomes(disk) == {b"l", b"long"}


def test_a_file_has_its_name_once_the_folder_is_synced():
    disk = disk_of(op(OPEN, 1, b"a", flag=1), op(WRITE, data=b"x"), op(SYNC))
    assert outcomes(disk) == {None, b"x"}
    disk.do(op(SYNC, 9))
    assert outcomes(disk) == {b"x"}


def test_a_rename_happens_or_not():
    disk = disk_of(op(OPEN, 1, b"aside", flag=1), op(WRITE, data=b"new"), op(SYNC), a=b"old")
    disk.do(op(RENAME, 0, b"aside\0a"))
    assert outcomes(disk) == {b"old", b"new"}
    disk.do(op(SYNC, 9))
    assert disk.after_crash(Random(1)) == {"a": b"new"}


def test_a_removal_happens_or_not_and_a_new_file_is_not_the_old_one():
    disk = disk_of(op(UNLINK, 0, b"a"), op(OPEN, 1, b"a", flag=1), op(WRITE, data=b"new"), a=b"old")
    assert outcomes(disk) == {b"old", None, b"", b"new", bytes(3)}


def test_a_folder_is_written_and_read(tmp_path):
    files = {"a": b"1", "b": b""}
    write_folder({"c": b"gone"}, tmp_path / "folder")
    write_folder(files, tmp_path / "folder")
    (tmp_path / "folder" / "b-shm").write_bytes(b"not kept")
    assert read_folder(tmp_path / "folder") == files

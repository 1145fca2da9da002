"""Logs of Masenko, written as its Go code writes them."""

import struct
import zlib
from pathlib import Path

import pytest
from import_source import read, run_import

from admin_room import Room
from millrace.engine.states import BLOCKED, READY, SCHEDULED
from millrace.migration.masenko import MasenkoSource
from millrace.migration.source import SourceError
from millrace.protocols.registry import MASENKO

SECOND = 1_000_000
NOW = 1_790_000_000


def add(
    number: int,
    name: str = "register",
    queue: str = "default",
    payload: bytes = b'{"a":1}',
    *,
    dead: str = "",
    at: int = 0,
    retry: int = 20,
    blockers: tuple[int, ...] = (),
) -> bytes:
    texts = b"".join(bytes([len(text)]) + text.encode() for text in (queue, name, dead))
    tail = struct.pack(f"<IBB{len(blockers)}I", at, retry, len(blockers), *blockers)
    return struct.pack("<BI", 1, number) + texts + struct.pack("<H", len(payload)) + payload + tail


def delete(number: int) -> bytes:
    return struct.pack("<BI", 2, number)


def fail(number: int, at: int) -> bytes:
    return struct.pack("<BII", 4, number, at)


def next_id(number: int) -> bytes:
    return struct.pack("<BI", 8, number)


def record(*operations: bytes) -> bytes:
    body = struct.pack("<H", len(operations))
    body += b"".join(struct.pack("<H", len(each)) + each for each in operations)
    return struct.pack("<II", len(body), zlib.crc32(body)) + body


def write(folder: Path, *records: bytes, name: str = "masenko.1500000000000000000.wal") -> Path:
    (folder / name).write_bytes(b"".join(records))
    return folder


def test_the_bytes_of_the_original() -> None:
    """OpAdd{ID: 1, Queue: "q", Name: "n", Payload: "{}", Retry: 2} as one record."""
    body = bytes.fromhex("0100 1400 01 01000000 0171 016e 00 0200 7b7d 00000000 02 00")
    made = record(add(1, "n", "q", b"{}", retry=2))
    assert made == len(body).to_bytes(4, "little") + zlib.crc32(body).to_bytes(4, "little") + body


def test_tasks_continue(tmp_path: Path) -> None:
    write(
        tmp_path,
        record(add(1)),
        record(add(2, "mail", "mail", b"[]", dead="buried", retry=3)),
        record(add(3), add(4, blockers=(3,)), add(5, blockers=(4, 1))),
        record(delete(1)),
        record(fail(2, NOW + 16)),
        record(add(6, at=NOW + 500)),
        record(delete(6), add(6, "late", "buried")),  # moved to its dead queue
        record(next_id(9)),
    )
    write(tmp_path, record(add(77)), name="masenko.0400000000000000000.wal")  # an older log
    write(tmp_path, record(add(78)), name="masenko.inprogress.wal")
    room = Room()
    room.now = NOW * SECOND
    source = MasenkoSource(tmp_path, room.now)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert [each.part for each in read(source)[0]] == [
        "retries",
        "queues",
        "dependencies",
        "dependencies",
        "queues",
    ]
    assert run_import(room, source) == []
    jobs = {int(jid.rpartition("-")[2]): room.engine.find(jid) for jid in list(room.engine.by_jid)}
    assert {number: job.state for number, job in jobs.items()} == {
        2: SCHEDULED,
        3: READY,
        4: BLOCKED,
        5: BLOCKED,
        6: READY,
    }
    assert (jobs[2].failures, jobs[2].due_at, jobs[2].retries) == (1, (NOW + 16) * SECOND, 3)
    assert jobs[2].extra.dead_queue == "buried"
    assert (jobs[6].queue, jobs[6].kind) == ("buried", "late")
    for number in (3, 4, 5):  # each unblocks the next
        leased = room.engine.lease(["default"], "w", MASENKO, room.now)
        assert leased is jobs[number]
        room.engine.complete(leased, room.now, MASENKO)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_torn_end_is_noted(tmp_path: Path) -> None:
    whole, torn = record(add(1)), record(add(2))
    for size in (1, 7, 8, 9, len(torn) - 1):
        write(tmp_path, whole, torn[:size])
        source = MasenkoSource(tmp_path, NOW * SECOND)
        assert [each.job.kind for each in read(source)[0]] == ["register"]
        (note,) = source.notes()
        assert f"incomplete record of {size} bytes" in note.reason


def test_damage_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no log of Masenko"):
        MasenkoSource(tmp_path, NOW)
    with pytest.raises(SourceError, match="Cannot read"):
        MasenkoSource(tmp_path / "none", NOW)
    good = record(add(1))
    write(tmp_path, good[:-1] + b"X", good)
    with pytest.raises(SourceError, match="wrong checksum"):
        MasenkoSource(tmp_path, NOW)
    write(tmp_path, record(b"\x40\0\0\0\0"))
    with pytest.raises(SourceError, match="unknown operation 64"):
        MasenkoSource(tmp_path, NOW)

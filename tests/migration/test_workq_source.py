"""Command logs of Workq, written as its Go code writes them."""

import struct
from pathlib import Path
from uuid import UUID

import pytest
from import_source import read, run_import

from admin_room import Room
from millrace.engine.states import DEAD, READY, SCHEDULED
from millrace.migration.source import SourceError
from millrace.migration.workq import WorkqSource, crc32c
from millrace.protocols.registry import WORKQ
from millrace.protocols.workq import jobs as workq_jobs

SECOND = 1_000_000
NOW = 1_790_000_000
HEADER = bytes.fromhex("7771777100000001")
ZERO = -62_135_596_800


def uuid(number: int) -> UUID:
    return UUID(int=number, version=4)


def unsigned(value: int) -> bytes:
    found = b""
    while value >= 0x80:
        found += bytes([value & 0x7F | 0x80])
        value >>= 7
    return found + bytes([value])


def signed(value: int) -> bytes:
    return unsigned(value << 1 if value >= 0 else ~(value << 1))


def go_time(seconds: int, nanoseconds: int = 0) -> bytes:
    return struct.pack(">BqiH", 1, seconds + 62_135_596_800, nanoseconds, 0xFFFF)


def text(value: bytes) -> bytes:
    return unsigned(len(value)) + value


def job(
    number: int,
    payload: bytes = b"data",
    *,
    ttl: int = 86_400_000,
    priority: int = 0,
    attempts: int = 0,
    fails: int = 0,
    at: int = ZERO,
    created: int = NOW - 60,
) -> bytes:
    numbers = unsigned(5000) + unsigned(ttl) + signed(priority) + unsigned(attempts)
    numbers += unsigned(fails)
    times = go_time(at) + go_time(created, 500_000)
    return uuid(number).bytes + text(b"ping") + numbers + text(payload) + times


def command(kind: int, number: int, more: bytes = b"") -> bytes:
    return bytes([kind]) + uuid(number).bytes + more


def record(body: bytes) -> bytes:
    data = go_time(NOW - 50) + text(body)
    return data + struct.pack(">I", crc32c(data))


def write(folder: Path, *bodies: bytes, number: int = 1) -> None:
    (folder / f"{number:09}.log").write_bytes(HEADER + b"".join(map(record, bodies)))


def test_the_checksum_is_that_of_castagnoli() -> None:
    assert crc32c(b"123456789") == 0xE3069283


def test_jobs_continue(tmp_path: Path) -> None:
    write(
        tmp_path,
        b"\1" + job(1),
        b"\1" + job(2, priority=-7),
        b"\2" + job(3, at=NOW + 300),
        b"\1" + job(4, attempts=3, fails=2),
        b"\1" + job(5),
    )
    write(
        tmp_path,
        command(7, 1),
        command(3, 1, text(b"result")),  # completed
        command(7, 4),
        command(4, 4, text(b"first failure")),
        command(7, 4),  # leased
        command(7, 5),
        command(4, 5, text(b"no luck")),  # failed
        b"\1" + job(6, ttl=1000),  # expired
        b"\1" + job(7),
        command(5, 7),  # deleted
        b"\1" + job(8),
        command(6, 8),
        command(3, 9, text(b"unknown")),
        number=2,
    )
    room = Room()
    room.now = NOW * SECOND
    source = WorkqSource(tmp_path, room.now)
    skipped = run_import(room, source)
    assert {each.reason for each in skipped} == {
        "The job is completed.",
        "The time to live of the job has ended.",
    }
    found = {number: room.engine.find(str(uuid(number))) for number in (2, 3, 4, 5)}
    assert len(room.engine.jobs) == len(found)
    assert {number: each.state for number, each in found.items()} == {
        2: READY,
        3: SCHEDULED,
        4: READY,
        5: DEAD,
    }
    assert (found[2].rank, found[2].kind) == (-7, "ping")
    assert room.engine.payload(found[2]) == b"data"
    assert (found[4].attempt, found[4].failures, found[4].retries) == (1, 1, 2)
    assert found[5].extra.result == b"no luck"
    assert found[3].due_at == (NOW + 300) * SECOND
    assert found[3].expires_at == (NOW + 300 + 86_400) * SECOND
    assert found[2].created == (NOW - 60) * SECOND + 500
    leased = room.engine.lease(["ping"], "", WORKQ, room.now)
    assert leased is found[4]  # a higher priority than -7
    reply = workq_jobs.lease_reply(leased, room.engine.payload(leased), with_ttr=False)
    assert b"ping" in reply
    room.engine.fail(leased, room.now, WORKQ, "Failed", "again", [])
    assert leased.state == DEAD  # the second failure is the last one


def test_damage_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no command log"):
        WorkqSource(tmp_path, NOW)
    write(tmp_path, b"\1" + job(1), b"\1" + job(2))
    path = tmp_path / "000000001.log"
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    source = WorkqSource(tmp_path, NOW * SECOND)
    assert (len(read(source)[0]), len(source.notes())) == (1, 1)
    path.write_bytes(whole.replace(b"data", b"date", 1))
    with pytest.raises(SourceError, match="wrong checksum"):
        WorkqSource(tmp_path, NOW * SECOND)
    path.write_bytes(b"something else")
    with pytest.raises(SourceError, match="is not a command log"):
        WorkqSource(tmp_path, NOW * SECOND)

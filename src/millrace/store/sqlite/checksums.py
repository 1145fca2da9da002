"""Checksums that reveal damage: one per row, and one over all rows.

SQLite detects damage to its structure, but neither a changed byte of a value nor a missing row. So
each row has a CRC-32 of its key and value, which also identifies its table. The row of each turn
has a TurnSummary: the ranges of turns and of the outbox, which have no gaps, and the totals of the
checksums of the other tables. If all of this agrees, the reader has read exactly the written data.
"""

from typing import Final
from zlib import crc32

import msgspec

from millrace.store.records import UINT32_MASK

# The initial values differ, so that a row of one table is invalid in another.
_TURN: Final = 0x7475_726E
JOB: Final = 0x6A6F_6273
_STATE: Final = 0x7374_6174
_QUEUE: Final = 0x7175_6575
_NOTE: Final = 0x6E6F_7465
_DAY: Final = 0x6461_7973
_EVENTS: Final = 0x6576_656E
_PAYLOAD: Final = 0x7061_796C


class TurnSummary(msgspec.Struct, array_like=True, gc=False):
    """The counters after a turn, and the totals of the tables. Add new fields at the end, with a
    default.
    """

    next_seq: int = 1
    next_event: int = 1
    processed: int = 0
    failures: int = 0
    #: The oldest turn and the oldest event in the database.
    first_turn: int = 1
    first_event: int = 1
    #: The first event that the rows of `stats` do not contain.
    stats_event: int = 1
    #: The totals of the checksums of these tables; `others` covers queues, settings and statistics.
    jobs: int = 0
    states: int = 0
    others: int = 0
    #: The size of the outbox in bytes.
    outbox_bytes: int = 0
    #: The total of the checksums of `payloads`.
    payloads: int = 0

    def assign(self, other: "TurnSummary") -> None:
        """Copy all values of another summary."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(other, name))


encode_summary = msgspec.msgpack.Encoder().encode
decode_summary = msgspec.msgpack.Decoder(TurnSummary).decode


def turn_sum(turn: int, summary: bytes, changes: bytes) -> int:
    return crc32(changes, crc32(summary, turn & UINT32_MASK ^ _TURN))


def job_sum(seq: int, record: bytes) -> int:
    return crc32(record, seq & UINT32_MASK ^ JOB)


def state_sum(seq: int, record: bytes) -> int:
    return crc32(record, seq & UINT32_MASK ^ _STATE)


def payload_sum(seq: int, payload: bytes) -> int:
    return crc32(payload, seq & UINT32_MASK ^ _PAYLOAD)


def queue_sum(place: int, name: str, paused: int) -> int:
    return crc32(b"\1" if paused else b"\0", crc32(name.encode(), place & UINT32_MASK ^ _QUEUE))


def note_sum(key: str, value: bytes) -> int:
    return crc32(value, crc32(key.encode(), _NOTE))


def day_sum(queue: str, day: int, record: bytes) -> int:
    return crc32(record, crc32(queue.encode(), day & UINT32_MASK ^ _DAY))


def events_sum(first: int, count: int, version: int, events: bytes) -> int:
    return crc32(events, crc32(b"%d %d" % (count, version), first & UINT32_MASK ^ _EVENTS))

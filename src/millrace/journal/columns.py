"""Conversion of the engine's rows to the columns of the lake.

A row is a tuple in the order of engine.events.Event, without empty fields at its end. No value may
prevent the shipment of a row: if a column does not accept a value, it gets the nearest valid value
or null. The journal is a history, and a missing event is worse than an inexact value.

Rows of version 1 have no `before`, `created` and `source`. `before` is set if the type allows only
one previous state. `created` is the time of the push if the push is in the same rows, otherwise the
time at which the job became ready. Versions 1 and 2 have no totals: their columns are null.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from arro3.core import Array, DataType, Field, RecordBatch, Schema, list_array

from millrace.engine.events import Event, EventTuple
from millrace.engine.states import DEAD, DONE, GONE, LEASED, STATE_NAMES, TRANSITIONS
from millrace.protocols.registry import PROTOCOL_NAMES

from . import schema
from .table_files import ARROW

#: The maximum length of a message in characters; the rest is cut off.
MAX_MESSAGE_LENGTH: Final = 4096
#: The range of timestamps in Spark and Python: the years 1 to 9999, in microseconds.
FIRST_TIME: Final = -62_135_596_800_000_000
LAST_TIME: Final = 253_402_300_799_999_999

_INT64: Final = (-(1 << 63), (1 << 63) - 1)
_AT: Final = {name: place for place, name in enumerate(Event._fields)}
_TYPE, _STATE, _BEFORE = _AT["type"], _AT["state"], _AT["before"]
#: Every row has these fields. Rows of jobs that failed, have tags or were moved, and rows that end
#: a lease or a job, have more.
_USUAL: Final = _AT["created"] + 1
_DEFAULTS: Final = tuple(Event._field_defaults.values())
#: The first version with totals in its rows.
_TOTALS_VERSION: Final = 3

#: `run_us` is set for events of these types, and for failures that end a lease.
_ENDS: Final = frozenset({"completed", "advanced"})
_FAILS: Final = frozenset({"failed", "expired"})
_END_STATES: Final = frozenset({DONE, DEAD, GONE})
_ONLY_BEFORE: Final = {
    cause: next(iter(moves)) for cause, moves in TRANSITIONS.items() if len(moves) == 1
}


class _Names(dict[int | None, str | None]):
    """Names by number. A number without a name is converted to text."""

    def __missing__(self, number: int | None) -> str | None:
        return None if number is None else str(number)


_PROTOCOLS: Final = _Names(enumerate(PROTOCOL_NAMES))
#: An event of the server itself has no protocol.
_ACTORS: Final = _Names((number, name or None) for number, name in enumerate(PROTOCOL_NAMES))
_STATES: Final = _Names(enumerate(STATE_NAMES))

_TIMESTAMP: Final = ARROW["TIMESTAMP"]
#: The columns of an event.
SCHEMA: Final = Schema(
    [
        Field(field.name, ARROW[schema.SPARK[field.kind]], nullable=not field.required)
        for field in schema.FIELDS
    ]
)
#: The columns of a file. The server is a partition of the table, not a column of the file.
FILE_FIELDS: Final = tuple(field for field in schema.FIELDS if field.name != "server")
FILE_SCHEMA: Final = SCHEMA.remove(SCHEMA.get_field_index("server"))


class Columns(NamedTuple):
    """The same events twice: Python values by column, and an Arrow batch."""

    values: dict[str, Sequence[Any]]
    batch: RecordBatch


def convert(numbers: Sequence[int], version: int, rows: Sequence[EventTuple]) -> Columns:
    """Convert events with these numbers to the columns of a file."""
    if version < 2:
        rows = _as_version_2(rows)
    try:
        values = _values(numbers, version, rows)
        return Columns(values, _batch(values))
    except Exception:  # arro3 raises no narrower class for invalid values
        values = _values(numbers, version, [_valid(row) for row in rows])
        return Columns(values, _batch(values))


def _values(
    numbers: Sequence[int], version: int, rows: Sequence[EventTuple]
) -> dict[str, Sequence[Any]]:
    count = len(rows)
    (
        times, types, seqs, jids, queues, kinds, origins, actors, workers, attempts, states, ranks,
        ready_at, leased_at, waits, _, due, sizes, before, created, *_
    ) = zip(*rows, strict=False)  # fmt: skip
    sparse: dict[str, list[Any]] = {name: [None] * count for name in _SPARSE}
    wait_us = [
        wait if kind == "leased" and wait >= 0 else None
        for kind, wait in zip(types, waits, strict=True)
    ]
    _fill_sparse(sparse, wait_us, version >= _TOTALS_VERSION, rows)
    if schema.FLUSHED in types:
        created = tuple(
            None if kind == schema.FLUSHED else time
            for kind, time in zip(types, created, strict=True)
        )
    return {
        **sparse,
        "event_id": numbers,
        "time": _clamped(times),
        "type": types,
        "seq": seqs,
        "jid": jids,
        "queue": queues,
        "kind": kinds,
        "origin": [_PROTOCOLS[number] for number in origins],
        "actor": [_ACTORS[number] for number in actors],
        "worker": [worker or None for worker in workers],
        "attempt": attempts,
        "before": [_STATES[number] for number in before],
        "state": [_STATES[number] for number in states],
        "priority": ranks,
        # The clock of a client may start at 0, so 0 can be the time of a push or a lease.
        "created": _moments(created),
        "ready_at": [time or None for time in _moments(ready_at)],
        "leased_at": [
            time if time or attempt else None
            for time, attempt in zip(_moments(leased_at), attempts, strict=True)
        ],
        "wait_us": wait_us,
        "due": [time or None for time in _moments(due)],
        "payload_bytes": sizes,
        "version": [version] * count,
    }


#: The columns that only some events have.
_SPARSE: Final = (
    "run_us", "error_group", "error_message", "fingerprint", "source", "tags", "holder", "renewals",
    "repeat", "leases", "failures", "wait_total_us", "run_total_us", "first_leased_at",
    "first_queue", "outcome", "ended_at",
)  # fmt: skip


def _fill_sparse(
    found: dict[str, list[Any]], wait_us: list[int | None], totals: bool, rows: Sequence[EventTuple]
) -> None:
    """Set the columns that only some events have."""
    (
        run_us, error_group, error_message, fingerprints, sources, all_tags, holders, all_renewals,
        repeats, all_leases, all_failures, wait_totals, run_totals, first_leased, first_queues,
        outcomes, ended,
    ) = [found[name] for name in _SPARSE]  # fmt: skip
    special = [
        place
        for place, row in enumerate(rows)
        if len(row) != _USUAL
        or row[_BEFORE] == LEASED
        or row[_STATE] in _END_STATES
        or row[_TYPE] in _ENDS
    ]
    for place in special:
        row = rows[place]
        state, cause, length = row[_STATE], row[_TYPE], len(row)
        from_lease = row[_BEFORE] == LEASED and state != LEASED
        (
            group, message, fingerprint, tags, source, holder, renewals, repeat, leases, failures,
            wait_total, run_total, first_leased_at, first_queue, outcome, ended_at,
        ) = (*row[_USUAL:], *_DEFAULTS[length - _USUAL :])  # fmt: skip
        if fingerprint:  # it identifies an error, even if its message or class is empty
            fingerprints[place] = fingerprint
            error_group[place] = group
            error_message[place] = message[:MAX_MESSAGE_LENGTH]
        elif group or message:
            error_group[place] = group or None
            error_message[place] = message[:MAX_MESSAGE_LENGTH] or None
        if tags:
            all_tags[place] = tags
        if source:
            sources[place] = source
        failed = from_lease and cause in _FAILS
        if failed or cause in _ENDS:
            run_us[place] = row[_AT["run"]]
        if not totals:
            continue
        if from_lease:
            wait = row[_AT["wait"]]
            wait_us[place] = wait if wait >= 0 else None
            holders[place] = _ACTORS[holder]
            all_renewals[place] = renewals
        if failed:
            repeats[place] = repeat > 0
        if state in _END_STATES and cause != schema.FLUSHED:
            all_leases[place] = leases if leases >= 0 else None
            all_failures[place] = failures if failures >= 0 else None
            wait_totals[place] = wait_total if wait_total >= 0 else None
            run_totals[place] = run_total if run_total >= 0 else None
            first_queues[place] = first_queue or row[_AT["queue"]]
            if leases > 0 and FIRST_TIME <= first_leased_at <= LAST_TIME:
                first_leased[place] = first_leased_at
            if outcome:
                outcomes[place] = outcome
                if FIRST_TIME <= ended_at <= LAST_TIME:
                    ended[place] = ended_at


def _batch(values: dict[str, Sequence[Any]]) -> RecordBatch:
    arrays = [_array(field.kind, values[field.name]) for field in FILE_FIELDS]
    return RecordBatch.from_arrays(arrays, schema=FILE_SCHEMA)


def with_new_columns(batch: RecordBatch) -> RecordBatch:
    """Add the columns that a file of an older version does not have. They are the last ones."""
    for field in FILE_FIELDS[batch.num_columns :]:
        nulls = _array(field.kind, [None] * batch.num_rows)
        batch = batch.append_column(FILE_SCHEMA.field(field.name), nulls)
    return batch


def _array(kind: str, values: Sequence[Any]) -> Array:
    if kind == "timestamp":
        return Array(values, DataType.int64()).cast(_TIMESTAMP)
    if kind != "strings":
        return Array(values, ARROW[schema.SPARK[kind]])
    offsets, texts = [0], []
    if any(values):
        for each in values:
            if each:
                texts += each
            offsets.append(len(texts))
    else:
        offsets *= len(values) + 1
    return list_array(
        Array(offsets, DataType.int32()),
        Array(texts, DataType.string()),
        type=ARROW["ARRAY<STRING>"],
        mask=Array([each is None for each in values], DataType.bool()),
    )


def _clamped(times: Sequence[int]) -> Sequence[int]:
    """Times of a required column. A time outside the range becomes the nearest limit."""
    if min(times) >= FIRST_TIME and max(times) <= LAST_TIME:
        return times
    return [min(max(time, FIRST_TIME), LAST_TIME) for time in times]


def _moments(times: Sequence[int | None]) -> Sequence[int | None]:
    """Times of a nullable column. A time outside the range becomes null."""
    known = [time for time in times if time is not None] if None in times else times
    if not known or (min(known) >= FIRST_TIME and max(known) <= LAST_TIME):  # type: ignore[type-var,operator]
        return times
    return [
        time if time is not None and FIRST_TIME <= time <= LAST_TIME else None for time in times
    ]


def _as_version_2(rows: Sequence[EventTuple]) -> list[EventTuple]:
    """Convert rows of version 1 to version 2. Fields that cannot be derived are None."""
    pushed = {row[_AT["seq"]]: row[_AT["time"]] for row in rows if row[_TYPE] == "pushed"}
    found = []
    for row in rows:
        created = pushed.get(row[_AT["seq"]]) or row[_AT["ready_at"]] or None
        found.append((*row[:_BEFORE], _before(row), created, *row[_BEFORE:]))
    return found


def _before(row: EventTuple) -> int | None:
    cause = row[_TYPE]
    if cause == schema.FLUSHED:
        return int(row[_STATE])
    # Only a leased job has a run time.
    return LEASED if row[_AT["run"]] else _ONLY_BEFORE.get(cause)


# Rows with values that a column does not accept.


def _valid(row: EventTuple) -> EventTuple:
    return tuple(
        _VALID.get(name, _integer)(value) for name, value in zip(Event._fields, row, strict=False)
    )


def _integer(value: Any) -> int:
    try:
        return min(max(int(value), _INT64[0]), _INT64[1])
    except (TypeError, ValueError, OverflowError):
        return 0


def valid_time(value: Any) -> int:
    """The time of an event as it is stored."""
    if type(value) is int and FIRST_TIME <= value <= LAST_TIME:
        return value
    return min(max(_integer(value), FIRST_TIME), LAST_TIME)


def _integer_or_none(value: Any) -> int | None:
    return None if value is None else _integer(value)


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
    except (TypeError, ValueError):
        return 0.0


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return str(value).encode("utf-8", "replace").decode()


def _texts(value: Any) -> list[str]:
    return [_text(each) for each in (value if isinstance(value, list | tuple) else [value])]


_TEXT_FIELDS: Final = (
    "type", "jid", "queue", "kind", "worker", "group", "message", "fingerprint", "source",
    "first_queue", "outcome",
)  # fmt: skip
_VALID: Final = {
    **dict.fromkeys(_TEXT_FIELDS, _text),
    "rank": _float,
    "tags": _texts,
    "before": _integer_or_none,
    "created": _integer_or_none,
}

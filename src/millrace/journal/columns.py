"""Conversion of the engine's rows to the columns of the lake.

A row is a tuple in the order of engine.events.Event, without empty fields at its end. No value may
prevent the shipment of a row: if a column does not accept a value, it gets the nearest valid value
or null. The journal is a history, and a missing event is worse than an inexact value.

Rows of version 1 have no `before`, `created` and `source`. `before` is set if the type allows only
one previous state. `created` is the time of the push if the push is in the same rows, otherwise the
time at which the job became ready. Versions 1 and 2 have no totals: their columns are null.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from millrace.engine.events import Event, Row
from millrace.engine.job import PROTOCOLS
from millrace.engine.states import DEAD, DONE, GONE, LEASED, STATE_NAMES, TRANSITIONS

from . import schema

#: The maximum length of a message in characters; the rest is cut off.
MOST_MESSAGE: Final = 4096
#: The range of timestamps in Spark and Python: the years 1 to 9999, in microseconds.
FIRST_TIME: Final = -62_135_596_800_000_000
LAST_TIME: Final = 253_402_300_799_999_999

_INT64: Final = (-(1 << 63), (1 << 63) - 1)
_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_AT: Final = {name: place for place, name in enumerate(Event._fields)}
#: Every row has these fields. Rows of jobs that failed, have tags or were moved, and rows that end
#: a lease or a job, have more.
_USUAL: Final = _AT["created"] + 1
_OPTIONAL: Final = Event._fields[_USUAL:]
_DEFAULTS: Final = tuple(Event._field_defaults.values())
#: The first version with totals in its rows.
_TOTALS_VERSION: Final = 3

#: `run_us` is set for events of these types, and for failures that end a lease.
_ENDS: Final = pa.array(["completed", "advanced"])
_FAILS: Final = pa.array(["failed", "expired"])
#: Final states of a job.
_END_STATES: Final = pa.array([DONE, DEAD, GONE], pa.int64())
_ONLY_BEFORE: Final = {
    cause: next(iter(moves)) for cause, moves in TRANSITIONS.items() if len(moves) == 1
}


def table(server: str, first: int, version: int, rows: Sequence[Row]) -> pa.Table:
    """Return the events from number `first` on in the schema of the lake."""
    if not rows:
        return schema.arrow().empty_table()
    if version < 2:
        rows = _as_version_2(rows)
    count = len(rows)
    usual = dict(zip(Event._fields[:_USUAL], zip(*rows, strict=False), strict=False))
    types = _texts(usual["type"])
    before, state = _integers(usual["before"]), _integers(usual["state"])
    attempt = _integers(usual["attempt"])
    times = _integers(usual["time"])
    flushed = pc.equal(types, schema.FLUSHED)
    leased_at = _integers(usual["leased_at"])
    never = pc.and_(pc.equal(attempt, 0), pc.equal(leased_at, 0))
    ended = pc.and_(pc.equal(before, LEASED), pc.not_equal(state, LEASED))
    failed = pc.and_(pc.is_in(types, _FAILS), pc.fill_null(ended, False))
    ran = pc.or_(pc.is_in(types, _ENDS), failed)
    optional = _optional(rows)
    totals = version >= _TOTALS_VERSION
    of_lease = ended if totals else pc.and_(ended, False)
    at_end = pc.and_(pc.is_in(state, _END_STATES), pc.invert(flushed))
    at_end = pc.and_(at_end, totals)
    waited = pc.or_(pc.equal(types, "leased"), pc.fill_null(of_lease, False))
    columns = {
        "server": pa.repeat(pa.scalar(server), count),
        "event_id": pa.array(range(first, first + count), pa.int64()),
        "time": _within(times),
        "type": types,
        "seq": _integers(usual["seq"]),
        "jid": _texts(usual["jid"]),
        "queue": _texts(usual["queue"]),
        "kind": _texts(usual["kind"]),
        "origin": _named(_integers(usual["origin"]), PROTOCOLS),
        "actor": _or_null(_named(_integers(usual["actor"]), PROTOCOLS)),
        "worker": _or_null(_texts(usual["worker"])),
        "attempt": attempt,
        "before": _named(before, STATE_NAMES),
        "state": _named(state, STATE_NAMES),
        "priority": _floats(usual["rank"]),
        # The clock of a client may start at 0, so 0 can be the time of a push or a lease.
        "created": _moments(_integers(usual["created"]), flushed),
        "ready_at": _moments_after_0(_integers(usual["ready_at"])),
        "leased_at": _moments(leased_at, never),
        "wait_us": _known(_integers(usual["wait"]), waited),
        "run_us": _without(_integers(usual["run"]), pc.invert(ran)),
        "due": _moments_after_0(_integers(usual["due"])),
        "payload_bytes": _integers(usual["size"]),
        "error_group": optional["group"],
        "error_message": optional["message"],
        "fingerprint": optional["fingerprint"],
        "source": optional["source"],
        "tags": optional["tags"],
        "version": pa.repeat(pa.scalar(version, pa.int32()), count),
        "holder": _only(_or_null(_named(optional["holder"], PROTOCOLS)), of_lease),
        "renewals": _only(optional["renewals"], of_lease),
        "repeat": _only(pc.greater(optional["repeat"], 0), pc.and_(failed, totals)),
        "leases": _known(optional["leases"], at_end),
        "failures": _known(optional["failures"], at_end),
        "wait_total_us": _known(optional["wait_total"], at_end),
        "run_total_us": _known(optional["run_total"], at_end),
        "first_leased_at": _moments(
            optional["first_leased_at"], pc.invert(_known_leases(optional["leases"], at_end))
        ),
        "first_queue": _only(
            pc.if_else(
                pc.equal(optional["first_queue"], ""),
                _texts(usual["queue"]),
                optional["first_queue"],
            ),
            at_end,
        ),
        "outcome": _only(_or_null(optional["outcome"]), at_end),
        "ended_at": _moments(
            optional["ended_at"],
            pc.invert(pc.and_(at_end, pc.not_equal(optional["outcome"], ""))),
        ),
    }
    return pa.Table.from_pydict(columns, schema=schema.arrow())


def _as_version_2(rows: Sequence[Row]) -> list[Row]:
    """Convert rows of version 1 to version 2. Fields that cannot be derived are None."""
    pushed = {row[_AT["seq"]]: row[_AT["time"]] for row in rows if row[_AT["type"]] == "pushed"}
    place = _AT["before"]
    found = []
    for row in rows:
        created = pushed.get(row[_AT["seq"]]) or row[_AT["ready_at"]] or None
        found.append((*row[:place], _before(row), created, *row[place:]))
    return found


def _before(row: Row) -> int | None:
    cause = row[_AT["type"]]
    if cause == schema.FLUSHED:
        return int(row[_AT["state"]])
    # Only a leased job has a run time.
    return LEASED if row[_AT["run"]] else _ONLY_BEFORE.get(cause)


def _optional(rows: Sequence[Row]) -> dict[str, pa.Array]:
    """Return the fields at the end of the rows, with defaults for missing fields."""
    longer = [number for number, row in enumerate(rows) if len(row) > _USUAL]
    values = zip(*([_rest(rows[number]) for number in longer] + [_rest(())]), strict=True)
    places = [len(longer)] * len(rows)
    for place, number in enumerate(longer):
        places[number] = place
    among = pa.array(places, pa.int32())
    return {
        name: _OPTIONAL_TYPES.get(name, _integers)(column).take(among)
        for name, column in zip(_OPTIONAL, values, strict=True)
    }


def _rest(row: Row) -> tuple[Any, ...]:
    """Return the optional fields of a row, with defaults. A fingerprint identifies an error, even
    if its message or class is empty.
    """
    rest = (*row[_USUAL:], *_DEFAULTS[max(0, len(row) - _USUAL) :])
    group, message, fingerprint, tags, source, *others = rest
    message = str(message)[:MOST_MESSAGE]
    if not fingerprint:
        group, message, fingerprint = group or None, message or None, None
    return (group, message, fingerprint, tags or None, source or None, *others)


# Conversion of values to arrays: in one call if all values are valid, otherwise one by one.


def _integers(values: Sequence[Any]) -> pa.Array:
    try:
        return pa.array(values, pa.int64())
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return pa.array([_integer(value) for value in values], pa.int64())


def _integer(value: object) -> int | None:
    if value is None:
        return None
    try:
        return min(max(int(value), _INT64[0]), _INT64[1])  # type: ignore[call-overload, no-any-return]
    except (TypeError, ValueError, OverflowError):
        return 0


def _floats(values: Sequence[Any]) -> pa.Array:
    try:
        return pa.array(list(map(float, values)), pa.float64())
    except (TypeError, ValueError, OverflowError):
        return pa.array([_float(value) for value in values], pa.float64())


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
    except (TypeError, ValueError):
        return 0.0


def _texts(values: Sequence[Any]) -> pa.Array:
    try:
        return pa.array(values, pa.string())
    except (pa.ArrowException, UnicodeError, TypeError, ValueError):
        return pa.array([_text(value) for value in values], pa.string())


def _text(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return str(value).encode("utf-8", "replace").decode()


def _lists(values: Sequence[Any]) -> pa.Array:
    kind = pa.list_(pa.string())
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, UnicodeError, TypeError, ValueError):
        return pa.array([_list(value) for value in values], kind)


def _list(value: object) -> list[str | None] | None:
    if value is None:
        return None
    each: Iterable[object] = value if isinstance(value, list | tuple) else [value]
    return [_text(tag) for tag in each]


_OPTIONAL_TYPES: Final = {
    "group": _texts,
    "message": _texts,
    "fingerprint": _texts,
    "tags": _lists,
    "source": _texts,
    "first_queue": _texts,
    "outcome": _texts,
}


def _named(numbers: pa.Array, names: Sequence[str]) -> pa.Array:
    """Replace numbers by their names. A number without a name is converted to text."""
    known = pc.and_(pc.greater_equal(numbers, 0), pc.less(numbers, len(names)))
    if pc.all(known).as_py() is not False:
        return pc.take(pa.array(names), numbers)
    found = numbers.to_pylist()
    told = [names[n] if n is not None and 0 <= n < len(names) else n for n in found]
    return _texts([None if name is None else str(name) for name in told])


def _or_null(texts: pa.Array) -> pa.Array:
    return _without(texts, pc.equal(texts, ""))


def _without(values: pa.Array, where: pa.Array) -> pa.Array:
    return pc.if_else(where, pa.scalar(None, values.type), values)


def _only(values: pa.Array, where: pa.Array) -> pa.Array:
    """Values where a condition holds, null elsewhere."""
    return pc.if_else(pc.fill_null(where, False), values, pa.scalar(None, values.type))


def _known(numbers: pa.Array, where: pa.Array) -> pa.Array:
    """The same, but null for numbers below 0, which mean unknown."""
    return _only(numbers, pc.and_(where, pc.greater_equal(numbers, 0)))


def _known_leases(leases: pa.Array, at_end: pa.Array) -> pa.Array:
    return pc.and_(pc.fill_null(at_end, False), pc.greater(leases, 0))


def _within(times: pa.Array) -> pa.Array:
    """Convert times of required columns. Times outside the range become the nearest limit."""
    bounded = pc.min_element_wise(pc.max_element_wise(times, FIRST_TIME), LAST_TIME)
    return bounded.cast(_TIMESTAMP)


def _moments(times: pa.Array, unknown: pa.Array) -> pa.Array:
    """Convert times to timestamps; null where a time is unknown or outside the range."""
    outside = pc.or_(pc.less(times, FIRST_TIME), pc.greater(times, LAST_TIME))
    return _without(times, pc.or_(unknown, outside)).cast(_TIMESTAMP)


def _moments_after_0(times: pa.Array) -> pa.Array:
    """The same, where 0 means that there is no time."""
    return _moments(times, pc.equal(times, 0))

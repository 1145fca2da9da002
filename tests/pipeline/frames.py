"""Small frames of events, written tersely: what matters to a test is told, the rest is usual.

Times are seconds after ten o'clock of a day in November, or moments.
"""

from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from millrace.journal import schema
from millrace.pipeline.tables import Table
from millrace.pipeline.transforms import flushes

DAY = date(2026, 11, 16)
TEN = datetime(2026, 11, 16, 10, tzinfo=UTC)

Row = dict[str, Any]

#: The usual states before and after an event.
_USUAL = {
    "pushed": ("new", "ready"),
    "due": ("scheduled", "ready"),
    "unblocked": ("blocked", "ready"),
    "leased": ("ready", "leased"),
    "renewed": ("leased", "leased"),
    "released": ("leased", "ready"),
    "completed": ("leased", "gone"),
    "failed": ("leased", "scheduled"),
    "expired": ("leased", "ready"),
    "doomed": ("blocked", "dead"),
    "advanced": ("leased", "done"),
    "moved": ("ready", "ready"),
    "requeued": ("dead", "ready"),
    "killed": ("ready", "dead"),
    "cancelled": ("ready", "gone"),
    "evicted": ("ready", "gone"),
    "purged": ("dead", "gone"),
    "flushed": ("gone", "gone"),
}
_TIMES = ("time", "created", "ready_at", "leased_at", "due")


def at(seconds: float) -> datetime:
    return TEN + timedelta(seconds=seconds)


def ev(type_: str, time: float | datetime = 0, **told: Any) -> Row:
    """One event; without an `event_id` it gets the next in its frame."""
    before, state = _USUAL[type_]
    seq = told.get("seq", 1)
    row: Row = {
        "server": "a1",
        "time": time,
        "type": type_,
        "seq": seq,
        "jid": f"job-{seq}",
        "queue": "q",
        "kind": "k",
        "origin": "faktory",
        "actor": "faktory",
        "attempt": 0,
        "before": before,
        "state": state,
        "priority": 0.0,
        "created": TEN,
        "payload_bytes": 2,
        "version": 2,
    }
    if type_ == "flushed":
        row |= {"seq": 0, "jid": "", "queue": "", "kind": "", "created": None}
    row |= told
    return row | {name: _moment(row[name]) for name in _TIMES if name in row}


def events(spark: SparkSession, *rows: Row) -> DataFrame:
    numbers: dict[str, int] = {}
    whole = []
    for row in rows:
        number = numbers.get(row["server"], 0) + 1
        full = dict.fromkeys(schema.NAMES) | {"event_id": number} | row
        numbers[row["server"]] = full["event_id"]
        whole.append(full | {"day": full["time"].date()})
    columns = schema.arrow().append(pa.field("day", pa.date32()))
    return spark.createDataFrame(pa.Table.from_pylist(whole, schema=columns))


def no_flushes(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([], flushes.DDL).limit(0)


def rows(frame: DataFrame, table: Table, *names: str) -> list[Row]:
    """The rows of a table, in the order of their day and key: these columns of them, or all. The
    frame must be in the table's form.
    """
    assert form(frame) == form(frame.sparkSession.createDataFrame([], f"{table.ddl}, day DATE"))
    found = frame.toArrow().to_pylist()
    found.sort(key=lambda row: (row["day"], *(_sortable(row[name]) for name in table.key)))
    return [{name: row[name] for name in names or row} for row in found]


def form(frame: DataFrame) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in frame.schema]


def only(found: Iterable[Row]) -> Row:
    (row,) = found
    return row


def _sortable(value: Any) -> tuple[bool, Any]:
    return (value is not None, value)


def _moment(value: Any) -> datetime | None:
    return at(value) if isinstance(value, int | float) else value

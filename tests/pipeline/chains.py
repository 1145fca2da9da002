"""Events in a short notation: `"1 pushed new>ready"` is the first event of job 1."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from millrace.journal import schema

#: One minute between two events.
START = datetime(2026, 11, 16, 12, tzinfo=UTC)
SERVER = "5e12ee"


def event(event_id: int, line: str, **fields: Any) -> dict[str, Any]:
    """`job type before>state`; the previous state may be `?`, and a flush has neither."""
    seq, kind, *states = line.split()
    before, state = states[0].split(">") if states else ("gone", "gone")
    told = {
        "server": SERVER,
        "event_id": event_id,
        "time": START + timedelta(minutes=event_id),
        "type": kind,
        "seq": int(seq),
        "jid": f"jid-{seq}",
        "queue": "mail",
        "kind": "send",
        "origin": "faktory",
        "attempt": 1,
        "before": None if before == "?" else before,
        "state": state,
        "priority": 0.0,
        "created": START,
        "payload_bytes": 2,
        "version": 2,
    }
    return {**dict.fromkeys(schema.NAMES), **told, **fields}


def events(*lines: str, first: int = 1, **fields: Any) -> list[dict[str, Any]]:
    return [event(number, line, **fields) for number, line in enumerate(lines, first)]


def frame(spark: Any, rows: list[dict[str, Any]]) -> Any:
    return spark.createDataFrame(pa.Table.from_pylist(rows, schema=schema.arrow()))

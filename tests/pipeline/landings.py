"""Landing files for tests: events told tersely, sealed as the shipper would."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from millrace.journal import schema
from millrace.journal.landing import Landed
from millrace.pipeline.lake import Lake

SERVER = "a1"
MIDNIGHT = datetime(2026, 11, 14, tzinfo=UTC)


def event(event_id: int, hours: float = 1, **more: Any) -> dict[str, Any]:
    """A push, so many hours after the midnight that begins 14 November 2026, unless told otherwise."""
    when = MIDNIGHT + timedelta(hours=hours)
    usual = {
        "server": SERVER,
        "event_id": event_id,
        "time": when,
        "type": "pushed",
        "seq": event_id,
        "jid": f"job-{event_id}",
        "queue": "mail",
        "kind": "send",
        "origin": "faktory",
        "actor": "faktory",
        "attempt": 0,
        "before": "new",
        "state": "ready",
        "priority": 0.0,
        "created": when,
        "ready_at": when,
        "payload_bytes": 7,
        "version": 2,
    }
    return usual | more


def life(
    event_id: int, seq: int, hours: float = 1, *, until: float | None = None
) -> list[dict[str, Any]]:
    """Pushed, leased and completed."""
    pushed = MIDNIGHT + timedelta(hours=hours)
    leased = pushed + timedelta(seconds=2)
    ended = leased + timedelta(seconds=3) if until is None else MIDNIGHT + timedelta(hours=until)
    run = int((ended - leased).total_seconds() * 1e6)
    job = {"seq": seq, "jid": f"job-{seq}", "created": pushed, "ready_at": pushed}
    held = {"attempt": 1, "leased_at": leased, "worker": f"w{seq % 3}"}
    return [
        event(event_id, time=pushed, **job),
        event(
            event_id + 1, time=leased, type="leased", before="ready", state="leased", wait_us=2_000_000, **job, **held
        ),
        event(
            event_id + 2, time=ended, type="completed", before="leased", state="done", run_us=run, **job, **held
        ),
    ]  # fmt: skip


def table(rows: list[dict[str, Any]]) -> pa.Table:
    """As told, also where that breaks the schema's promises."""
    fields = [pa.field(field.name, field.type) for field in schema.arrow()]
    return pa.Table.from_pylist(rows, schema=pa.schema(fields))


def land(
    lake: Lake,
    rows: list[dict[str, Any]],
    *,
    name: Landed | None = None,
    drop: tuple[str, ...] = (),
) -> Path:
    """Seal rows under the name that is theirs, or another one; without some columns."""
    ids = [row["event_id"] for row in rows]
    landed = name or Landed(rows[0]["server"], min(ids), max(ids))
    lake.landing.mkdir(parents=True, exist_ok=True)
    path = lake.landing / landed.name
    pq.write_table(table(rows).drop_columns(list(drop)), path, compression="zstd")
    return path

"""How the lake stands: what it covers, when it was last brought up to date, and what the checks
found.
"""

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Final

import msgspec
import pyarrow.compute as pc

from millrace.pipeline import reading
from millrace.pipeline.lake import Lake
from millrace.pipeline.ledger import Ledger
from millrace.pipeline.quality import Quality
from millrace.pipeline.run import outstanding, refreshed
from millrace.pipeline.tables import AUDIT_JOBS, AUDIT_SEQ, QUEUE_DAY, THROUGHPUT_MINUTE, Table

from .model import Check, Coverage

#: How many sentences of each rule are told.
_SAID: Final = 2


def days(lake: Lake) -> list[date]:
    """The days of which there is anything to report."""
    return sorted({*reading.days(lake, THROUGHPUT_MINUTE), *reading.days(lake, QUEUE_DAY)})


def coverage(lake: Lake) -> Coverage:
    ledger, of = Ledger(lake), days(lake)
    batches, in_tables = ledger.batches(), refreshed(lake)
    return Coverage(
        first=of[0] if of else None,
        last=of[-1] if of else None,
        days=len(of),
        servers=sorted({server for batch in batches for server in batch.ranges}),
        events=sum(batch.rows for batch in batches),
        ran_at=_written_at(lake.ops / "refreshed.json"),
        behind=outstanding(lake).events + sum(b.rows for b in batches if b.batch > in_tables),
    )


def checks(lake: Lake) -> list[Check]:
    return [_quality(lake), _sequence(lake), _jobs(lake)]


def _quality(lake: Lake) -> Check:
    """What the rules found that every run checks, of all batches."""
    name = "Tables"
    paths = sorted((lake.ops / "quality").glob("b-*.json"))
    if not paths:
        return Check(name=name, verdict="unknown", detail="No run has checked them yet.", at=None)
    found = [
        check
        for path in paths
        for check in msgspec.json.decode(path.read_bytes(), type=Quality).checks
        if check.found
    ]
    told = " ".join(sentence for check in found for sentence in check.found[:_SAID])
    return Check(
        name=name,
        verdict="bad" if any(check.failed for check in found) else "good",
        detail=told or "They add up to the events, and every row that was shipped is one.",
        at=_written_at(paths[-1]),
    )


def _sequence(lake: Lake) -> Check:
    rows = reading.read(lake, AUDIT_SEQ, columns=["events", "missing", "duplicates"])
    if not rows.num_rows:
        return _not_audited("Events")
    events, missing, twice = (pc.sum(rows[name]).as_py() or 0 for name in rows.column_names)
    bad = missing or twice
    return Check(
        name="Events",
        verdict="bad" if bad else "good",
        detail=f"{missing:,} are missing and {twice:,} are there twice, of {events:,}."
        if bad
        else f"All {events:,} are there, once.",
        at=_table_written(lake, AUDIT_SEQ),
    )


def _jobs(lake: Lake) -> Check:
    if not reading.parts(lake, AUDIT_JOBS):
        return _not_audited("Jobs")
    rows = reading.read(lake, AUDIT_JOBS, columns=["problem"])
    counts = rows.group_by("problem").aggregate([("problem", "count")]).to_pylist()
    told = ", ".join(
        f"{row['problem_count']:,} times {row['problem']}"
        for row in sorted(counts, key=lambda row: (-row["problem_count"], row["problem"]))
    )
    return Check(
        name="Jobs",
        verdict="bad" if rows.num_rows else "good",
        detail=f"Events that cannot be: {told}."
        if rows.num_rows
        else "No job was lost, ended twice, or held by two at once.",
        at=_table_written(lake, AUDIT_JOBS),
    )


def _not_audited(name: str) -> Check:
    return Check(
        name=name,
        verdict="unknown",
        detail="Not audited yet: `millrace pipeline audit` does it.",
        at=None,
    )


def _table_written(lake: Lake, table: Table) -> datetime | None:
    found = reading.parts(lake, table)
    return _written_at(found[0].path) if found else None


def _written_at(path: Path) -> datetime | None:
    try:
        return datetime.fromtimestamp(path.stat().st_mtime, UTC).replace(microsecond=0)
    except FileNotFoundError:
        return None

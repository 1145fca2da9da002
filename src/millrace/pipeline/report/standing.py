"""How the lake stands: what it covers, when it was last brought up to date, and what the checks
found.
"""

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Final

import pyarrow.compute as pc

from millrace.pipeline import reading
from millrace.pipeline.lake import Lake
from millrace.pipeline.ledger import Ledger
from millrace.pipeline.tables import AUDIT_JOBS, AUDIT_SEQ, QUEUE_DAY, THROUGHPUT_MINUTE, Table

from .model import Check, Coverage, Verdict

REFRESHED: Final = "refreshed.json"


def days(lake: Lake) -> list[date]:
    """The days of which there is anything to report."""
    return sorted({*reading.days(lake, THROUGHPUT_MINUTE), *reading.days(lake, QUEUE_DAY)})


def coverage(lake: Lake) -> Coverage:
    ledger, of = Ledger(lake), days(lake)
    refreshed = lake.ops / REFRESHED
    servers = {server for batch in ledger.batches() for server in batch.ranges}
    return Coverage(
        first=of[0] if of else None,
        last=of[-1] if of else None,
        days=len(of),
        servers=sorted(servers),
        events=sum(batch.rows for batch in ledger.batches()),
        ran_at=written_at(refreshed),
        behind=0,
    )


def checks(lake: Lake) -> list[Check]:
    return [_quarantine(lake), _sequence(lake), _jobs(lake)]


def _quarantine(lake: Lake) -> Check:
    """Rows that are no events, and files of which nothing was taken."""
    batches = Ledger(lake).batches()
    rows = sum(batch.quarantined for batch in batches)
    files = sum(len(batch.refused) for batch in batches)
    reasons = sorted({reason for batch in batches for reason in batch.reasons})
    found = []
    if rows:
        found.append(f"{rows:,} rows are in quarantine ({', '.join(reasons)})")
    if files:
        found.append(f"{files:,} shipped files could not be read")
    verdict: Verdict = "bad" if found else "good" if batches else "unknown"
    detail = "; ".join(found) or (
        "Every row that was shipped is an event." if batches else "Nothing was taken in yet."
    )
    return Check(name="Shipped rows", verdict=verdict, detail=detail, at=None)


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
    return written_at(found[0].path) if found else None


def written_at(path: Path) -> datetime | None:
    try:
        return datetime.fromtimestamp(path.stat().st_mtime, UTC).replace(microsecond=0)
    except FileNotFoundError:
        return None

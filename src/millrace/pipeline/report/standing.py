"""State of the lake: the days it covers, the time of its last update, and the results of checks."""

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from millrace.pipeline import reading, refreshed
from millrace.pipeline.findings import Findings
from millrace.pipeline.lake import Lake
from millrace.pipeline.ledger import Ledger
from millrace.pipeline.quality import last_run
from millrace.pipeline.run import outstanding
from millrace.pipeline.tables import QUEUE_DAY, THROUGHPUT_MINUTE

from .model import Check, Coverage

AUDIT: Final = "audit.json"
#: Maximum number of sentences per rule.
_SAID: Final = 2
#: Maximum number of sentences in total; the newest are shown.
_TOLD: Final = 10


class _Told(NamedTuple):
    name: str
    good: bool
    detail: str


def days(lake: Lake) -> list[date]:
    """Return the days that have data to report."""
    return sorted({*reading.days(lake, THROUGHPUT_MINUTE), *reading.days(lake, QUEUE_DAY)})


def coverage(lake: Lake) -> Coverage:
    ledger, of = Ledger(lake), days(lake)
    batches, in_tables = ledger.batches(), refreshed.mark(lake).batch
    return Coverage(
        first=of[0] if of else None,
        last=of[-1] if of else None,
        days=len(of),
        servers=sorted({server for batch in batches for server in batch.ranges}),
        events=sum(batch.rows for batch in batches),
        ran_at=_written_at(lake.ops / refreshed.NAME),
        behind=outstanding(lake).events + sum(b.rows for b in batches if b.batch > in_tables),
    )


def checks(lake: Lake) -> list[Check]:
    return [_quality(lake), *_audit(lake)]


def _quality(lake: Lake) -> Check:
    """Return the findings of the last run for the rules that every run checks."""
    name = "Tables"
    last = last_run(lake)
    if last is None:
        return Check(name=name, verdict="unknown", detail="No run has checked them yet.", at=None)
    path, run_checks = last
    found = [check for check in run_checks if check.found]
    told = " ".join([sentence for check in found for sentence in check.found[:_SAID]][-_TOLD:])
    return Check(
        name=name,
        verdict="bad" if any(check.failed for check in found) else "good",
        detail=told or "They add up to the events, and every row that was shipped is one.",
        at=_written_at(path),
    )


def _audit(lake: Lake) -> list[Check]:
    """Return the findings of the last audit: events, jobs, and the comparison with the server."""
    path = lake.ops / AUDIT
    if not path.exists():
        never = "Not audited yet: `millrace pipeline audit` does it."
        return [Check(name="Events and jobs", verdict="unknown", detail=never, at=None)]
    found = msgspec.json.decode(path.read_bytes(), type=Findings)
    told = [_of_events(found), _of_jobs(found), *_of_server(found)]
    return [
        Check(name=name, verdict="good" if good else "bad", detail=detail, at=_written_at(path))
        for name, good, detail in told
    ]


def _of_events(found: Findings) -> _Told:
    events = sum(each.events for each in found.servers)
    missing = sum(each.missing for each in found.servers)
    twice = sum(each.duplicates for each in found.servers)
    if missing or twice:
        return _Told("Events", False, f"Of {events:,}, {missing:,} are missing, {twice:,} doubled.")
    return _Told("Events", True, f"All {events:,} are there, once.")


def _of_jobs(found: Findings) -> _Told:
    if not found.problems:
        return _Told("Jobs", True, "None was lost, ended twice, or was held by two at once.")
    order = sorted(found.problems, key=lambda problem: (-found.problems[problem], problem))
    listed = ", ".join(f"{problem} ({found.problems[problem]:,})" for problem in order)
    return _Told("Jobs", False, f"Events that cannot be: {listed}. See the table audit_jobs.")


def _of_server(found: Findings) -> list[_Told]:
    compared = found.compared
    if compared is None:
        return []
    if compared.differing:
        return [_Told("Server", False, f"It counted {compared.differing:,} things otherwise.")]
    detail = f"It has the same statistics, and the same states of {compared.jobs:,} jobs."
    return [_Told("Server", True, detail)]


def _written_at(path: Path) -> datetime | None:
    try:
        return datetime.fromtimestamp(path.stat().st_mtime, UTC).replace(microsecond=0)
    except FileNotFoundError:
        return None

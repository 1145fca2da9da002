"""State of the lake: the days it covers, the time of its last run, and the results of checks."""

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Final

import msgspec

from millrace.pipeline.audit.results import RECORD, Findings
from millrace.pipeline.backlog import outstanding
from millrace.pipeline.snapshot import Snapshot
from millrace.pipeline.tables import QUEUE_DAY

from .model import CheckResult, Coverage

#: Maximum number of findings shown.
MAX_FINDINGS: Final = 10

#: The name of a check, whether it succeeded, and its finding.
_Result = tuple[str, bool, str]


def days(snapshot: Snapshot) -> list[date]:
    """Return the days that have data to report."""
    return snapshot.days(QUEUE_DAY)


def coverage(snapshot: Snapshot) -> Coverage:
    """Describe the data of the snapshot, and the events that were shipped after it."""
    extent, run = snapshot.extent(QUEUE_DAY), snapshot.run
    position = {} if run is None else run.position
    shipped = outstanding(snapshot.root).position
    return Coverage(
        first=extent.first,
        last=extent.last,
        days=extent.days,
        servers=sorted(position),
        events=sum(position.values()),
        ran_at=None if run is None else run.time.replace(microsecond=0),
        behind=sum(max(0, last - position.get(server, 0)) for server, last in shipped.items()),
    )


def checks(snapshot: Snapshot) -> list[CheckResult]:
    return [_tables(snapshot), *_audit(snapshot.root)]


def _tables(snapshot: Snapshot) -> CheckResult:
    """Return the findings of the run of this snapshot."""
    name, run = "Tables", snapshot.run
    if run is None:
        return CheckResult(
            name=name, verdict="unknown", detail="No run has checked them yet.", at=None
        )
    sums = f"Run {run.run:,}: the sums of the tables are the numbers of the events."
    return CheckResult(
        name=name,
        verdict="bad" if run.failed else "good",
        detail=" ".join([f"Run {run.run:,}:", *run.findings[:MAX_FINDINGS]])
        if run.findings
        else sums,
        at=run.time.replace(microsecond=0),
    )


def _audit(root: Path) -> list[CheckResult]:
    """Return the findings of the last audit: events, jobs, and the comparison with the server."""
    path = root / "ops" / RECORD
    if not path.exists():
        never = "Not audited yet. Use `millrace pipeline audit`."
        return [CheckResult(name="Events and jobs", verdict="unknown", detail=never, at=None)]
    found = msgspec.json.decode(path.read_bytes(), type=Findings)
    results = [_of_events(found), _of_jobs(found), *_of_server(found)]
    at = datetime.fromtimestamp(path.stat().st_mtime, UTC).replace(microsecond=0)
    return [
        CheckResult(name=name, verdict="good" if good else "bad", detail=detail, at=at)
        for name, good, detail in results
    ]


def _of_events(found: Findings) -> _Result:
    events = sum(each.events for each in found.servers)
    missing = sum(each.missing for each in found.servers)
    twice = sum(each.duplicates for each in found.servers)
    if missing or twice:
        detail = f"Of {events:,} events, {missing:,} are missing and {twice:,} are duplicates."
        return ("Events", False, detail)
    return ("Events", True, f"All {events:,} events exist exactly once.")


def _of_jobs(found: Findings) -> _Result:
    if not found.problems:
        return ("Jobs", True, "No job was lost, ended twice, or was leased twice at once.")
    order = sorted(found.problems, key=lambda problem: (-found.problems[problem], problem))
    listed = ", ".join(f"{problem} ({found.problems[problem]:,})" for problem in order)
    return ("Jobs", False, f"Inconsistent events: {listed}. See the table audit_jobs.")


def _of_server(found: Findings) -> list[_Result]:
    compared = found.compared
    if compared is None:
        return []
    if compared.differing:
        return [("Server", False, f"{compared.differing:,} values differ on the server.")]
    detail = f"It has the same statistics, and the same states of {compared.jobs:,} jobs."
    return [("Server", True, detail)]

"""A lake with realistic tables, generated within a second, for tests of reports.

The attempts are simulated, and every table is counted from them in plain Python, so that a test can
count again.
"""

import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from millrace.journal.location import LOG
from millrace.pipeline import delta, run, snapshot, tables
from millrace.pipeline.lake import Lake
from millrace.pipeline.snapshot import RunRecord, last_run
from millrace.pipeline.tables import Derived

SERVER = "5eed0a11ce"
FIRST = date(2026, 11, 10)
HOSTILE = "<img src=x onerror=\"document.title='pwned'\">"
HOSTILE_LINK = '<a href="https://evil.example/">mail</a> & </script><b>%{x}</b> \u202e'
#: Queue, kinds with their median run times in seconds, pushing protocol, leasing protocol, failure
#: rate.
QUEUES = (
    ("mail", {"send_mail": 0.08, "render": 0.4}, "faktory", "faktory", 0.02),
    ("video", {"transcode": 45.0, "thumbnail": 1.5}, "qless", "qless", 0.05),
    ("billing", {"charge": 0.9, "invoice": 3.0}, "masenko", "faktory", 0.04),
    ("search", {"index": 0.02}, "workq", "workq", 0.001),
    ("telemetry", {"": 0.005}, "goqueue", "goqueue", 0.0),
    (HOSTILE, {HOSTILE_LINK: 0.3}, "faktory", "masenko", 0.1),
)
ERRORS = (
    ("TimeoutError", "no answer from 10.0.3.17 after 30 s"),
    ("PaymentDeclined", "card of customer 4711 was declined: insufficient funds"),
    ("ffmpeg", "moov atom not found in /spool/83913.mp4"),
    (HOSTILE_LINK, f"{HOSTILE}\n{HOSTILE_LINK}"),
)


class Lease(NamedTuple):
    seq: int
    queue: str
    kind: str
    origin: str
    protocol: str
    worker: str
    pushed: datetime
    leased: datetime
    ended: datetime
    #: "completed", "failed", or "died": failed and dead.
    outcome: str
    error: int


def simulate(days: int, per_hour: float, seed: int = 7, first: date = FIRST) -> list[Lease]:
    """Leases of all queues, busier at noon."""
    rng = random.Random(seed)
    start = datetime(first.year, first.month, first.day, tzinfo=UTC)
    leases: list[Lease] = []
    for number, (queue, kinds, origin, protocol, fails) in enumerate(QUEUES):
        hours = 0.0
        share = per_hour / (number + 1)
        while True:
            noon = 0.15 + math.sin(math.pi * (hours % 24) / 24) ** 2
            hours += rng.expovariate(share * noon)
            if hours >= days * 24:
                break
            pushed = start + timedelta(hours=hours)
            wait = rng.lognormvariate(-3 + 5 * noon, 1.5)
            kind = rng.choice(list(kinds))
            run = rng.lognormvariate(math.log(kinds[kind]), 0.7)
            leased = pushed + timedelta(seconds=wait)
            outcome = "completed"
            if rng.random() < fails:
                outcome = "died" if rng.random() < 0.2 else "failed"
            named = protocol not in {"workq", "goqueue"}
            worker = f"{queue[:6]}-{rng.randrange(4)}" if named else ""
            lease = Lease(
                len(leases) + 1, queue, kind, origin, protocol, worker, pushed, leased,
                leased + timedelta(seconds=run), outcome, rng.randrange(len(ERRORS)),
            )  # fmt: skip
            if lease.ended < start + timedelta(days=days):
                leases.append(lease)
    return leases


def write(lake: Lake, table: Derived, rows: Iterable[dict[str, Any]]) -> None:
    """Add rows with their `day` to a table. Call `ran` afterwards."""
    schema = snapshot.schema(table)
    by_day: dict[date, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_day[row["day"]].append({name: row.get(name) for name in schema.names})
    staged = lake.root / table.name / "_staging-test"
    for day, of in by_day.items():
        folder = staged / f"day={day}"
        folder.mkdir(parents=True)
        pq.write_table(
            pa.Table.from_pylist(of, schema).drop_columns(["day"]), folder / "part-0.parquet"
        )
    target = delta.create(lake.root, table)
    delta.commit(lake.root, table, target, delta.Change(staged, None, {}, 1))


def ran(lake: Lake, *findings: str, failed: int = 0, events: int = 100) -> RunRecord:
    """Record a run with the present versions of all tables."""
    last = last_run(lake.root)
    opened = {name: delta.open_table(lake.root, name) for name in tables.DERIVED}
    done = RunRecord(
        run=1 if last is None else last.run + 1,
        time=datetime(2026, 11, 19, 9, tzinfo=UTC),
        seconds=1.0,
        events=events,
        versions={name: table.version() for name, table in opened.items() if table is not None},
        position={SERVER: events},
        failed=failed,
        findings=list(findings),
    )
    run.record(lake.root, done)
    return done


def micros(span: timedelta) -> int:
    return round(span / timedelta(microseconds=1))


def fill(root: Path, leases: list[Lease]) -> Lake:
    """All tables that a report reads, of one server."""
    lake = Lake(root)
    (root / "events" / LOG).mkdir(parents=True)  # an empty table of events
    write(lake, tables.ATTEMPTS, attempts(leases))
    write(lake, tables.LATENCY_DAY, latency_day(leases))
    write(lake, tables.QUEUE_DAY, queue_day(leases))
    write(lake, tables.QUEUE_MINUTE, queue_minute(leases))
    write(lake, tables.FAILURE_GROUPS, failure_groups(leases))
    write(lake, tables.WORKER_HOUR, worker_hour(leases))
    write(lake, tables.KIND_HOUR, kind_hour(leases))
    ran(lake)
    return lake


def attempts(leases: list[Lease]) -> Iterable[dict[str, Any]]:
    for lease in leases:
        yield {
            "server": SERVER,
            "seq": lease.seq,
            "end_event": lease.seq,
            "queue": lease.queue,
            "kind": lease.kind,
            "leased_at": lease.leased,
            "ended_at": lease.ended,
            "wait_us": micros(lease.leased - lease.pushed),
            "run_us": micros(lease.ended - lease.leased),
            "outcome": "failed" if lease.outcome == "died" else lease.outcome,
            "day": lease.ended.date(),
        }


def spans(leases: list[Lease]) -> Iterable[tuple[date, str, str, str, int]]:
    for lease in leases:
        wait = micros(lease.leased - lease.pushed)
        yield lease.leased.date(), lease.queue, lease.kind, "wait", wait
        if lease.outcome == "completed":
            run = micros(lease.ended - lease.leased)
            yield lease.ended.date(), lease.queue, lease.kind, "run", run


def latency_day(leases: list[Lease]) -> Iterable[dict[str, Any]]:
    found: dict[Any, list[int]] = defaultdict(list)
    for *key, us in spans(leases):
        found[*key, math.floor(math.log(max(us, 1)) / math.log(1.02))].append(us)
    for (day, queue, kind, metric, bucket), of in found.items():
        yield {
            "server": SERVER, "queue": queue, "kind": kind, "metric": metric, "bucket": bucket,
            "cell": 0, "n": len(of), "sum_us": float(sum(of)), "min_us": min(of), "max_us": max(of), "day": day,
        }  # fmt: skip


def happened(leases: list[Lease]) -> Iterable[tuple[datetime, Lease, str]]:
    """The events of each job, named like the counts of throughput_minute."""
    for lease in leases:
        yield lease.pushed, lease, "pushed"
        yield lease.leased, lease, "started"
        if lease.outcome == "completed":
            yield lease.ended, lease, "completed"
        else:
            yield lease.ended, lease, "failures"
            if lease.outcome == "died":
                yield lease.ended, lease, "died"


CHANGE = {"pushed": 1, "started": -1, "failures": 1, "died": -1}


def queue_day(leases: list[Lease]) -> Iterable[dict[str, Any]]:
    counts = Counter((at.date(), lease.queue, what) for at, lease, what in happened(leases))
    none = {"scheduled": 0, "blocked": 0, "leased": 0, "dead": 0, "expired": 0, "failed": 0}
    for day, queue in sorted({key[:2] for key in counts}):
        columns = ("pushed", "started", "completed", "failures", "died")
        row = {name: counts[day, queue, name] for name in columns}
        ready = sum(CHANGE.get(name, 0) * n for name, n in row.items())
        yield {"server": SERVER, "queue": queue, "day": day, "ready": ready, **none, **row}


def queue_minute(leases: list[Lease]) -> Iterable[dict[str, Any]]:
    """A failed job that did not die stays scheduled."""
    counts: Counter[Any] = Counter()
    for at, lease, what in happened(leases):
        counts[at.replace(second=0, microsecond=0), lease.queue, what] += 1
    for minute, queue in {key[:2] for key in counts}:
        names = ("pushed", "started", "completed", "failures", "died")
        row = {name: counts[minute, queue, name] for name in names}
        ready = sum(CHANGE.get(name, 0) * n for name, n in row.items())
        yield {
            "server": SERVER, "queue": queue, "minute": minute, "ready": ready, "scheduled": 0,
            "blocked": 0, "day": minute.date(), **row,
        }  # fmt: skip


def failure_groups(leases: list[Lease]) -> Iterable[dict[str, Any]]:
    found: dict[Any, list[Lease]] = defaultdict(list)
    for lease in leases:
        if lease.outcome != "completed":
            found[lease.ended.date(), lease.error, lease.queue, lease.kind].append(lease)
    for (day, error, queue, kind), of in found.items():
        group, message = ERRORS[error]
        yield {
            "server": SERVER, "fingerprint": f"{error:016x}", "queue": queue, "kind": kind,
            "error_group": group, "n": len(of), "jobs": len(of),
            "died": sum(lease.outcome == "died" for lease in of),
            "first_seen": min(lease.ended for lease in of),
            "last_seen": max(lease.ended for lease in of), "sample_event": of[0].seq,
            "sample_seq": of[0].seq, "sample_jid": f"{of[0].seq:032x}", "sample_message": message,
            "day": day,
        }  # fmt: skip


def worker_hour(leases: list[Lease]) -> Iterable[dict[str, Any]]:
    busy: Counter[Any] = Counter()
    ended: Counter[Any] = Counter()
    for lease in leases:
        hour = lease.leased.replace(minute=0, second=0, microsecond=0)
        while hour <= lease.ended:
            key = lease.worker, lease.protocol, hour
            until = min(lease.ended, hour + timedelta(hours=1))
            busy[key] += micros(until - max(lease.leased, hour))
            hour += timedelta(hours=1)
        ended[*key, "completed" if lease.outcome == "completed" else "failures"] += 1
    for (worker, protocol, hour), us in busy.items():
        done, bad = (ended[worker, protocol, hour, what] for what in ("completed", "failures"))
        yield {
            "server": SERVER, "worker": worker, "holder": protocol, "hour": hour, "busy_us": us,
            "attempts": done + bad, "completed": done, "failures": bad,
            "day": hour.date(),
        }  # fmt: skip


def kind_hour(leases: list[Lease]) -> Iterable[dict[str, Any]]:
    counts: Counter[Any] = Counter()
    for at, lease, what in happened(leases):
        actor = lease.origin if what == "pushed" else lease.protocol
        hour = at.replace(minute=0, second=0, microsecond=0)
        counts[hour, lease.queue, lease.kind, lease.origin, actor, what] += 1
    for key in {key[:5] for key in counts}:
        hour, queue, kind, origin, actor = key
        names = ("pushed", "started", "completed", "failures", "died")
        row = {name: counts[*key, name] for name in names}
        yield {
            "server": SERVER,
            "queue": queue,
            "kind": kind,
            "origin": origin,
            "actor": actor,
            "hour": hour,
            "day": hour.date(),
            **row,
            "events": sum(row.values()) - row["died"],
        }

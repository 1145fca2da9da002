"""A lake with believable tables, made in a second: what reports are tested on.

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

from millrace.pipeline import reading, tables
from millrace.pipeline.lake import Lake
from millrace.pipeline.tables import Table

SERVER = "5eed0a11ce"
FIRST = date(2026, 11, 10)
HOSTILE = "<img src=x onerror=\"document.title='pwned'\">"
HOSTILE_LINK = '<a href="https://evil.example/">mail</a> & </script><b>%{x}</b> \u202e'
#: Queue, kinds with the median of their runs in seconds, who pushes, who works, how often it fails.
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


def write(lake: Lake, table: Table, rows: Iterable[dict[str, Any]]) -> None:
    """Rows with their `day`, if the table has days, into its files."""
    schema = reading.schema(table)
    by_day: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_day[row.get("day")].append({name: row.get(name) for name in schema.names})
    for day, of in by_day.items():
        folder = lake.table(table.name) if day is None else lake.day(table.name, day)
        folder.mkdir(parents=True, exist_ok=True)
        whole = pa.Table.from_pylist(of, schema)
        kept = whole.drop_columns(["day"]) if table.day else whole
        pq.write_table(kept, folder / "data.parquet", compression="zstd")


def micros(span: timedelta) -> int:
    return round(span / timedelta(microseconds=1))


def fill(root: Path, leases: list[Lease]) -> Lake:
    """All tables that a report reads, of one server."""
    lake = Lake(root)
    write(lake, tables.ATTEMPTS, attempts(leases))
    write(lake, tables.LATENCY_HIST, latency_hist(leases))
    write(lake, tables.QUEUE_DAY, queue_day(leases))
    write(lake, tables.THROUGHPUT_MINUTE, throughput_minute(leases))
    write(lake, tables.DEPTH_DAY, depth_day(leases))
    write(lake, tables.FAILURE_GROUPS, failure_groups(leases))
    write(lake, tables.WORKER_HOUR, worker_hour(leases))
    write(lake, tables.PROTOCOL_DAY, protocol_day(leases))
    return lake


def attempts(leases: list[Lease]) -> Iterable[dict[str, Any]]:
    for lease in leases:
        yield {
            "server": SERVER,
            "seq": lease.seq,
            "lease_event": lease.seq,
            "queue": lease.queue,
            "kind": lease.kind,
            "leased_at": lease.leased,
            "ended_at": lease.ended,
            "wait_us": micros(lease.leased - lease.pushed),
            "run_us": micros(lease.ended - lease.leased),
            "outcome": "failed" if lease.outcome == "died" else lease.outcome,
            "day": lease.leased.date(),
        }


def spans(leases: list[Lease]) -> Iterable[tuple[date, str, str, str, int]]:
    for lease in leases:
        wait = micros(lease.leased - lease.pushed)
        yield lease.leased.date(), lease.queue, lease.kind, "wait", wait
        if lease.outcome == "completed":
            run = micros(lease.ended - lease.leased)
            yield lease.ended.date(), lease.queue, lease.kind, "run", run


def latency_hist(leases: list[Lease]) -> Iterable[dict[str, Any]]:
    found: dict[Any, list[int]] = defaultdict(list)
    for *key, us in spans(leases):
        found[*key, math.floor(math.log(max(us, 1)) / math.log(1.02))].append(us)
    for (day, queue, kind, metric, bucket), of in found.items():
        yield {
            "server": SERVER, "queue": queue, "kind": kind, "metric": metric, "bucket": bucket,
            "n": len(of), "sum_us": float(sum(of)), "sumsq": float(sum(us * us for us in of)),
            "min_us": min(of), "max_us": max(of), "day": day,
        }  # fmt: skip


def happened(leases: list[Lease]) -> Iterable[tuple[datetime, Lease, str]]:
    """What happened to each job, as the counts of throughput_minute name it."""
    for lease in leases:
        yield lease.pushed, lease, "pushed"
        yield lease.leased, lease, "started"
        if lease.outcome == "completed":
            yield lease.ended, lease, "completed"
        else:
            yield lease.ended, lease, "failures"
            if lease.outcome == "died":
                yield lease.ended, lease, "died"


def queue_day(leases: list[Lease]) -> Iterable[dict[str, Any]]:
    counts = Counter((at.date(), lease.queue, what) for at, lease, what in happened(leases))
    for day, queue in sorted({key[:2] for key in counts}):
        names = {"leased": "started", "failed": "died"}
        columns = ("pushed", "leased", "completed", "failures", "failed", "died")
        row = {name: counts[day, queue, names.get(name, name)] for name in columns}
        yield {"server": SERVER, "queue": queue, "day": day, "retries": 0, **row}


def throughput_minute(leases: list[Lease]) -> Iterable[dict[str, Any]]:
    """A failed job that did not die is scheduled, for good."""
    counts: Counter[Any] = Counter()
    depth: dict[str, int] = defaultdict(int)
    depths: dict[Any, int] = {}
    for at, lease, what in sorted(happened(leases), key=lambda each: each[0]):
        minute = at.replace(second=0, microsecond=0)
        counts[minute, lease.queue, what] += 1
        depth[lease.queue] += {"pushed": 1, "started": -1, "failures": 1, "died": -1}.get(what, 0)
        depths[minute, lease.queue] = depth[lease.queue]
    for (minute, queue), backlog in depths.items():
        names = ("pushed", "started", "completed", "failures", "died")
        yield {
            "server": SERVER, "queue": queue, "minute": minute, "backlog": backlog,
            "ready": backlog, "day": minute.date(),
            **{name: counts[minute, queue, name] for name in names},
        }  # fmt: skip


def depth_day(leases: list[Lease]) -> Iterable[dict[str, Any]]:
    depth: Counter[Any] = Counter()
    for at, lease, what in happened(leases):
        change = {"pushed": 1, "started": -1, "failures": 1, "died": -1}.get(what, 0)
        depth[at.date(), lease.queue] += change
    for (day, queue), change in depth.items():
        none = {"scheduled": 0, "blocked": 0, "leased": 0, "dead": 0}
        yield {"server": SERVER, "queue": queue, "epoch": 0, "ready": change, "day": day, **none}


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
            "server": SERVER, "worker": worker, "protocol": protocol, "hour": hour, "busy_us": us,
            "attempts": done + bad, "completed": done, "failures": bad, "utilisation": us / 3.6e9,
            "day": hour.date(),
        }  # fmt: skip


def protocol_day(leases: list[Lease]) -> Iterable[dict[str, Any]]:
    counts: Counter[Any] = Counter()
    for at, lease, what in happened(leases):
        actor = lease.origin if what == "pushed" else lease.protocol
        counts[at.date(), lease.origin, actor, "leased" if what == "started" else what] += 1
    for day, origin, actor in {key[:3] for key in counts}:
        names = ("pushed", "leased", "completed", "failures", "died")
        row = {name: counts[day, origin, actor, name] for name in names}
        events = sum(row.values()) - row["died"]
        yield {
            "server": SERVER,
            "origin": origin,
            "actor": actor,
            "day": day,
            **row,
            "events": events,
        }

"""From the workers to the report: a workload over all five protocols with recorded observations.
The server ships its events, the pipeline derives tables, and every number in them must match the
observations.
"""

import math
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

BENCH = Path(__file__).parents[2] / "bench"
sys.path.insert(0, str(BENCH))

from no_java import empty_environment  # noqa: E402

from actors import ENDS  # noqa: E402
from millrace.cli.pipeline.live import look  # noqa: E402
from millrace.pipeline.audit.run import run as run_audit  # noqa: E402
from millrace.pipeline.lake import Lake  # noqa: E402
from millrace.pipeline.snapshot import Snapshot  # noqa: E402
from millrace.pipeline.tables import TABLES  # noqa: E402
from observations import Attempt, Observations, Pushed  # noqa: E402
from plans import ERRORS, ErrorTemplate, plans  # noqa: E402
from server_process import MILLRACE, running_server  # noqa: E402
from support.shipped_history import rows_of  # noqa: E402
from workload import Load, run  # noqa: E402

LOAD = Load(seconds=5, rate=400, seed=7)
#: The event types for each action of a worker. A disconnected worker sends no result: its lease
#: expires later. A refused result belongs to a lost lease.
OUTCOMES = {
    "completed": {"completed"},
    "failed": {"failed"},
    "buried": {"failed"},
    "released": {"released"},
    "left": {"expired", "running"},
    "refused": {"expired", "completed"},
}
#: The end of the first attempt of a scripted job.
FIRST_ENDS = {**ENDS, "leave": "left"}
#: Protocols with names of workers and messages of failures.
NAMED = {"faktory", "qless"}
Row = dict[str, Any]


class WorkloadRun(NamedTuple):
    observations: Observations
    data: Path
    report: Any

    @property
    def lake(self) -> Path:
        return self.data / "lake"

    def table(self, name: str) -> list[Row]:
        return rows_of(Snapshot(self.lake), TABLES[name]).to_pylist()

    def jobs(self) -> list[Row]:
        """All jobs: the removed ones, and the newest row of each other job."""
        newest: dict[int, Row] = {}
        for row in sorted(self.table("jobs_open"), key=lambda row: row["last_event"]):
            newest[row["seq"]] = row
        rows = [row for row in newest.values() if row["state"] != "gone"]
        return self.table("jobs") + rows

    def between(self, least: int, value: int, most: int) -> bool:
        """Whether the server's value is within these observed values. The clock of the machine may
        have been corrected between two observations, so its measured drift is allowed.
        """
        drift = self.observations.drift
        return least - drift <= value <= most + drift

    def attempts(self) -> Iterator[tuple[Pushed, Attempt]]:
        for job in self.observations.jobs.values():
            for attempt in job.attempts:
                yield job, attempt

    def paired(self) -> Iterator[tuple[Pushed, Attempt, Row]]:
        """Every observed attempt with its row in the lake."""
        found = defaultdict(list)
        for row in sorted(self.table("attempts"), key=lambda row: row["end_event"]):
            found[row["jid"]].append(row)
        for row in self.jobs():
            if row["state"] == "leased":
                found[row["jid"]].append({
                    **row,
                    "holder": row["actor"],
                    "outcome": "running",
                    "wait_us": max(0, micros(row["leased_at"]) - micros(row["ready_at"])),
                    "run_us": None,
                    "renewals": None,
                })  # fmt: skip
        for job in self.observations.jobs.values():
            for attempt, row in zip(job.attempts, found.pop(job.jid, []), strict=True):
                yield job, attempt, row
        assert not found


def millrace(env: dict[str, str], *args: object) -> str:
    """The output of the command; Spark must not print anything."""
    ran = subprocess.run(
        [MILLRACE, *map(str, args)], env=env, capture_output=True, text=True, timeout=900
    )
    assert ran.returncode == 0, (ran.stdout, ran.stderr)
    assert not re.search("spark:|WARN|Java", ran.stderr), ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def workload(tmp_path_factory: pytest.TempPathFactory) -> WorkloadRun:
    folder = tmp_path_factory.mktemp("end-to-end")
    data, empty = folder / "data", empty_environment(folder / "tools")
    with running_server(data, MILLRACE_LAKE_SHIP_EVERY="1s") as server:
        observations = run("127.0.0.1", server.ports, LOAD)
        assert server.stop(timeout=60) == 0
    millrace(empty, "pipeline", "run", "--data", data)
    report = msgspec.json.decode(millrace(empty, "pipeline", "report", "--data", data, "--json"))
    return WorkloadRun(observations, data, report)


def micros(moment: datetime) -> int:
    return round(moment.timestamp() * 1_000_000)


def total(rows: list[Row], *keys: str, of: str) -> Counter[tuple[str, ...]]:
    """The sum of a column by other columns, without zeros."""
    found: Counter[tuple[str, ...]] = Counter()
    for row in rows:
        found[tuple(row[key] or "" for key in keys)] += row[of]
    return +found


def test_the_workload_has_every_outcome_and_every_pair_of_protocols(workload):
    """By construction: the first jobs of a workload follow a script."""
    scripted = {plan.number: plan for plan in plans(LOAD.seed, LOAD.seconds, LOAD.rate)}
    for number, job in workload.observations.jobs.items():
        if scripted[number].worker:
            first = job.attempts[0]
            assert first.protocol == scripted[number].worker
            assert first.end == FIRST_ENDS[scripted[number].actions[0]]
    ends = Counter(attempt.end for _, attempt in workload.attempts())
    assert len(workload.observations.jobs) == LOAD.seconds * LOAD.rate
    assert ends.keys() >= {"completed", "failed", "buried", "released", "left"}
    crossings = {(job.protocol, attempt.protocol) for job, attempt in workload.attempts()}
    assert len(crossings) == 25
    assert workload.observations.foreign_jobs == 0


def test_every_event_is_in_the_lake_once(workload):
    ids = [row["event_id"] for row in workload.table("events")]
    assert sorted(ids) == list(range(1, len(ids) + 1))


def test_the_audit_has_no_findings_and_matches_the_store(workload, spark):
    (server,) = {row["server"] for row in workload.jobs()}
    known = look(workload.data)
    assert known is not None
    found = run_audit(spark, Lake(workload.lake), known.live(server), thorough=True)
    assert found.ok
    assert found.problems == {}
    assert found.compared is not None
    assert found.compared.jobs == sum(row["state"] != "gone" for row in workload.jobs())
    assert found.compared.days >= len(seen(workload))


# Jobs and attempts, one by one


def test_the_lake_has_exactly_the_acknowledged_jobs(workload):
    rows = {row["jid"]: row for row in workload.jobs()}
    jobs = {job.jid: job for job in workload.observations.jobs.values()}
    assert rows.keys() == jobs.keys()
    for jid, job in jobs.items():
        row = rows[jid]
        reported = (row["origin"], row["first_queue"], row["kind"])
        assert reported == (job.protocol, job.queue, job.kind)
        if row["state"] in {"done", "dead", "gone"}:
            assert row["leases"] == len(job.attempts)
        assert workload.between(job.said, micros(row["created"]), job.heard)


def test_the_end_of_every_job(workload):
    rows = {row["jid"]: row for row in workload.jobs()}
    for job in workload.observations.jobs.values():
        row, ends = rows[job.jid], [attempt.end for attempt in job.attempts]
        if row["state"] in {"done", "dead", "gone"}:
            assert row["failures"] >= ends.count("failed") + ends.count("buried")
        if job.withdrawn:
            assert (row["state"], row["outcome"]) == ("gone", "cancelled")
        elif "completed" in ends:
            assert row["state"] in {"done", "gone"}
            assert row["outcome"] == "completed"
            assert ends.index("completed") == len(ends) - 1
        elif "refused" not in ends:
            assert row["outcome"] != "completed"


def test_every_attempt_matches_the_observation_of_its_worker(workload):
    for job, attempt, row in workload.paired():
        reported = (row["origin"], row["holder"], row["queue"])
        assert reported == (job.protocol, attempt.protocol, attempt.queue)
        assert row["renewals"] in {attempt.renewals, None}
        assert row["outcome"] in OUTCOMES[attempt.end]
        if attempt.protocol in NAMED:
            assert row["worker"] == attempt.worker
        if attempt.message and attempt.protocol != "masenko":
            assert attempt.message in row["error_message"]


def test_every_time_is_within_the_observed_interval(workload):
    """A lease starts between request and reply, and ends between the worker's command and its
    reply.
    """
    between = workload.between
    for job, attempt, row in workload.paired():
        assert between(attempt.asked, micros(row["leased_at"]), attempt.got)
        assert row["wait_us"] >= 0
        # An earlier pop of a Qless job can have been sent before the put that it followed.
        began = min(job.said, *(each.asked for each in job.attempts))
        assert between(0, row["wait_us"], attempt.got - began)
        if attempt.end in {"completed", "failed", "buried", "released"}:
            assert between(attempt.said, micros(row["ended_at"]), attempt.heard)
            least, most = attempt.said - attempt.got, attempt.heard - attempt.asked
            assert between(least, row["run_us"], most)


def test_the_first_wait_starts_at_the_push_or_the_due_time(workload):
    seen = 0
    for job, attempt, row in workload.paired():
        if attempt is job.attempts[0] and not job.after and not job.due:
            least = max(0, attempt.asked - job.heard)
            assert row["wait_us"] >= 0
            assert workload.between(least, row["wait_us"], attempt.got - job.said)
            seen += 1
    assert seen > LOAD.seconds * LOAD.rate / 2


# Sums


def test_queues(workload):
    days = workload.table("queue_day")
    jobs, attempts = workload.observations.jobs.values(), list(workload.attempts())
    pushed = Counter((job.queue,) for job in jobs)
    assert total(days, "queue", of="pushed") == pushed
    leased = Counter((attempt.queue,) for _, attempt in attempts)
    assert total(days, "queue", of="started") == leased
    assert total(days, "queue", of="wait_n") == leased
    completed = Counter((a.queue,) for _, a in attempts if a.end == "completed")
    assert total(days, "queue", of="completed") == completed
    assert total(days, "queue", of="run_n") == completed


def test_the_failures_of_queues(workload):
    """Failures that workers reported, and expired leases of disconnected workers."""
    lost = Counter((a.queue,) for _, a, row in workload.paired() if row["outcome"] == "expired")
    reported = Counter((a.queue,) for _, a in workload.attempts() if a.end in {"failed", "buried"})
    days = workload.table("queue_day")
    assert total(days, "queue", of="failures") == lost + reported
    # A lease of Qless expires twice: into its grace period, and out of it.
    retries = total(days, "queue", of="expired")
    assert all(retries[queue] >= count for queue, count in lost.items())
    died = Counter((row["queue"],) for row in workload.table("attempts") if row["state"] == "dead")
    doomed = [row for row in workload.table("events") if row["type"] == "doomed"]
    assert total(days, "queue", of="failed") == died + Counter((r["queue"],) for r in doomed)


def test_the_run_time_of_a_queue(workload):
    least, most, counted = Counter(), Counter(), Counter()
    for _, attempt in workload.attempts():
        if attempt.end == "completed":
            least[attempt.queue] += attempt.said - attempt.got
            most[attempt.queue] += attempt.heard - attempt.asked
            counted[attempt.queue] += 1
    reported = Counter()
    for row in workload.table("queue_day"):
        reported[row["queue"]] += row["run_n"] * row["run_mean"]
    assert reported.keys() >= counted.keys()
    for queue in counted:
        drift = workload.observations.drift * counted[queue]
        assert least[queue] - drift <= reported[queue] * 1e6 + 1 <= most[queue] + drift + 2
    hist = workload.table("latency_day")
    runs = [row for row in hist if row["metric"] == "run"]
    assert total(runs, "queue", of="n") == Counter({(q,): n for q, n in counted.items()})


def test_minutes(workload):
    minutes = workload.table("queue_minute")
    jobs, attempts = workload.observations.jobs.values(), list(workload.attempts())
    assert total(minutes, "queue", of="pushed") == Counter((job.queue,) for job in jobs)
    assert total(minutes, "queue", of="started") == Counter((a.queue,) for _, a in attempts)
    completed = Counter((a.queue,) for _, a in attempts if a.end == "completed")
    assert total(minutes, "queue", of="completed") == completed


def test_the_last_depths_are_the_remaining_jobs(workload):
    left = Counter((row["queue"], row["state"]) for row in workload.jobs())
    minutes = workload.table("queue_minute")
    for state in ("ready", "scheduled", "blocked", "leased", "dead"):
        depths = total(minutes, "queue", of=state)
        assert depths == Counter({(q,): n for (q, s), n in left.items() if s == state}), state


def test_protocols(workload):
    days = workload.table("kind_hour")
    jobs, attempts = workload.observations.jobs.values(), list(workload.attempts())
    assert total(days, "origin", of="pushed") == Counter((job.protocol,) for job in jobs)
    leased = Counter((job.protocol, a.protocol) for job, a in attempts)
    assert total(days, "origin", "actor", of="started") == leased
    completed = Counter((job.protocol, a.protocol) for job, a in attempts if a.end == "completed")
    assert total(days, "origin", "actor", of="completed") == completed


def test_workers(workload):
    hours = [row for row in workload.table("worker_hour") if row["holder"] in NAMED]
    mine = [(a, row) for _, a, row in workload.paired() if a.protocol in NAMED]
    ended = Counter((a.worker,) for a, row in mine if row["outcome"] != "running")
    assert total(hours, "worker", of="attempts") == ended
    completed = Counter((a.worker,) for a, _ in mine if a.end == "completed")
    assert total(hours, "worker", of="completed") == completed
    busy = total(hours, "worker", of="busy_us")
    for worker in busy:
        reported = [(a, row) for a, row in mine if (a.worker,) == worker and a.end in OUTCOMES]
        least = sum(a.said - a.got for a, _ in reported if a.said)
        assert least - workload.observations.drift * len(reported) <= busy[worker]


def test_failure_groups_match_the_errors_of_the_workers(workload):
    expected: Counter[tuple[str, str, str]] = Counter()
    for _, attempt in workload.attempts():
        if attempt.end in {"failed", "buried"}:
            error = next(t for t in ERRORS if t.group == attempt.group)
            group = {"workq": "Failed", "masenko": "Nack"}.get(attempt.protocol, error.group)
            words = "" if attempt.protocol == "masenko" else error.words
            expected[attempt.queue, group, words] += 1
    reported: Counter[tuple[str, str, str]] = Counter()
    shapes = defaultdict(set)
    for row in workload.table("failure_groups"):
        words = shape(row["sample_message"] or "")
        if words is not None:
            reported[row["queue"], row["error_group"], words] += row["n"]
            shapes[row["error_group"], words].add(row["fingerprint"])
    assert reported == expected
    assert all(len(fingerprints) == 1 for fingerprints in shapes.values()), shapes


def shape(message: str) -> str | None:
    """The template of this message; empty for no message; None if it has no template."""
    for error in ERRORS:
        if re.fullmatch(rf"({error.group}: )?{pattern(error)}", message):
            return error.words
    return None if message else ""


def pattern(error: ErrorTemplate) -> str:
    return re.sub(r"\\{\w+\\}", r"\\w+", re.escape(error.words))


# The report


def seen(workload: WorkloadRun, *ends: str) -> Counter[str]:
    """Attempts by queue, in total or with these ends."""
    return Counter(a.queue for _, a in workload.attempts() if not ends or a.end in ends)


def test_the_report_s_headline(workload):
    head, jobs = workload.report["headline"], workload.observations.jobs.values()
    attempts = list(workload.attempts())
    lost = sum(row["outcome"] == "expired" for _, _, row in workload.paired())
    reported = sum(a.end in {"failed", "buried"} for _, a in attempts)
    assert head["pushed"] == len(jobs)
    assert head["started"] == head["wait"]["n"] == len(attempts)
    assert head["completed"] == head["run"]["n"] == seen(workload, "completed").total()
    assert head["failures"] == reported + lost
    left = Counter(row["state"] for row in workload.jobs())
    assert head["backlog"] == left["ready"] + left["scheduled"] + left["blocked"]


def test_the_report_s_longest_and_middle_run(workload):
    """Percentiles within one percent of the workers' observations."""
    done = [a for _, a in workload.attempts() if a.end == "completed"]
    least = sorted(a.said - a.got for a in done)
    most = sorted(a.heard - a.asked for a in done)
    run, drift = workload.report["headline"]["run"], workload.observations.drift
    for name, part in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        rank = math.ceil(part * len(done) - 1e-9) - 1
        lowest, highest = (least[rank] - drift) * 0.99, (most[rank] + drift) * 1.01
        assert lowest <= run[name] * 1e6 <= highest, name
    assert least[-1] - drift <= run["max"] * 1e6 + 1 <= most[-1] + drift + 2


def test_the_report_s_queues(workload):
    queues = workload.report["queues"]
    assert queues["more"] == 0
    rows = {row["queue"]: row for row in queues["rows"]}
    pushed = Counter(job.queue for job in workload.observations.jobs.values())
    assert Counter({name: row["pushed"] for name, row in rows.items()}) == pushed
    assert Counter({name: row["started"] for name, row in rows.items()}) == seen(workload)
    completed = Counter({name: row["completed"] for name, row in rows.items()})
    assert completed == seen(workload, "completed")


def test_the_report_s_timeline_is_the_workload_s_time(workload):
    timeline = workload.report["timeline"]
    assert sum(timeline["pushed"]) == len(workload.observations.jobs)
    assert sum(timeline["started"]) == seen(workload).total()
    assert sum(timeline["completed"]) == seen(workload, "completed").total()


def test_the_report_s_kinds(workload):
    reported = Counter({row["kind"]: row["run"]["n"] for row in workload.report["kinds"]["rows"]})
    done = Counter(job.kind for job, a in workload.attempts() if a.end == "completed")
    assert workload.report["kinds"]["more"] == 0
    assert +reported == done


def test_the_report_s_workers(workload):
    rows = [row for row in workload.report["workers"]["rows"] if row["protocol"] in NAMED]
    completed = Counter({row["worker"]: row["completed"] for row in rows})
    done = Counter(
        a.worker for _, a in workload.attempts() if a.end == "completed" and a.protocol in NAMED
    )
    assert completed == done


def test_the_report_s_protocols(workload):
    reported = Counter()
    for row in workload.report["protocols"]:
        reported[row["origin"], row["actor"]] += row["completed"]
    done = Counter(
        (job.protocol, a.protocol) for job, a in workload.attempts() if a.end == "completed"
    )
    assert +reported == done


def test_the_report_s_failures(workload):
    """The same number of failures with the same messages as the workers reported."""
    reported = Counter()
    for row in workload.report["failures"]["rows"]:
        words = shape(row["sample_message"])
        reported[words] += row["n"]
    had = Counter()
    for _, attempt in workload.attempts():
        if attempt.end in {"failed", "buried"}:
            error = next(t for t in ERRORS if t.group == attempt.group)
            had["" if attempt.protocol == "masenko" else error.words] += 1
    del reported[None]
    assert reported == had

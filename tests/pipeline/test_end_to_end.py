"""From the workers to the report: a workload over all five protocols, whose people wrote down what
they saw; the server ships it, the pipeline makes tables of it, and every number in them is one that
somebody saw.
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

from crew import ENDS  # noqa: E402
from lake_tables import records  # noqa: E402
from millrace.cli.pipeline.live import look  # noqa: E402
from millrace.pipeline import audit  # noqa: E402
from millrace.pipeline.lake import Lake  # noqa: E402
from plans import TROUBLES, Trouble, plans  # noqa: E402
from server_process import MILLRACE, running_server  # noqa: E402
from witness import Attempt, Pushed, Witness  # noqa: E402
from workload import Load, run  # noqa: E402

LOAD = Load(seconds=5, rate=400, seed=7)
#: What the journal calls what a worker did. Who dies with a job says nothing: sooner or later its
#: lease expires. What was refused had been lost before.
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
#: Whose workers have names, and whose failures have words.
NAMED = {"faktory", "qless"}
Row = dict[str, Any]


class Story(NamedTuple):
    witness: Witness
    data: Path
    report: Any

    @property
    def lake(self) -> Path:
        return self.data / "lake"

    def table(self, name: str) -> list[Row]:
        return records(self.lake, name)

    def attempts(self) -> Iterator[tuple[Pushed, Attempt]]:
        for job in self.witness.jobs.values():
            for attempt in job.attempts:
                yield job, attempt

    def paired(self) -> Iterator[tuple[Pushed, Attempt, Row]]:
        """Every attempt that a worker saw, and the one that the lake has of it."""
        found = defaultdict(list)
        for row in sorted(self.table("attempts"), key=lambda row: row["lease_event"]):
            found[row["jid"]].append(row)
        for job in self.witness.jobs.values():
            for attempt, row in zip(job.attempts, found.pop(job.jid, []), strict=True):
                yield job, attempt, row
        assert not found


def millrace(env: dict[str, str], *args: object) -> str:
    """What the command prints; of Spark itself nothing is heard."""
    ran = subprocess.run(
        [MILLRACE, *map(str, args)], env=env, capture_output=True, text=True, timeout=900
    )
    assert ran.returncode == 0, (ran.stdout, ran.stderr)
    assert not re.search("spark:|WARN|Java", ran.stderr), ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    folder = tmp_path_factory.mktemp("end-to-end")
    data, empty = folder / "data", empty_environment(folder / "tools")
    with running_server(data, MILLRACE_LAKE_SHIP_EVERY="1s") as server:
        witness = run("127.0.0.1", server.ports, LOAD)
        assert server.stop(timeout=60) == 0
    millrace(empty, "pipeline", "run", "--data", data)
    report = msgspec.json.decode(millrace(empty, "pipeline", "report", "--data", data, "--json"))
    return Story(witness, data, report)


def micros(moment: datetime) -> int:
    return round(moment.timestamp() * 1_000_000)


def total(rows: list[Row], *keys: str, of: str) -> Counter[tuple[str, ...]]:
    """A column's sum by others, without those that are 0."""
    found: Counter[tuple[str, ...]] = Counter()
    for row in rows:
        found[tuple(row[key] or "" for key in keys)] += row[of]
    return +found


def test_the_workload_has_every_outcome_and_every_pair_of_protocols(story):
    """By construction: the first jobs of a workload follow a script."""
    scripted = {plan.number: plan for plan in plans(LOAD.seed, LOAD.seconds, LOAD.rate)}
    for number, job in story.witness.jobs.items():
        if scripted[number].worker:
            first = job.attempts[0]
            assert first.protocol == scripted[number].worker
            assert first.end == FIRST_ENDS[scripted[number].deeds[0]]
    ends = Counter(attempt.end for _, attempt in story.attempts())
    assert len(story.witness.jobs) == LOAD.seconds * LOAD.rate
    assert ends.keys() >= {"completed", "failed", "buried", "released", "left"}
    crossings = {(job.protocol, attempt.protocol) for job, attempt in story.attempts()}
    assert len(crossings) == 25
    assert story.witness.strangers == 0


def test_every_event_is_in_the_lake_once(story):
    ids = [row["event_id"] for row in story.table("events")]
    assert sorted(ids) == list(range(1, len(ids) + 1))
    assert story.table("quarantine") == []


def test_the_audit_finds_nothing_and_the_server_s_own_store_agrees(story, spark):
    (server,) = {row["server"] for row in story.table("jobs")}
    known = look(story.data)
    assert known is not None
    found = audit.run(spark, Lake(story.lake), known.live(server), thorough=True)
    assert found.ok
    assert found.problems == {}
    assert found.compared is not None
    assert found.compared.jobs == sum(row["state"] != "gone" for row in story.table("jobs"))
    assert found.compared.days >= len(seen(story))


# Jobs and attempts, one by one


def test_every_job_that_was_acknowledged_and_no_other(story):
    rows = {row["jid"]: row for row in story.table("jobs")}
    jobs = {job.jid: job for job in story.witness.jobs.values()}
    assert rows.keys() == jobs.keys()
    for jid, job in jobs.items():
        row = rows[jid]
        told = (row["origin"], row["first_queue"], row["kind"], row["leases"], row["whole"])
        assert told == (job.protocol, job.queue, job.kind, len(job.attempts), True)
        assert job.said <= micros(row["created"]) <= job.heard


def test_how_every_job_ended(story):
    rows = {row["jid"]: row for row in story.table("jobs")}
    for job in story.witness.jobs.values():
        row, ends = rows[job.jid], [attempt.end for attempt in job.attempts]
        assert row["failures"] >= ends.count("failed") + ends.count("buried")
        if job.withdrawn:
            assert (row["state"], row["outcome"]) == ("gone", "cancelled")
        elif "completed" in ends:
            assert row["state"] in {"done", "gone"}
            assert row["outcome"] == "completed"
            assert ends.index("completed") == len(ends) - 1
        elif "refused" not in ends:
            assert row["outcome"] != "completed"


def test_every_attempt_as_its_worker_saw_it(story):
    for job, attempt, row in story.paired():
        told = (row["origin"], row["protocol"], row["queue"], row["renewals"])
        assert told == (job.protocol, attempt.protocol, attempt.queue, attempt.renewals)
        assert row["outcome"] in OUTCOMES[attempt.end]
        if attempt.protocol in NAMED:
            assert row["worker"] == attempt.worker
        if attempt.message and attempt.protocol != "masenko":
            assert attempt.message in row["error_message"]


def test_every_time_is_one_that_its_worker_can_bear_out(story):
    """A lease began between question and answer, and ended between word and reply."""
    for job, attempt, row in story.paired():
        assert attempt.asked <= micros(row["leased_at"]) <= attempt.got
        assert row["wait_us"] <= attempt.got - job.said
        if attempt.end in {"completed", "failed", "buried", "released"}:
            assert attempt.said <= micros(row["ended_at"]) <= attempt.heard
            assert attempt.said - attempt.got <= row["run_us"] <= attempt.heard - attempt.asked


def test_a_first_wait_is_from_the_push_or_the_moment_it_fell_due(story):
    seen = 0
    for job, attempt, row in story.paired():
        if attempt is job.attempts[0] and not job.after and not job.due:
            least = max(0, attempt.asked - job.heard)
            assert least <= row["wait_us"] <= attempt.got - job.said
            seen += 1
    assert seen > LOAD.seconds * LOAD.rate / 2


# Sums


def test_queues(story):
    days = story.table("queue_day")
    jobs, attempts = story.witness.jobs.values(), list(story.attempts())
    pushed = Counter((job.queue,) for job in jobs)
    assert total(days, "queue", of="pushed") == pushed
    leased = Counter((attempt.queue,) for _, attempt in attempts)
    assert total(days, "queue", of="leased") == leased
    assert total(days, "queue", of="wait_n") == leased
    completed = Counter((a.queue,) for _, a in attempts if a.end == "completed")
    assert total(days, "queue", of="completed") == completed
    assert total(days, "queue", of="run_n") == completed


def test_the_failures_of_queues(story):
    """Those that workers told of, and those who died with a job whose lease has ended since."""
    lost = Counter((a.queue,) for _, a, row in story.paired() if row["outcome"] == "expired")
    told = Counter((a.queue,) for _, a in story.attempts() if a.end in {"failed", "buried"})
    days = story.table("queue_day")
    assert total(days, "queue", of="failures") == lost + told
    # A lease of Qless expires twice: into its time of grace, and out of it.
    retries = total(days, "queue", of="retries")
    assert all(retries[queue] >= count for queue, count in lost.items())
    died = Counter((row["queue"],) for row in story.table("attempts") if row["state"] == "dead")
    doomed = [row for row in story.table("events") if row["type"] == "doomed"]
    assert total(days, "queue", of="failed") == died + Counter((r["queue"],) for r in doomed)


def test_how_long_the_jobs_of_a_queue_ran(story):
    least, most, counted = Counter(), Counter(), Counter()
    for _, attempt in story.attempts():
        if attempt.end == "completed":
            least[attempt.queue] += attempt.said - attempt.got
            most[attempt.queue] += attempt.heard - attempt.asked
            counted[attempt.queue] += 1
    told = Counter()
    for row in story.table("queue_day"):
        told[row["queue"]] += row["run_n"] * row["run_mean"]
    assert told.keys() >= counted.keys()
    for queue in counted:
        assert least[queue] <= told[queue] * 1e6 + 1 <= most[queue] + 2
    hist = story.table("latency_hist")
    runs = [row for row in hist if row["metric"] == "run"]
    assert total(runs, "queue", of="n") == Counter({(q,): n for q, n in counted.items()})


def test_minutes(story):
    minutes = story.table("throughput_minute")
    jobs, attempts = story.witness.jobs.values(), list(story.attempts())
    assert total(minutes, "queue", of="pushed") == Counter((job.queue,) for job in jobs)
    assert total(minutes, "queue", of="started") == Counter((a.queue,) for _, a in attempts)
    completed = Counter((a.queue,) for _, a in attempts if a.end == "completed")
    assert total(minutes, "queue", of="completed") == completed


def test_the_last_depths_are_the_jobs_that_are_left(story):
    last = {row["queue"]: row for row in sorted(story.table("throughput_minute"), key=_minute)}
    left = Counter((row["queue"], row["state"]) for row in story.table("jobs"))
    for queue, row in last.items():
        for state in ("ready", "scheduled", "blocked", "leased", "dead"):
            assert row[state] == left[queue, state], (queue, state)


def _minute(row: Row) -> datetime:
    found: datetime = row["minute"]
    return found


def test_protocols(story):
    days = story.table("protocol_day")
    jobs, attempts = story.witness.jobs.values(), list(story.attempts())
    assert total(days, "origin", of="pushed") == Counter((job.protocol,) for job in jobs)
    leased = Counter((job.protocol, a.protocol) for job, a in attempts)
    assert total(days, "origin", "actor", of="leased") == leased
    completed = Counter((job.protocol, a.protocol) for job, a in attempts if a.end == "completed")
    assert total(days, "origin", "actor", of="completed") == completed


def test_workers(story):
    hours = [row for row in story.table("worker_hour") if row["protocol"] in NAMED]
    mine = [(a, row) for _, a, row in story.paired() if a.protocol in NAMED]
    ended = Counter((a.worker,) for a, row in mine if row["outcome"] != "running")
    assert total(hours, "worker", of="attempts") == ended
    completed = Counter((a.worker,) for a, _ in mine if a.end == "completed")
    assert total(hours, "worker", of="completed") == completed
    busy = total(hours, "worker", of="busy_us")
    for worker in busy:
        told = [(a, row) for a, row in mine if (a.worker,) == worker and a.end in OUTCOMES]
        least = sum(a.said - a.got for a, _ in told if a.said)
        assert least <= busy[worker]


def test_failure_groups_are_the_troubles_that_workers_had(story):
    expected: Counter[tuple[str, str, str]] = Counter()
    for _, attempt in story.attempts():
        if attempt.end in {"failed", "buried"}:
            trouble = next(t for t in TROUBLES if t.group == attempt.group)
            group = {"workq": "Failed", "masenko": "Nack"}.get(attempt.protocol, trouble.group)
            words = "" if attempt.protocol == "masenko" else trouble.words
            expected[attempt.queue, group, words] += 1
    told: Counter[tuple[str, str, str]] = Counter()
    shapes = defaultdict(set)
    for row in story.table("failure_groups"):
        words = shape(row["sample_message"] or "")
        if words is not None:
            told[row["queue"], row["error_group"], words] += row["n"]
            shapes[row["error_group"], words].add(row["fingerprint"])
    assert told == expected
    assert all(len(fingerprints) == 1 for fingerprints in shapes.values()), shapes


def shape(message: str) -> str | None:
    """The trouble that these words are of; empty for none; None if no worker says so."""
    for trouble in TROUBLES:
        if re.fullmatch(rf"({trouble.group}: )?{pattern(trouble)}", message):
            return trouble.words
    return None if message else ""


def pattern(trouble: Trouble) -> str:
    return re.sub(r"\\{\w+\\}", r"\\w+", re.escape(trouble.words))


# The report


def seen(story: Story, *ends: str) -> Counter[str]:
    """Attempts by queue, all or those that ended so."""
    return Counter(a.queue for _, a in story.attempts() if not ends or a.end in ends)


def test_the_report_s_headline(story):
    head, jobs = story.report["headline"], story.witness.jobs.values()
    attempts = list(story.attempts())
    lost = sum(row["outcome"] == "expired" for _, _, row in story.paired())
    told = sum(a.end in {"failed", "buried"} for _, a in attempts)
    assert head["pushed"] == len(jobs)
    assert head["started"] == head["wait"]["n"] == len(attempts)
    assert head["completed"] == head["run"]["n"] == seen(story, "completed").total()
    assert head["failures"] == told + lost
    left = Counter(row["state"] for row in story.table("jobs"))
    assert head["backlog"] == left["ready"] + left["scheduled"] + left["blocked"]


def test_the_report_s_longest_and_middle_run(story):
    """Percentiles within a hundredth, of what the workers can bear out."""
    done = [a for _, a in story.attempts() if a.end == "completed"]
    least = sorted(a.said - a.got for a in done)
    most = sorted(a.heard - a.asked for a in done)
    run = story.report["headline"]["run"]
    for name, part in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        place = math.ceil(part * len(done) - 1e-9) - 1
        assert least[place] * 0.99 <= run[name] * 1e6 <= most[place] * 1.01, name
    assert least[-1] <= run["max"] * 1e6 + 1 <= most[-1] + 2


def test_the_report_s_queues(story):
    queues = story.report["queues"]
    assert queues["more"] == 0
    rows = {row["queue"]: row for row in queues["rows"]}
    pushed = Counter(job.queue for job in story.witness.jobs.values())
    assert Counter({name: row["pushed"] for name, row in rows.items()}) == pushed
    assert Counter({name: row["started"] for name, row in rows.items()}) == seen(story)
    completed = Counter({name: row["completed"] for name, row in rows.items()})
    assert completed == seen(story, "completed")


def test_the_report_s_timeline_is_the_workload_s_time(story):
    timeline = story.report["timeline"]
    assert sum(timeline["pushed"]) == len(story.witness.jobs)
    assert sum(timeline["started"]) == seen(story).total()
    assert sum(timeline["completed"]) == seen(story, "completed").total()


def test_the_report_s_kinds(story):
    told = Counter({row["kind"]: row["run"]["n"] for row in story.report["kinds"]["rows"]})
    done = Counter(job.kind for job, a in story.attempts() if a.end == "completed")
    assert story.report["kinds"]["more"] == 0
    assert +told == done


def test_the_report_s_workers(story):
    rows = [row for row in story.report["workers"]["rows"] if row["protocol"] in NAMED]
    completed = Counter({row["worker"]: row["completed"] for row in rows})
    done = Counter(
        a.worker for _, a in story.attempts() if a.end == "completed" and a.protocol in NAMED
    )
    assert completed == done


def test_the_report_s_protocols(story):
    told = Counter()
    for row in story.report["protocols"]:
        told[row["origin"], row["actor"]] += row["completed"]
    done = Counter(
        (job.protocol, a.protocol) for job, a in story.attempts() if a.end == "completed"
    )
    assert +told == done


def test_the_report_s_failures(story):
    """As many as workers had, of the words that they said."""
    told = Counter()
    for row in story.report["failures"]["rows"]:
        words = shape(row["sample_message"])
        told[words] += row["n"]
    had = Counter()
    for _, attempt in story.attempts():
        if attempt.end in {"failed", "buried"}:
            trouble = next(t for t in TROUBLES if t.group == attempt.group)
            had["" if attempt.protocol == "masenko" else trouble.words] += 1
    del told[None]
    assert told == had

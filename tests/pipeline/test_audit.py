"""The audit of a lake, and of a server under load."""

import io
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event as Signal
from threading import Thread
from typing import Any

import engine_history
import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from engine_history import SERVERS, History
from rich.console import Console
from typer.testing import CliRunner

from event_tables import event_run
from millrace.cli.app import app
from millrace.cli.pipeline import audit as audit_command
from millrace.cli.pipeline import settings
from millrace.cli.pipeline import state as state_command
from millrace.cli.pipeline.audit import advice, tell
from millrace.cli.ship import shipped
from millrace.engine.events import EVENT_VERSION, Event
from millrace.engine.states import LEASED, READY, STATE_NAMES
from millrace.journal.events_table import EventsTable
from millrace.journal.snapshot import days_table, queues_table, snapshot
from millrace.pipeline.audit.results import (
    Compared,
    Difference,
    Findings,
    Gap,
    Live,
    Numbers,
    Problem,
)
from millrace.pipeline.audit.run import run as run_audit
from millrace.pipeline.lake import Lake
from millrace.pipeline.run import run
from millrace.pipeline.snapshot import Snapshot
from millrace.pipeline.tables import AUDIT_JOBS
from raw_faktory import RawFaktory
from server_process import running_server
from support.shipped_history import rows_of

EVENTS = 9_000


def known(history: History) -> Live:
    """The state that a server reports at the end of its history."""
    jobs = {
        "seq": list(history.jobs),
        "jid": [f"jid-{seq}" for seq in history.jobs],
        "queue": [job.queue for job in history.jobs.values()],
        "state": [job.state for job in history.jobs.values()],
    }
    counts: dict[str, list[int]] = {}
    for job in history.jobs.values():
        counts.setdefault(job.queue, [0] * 6)[STATE_NAMES.index(job.state)] += 1
    statistics, last = history.statistics, history.events
    return Live(
        server=history.server,
        event=last,
        jobs=pa.table(jobs),
        days=days_table(statistics.days.values(), last),
        queues=queues_table(counts.items(), last),
        as_of=last,
        since=statistics.first_retained_day(0),
    )


def test_faults_are_found(spark, tmp_path):
    """The first server lacks 1,000 events and has a changed event. The second server, which was
    flushed, has jobs and a number that differ from its events.
    """
    lake = Lake(tmp_path / "lake")
    histories, rows = engine_history.collect(EVENTS)
    events = list(rows[SERVERS[0]])
    kind, before = Event._fields.index("type"), Event._fields.index("before")
    changed = next(
        number
        for number, row in enumerate(events)
        if number >= 2_000 and row[kind] == "completed" and row[before] == LEASED
    )
    row = events[changed]
    # A legal transition, but not the recorded one.
    events[changed] = (*row[:before], READY, *row[before + 1 :])
    table = EventsTable(lake.root)
    table.append(SERVERS[0], event_run(1, EVENT_VERSION, events[:1_000]))
    table.append(SERVERS[0], event_run(2_001, EVENT_VERSION, events[2_000:]))
    table.append(SERVERS[1], event_run(1, EVENT_VERSION, rows[SERVERS[1]]))

    live = known(histories[1])
    jobs = live.jobs.to_pylist()
    lost, moved, *others = jobs
    other_state = "dead" if moved["state"] != "dead" else "ready"
    unknown = {"seq": 999_999, "jid": "nobody's", "queue": "mail", "state": "ready"}
    days = live.days.set_column(
        live.days.column_names.index("failures"),
        "failures",
        pc.add(live.days.column("failures"), pa.array([7] + [0] * (live.days.num_rows - 1))),
    )
    reported = [{**moved, "state": other_state}, unknown, *others]
    live = live._replace(jobs=pa.Table.from_pylist(reported, schema=live.jobs.schema), days=days)
    findings = run_audit(spark, lake, live)

    assert not findings.ok
    first, second = findings.servers
    assert (first.missing, [(gap.first, gap.last) for gap in first.gaps]) == (
        1_000,
        [(1_001, 2_000)],
    )
    assert (second.missing, second.duplicates) == (0, 0)
    run(lake, lambda _: spark)
    problems = rows_of(Snapshot(lake.root), AUDIT_JOBS).to_pylist()
    found = {(each["server"], each["seq"], each["problem"]) for each in problems}
    assert sum(findings.problems.values()) == len(problems)
    assert (SERVERS[0], row[Event._fields.index("seq")], "broken") in found
    assert {each for each in found if each[0] == SERVERS[1]} == {
        (SERVERS[1], lost["seq"], "lost"),
        (SERVERS[1], moved["seq"], "differs"),
        (SERVERS[1], 999_999, "unknown"),
    }
    compared = findings.compared
    assert compared is not None
    assert (compared.jobs, compared.queues) == (len(reported), live.queues.num_rows)
    assert compared.days > 10
    (difference,) = compared.differences
    assert (difference.what, int(difference.live) - int(difference.lake)) == ("failures", 7)
    written = msgspec.json.decode((lake.ops / "audit.json").read_bytes(), type=Findings)
    assert written == findings


@contextmanager
def load(port: int) -> Iterator[None]:
    """A client that pushes, completes and fails jobs continuously."""
    enough, busy = Signal(), Signal()

    def work() -> None:
        number = 0
        with RawFaktory(port, wid="busy") as faktory:
            while not enough.wait(0.001):
                number += 1
                if number == 30:
                    busy.set()  # every queue has jobs, and some have failed
                jid = f"job-{number:08}"
                unit = {"jid": jid, "jobtype": "Work", "args": [], "queue": f"q{number % 5}"}
                assert faktory.command("PUSH", unit) == "OK"
                if number % 3 == 0:
                    job = faktory.fetch("q0", "q1", "q2")
                    if job is not None:
                        how = "FAIL" if number % 4 == 0 else "ACK"
                        faktory.command(how, {"jid": job["jid"]})

    thread = Thread(target=work, daemon=True)
    thread.start()
    try:
        assert busy.wait(30)
        yield
    finally:
        enough.set()
        thread.join(30)


@pytest.fixture
def with_this_session(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands use the tests' session, because another one needs 15 seconds to start."""

    @contextmanager
    def started(*_: object, **__: object) -> Iterator[Any]:
        yield spark

    for command in (audit_command, state_command):
        monkeypatch.setattr(command, "tables_session", started)


@pytest.mark.usefixtures("with_this_session")
def test_a_server_under_load(spark, tmp_path):
    data = tmp_path / "data"
    with running_server(data) as server, load(server.port):
        result = CliRunner().invoke(app, ["pipeline", "audit", "--data", str(data), "--json"])
        assert result.exit_code == 0, result.output
        reported = msgspec.json.decode(result.stdout)
        assert reported["ok"]
        assert reported["compared"]["queues"] == 5
        assert reported["compared"]["jobs"] > 0
        assert reported["compared"]["days"] > 0
    # The server is idle, and the table contains all events.
    shipped(settings(data=str(data)))
    run(Lake(data / "lake"), lambda _: spark)
    result = CliRunner().invoke(app, ["pipeline", "audit", "--data", str(data), "--json"])
    assert result.exit_code == 0, result.output
    reported = msgspec.json.decode(result.stdout)
    assert reported["ok"]
    assert reported["compared"]["stored"]
    assert reported["compared"]["days"] > 0

    jobs = snapshot(data).jobs
    copy = tmp_path / "jobs.parquet"
    command = [
        "pipeline",
        "state",
        "--data",
        str(data),
        "--jobs",
        "--limit",
        "3",
        "--to",
        str(copy),
    ]
    result = CliRunner().invoke(app, [*command, "--json"])
    assert result.exit_code == 0, result.output
    reported = msgspec.json.decode(result.stdout)
    counts = Counter((job["queue"], job["state"]) for job in jobs.to_pylist())
    assert {
        (each["queue"], state): each[state]
        for each in reported["queues"]
        for state in STATE_NAMES[:6]
        if each[state]
    } == counts
    assert [job["seq"] for job in reported["jobs"]] == sorted(jobs.column("seq").to_pylist())[:3]
    columns = ["seq", "jid", "queue", "state"]
    written = pq.read_table(copy, partitioning=None).select(columns).sort_by("seq")
    assert written.to_pylist() == jobs.select(columns).sort_by("seq").to_pylist()


def test_the_printed_findings(tmp_path):
    """Control characters from clients do not reach the terminal."""
    gaps = [Gap(5, 9)]
    problem = Problem(
        "a1", 7, "[red]\x1b[31m", "lost", 3, "its last event left it ready in [b]q[/b]"
    )
    difference = Difference("failures", "q", "2026-11-16", "8", "1")
    compared = Compared("a1", 12, 3, 2, 1, False, 1, [difference], ["Something is left out."])
    findings = Findings([Numbers("a1", 1, 12, 7, 5, 0, gaps)], {"lost": 1}, [problem], 4, compared)
    out = io.StringIO()
    tell(findings, Lake(tmp_path), Console(file=out, markup=False, highlight=False, width=200))
    reported = out.getvalue()
    for words in (
        "a1: events 5 to 9 are missing",
        "4 jobs are older than the first event in the lake",
        "1 jobs missing on the server without an event that ended them (lost):",
        "[red]\\x1b[31m",
        "its last event left it ready in [b]q[/b]",
        "Compared with server a1 after its event 12: 3 jobs, 2 queues, the statistics of 1 ",
        "Something is left out.",
        "failures",
        "Events are missing. If files of",
        "The server and the lake differ.",
    ):
        assert words in reported
    assert "\x1b" not in reported


@pytest.mark.parametrize("problem", audit_command.PROBLEMS)
def test_every_problem_has_advice(tmp_path, problem):
    findings = Findings([], {problem: 1}, [], 0)
    assert not findings.ok
    assert len(advice(findings, Lake(tmp_path))) == 1

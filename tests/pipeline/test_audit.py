"""The audit of a lake, and of a server that works meanwhile."""

import io
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
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

from millrace.cli.app import app
from millrace.cli.pipeline import audit as audit_command
from millrace.cli.pipeline import settings
from millrace.cli.pipeline import state as state_command
from millrace.cli.pipeline.audit import advice, tell
from millrace.cli.ship import shipped
from millrace.engine.states import STATE_NAMES
from millrace.journal.landing import landed
from millrace.journal.snapshot import days_table, queues_table, snapshot
from millrace.pipeline import audit, commit
from millrace.pipeline.events import read
from millrace.pipeline.findings import Compared, Difference, Findings, Gap, Live, Numbers, Problem
from millrace.pipeline.ingest import ingest
from millrace.pipeline.lake import Lake
from millrace.pipeline.ledger import Ledger
from millrace.pipeline.refreshed import FORM, Mark, record
from millrace.pipeline.tables import QUEUE_DAY
from millrace.pipeline.transforms.latency import latency_hist
from millrace.pipeline.transforms.queues import queue_day
from raw_faktory import RawFaktory
from server_process import running_server

EVENTS = 9_000


def known(history: History) -> Live:
    """What a server would tell at the end of its history."""
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
        asked=last,
        since=statistics.since(0),
    )


def changed(path: Path, column: str, values: dict[int, str]) -> None:
    """Let some rows of a landing file say something else."""
    table = pq.read_table(path, partitioning=None)
    told = table.column(column).to_pylist()
    for row, value in values.items():
        told[row] = value
    place = table.column_names.index(column)
    field = table.schema.field(column)
    pq.write_table(table.set_column(place, field, pa.array(told, pa.string())), path)


def row_of(table: pa.Table, **wanted: str) -> int:
    """The first row that has these values."""
    found = pa.array([True] * table.num_rows)
    for column, value in wanted.items():
        found = pc.and_(found, pc.equal(table.column(column).combine_chunks(), value))
    return int(pc.index(found, True).as_py())


@pytest.mark.long
def test_faults_are_found(spark, tmp_path):
    """Of the first server a file is missing and an event is changed; the second, which was flushed,
    has jobs and a number that its events do not tell of, and agrees in all others, though one of
    its files is there twice.
    """
    lake = Lake(tmp_path / "lake")
    histories = engine_history.land(lake.root, EVENTS, per_file=1_000)
    files = [each for each in landed(lake.root) if each.server == SERVERS[0]]
    (lake.landing / files[1].name).unlink()
    path = lake.landing / files[-1].name
    last = pq.read_table(path, partitioning=None)
    row = row_of(last, type="completed", before="leased")
    changed(path, "before", {row: "ready"})  # which may be, but was not
    doubled = next(each for each in landed(lake.root) if each.server == SERVERS[1])
    shutil.copy(
        lake.landing / doubled.name, lake.landing / doubled._replace(last=doubled.last - 1).name
    )
    ingest(spark, lake)

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
    told = [{**moved, "state": other_state}, unknown, *others]
    live = live._replace(jobs=pa.Table.from_pylist(told, schema=live.jobs.schema), days=days)
    findings = audit.run(spark, lake, live)

    assert not findings.ok
    first, second = findings.servers
    missing = files[1].last - files[1].first + 1
    assert (first.missing, [(gap.first, gap.last) for gap in first.gaps]) == (
        missing,
        [(files[1].first, files[1].last)],
    )
    assert (second.missing, second.duplicates) == (0, 0)
    assert findings.quarantined == doubled.last - doubled.first + 1
    rows = pq.read_table(lake.table("audit_jobs") / "data.parquet").to_pylist()
    found = {(row["server"], row["seq"], row["problem"]) for row in rows}
    assert sum(findings.problems.values()) == len(rows)
    assert (SERVERS[0], last.column("seq")[row].as_py(), "broken") in found
    assert {each for each in found if each[0] == SERVERS[1]} == {
        (SERVERS[1], lost["seq"], "lost"),
        (SERVERS[1], moved["seq"], "differs"),
        (SERVERS[1], 999_999, "unknown"),
    }
    compared = findings.compared
    assert compared is not None
    assert (compared.jobs, compared.queues) == (len(told), live.queues.num_rows)
    assert compared.days > 10
    (difference,) = compared.differences
    assert (difference.what, int(difference.live) - int(difference.lake)) == ("failures", 7)
    written = msgspec.json.decode((lake.ops / "audit.json").read_bytes(), type=Findings)
    assert written == findings


@contextmanager
def load(port: int) -> Iterator[None]:
    """Somebody pushes, works, and fails, all the time."""
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
    """Commands use the tests' session: another one would take a quarter of a minute to start."""

    @contextmanager
    def started(*_: object, **__: object) -> Iterator[Any]:
        yield spark

    for command in (audit_command, state_command):
        monkeypatch.setattr(command, "tables_session", started)


def refreshed(spark: Any, lake: Lake) -> None:
    """Bring queue_day up to date: other tables are not asked for."""
    ingest(spark, lake)
    events, ledger = read(spark, lake), Ledger(lake)
    made = queue_day(events, latency_hist(events))
    commit.replace_days(made, lake, QUEUE_DAY, ledger.days())
    record(lake, Mark(form=FORM, batch=ledger.last, flushes=[]))


@pytest.mark.usefixtures("with_this_session")
def test_a_server_that_works_meanwhile(spark, tmp_path):
    data = tmp_path / "data"
    with running_server(data) as server, load(server.port):
        result = CliRunner().invoke(app, ["pipeline", "audit", "--data", str(data), "--json"])
        assert result.exit_code == 0, result.output
        told = msgspec.json.decode(result.stdout)
        assert told["ok"]
        assert told["compared"]["queues"] == 5
        assert told["compared"]["jobs"] > 0
        assert told["compared"]["days"] > 0
    # Nothing happens any more, and the table is of all events.
    shipped(settings(data=str(data)))
    refreshed(spark, Lake(data / "lake"))
    result = CliRunner().invoke(app, ["pipeline", "audit", "--data", str(data), "--json"])
    assert result.exit_code == 0, result.output
    told = msgspec.json.decode(result.stdout)
    assert told["ok"]
    assert told["compared"]["stored"]
    assert told["compared"]["days"] > 0

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
    told = msgspec.json.decode(result.stdout)
    counts = Counter((job["queue"], job["state"]) for job in jobs.to_pylist())
    assert {
        (each["queue"], state): each[state]
        for each in told["queues"]
        for state in STATE_NAMES[:6]
        if each[state]
    } == counts
    assert [job["seq"] for job in told["jobs"]] == sorted(jobs.column("seq").to_pylist())[:3]
    columns = ["seq", "jid", "queue", "state"]
    written = pq.read_table(copy, partitioning=None).select(columns).sort_by("seq")
    assert written.to_pylist() == jobs.select(columns).sort_by("seq").to_pylist()


def test_what_people_are_told(tmp_path):
    """Words of clients do nothing to a terminal."""
    gaps = [Gap(5, 9)]
    problem = Problem("a1", 7, "[red]\x1b[31m", "lost", 3, "its events left it ready in [b]q[/b]")
    difference = Difference("failures", "q", "2026-11-16", "8", "1")
    compared = Compared("a1", 12, 3, 2, 1, False, 1, [difference], ["Something is left out."])
    findings = Findings(
        [Numbers("a1", 1, 12, 7, 5, 0, gaps)], {"lost": 1}, [problem], 4, 2, 1, compared
    )
    out = io.StringIO()
    tell(findings, Lake(tmp_path), Console(file=out, markup=False, highlight=False, width=200))
    told = out.getvalue()
    for words in (
        "a1: events 5 to 9 are missing",
        "4 jobs are older than the first event in the lake",
        "2 rows are in quarantine, 1 files refused",
        "1 jobs missing on the server without an event that ended them (lost):",
        "[red]\\x1b[31m",
        "its events left it ready in [b]q[/b]",
        "Compared with server a1 after its event 12: 3 jobs, 2 queues, the statistics of 1 ",
        "Something is left out.",
        "failures",
        "Events are missing. If files were moved out of",
        "The server and the lake differ.",
    ):
        assert words in told
    assert "\x1b" not in told


@pytest.mark.parametrize("problem", audit_command.PROBLEMS)
def test_for_every_problem_there_is_something_to_do(tmp_path, problem):
    findings = Findings([], {problem: 1}, [], 0, 0, 0)
    assert not findings.ok
    assert len(advice(findings, Lake(tmp_path))) == 1

"""The state of every job at a given time."""

from collections import Counter
from datetime import timedelta

import chains
import engine_history
import pyarrow as pa
from chains import SERVER, START, events

import event_tables
from millrace.engine.events import EVENT_VERSION
from millrace.pipeline import job_states as state

OTHER = "07e12e"


def test_the_event_with_the_highest_number_counts(spark):
    lines = (
        "1 pushed new>ready",
        "2 pushed new>scheduled",
        "3 pushed new>ready",
        "1 leased ready>leased",
        "3 leased ready>leased",
        "3 completed leased>done",
        "1 completed leased>gone",
        "3 purged done>gone",
    )
    rows = events(*lines)
    # The actor here has its own clock: the last event has the earliest time.
    rows += events("2 due scheduled>ready", first=9, time=START)
    # After a flush, only later jobs of a server remain.
    rows += events("1 pushed new>ready", "1 flushed", "2 pushed new>blocked", server=OTHER)
    frame = chains.frame(spark, rows).cache()

    def at(minute: int) -> set[tuple[str, int, str]]:
        past = state.until(frame, START + timedelta(minutes=minute))
        found = state.jobs(past, state.alive(past))
        assert found.columns == list(state.JobState.__struct_fields__)
        return {(row.server, row.seq, row.state) for row in found.collect()}

    assert at(1) == {(SERVER, 1, "ready"), (SERVER, 2, "ready"), (OTHER, 1, "ready")}
    blocked = (OTHER, 2, "blocked")
    assert at(6) == {(SERVER, 1, "leased"), (SERVER, 2, "ready"), (SERVER, 3, "done"), blocked}
    assert at(99) == {(SERVER, 2, "ready"), blocked}


def test_numbers_of_states(spark):
    names = state.STATES
    frame = spark.createDataFrame([(name,) for name in (*names, "odd")], "state STRING")
    number = state.number("state")
    pack = state.packed(f"{(1 << 59) + 7}L", number)
    rows = frame.selectExpr(number, state.name(number), state.event_of(pack), state.state_of(pack))
    *known, odd = map(tuple, rows.collect())
    assert known == [(n, name, (1 << 59) + 7, n) for n, name in enumerate(names)]
    assert odd == (None, None, None, None)


def test_a_real_history(spark):
    histories, rows = engine_history.collect(12_000)
    tables = [event_tables.table(server, 1, EVENT_VERSION, some) for server, some in rows.items()]
    frame = spark.createDataFrame(pa.concat_tables(tables)).cache()
    found = state.jobs(frame, state.alive(frame)).cache()
    known = {
        (history.server, seq, job.state, job.queue)
        for history in histories
        for seq, job in history.jobs.items()
    }
    assert len(known) > 100
    assert {(row.server, row.seq, row.state, row.queue) for row in found.collect()} == known
    expected = Counter((server, queue, name) for server, _, name, queue in known)
    depths = {
        (row.server, row.queue, name): row[name]
        for row in state.depths(found).collect()
        for name in state.KEPT
    }
    assert {key: count for key, count in depths.items() if count} == expected

"""Every event exists once, and the events of each job are consistent."""

from typing import Any

import chains
import engine_history
import pyarrow as pa
from chains import events

import event_tables
from millrace.engine.events import EVENT_VERSION
from millrace.pipeline.audit import chains as audit
from millrace.pipeline.tables import AUDIT_JOBS


def numbered(spark: Any, numbers: dict[str, list[int]]) -> dict[str, Any]:
    """The result of audit_seq for events with these numbers, by server."""
    rows = [
        chains.event(number, "1 renewed leased>leased", server=server)
        for server, some in numbers.items()
        for number in some
    ]
    found = audit.audit_seq(chains.frame(spark, rows))
    return {row.server: row for row in found.collect()}


def test_numbers(spark):
    far = 3 << 16
    found = numbered(
        spark,
        {
            "whole": list(range(1, 101)),
            "begun-later": list(range(far - 5, far + 5)),
            "gaps": [3, 4, 7, 8, 9, far, far + 1, far + 4],
            "twice": [1, 2, 2, 3, 3, 3],
            # One is missing and another one is duplicated: their count is correct.
            "both": [10, 11, 11, 13],
            # Two are replaced by duplicates: their sum is correct as well.
            "exchanged": [*range(20), 20, 21, 21, 24, 24, 25],
            "alone": [7],
        },
    )
    reported = {
        server: (row.first_event, row.last_event, row.events, row.missing, row.duplicates)
        for server, row in found.items()
    }
    assert reported == {
        "whole": (1, 100, 100, 0, 0),
        "begun-later": (far - 5, far + 4, 10, 0, 0),
        "gaps": (3, far + 4, 8, far + 4 - 3 + 1 - 8, 0),
        "twice": (1, 3, 6, 0, 3),
        "both": (10, 13, 4, 1, 1),
        "exchanged": (0, 25, 26, 2, 2),
        "alone": (7, 7, 1, 0, 0),
    }
    gaps = {server: [tuple(gap) for gap in row.gaps] for server, row in found.items() if row.gaps}
    assert gaps == {
        "gaps": [(5, 6), (10, far - 1), (far + 2, far + 3)],
        "both": [(12, 12)],
        "exchanged": [(22, 23)],
    }


def test_only_the_first_gaps_are_named(spark):
    found = numbered(spark, {"s": list(range(1, 500, 2))})["s"]
    assert found.missing == 249
    assert [tuple(gap) for gap in found.gaps] == [(n, n) for n in range(2, 202, 2)]


GOOD = (
    "1 pushed new>ready",
    "2 pushed new>scheduled",
    "1 leased ready>leased",
    "1 renewed leased>leased",
    "1 expired leased>leased",
    "1 released leased>ready",
    "2 due scheduled>ready",
    "1 leased ready>leased",
    "1 advanced leased>done",
    "1 moved done>ready",
    "2 leased ready>leased",
    "1 leased ready>leased",
    "1 completed leased>gone",
    "2 failed leased>dead",
    "2 killed dead>dead",
    "2 purged dead>gone",
)

#: Faults: the events and the finding.
FAULTS = {
    "illegal": (
        ["1 pushed new>ready", "1 leased ready>leased", "1 unblocked leased>ready"],
        (1, "illegal", 3, "unblocked cannot lead from leased to ready"),
    ),
    "no type at all": (
        ["1 pushed new>ready", "1 vanished ready>ready"],
        (1, "illegal", 2, "vanished cannot lead from ready to ready"),
    ),
    "broken": (
        ["1 pushed new>ready", "1 leased ready>leased", "1 due scheduled>ready"],
        (1, "broken", 3, "due starts from scheduled, but event 2, leased, ends in leased"),
    ),
    "pushed twice": (
        ["1 pushed new>ready", "1 pushed new>ready"],
        (1, "broken", 2, "pushed starts from new, but event 1, pushed, ends in ready"),
    ),
    "ended twice": (
        ["1 pushed new>ready", "1 leased ready>leased", "1 completed leased>done", "1 completed leased>done"],
        (1, "ended_twice", 4, "completed starts from leased, but event 3, completed, ends in done"),
    ),
    "ended twice, and removed": (
        ["1 pushed new>ready", "1 cancelled ready>gone", "1 completed ready>gone"],
        (1, "ended_twice", 3, "completed starts from ready, but event 2, cancelled, ends in gone"),
    ),
    "leased twice": (
        ["1 pushed new>ready", "1 leased ready>leased", "1 leased ready>leased"],
        (1, "leased_twice", 3, "leased starts from ready, but event 2, leased, ends in leased"),
    ),
    "after its removal": (
        ["1 pushed new>ready", "1 cancelled ready>gone", "1 leased ready>leased"],
        (1, "after_gone", 3, "leased starts from ready, but event 2, cancelled, ends in gone"),
    ),
    "after a flush": (
        ["1 pushed new>ready", "1 flushed", "1 leased ready>leased"],
        (1, "after_gone", 3, "leased starts from ready, but event 1, pushed, ends in gone"),
    ),
    "any state before, and still illegal": (
        ["1 pushed new>ready", "1 leased ?>ready"],
        (1, "illegal", 2, "leased cannot lead from any state to ready"),
    ),
    "after a flush that was its first": (
        ["0 flushed", "1 leased ready>leased"],
        (1, "broken", 2, "leased starts from ready, but no event precedes it"),
    ),
    "never pushed": (
        ["1 pushed new>ready", "2 leased ready>leased"],
        (2, "broken", 2, "leased starts from ready, but no event precedes it"),
    ),
}  # fmt: skip


#: Valid histories, and faults that another audit finds.
NO_FAULTS = {
    "older than the lake": (50, ["1 leased ready>leased", "1 completed leased>gone"]),
    "a flush that is its first event": (1, ["0 flushed", "1 pushed new>ready"]),
    "versions without the previous state": (
        1,
        ["1 pushed new>ready", "1 leased ?>leased", "1 failed ?>ready"],
    ),
    # All transitions match, but not in this order.
    "exchanged": (
        1,
        [
            "1 pushed new>ready",
            "1 leased ready>leased",
            "1 due scheduled>ready",
            "1 moved ready>scheduled",
            "1 released leased>ready",
        ],
    ),
}


def test_problems(spark):
    """All faults at once, each on its own server, together with valid jobs."""
    rows = [
        row
        for server, (lines, _) in FAULTS.items()
        for row in [
            *events(*lines, server=server),
            *events(*(f"1{line}" for line in GOOD), first=100, server=server),
        ]
    ]
    for server, (first, lines) in NO_FAULTS.items():
        rows += events(*lines, first=first, server=server)
    good = events(*GOOD, server="twice")
    rows += [*good, *good[3:9]]
    frame = chains.frame(spark, rows).cache()

    def judged(**options: bool) -> list[tuple[Any, ...]]:
        found = audit.audit_jobs(frame, **options)
        assert found.columns == AUDIT_JOBS.columns
        return sorted(
            (row.server, row.seq, row.problem, row.event_id, row.detail) for row in found.collect()
        )

    expected = [(server, *problem) for server, (_, problem) in FAULTS.items()]
    assert judged() == sorted(expected)
    left = "released starts from leased, but event 4, moved, ends in scheduled"
    expected += [
        ("exchanged", 1, "broken", 3, "due starts from scheduled, but event 2, leased, ends in leased"),
        ("exchanged", 1, "broken", 5, left),
    ]  # fmt: skip
    assert judged(thorough=True) == sorted(expected)
    tallies = audit.tally(audit.judge(frame, audit.flush_ids(frame)), audit.flush_ids(frame))
    assert {server for server, each in tallies.items() if not each.has_first_event} == {
        "older than the lake"
    }
    assert tallies["older than the lake"].headless == 1


def test_a_real_history_has_no_problems(spark):
    histories, rows = engine_history.collect(12_000)
    table = pa.concat_tables(
        event_tables.table(server, 1, EVENT_VERSION, some) for server, some in rows.items()
    )
    frame = spark.createDataFrame(table).cache()
    flushes = frame.where("type = 'flushed'").select("server", "event_id")
    assert flushes.count() == 1
    assert audit.audit_jobs(frame, thorough=True).collect() == []
    tallies = audit.tally(audit.judge(frame, audit.flush_ids(frame)), audit.flush_ids(frame))
    assert all(each.has_first_event and not each.doubtful for each in tallies.values())
    reported = {
        row.server: (row.events, row.missing, row.duplicates)
        for row in audit.audit_seq(frame).collect()
    }
    assert reported == {history.server: (history.events, 0, 0) for history in histories}

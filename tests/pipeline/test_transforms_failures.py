"""Failures by the shape of their words, and who pushed and who worked."""

from frames import DAY, at, ev, events, rows
from pyspark.sql import SparkSession

from millrace.pipeline.tables import FAILURE_GROUPS, PROTOCOL_DAY
from millrace.pipeline.transforms.failures import failure_groups
from millrace.pipeline.transforms.protocols import protocol_day


def error(message: str, fingerprint: str = "f") -> dict:
    return {"error_group": "E", "error_message": message, "fingerprint": fingerprint}


def test_failures_are_grouped_and_the_first_of_the_day_is_their_sample(spark: SparkSession) -> None:
    frame = events(
        spark,
        ev("failed", 50, seq=7, **error("job 7")),
        ev("failed", 40, seq=8, **error("job 8"), state="dead"),
        ev("expired", 60, seq=7, **error("job 7 again")),
        ev("expired", 70, seq=9, **error("in grace"), state="leased"),
        ev("doomed", 80, seq=10, **error("with another")),
        ev("failed", 90, seq=11, **error("elsewhere"), queue="q2"),
        ev("failed", 90, seq=11, **error("another kind"), kind="k2"),
        ev("failed", 90, seq=11, **error("another shape", "g")),
        ev("failed", 90, seq=11),
        ev("failed", 86_400, seq=12, **error("tomorrow")),
    ).repartition(3)
    found = rows(failure_groups(frame), FAILURE_GROUPS)
    first = found[0]
    assert first == {
        "server": "a1", "fingerprint": "f", "queue": "q", "kind": "k", "error_group": "E",
        "n": 4, "jobs": 3, "died": 2, "first_seen": at(40), "last_seen": at(80),
        "sample_event": 1, "sample_seq": 7, "sample_jid": "job-7", "sample_message": "job 7",
        "day": DAY,
    }  # fmt: skip
    assert [(row["sample_message"], row["n"]) for row in found[1:]] == [
        ("another kind", 1),
        ("elsewhere", 1),
        ("another shape", 1),
        ("tomorrow", 1),
    ]


def test_protocols_that_pushed_and_that_worked(spark: SparkSession) -> None:
    frame = events(
        spark,
        ev("pushed", origin="workq", actor="workq"),
        ev("leased", origin="workq", actor="qless"),
        ev("failed", origin="workq", actor="qless", state="dead"),
        ev("advanced", origin="workq", actor="qless"),
        ev("expired", origin="workq", actor=None, state="leased"),
        ev("doomed", origin="workq", actor=None),
        ev("flushed"),
    )
    names = ("origin", "actor", "events", "pushed", "leased", "completed", "failures", "died")
    found = rows(protocol_day(frame), PROTOCOL_DAY, *names)
    assert [tuple(row.values()) for row in found] == [
        ("workq", None, 2, 0, 0, 0, 0, 1),
        ("workq", "qless", 3, 0, 1, 1, 1, 1),
        ("workq", "workq", 1, 1, 0, 0, 0, 0),
    ]

"""Frames of what the driver has."""

from datetime import UTC, datetime

from millrace.pipeline.given import frame
from millrace.pipeline.tables import TABLES


def test_rows_and_none(spark):
    ddl = "name STRING, n BIGINT, at TIMESTAMP, tags ARRAY<STRING>"
    moment = datetime(2026, 11, 16, 12, tzinfo=UTC)
    rows = [("a", 1, moment, ["x"]), (None, None, None, None)]
    made = frame(spark, ddl, rows)
    assert made.selectExpr("name", "n", "unix_micros(at)", "tags").collect() == [
        ("a", 1, round(moment.timestamp() * 1e6), ["x"]),
        (None, None, None, None),
    ]
    assert frame(spark, ddl).schema == made.schema
    assert frame(spark, ddl).collect() == []


def test_every_table_can_be_empty(spark):
    for table in TABLES.values():
        assert frame(spark, table.ddl).columns == table.columns


def test_no_worker_is_asked_for_rows(spark):
    for rows in ([], [(1,)]):
        made = frame(spark, "n INT", rows)
        plan = made._jdf.queryExecution().executedPlan().toString()
        assert plan.startswith("LocalTableScan")

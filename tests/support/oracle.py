"""Compares the derived tables of a lake with the results of the oracle (bench/pipeline/oracle_sql)."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import duckdb

from millrace.journal.location import EVENTS
from millrace.pipeline.delta import files, open_table
from millrace.pipeline.tables import DERIVED

sys.path.insert(0, str(Path(__file__).parents[2] / "bench" / "pipeline"))

import oracle_sql as sql

#: Relative tolerance of floating-point numbers, and of percentiles from buckets.
CLOSE: Final = 1e-9
NEAR: Final = 0.01
#: Keys and columns that the oracle does not compute.
_OMITTED: Final = {"latency_day": ("distance", "square_high", "square_low")}

#: The totals at the end of a job, and the same from all its events.
TOTALS: Final = {
    "leases": "lives.leases",
    "failures": "lives.failures",
    "wait_total_us": "lives.wait_us",
    "run_total_us": "lives.run_us",
    "first_leased_at": "lives.first_leased_at",
    "first_queue": "lives.first_queue",
    "outcome": "lives.ended.type",
    "ended_at": "lives.ended.time",
    "error_message": "lives.error.message",
}


def paths(lake: Path, name: str) -> list[Path]:
    """The files of the newest version of a table."""
    return [file.path for file in files(open_table(lake, name), lake, name)]


class TableOracle:
    """The expected tables of the events of a lake."""

    def __init__(self, lake: Path, where: str = "true") -> None:
        self.lake = lake
        self.db = duckdb.connect()
        self.db.execute("SET threads = 1")
        for view in sql.views(paths(lake, EVENTS), where):
            self.db.execute(view)

    def rows(self, query: str) -> list[dict[str, Any]]:
        found = self.db.execute(query)
        names = [column[0] for column in found.description]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]

    def all_differences(self) -> list[str]:
        """The differences of all derived tables."""
        found = [line for name in sql.QUERIES for line in self.differences(name)]
        return found + self.open_differences()

    def differences(self, name: str) -> list[str]:
        """The differences between a table and its definition."""
        keys = [*DERIVED[name].key, "day"]
        self.db.execute(f"CREATE OR REPLACE TEMP TABLE wanted AS {sql.QUERIES[name]}")
        chosen = paths(self.lake, name)
        if not chosen:  # DuckDB reads no empty list of files
            ((rows,),) = self.db.execute("SELECT count(*) FROM wanted").fetchall()
            return [f"{name}: {rows} rows are missing"] if rows else []
        self._read(chosen, name)
        if name == "queue_minute":
            self._drop_empty_minutes()
        return self._compare(name, keys)

    def open_differences(self) -> list[str]:
        """The differences between the newest rows of `jobs_open` and the open jobs."""
        self.db.execute(f"CREATE OR REPLACE TEMP TABLE wanted AS {sql.OPEN_JOBS}")
        self._read(paths(self.lake, "jobs_open"), "jobs_open")
        self.db.execute(
            """CREATE OR REPLACE TEMP TABLE actual AS SELECT server, seq, state, queue, last_event
            FROM actual QUALIFY row_number() OVER (PARTITION BY server, seq ORDER BY last_event DESC) = 1
            """
        )
        self.db.execute("DELETE FROM actual WHERE state = 'gone'")
        return self._compare("jobs_open", ["server", "seq"])

    def far_percentiles(self) -> list[str]:
        """Percentiles of queue_day that are not within 1 % of the true ones."""
        self._read(paths(self.lake, "queue_day"), "queue_day")
        self.db.execute(f"CREATE OR REPLACE TEMP TABLE exact AS {sql.EXACT_PERCENTILES}")
        found = []
        for metric in ("wait", "run"):
            for q in (50, 90, 95, 99):
                test = f"abs({metric}_p{q}_us - exact.p{q}) > {NEAR} * exact.p{q}"
                rows = self.rows(
                    f"SELECT day, server, queue, {metric}_p{q}_us AS actual, exact.p{q} AS wanted "
                    f"FROM exact LEFT JOIN actual USING (day, server, queue) "
                    f"WHERE metric = '{metric}' AND coalesce({test}, true)"
                )
                found += [f"{metric}_p{q}_us: {row}" for row in rows[:2]]
        return found

    def wrong_totals(self) -> list[str]:
        """Totals in the last event of a job that are not the totals of all its events."""
        found = []
        for total, wanted in TOTALS.items():
            rows = self.rows(
                f"SELECT e.server, e.seq, e.type, e.{total} AS actual, {wanted} AS wanted "
                "FROM events AS e JOIN lives ON e.server = lives.server AND e.seq = lives.seq "
                "AND e.event_id = lives.last_event WHERE e.state IN ('done', 'dead', 'gone') "
                f"AND e.type <> 'flushed' AND e.{total} IS DISTINCT FROM {wanted}"
            )
            found += [f"{total}: {len(rows)} differ, as {row}" for row in rows[:1]]
        ends = self.rows(f"""SELECT a.server, a.seq, e.type FROM ({sql.ATTEMPTS}) AS a
            JOIN events AS e ON e.server = a.server AND e.event_id = a.end_event
            WHERE e.type <> 'flushed' AND (e.wait_us IS DISTINCT FROM a.wait_us
                OR e.holder IS DISTINCT FROM a.holder OR e.renewals IS DISTINCT FROM a.renewals)""")
        return found + [f"{len(ends)} ends of leases differ, as {row}" for row in ends[:1]]

    def _drop_empty_minutes(self) -> None:
        """A minute without changes can have a row of zeros or no row."""
        for name in ("wanted", "actual"):
            columns = [
                column
                for column, kind in self._columns(name)
                if kind in {"BIGINT", "DOUBLE", "HUGEINT"}
            ]
            zero = " AND ".join(f"{column} = 0" for column in columns)
            self.db.execute(f"DELETE FROM {name} WHERE {zero}")

    def _compare(self, name: str, keys: list[str]) -> list[str]:
        twice = self.rows(f"SELECT {', '.join(keys)} FROM actual GROUP BY ALL HAVING count(*) > 1")
        found = [f"{name}: {row} exists more than once" for row in twice[:5]]
        on = " AND ".join(f"w.{key} IS NOT DISTINCT FROM m.{key}" for key in keys)
        self.db.execute(
            f"""CREATE OR REPLACE TEMP TABLE both_sides AS
            SELECT w, m FROM (SELECT *, true AS exists_ FROM wanted) AS w
            FULL JOIN (SELECT *, true AS exists_ FROM actual) AS m ON {on}"""
        )
        for label, test in (("missing", "m.exists_ IS NULL"), ("unexpected", "w.exists_ IS NULL")):
            count = self._count(test)
            if count:
                sample = self.rows(f"SELECT * FROM both_sides WHERE {test} LIMIT 2")
                found.append(f"{name}: {count} rows are {label}, as {sample}")
        for column, kind in self._columns("wanted"):
            if column in _OMITTED.get(name, ()):
                continue
            test = f"w.exists_ AND m.exists_ AND {_differ(f'w.{column}', f'm.{column}', kind)}"
            count = self._count(test)
            if count:
                shown = ", ".join(f"w.{key}" for key in keys)
                sample = self.rows(
                    f"SELECT {shown}, w.{column} AS wanted, m.{column} AS actual FROM both_sides "
                    f"WHERE {test} LIMIT 2"
                )
                found.append(f"{name}.{column}: {count} rows differ, as {sample}")
        return found

    def _read(self, chosen: Iterable[Path], name: str) -> None:
        """Load the files of a table, with times as the oracle has them."""
        partition = DERIVED[name].partition
        kind = "DATE" if partition == "day" else "VARCHAR"
        source = (
            f"read_parquet({sql.listed(chosen)}, hive_partitioning = true, "
            f"hive_types = {{'{partition}': {kind}}})"
        )
        self.db.execute(f"CREATE OR REPLACE TEMP VIEW written AS SELECT * FROM {source}")
        picked = [
            f"make_timestamp(epoch_us({column})) AS {column}" if "TIME ZONE" in kind else column
            for column, kind in self._columns("written")
        ]
        self.db.execute(
            f"CREATE OR REPLACE TEMP TABLE actual AS SELECT {', '.join(picked)} FROM written"
        )

    def _columns(self, relation: str) -> list[tuple[str, str]]:
        return [
            (row["column_name"], row["column_type"]) for row in self.rows(f"DESCRIBE {relation}")
        ]

    def _count(self, test: str) -> int:
        found = self.db.execute(f"SELECT count(*) FROM both_sides WHERE {test}").fetchone()
        assert found is not None
        return int(found[0])


def _differ(wanted: str, actual: str, kind: str) -> str:
    if kind != "DOUBLE":
        return f"{wanted} IS DISTINCT FROM {actual}"
    close = f"abs({wanted} - {actual}) <= {CLOSE} * greatest(abs({wanted}), abs({actual}), 1e-9)"
    return f"coalesce(NOT ({close}), ({wanted} IS NULL) <> ({actual} IS NULL))"

"""Every derived table a second time, by DuckDB from the landing files alone, and how to compare it
with what the pipeline has written.
"""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import duckdb

from millrace.pipeline.tables import TABLES, Table

sys.path.insert(0, str(Path(__file__).parents[2] / "bench" / "pipeline"))

import oracle_sql as sql

#: Floats may differ by this much, relative to themselves; percentiles of buckets from true ones.
CLOSE: Final = 1e-9
NEAR: Final = 0.01

#: The totals at the end of a job, and the columns of the table jobs that they are equal to.
TOTALS = {
    "leases": "leases",
    "failures": "failures",
    "wait_total_us": "wait_us",
    "run_total_us": "run_us",
    "first_leased_at": "first_leased_at",
    "first_queue": "first_queue",
    "outcome": "outcome",
    "ended_at": "ended_at",
    "error_message": "error_message",
}


class Oracle:
    def __init__(self, files: Iterable[Path], where: str = "true") -> None:
        """All that is known of the events in these files."""
        self.db = duckdb.connect()
        self.db.execute("SET threads = 2")
        for view in sql.views(files, where):
            self.db.execute(view)
        self.db.execute(f"CREATE TEMP VIEW latency_hist AS {sql.LATENCY_HIST}")

    def rows(self, query: str) -> list[dict[str, Any]]:
        found = self.db.execute(query)
        names = [column[0] for column in found.description]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]

    def query(self, name: str) -> str:
        return sql.QUERIES[name]

    def table(self, name: str) -> list[dict[str, Any]]:
        return self.rows(sql.QUERIES[name])

    def differences(self, name: str, files: Iterable[Path], *, where: str = "true") -> list[str]:
        """In what the table in these files is not what it should be; nothing, if it is."""
        table = TABLES[name]
        keys = [*table.key, *(["day"] if table.day else [])]
        self.db.execute(f"CREATE OR REPLACE TEMP TABLE wanted AS {sql.QUERIES[name]}")
        self._read(table, files)
        twice = self.rows(f"SELECT {', '.join(keys)} FROM made GROUP BY ALL HAVING count(*) > 1")
        found = [f"{name}: {row} is there more than once" for row in twice[:5]]
        on = " AND ".join(f"w.{key} IS NOT DISTINCT FROM m.{key}" for key in keys)
        self.db.execute(
            f"""CREATE OR REPLACE TEMP TABLE both_sides AS
            SELECT w, m FROM (SELECT *, true AS is_there FROM wanted WHERE {where}) AS w
            FULL JOIN (SELECT *, true AS is_there FROM made WHERE {where}) AS m ON {on}"""
        )
        for label, test in (
            ("missing", "m.is_there IS NULL"),
            ("not wanted", "w.is_there IS NULL"),
        ):
            count = self._count(test)
            if count:
                sample = self.rows(f"SELECT * FROM both_sides WHERE {test} LIMIT 2")
                found.append(f"{name}: {count} rows are {label}, as {sample}")
        for column, kind in self._columns("made"):
            differ = _differ(f"w.{column}", f"m.{column}", kind)
            test = f"w.is_there AND m.is_there AND {differ}"
            count = self._count(test)
            if count:
                shown = ", ".join(f"w.{key}" for key in keys)
                sample = self.rows(
                    f"SELECT {shown}, w.{column} AS wanted, m.{column} AS made FROM both_sides "
                    f"WHERE {test} LIMIT 2"
                )
                found.append(f"{name}.{column}: {count} rows differ, as {sample}")
        return found

    def wrong_totals(self) -> list[str]:
        """Totals in the last event of a job that are not those of all its events."""
        self.db.execute(f"CREATE OR REPLACE TEMP TABLE lives AS {sql.QUERIES['jobs']}")
        found = []
        for total, column in TOTALS.items():
            rows = self.rows(
                f"SELECT e.server, e.seq, e.type, e.{total} AS told, lives.{column} AS wanted "
                "FROM events AS e JOIN lives ON e.server = lives.server AND e.seq = lives.seq "
                "AND e.event_id = lives.last_event WHERE e.state IN ('done', 'dead', 'gone') "
                f"AND e.type <> 'flushed' AND e.{total} IS DISTINCT FROM lives.{column}"
            )
            found += [f"{total}: {len(rows)} differ, as {row}" for row in rows[:1]]
        ends = self.rows(f"""SELECT a.server, a.seq, e.type FROM ({sql.QUERIES["attempts"]}) AS a
            JOIN events AS e ON e.server = a.server AND e.event_id = a.end_event
            WHERE e.wait_us IS DISTINCT FROM a.wait_us OR e.holder IS DISTINCT FROM a.protocol
            OR e.renewals IS DISTINCT FROM a.renewals""")
        return found + [f"{len(ends)} ends of leases differ, as {row}" for row in ends[:1]]

    def far_percentiles(self, files: Iterable[Path]) -> list[str]:
        """Percentiles of queue_day that are not within 1 % of the true ones."""
        self._read(TABLES["queue_day"], files)
        self.db.execute(f"CREATE OR REPLACE TEMP TABLE exact AS {sql.EXACT_PERCENTILES}")
        found = []
        for metric in ("wait", "run"):
            for q in (50, 90, 95, 99):
                test = f"abs({metric}_p{q}_us - exact.p{q}) > {NEAR} * exact.p{q}"
                rows = self.rows(
                    f"SELECT day, server, queue, {metric}_p{q}_us AS made, exact.p{q} AS wanted "
                    f"FROM exact LEFT JOIN made USING (day, server, queue) WHERE metric = '{metric}' "
                    f"AND coalesce({test}, true)"
                )
                found += [f"{metric}_p{q}_us: {row}" for row in rows[:2]]
        return found

    def _read(self, table: Table, files: Iterable[Path]) -> None:
        """What the pipeline wrote, with times as the oracle has them."""
        days = "true" if table.day else "false"
        source = f"read_parquet({sql.listed(files)}, hive_partitioning = {days})"
        self.db.execute(f"CREATE OR REPLACE TEMP VIEW written AS SELECT * FROM {source}")
        picked = [
            f"make_timestamp(epoch_us({name})) AS {name}" if "TIME ZONE" in kind else name
            for name, kind in self._columns("written")
        ]
        self.db.execute(
            f"CREATE OR REPLACE TEMP TABLE made AS SELECT {', '.join(picked)} FROM written"
        )

    def _columns(self, relation: str) -> list[tuple[str, str]]:
        return [
            (row["column_name"], row["column_type"]) for row in self.rows(f"DESCRIBE {relation}")
        ]

    def _count(self, test: str) -> int:
        found = self.db.execute(f"SELECT count(*) FROM both_sides WHERE {test}").fetchone()
        assert found is not None
        return int(found[0])


def _differ(wanted: str, made: str, kind: str) -> str:
    if kind != "DOUBLE":
        return f"{wanted} IS DISTINCT FROM {made}"
    close = f"abs({wanted} - {made}) <= {CLOSE} * greatest(abs({wanted}), abs({made}), 1e-9)"
    return f"coalesce(NOT ({close}), ({wanted} IS NULL) <> ({made} IS NULL))"

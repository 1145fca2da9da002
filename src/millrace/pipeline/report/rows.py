"""The rows that a report is about: the days of its range, and one queue or all. DataFusion computes
the sums, so a report holds no rows in memory.
"""

from collections.abc import Iterable
from datetime import date
from typing import Any, NamedTuple

from millrace.journal.table_files import quoted
from millrace.pipeline.snapshot import Snapshot
from millrace.pipeline.tables import Derived


class ReportRows(NamedTuple):
    snapshot: Snapshot
    first: date
    last: date
    queue: str | None = None

    def rows(self, table: Derived, query: str) -> list[dict[str, Any]]:
        """The rows of a query on `selected`, the selected rows of a table."""
        within = f"day BETWEEN DATE '{self.first}' AND DATE '{self.last}'"
        if self.queue is not None:
            within += f" AND queue = {quoted(self.queue)}"
        selected = f"WITH selected AS (SELECT * FROM {table.name} WHERE {within})"
        return self.snapshot.query(table, f"{selected} {query}")

    def sums(
        self, table: Derived, names: Iterable[str], by: str = "", where: str = "true"
    ) -> list[dict[str, Any]]:
        """The sums of columns by other columns."""
        listed = ", ".join(f"coalesce(sum({name}), 0) AS {name}" for name in names)
        keys = f"{by}, " if by else ""
        grouped = f"GROUP BY {by} ORDER BY {by}" if by else ""
        return self.rows(table, f"SELECT {keys}{listed} FROM selected WHERE {where} {grouped}")


def among(column: str, values: Iterable[str]) -> str:
    """The condition that a column has one of these values."""
    return f"{column} IN ({', '.join(map(quoted, values)) or 'null'})"

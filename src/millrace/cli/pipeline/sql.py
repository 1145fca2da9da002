"""`millrace pipeline sql`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from millrace.cli.options import lake_root
from millrace.cli.pipeline.progress import StepProgress
from millrace.cli.pipeline.session import resident_request, tables_session
from millrace.cli.tables import printable
from millrace.config import Config
from millrace.pipeline.lake import open_lake
from millrace.pipeline.resident import NotResident, request, socket_path

if TYPE_CHECKING:
    from millrace.pipeline.views import QueryResult


def print_query(config: Config, query: str, limit: int, *, json: bool) -> int:
    root = open_lake(lake_root(config)).root
    with StepProgress(quiet=json) as steps:
        try:
            found = _resident(config, root, query, limit, steps)
        except NotResident:
            from millrace.pipeline.views import query as run_query  # noqa: PLC0415 - loads Arrow

            steps("start Spark", 0, 0)
            with tables_session(config) as spark:
                found = run_query(spark, root, query, limit)
    if json:
        sys.stdout.write("".join(msgspec.json.encode(row).decode() + "\n" for row in found.rows))
    else:
        Console(markup=False, highlight=False).print(_table(found.columns, found.rows))
    if found.more:
        typer.echo(f"There are more than {limit:,} rows. Use --limit.", err=True)
    return 0


def _resident(
    config: Config, root: Path, query: str, limit: int, steps: StepProgress
) -> "QueryResult":
    """Ask the resident Spark process."""
    asked = resident_request(config, "sql", root, query=query, limit=limit)
    found = request(socket_path(config.server.data), asked, steps)
    from millrace.pipeline.views import QueryResult  # noqa: PLC0415 - loads Arrow

    return msgspec.convert(found, QueryResult)


def _table(columns: list[str], rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in columns:
        numbers = all(isinstance(row[name], int | float | None) for row in rows)
        table.add_column(name, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*("" if row[name] is None else printable(str(row[name])) for name in columns))
    return table

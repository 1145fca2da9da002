"""Reads the Delta table `events` with Spark: the log gives the files, Spark reads them."""

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Final

from millrace.journal.table_files import File

from . import delta
from .remote import fetch
from .tables import EVENTS, Derived

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PATTERN: Final = str.maketrans({c: f"\\{c}" for c in "[]{}*?\\"})


def located(path: Path) -> str:
    """Return a path as a URI, because a cluster has another default file system."""
    return f"file:{path.absolute()}"


def readable(*paths: Path) -> list[str]:
    """Return paths with pattern characters escaped, because Spark reads paths as patterns."""
    return [located(path).translate(_PATTERN) for path in paths]


def load(spark: "SparkSession", root: Path, table: Derived, chosen: Sequence[File]) -> "DataFrame":
    """Read the given files of a table; the folder names have the partition columns."""
    if not chosen:
        types = table.all_types.items()
        nulls = ", ".join(f"CAST(null AS {kind}) AS {name}" for name, kind in types)
        return spark.sql(f"SELECT {nulls} WHERE false")
    fetch(root, (file.path for file in chosen))
    reader = spark.read.schema(table.ddl).option("basePath", located(root / table.name))
    return reader.parquet(*readable(*(file.path for file in chosen)))


def read(spark: "SparkSession", root: Path, last: date | None = None) -> "DataFrame":
    """Return all events of the newest version, optionally up to the day `last`."""
    table = delta.open_table(root, EVENTS.name)
    chosen = [
        file
        for file in delta.files(table, root, EVENTS.name)
        if last is None or file.day is None or file.day <= last
    ]
    return load(spark, root, EVENTS, chosen)

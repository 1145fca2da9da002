"""Converts rows in the driver to a Spark frame.

Spark converts lists to rows with Python processes on its workers, even if a list is empty. It
accepts Arrow tables directly, so the cluster does not need Python.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def frame(spark: "SparkSession", ddl: str, rows: Iterable[Sequence[Any]] = ()) -> "DataFrame":
    """Return a frame with the columns of a DDL and the given rows."""
    import pyarrow as pa  # noqa: PLC0415 - every caller has already loaded Spark
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415
    from pyspark.sql.types import StructType  # noqa: PLC0415

    schema = StructType.fromDDL(ddl)
    assert isinstance(schema, StructType)
    arrow = to_arrow_schema(schema, timezone="UTC")
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(each, kind) for each, kind in zip(columns, arrow.types, strict=True)]
    made: DataFrame = spark.createDataFrame(pa.Table.from_arrays(arrays, schema=arrow), schema)
    return made

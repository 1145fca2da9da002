"""Rows that the driver has, as a frame.

Of lists Spark makes rows with a Python on its workers, even of empty ones. Arrow's tables it takes
as they are, so that a cluster needs no Python.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def frame(spark: "SparkSession", ddl: str, rows: Iterable[Sequence[Any]] = ()) -> "DataFrame":
    """These rows, or none, with the columns of a DDL."""
    import pyarrow as pa  # noqa: PLC0415 - whoever asks has loaded Spark, too
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415
    from pyspark.sql.types import StructType  # noqa: PLC0415

    schema = StructType.fromDDL(ddl)
    assert isinstance(schema, StructType)
    arrow = to_arrow_schema(schema, timezone="UTC")
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(each, kind) for each, kind in zip(columns, arrow.types, strict=True)]
    made: DataFrame = spark.createDataFrame(pa.Table.from_arrays(arrays, schema=arrow), schema)
    return made

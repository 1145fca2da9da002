"""The last step of every transform: select and cast the columns of the table, and `day`."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from millrace.pipeline.tables import Table


def conform(df: DataFrame, table: Table) -> DataFrame:
    types = {**table.types, "day": "DATE"}
    return df.select(*(F.col(name).cast(kind).alias(name) for name, kind in types.items()))

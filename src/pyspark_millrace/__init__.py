"""Millrace as a Spark data source, `format("millrace")`. Spark finds it without registration.

    df.write.format("millrace").option("url", URL).option("kind", "resize").mode("append").save()
    spark.read.format("millrace").option("url", URL).option("state", "dead").load()
    spark.read.format("millrace").option("lake", FOLDER).option("table", "queue_day").load()
    spark.readStream.format("millrace").option("lake", FOLDER).load()

The data source uses only the network protocol of the server and the files of the lake. Executors
need only this package, pyspark and pyarrow. docs/how-to/spark-as-a-client.md lists the options.
"""

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from .job_reader import JOBS, FilteringJobReader, JobReader
from .lake_reader import EVENTS, JournalReader, LakeReader
from .options import Options, address, load_name
from .stream_writer import StreamWriter
from .work_units import shape
from .writer import Writer

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """Reads and writes the jobs of a server, and reads the events of a lake."""

    @classmethod
    def name(cls) -> str:
        return "millrace"

    @property
    def _given(self) -> Options:
        return Options(self.options)

    def schema(self) -> str:
        if self._given.get("lake"):
            # This runs on the driver, which has Millrace installed. Executors do not need it.
            from millrace.pipeline.snapshot import named  # noqa: PLC0415

            return named(self._given.get("table", EVENTS)).ddl
        return ", ".join(f"{name} {kind}" for name, kind in JOBS.items())

    def reader(self, schema: StructType) -> DataSourceReader:
        given = self._given
        if given.get("lake"):
            return LakeReader(given, schema)
        reader = FilteringJobReader if given.flag("pushdown") else JobReader
        return reader(given, schema.fieldNames())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return JournalReader(self._given, schema)

    def writer(self, schema: StructType, overwrite: bool) -> Writer:
        given = self._given
        jobs = shape(_kinds(schema, overwrite), given)
        return Writer.opened(address(given), load_name(given), jobs, given)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        given = self._given
        return StreamWriter(address(given), shape(_kinds(schema, overwrite), given), given)


def _kinds(schema: StructType, overwrite: bool) -> dict[str, str]:
    """Return the types of the columns by name."""
    if overwrite:
        raise ValueError('Jobs can only be added. Use mode("append").')
    return {field.name: field.dataType.typeName() for field in schema.fields}

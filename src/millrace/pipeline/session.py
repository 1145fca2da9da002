"""The Spark session: one way to start it, on this machine or on a cluster, without noise.

The settings were measured (docs/explanation/pipeline.md): UTC days, timestamps with statistics,
zstd, and on this machine the serial collector, loopback only and no web page of Spark's own.
"""

import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from . import java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: What must hold wherever it runs, because tables depend on it.
_EVERYWHERE: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.sources.partitionOverwriteMode": "dynamic",
    # Or each Parquet footer is opened for a schema that we know.
    "spark.sql.parquet.mergeSchema": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_LOCAL: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
#: Variables that would change what Spark does, and were not meant for it.
_AMBIENT: Final = (
    "PYSPARK_SUBMIT_ARGS",
    "PYSPARK_DRIVER_PYTHON",
    "SPARK_HOME",
    "SPARK_CONF_DIR",
    "JAVA_TOOL_OPTIONS",
    "JDK_JAVA_OPTIONS",
)


def start(
    master: str = "",
    *,
    memory: str = "1g",
    quick: bool = False,
    conf: Mapping[str, str] | None = None,
) -> "SparkSession":
    """A session on `master`, by default all cores of this machine. `quick` compiles less: better
    for what takes less than a minute.
    """
    found = java.ensure()
    master = master or "local[*]"
    local = master.startswith("local")
    os.environ["JAVA_HOME"] = str(found.home)
    # Workers would take the PATH's python3, which knows nothing of this environment.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    if local:
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        for name in _AMBIENT:
            os.environ.pop(name, None)
    from pyspark.sql import SparkSession  # noqa: PLC0415 - it costs half a second

    # Errors are told once, by whoever catches them.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    cores = os.cpu_count() or 1
    settings = dict(_EVERYWHERE)
    if local:
        settings |= _LOCAL
        settings["spark.sql.shuffle.partitions"] = str(max(4, 2 * cores))
    settings["spark.driver.memory"] = memory
    settings["spark.driver.extraJavaOptions"] = _java_options(cores, quick=quick)
    settings |= conf or {}
    builder = SparkSession.builder.master(master).appName("millrace")
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _java_options(cores: int, *, quick: bool) -> str:
    log = Path(__file__).with_name("log4j2.properties")
    options = [f"-Dlog4j2.configurationFile={log.as_uri()}"]
    if cores <= 2:
        options.append("-XX:+UseSerialGC")  # as fast as the others there, in half the memory
    if quick:
        options.append("-XX:TieredStopAtLevel=1")
    return " ".join(options)

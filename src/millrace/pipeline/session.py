"""The Spark session: one way to start it, on this machine or on a cluster, without noise.

The settings were measured (docs/explanation/pipeline.md): UTC days, timestamps with statistics,
zstd, and on this machine the serial collector, loopback only and no web page of Spark's own.

On a cluster, what its own configuration says is left alone: SPARK_CONF_DIR, SPARK_LOCAL_IP and the
like. Nothing of Millrace is shipped to it, as the transforms are column functions only.
"""

import logging
import os
import socket
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from . import java
from .errors import PipelineError

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
    # Or Spark starts a job to list the files that it was given by name: 15 seconds for 2,880.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000000",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_LOCAL: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
#: How long a master may take to say that it is there; Spark itself would ask for a minute.
_PATIENCE: Final = 10.0


def start(
    master: str = "",
    *,
    memory: str | int = "1g",
    quick: bool = False,
    conf: Mapping[str, str] | None = None,
) -> "SparkSession":
    """A session on `master`, by default all cores of this machine. `memory` is the driver's heap,
    in Spark's words or in bytes. `quick` compiles less: better for what takes less than a minute.
    """
    master = master or "local[*]"
    _reach(master)
    prepare(master, os.environ)
    wanted = settings(master, memory=memory, quick=quick) | dict(conf or {})
    from pyspark.sql import SparkSession  # noqa: PLC0415 - it costs half a second

    # Errors are told once, by whoever catches them.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    builder = SparkSession.builder.master(master).appName("millrace")
    for key, value in wanted.items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except Exception as error:  # Spark's, Java's, or that of a connection between the two
        raise PipelineError(f"Spark does not start on {master}: {_reason(error)}") from error


def prepare(master: str, environ: MutableMapping[str, str]) -> None:
    """Set the variables that Spark's scripts and processes look at."""
    environ["JAVA_HOME"] = str(java.ensure(environ).home)
    if is_local(master):
        # Workers would take the PATH's python3, which knows nothing of this environment.
        environ["PYSPARK_PYTHON"] = sys.executable
        environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        for name in java.AMBIENT:
            environ.pop(name, None)
    else:
        # There it may be another path, which only its owner knows.
        environ.setdefault("PYSPARK_PYTHON", sys.executable)


def settings(master: str, *, memory: str | int = "1g", quick: bool = False) -> dict[str, str]:
    cores = os.cpu_count() or 1
    found = dict(_EVERYWHERE)
    if is_local(master):
        found |= _LOCAL
        found["spark.sql.shuffle.partitions"] = str(max(4, 2 * cores))
        found["spark.executor.extraJavaOptions"] = _java_options(cores, quick=quick)
    found["spark.driver.memory"] = memory if isinstance(memory, str) else f"{memory >> 20}m"
    found["spark.driver.extraJavaOptions"] = _java_options(cores, quick=quick)
    return found


def is_local(master: str) -> bool:
    """Does it all run on this machine? `local-cluster[2,1,1024]`, which is for tests, does."""
    return master.startswith("local")


def _reach(master: str) -> None:
    """Some master of `spark://host:port,host:port` must be there, or that is told at once."""
    if is_local(master) or master == "yarn" or master.startswith("k8s://"):
        return
    if not master.startswith("spark://"):
        raise PipelineError(f"{master!r} is no Spark master: expected spark://host:port")
    problem = ""
    for place in master.removeprefix("spark://").split(","):
        host, _, port = place.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _PATIENCE).close()
        except ValueError:
            problem = f"{place!r} is not a host and a port"
        except OSError as error:
            problem = f"{place}: {error.strerror or error}"
        else:
            return
    raise PipelineError(f"no Spark master can be reached at {master}: {problem}")


def _reason(error: Exception) -> str:
    """In one line. What Java threw has its own words, behind what is only said of the call."""
    thrown = getattr(error, "java_exception", None)
    words = str(error) if thrown is None else str(thrown.getMessage())
    return words.strip().partition("\n")[0]


def _java_options(cores: int, *, quick: bool) -> str:
    log = Path(__file__).with_name("log4j2.properties")
    options = [f"-Dlog4j2.configurationFile={log.as_uri()}"]
    if cores <= 2:
        options.append("-XX:+UseSerialGC")  # as fast as the others there, in half the memory
    if quick:
        options.append("-XX:TieredStopAtLevel=1")
    return " ".join(options)

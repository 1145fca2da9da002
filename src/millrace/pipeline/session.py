"""Starts the Spark session, locally or on a cluster, with little log output.

The settings are based on measurements (docs/explanation/pipeline.md): UTC days, timestamps with
statistics, zstd, the serial collector on at most 2 cores, no Spark web UI, and for local sessions
only the loopback interface.

On a cluster, the cluster's own configuration is not changed: SPARK_CONF_DIR, SPARK_LOCAL_IP and
similar variables. No Millrace code is shipped to the cluster, because the transforms use only
column functions.
"""

import logging
import os
import re
import socket
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from . import class_archive, java
from .errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Settings that are required on every master, because the tables depend on them.
_EVERYWHERE: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.sources.partitionOverwriteMode": "dynamic",
    # Otherwise Spark opens each Parquet footer to find a schema that is already known.
    "spark.sql.parquet.mergeSchema": "false",
    # Otherwise Spark starts a job to list files that are given by name: 15 seconds for 2,880 files.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000000",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # A refresh has about 180 pieces of generated code. The default of 100 would discard them before
    # the next window needs them, so Java would compile and optimize them again and again.
    "spark.sql.codegen.cache.maxEntries": "1000",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_LOCAL: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
_PYTHON_ERROR: Final = re.compile(r"^[\w.]*(?:Error|Refused|Lost|Exception): (.+)$", re.MULTILINE)
#: Timeout of a connection to a master, in seconds. Spark itself would try for a minute.
_CONNECT_TIMEOUT: Final = 10.0


def start(
    master: str = "",
    *,
    memory: str | int = "1g",
    quick: bool = False,
    conf: Mapping[str, str] | None = None,
) -> "SparkSession":
    """Start a session on `master`; the default is all cores of this machine. `memory` is the
    heap size of the driver, as a Spark size string or in bytes. `quick` reduces JIT compilation,
    which is faster for work that takes less than a minute.
    """
    master = master or "local[*]"
    _check_master(master)
    prepare(master, os.environ)
    wanted = settings(master, memory=memory, quick=quick) | dict(conf or {})
    from pyspark.sql import SparkSession  # noqa: PLC0415 - the import takes half a second

    # Callers report the errors that they catch; Spark must not log them as well.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    builder = SparkSession.builder.master(master).appName("millrace")
    for key, value in wanted.items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except Exception as error:  # from Spark, from Java, or from the connection between them
        raise PipelineError(f"Spark does not start on {master}: {_reason(error)}") from error


def prepare(master: str, environ: MutableMapping[str, str]) -> None:
    """Set the environment variables that Spark's scripts and processes read."""
    found = java.ensure(environ)
    environ["JAVA_HOME"] = str(found.home)
    if is_local(master):
        class_archive.use(found, environ)
        # Otherwise workers use python3 from the PATH, which lacks this environment's packages.
        environ["PYSPARK_PYTHON"] = sys.executable
        environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        for name in java.AMBIENT:
            environ.pop(name, None)
    else:
        # The path on the cluster may differ; only its administrator knows it.
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
    """Test if Spark runs on this machine only. Tests use `local-cluster[2,1,1024]`."""
    return master.startswith("local")


def _check_master(master: str) -> None:
    """Check that a master of `spark://host:port,host:port` accepts connections, to fail early."""
    if is_local(master) or master == "yarn" or master.startswith("k8s://"):
        return
    if not master.startswith("spark://"):
        raise PipelineError(
            f"{master!r} is not the URL of a Spark master, such as spark://host:port"
        )
    problem = ""
    for place in master.removeprefix("spark://").split(","):
        host, _, port = place.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT).close()
        except ValueError:
            problem = f"{place!r} is not a host and a port"
        except OSError as error:
            problem = f"{place}: {error.strerror or error}"
        else:
            return
    raise PipelineError(f"no Spark master can be reached at {master}: {problem}")


def _reason(error: Exception) -> str:
    """Return the first line of the error message. For a Java exception, use the exception's own
    message, because the Python message describes only the call.
    """
    thrown = getattr(error, "java_exception", None)
    text = str(error) if thrown is None else str(thrown.getMessage())
    return text.strip().partition("\n")[0]


def first_line(error: Exception) -> str:
    """The message of our own code in a task, otherwise Spark's first line."""
    text = str(error)
    messages: list[str] = _PYTHON_ERROR.findall(text)
    return (
        messages[-1].strip() if messages else (text.strip() or type(error).__name__).splitlines()[0]
    )


def _java_options(cores: int, *, quick: bool) -> str:
    log = Path(__file__).with_name("log4j2.properties")
    options = [f"-Dlog4j2.configurationFile={log.as_uri()}"]
    if cores <= 2:
        options.append("-XX:+UseSerialGC")  # on 2 cores, as fast as the others in half the memory
    if quick:
        options.append("-XX:TieredStopAtLevel=1")
    return " ".join(options)

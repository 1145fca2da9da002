"""The class archive: Spark's classes in the form that Java has in memory.

Java reads and verifies 25,000 classes when a session starts and runs its first queries. With an
archive (Java's class-data sharing) it maps them instead, which saves a quarter of the CPU time of
a small run. The archive takes 190 MB in the cache folder. It depends on the Java and on the list
of jars. Java verifies both, and starts without the archive if they have changed.

The script that wraps Java (java.py) passes the options. Java accepts an archive only if the class
path is the same, names every jar once and has no folder that is missing; Spark's own class path
does not. The archive therefore contains the class path to use in place of Spark's.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, MutableMapping
from hashlib import blake2s
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from . import java
from .errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Names the folder of the archive for the script that wraps Java.
VARIABLE: Final = "SPARK_CLASS_ARCHIVE"
#: The script reads and writes these names in the folder.
CLASS_PATH: Final = "class_path"
SPARK_HOME: Final = "spark_home"
BASE: Final = "base.jsa"
ARCHIVE: Final = "spark.jsa"
#: Seconds to create an archive. It takes about 30 seconds of CPU time.
CREATE_TIMEOUT: Final = 600


def use(found: java.Java, environ: MutableMapping[str, str]) -> None:
    """Let the sessions of this environment use the archive, if there is one."""
    folder = location(found, environ)
    if VARIABLE not in environ and (folder / ARCHIVE).exists():
        environ[VARIABLE] = str(folder)


def location(found: java.Java, environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of the archive for a Java and the installed Spark."""
    home = _spark_home()
    parts = [found.name, str(found.home), str(home), *(jar.name for jar in _jars(home))]
    digest = blake2s("\n".join(parts).encode(), digest_size=8).hexdigest()
    return java.cache_folder(environ) / f"classes-{digest}"


def create(environ: Mapping[str, str] = os.environ) -> Path:
    """Create the archive in a new folder and move it to its place. Return the place."""
    found = java.ensure(environ)
    folder = location(found, environ)
    if (folder / ARCHIVE).exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".classes-"))
    try:
        home = _spark_home()
        (aside / SPARK_HOME).write_text(str(home))
        (aside / CLASS_PATH).write_text(":".join(str(jar) for jar in _jars(home)))
        base = f"-XX:SharedArchiveFile={aside / BASE}"
        _run([str(found.home / "bin/java"), "-Xshare:dump", base], environ)
        _run(
            [sys.executable, "-P", "-m", "millrace.pipeline.class_archive"],
            {**environ, VARIABLE: str(aside)},
        )
        if not (aside / ARCHIVE).exists():
            raise PipelineError("Java has not written a class archive.")
        shutil.rmtree(folder, ignore_errors=True)
        aside.rename(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return folder


def _run(command: list[str], environ: Mapping[str, str]) -> None:
    try:
        done = java.run(*command, environ=environ, timeout=CREATE_TIMEOUT)
    except subprocess.TimeoutExpired as error:
        raise PipelineError("Java takes too long to write a class archive.") from error
    if done.returncode:
        output = (done.stderr or done.stdout).strip().splitlines()
        raise PipelineError(f"Java cannot write a class archive: {''.join(output[-1:])}")


def _spark_home() -> Path:
    spec = util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise PipelineError("pyspark is not installed.")
    return Path(spec.origin).parent


def _jars(home: Path) -> list[Path]:
    return sorted((home / "jars").glob("*.jar"))


# The process whose classes are archived


def main() -> int:
    """Run queries that need the classes of a run, and end Java in order."""
    from pyspark import SparkContext  # noqa: PLC0415 - loads Spark

    from . import session  # noqa: PLC0415

    spark = session.start("local[1]", memory="512m", quick=True)
    with tempfile.TemporaryDirectory(prefix="millrace-classes-") as folder:
        _load_classes(spark, Path(folder))
    spark.stop()
    gateway: Any = SparkContext._gateway  # noqa: SLF001 - there is no other way to its process
    gateway.proc.stdin.close()
    return int(gateway.proc.wait(CREATE_TIMEOUT))


def _load_classes(spark: "SparkSession", root: Path) -> None:
    """Compute every table from one event, in one query and with a write."""
    from datetime import date  # noqa: PLC0415

    from millrace.journal.table_files import File  # noqa: PLC0415

    from .packed import pack  # noqa: PLC0415
    from .refresh import tuned  # noqa: PLC0415
    from .tables import DERIVED, EVENTS  # noqa: PLC0415
    from .window_tables import WindowTables  # noqa: PLC0415
    from .windows import Window  # noqa: PLC0415

    known = {"server": "'a'", "event_id": "1", "seq": "1", "type": "'completed'",
             "before": "'leased'", "state": "'gone'", "time": "timestamp_micros(1)",
             "leased_at": "timestamp_micros(0)", "wait_us": "1", "run_us": "1",
             "fingerprint": "'f'"}  # fmt: skip
    columns = [f"CAST({known.get(n, 'null')} AS {kind}) AS {n}" for n, kind in EVENTS.types.items()]
    event = spark.range(1).selectExpr(*columns).drop("server")
    place = root / "events" / "day=1970-01-01" / "server=a"
    event.write.parquet(f"file:{place}")
    files = [
        File(path, 1, 1, date(1970, 1, 1), "a", 1, 1, None) for path in place.glob("*.parquet")
    ]
    window = Window({"a": 0}, {"a": 1})
    rows = WindowTables(spark, root, dict.fromkeys(DERIVED), window, files)
    with tuned(spark, small=True):
        rows.prepare(single=True)
        frames = {name: rows.rows(table) for name, table in DERIVED.items()}
        pack(frames).toArrow()
    for name, table in DERIVED.items():
        frames[name].write.partitionBy(table.partition).parquet(f"file:{root / name}")


if __name__ == "__main__":
    sys.exit(main())

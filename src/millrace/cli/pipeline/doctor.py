"""`millrace pipeline doctor`."""

import platform
import shutil
import sys
from importlib import metadata

import typer

from millrace.extras import is_installed, missing_package
from millrace.pipeline import java


def doctor() -> int:
    """Return the exit code: 0 if Spark starts and runs a query."""
    typer.echo(f"Python  {platform.python_version()} ({sys.executable})")
    for package in ("pyspark", "pyarrow"):
        if not is_installed(package):
            typer.echo(missing_package(package), err=True)
            return 1
        typer.echo(f"{package:7} {metadata.version(package)}")
    if shutil.which("bash") is None:
        typer.echo("bash not found. Spark's scripts require it.", err=True)
        return 1
    found, refused = java.find()
    for each in refused:
        typer.echo(f"Java    {each.where} {each.reason}")
    if found is None:
        java.ensure()  # raises NoJava with a suggestion
        return 1
    typer.echo(f"Java    {found.name} from {found.source} ({found.home / 'bin/java'})")
    from millrace.pipeline import session  # noqa: PLC0415 - loads Spark

    spark = session.start("local[1]", memory="512m", quick=True)
    try:
        spark.range(10).count()
    finally:
        spark.stop()
    typer.echo("Spark   started and ran a query. The pipeline can run.")
    return 0

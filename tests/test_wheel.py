"""Each wheel, installed in a new environment with only the required dependencies, runs a job."""

import compileall
import json
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from urllib.request import urlopen

import pytest

from millrace import compiled
from test_packaging import BASE_LIMIT, PROJECT, ROOT, closure

SCRIPT = """
import threading
from millrace import Millrace
from millrace.client import Worker, WorkerOptions

app = Millrace("tcp://127.0.0.1:{port}")

@app.task
def add(a: int, b: int) -> int:
    return a + b

worker = Worker(app, WorkerOptions(concurrency=1))
thread = threading.Thread(target=worker.run, kwargs={{"handle_signals": False}})
thread.start()
print(add.push(1, 2).result(timeout=20))
worker.stop()
thread.join()
"""


Ignore = Callable[[str, list[str]], set[str]]


def copy_sources(copy: Path, ignore: Ignore) -> Path:
    """Copy the sources, because setuptools writes into their folder."""
    copy.mkdir(exist_ok=True)
    for name in ("pyproject.toml", "README.md", "LICENSE", "setup.py"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(ROOT / "src", copy / "src", ignore=ignore)
    return copy


def build_wheel(copy: Path, environment: dict[str, str]) -> Path:
    command = ["pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", "dist", "."]
    subprocess.run(
        [sys.executable, "-m", *command], cwd=copy, check=True, env={**os.environ, **environment}
    )
    (built,) = (copy / "dist").glob("millrace-*.whl")
    return built


@pytest.fixture(scope="module", params=["pure Python", "compiled"])
def build(request: pytest.FixtureRequest) -> str:
    if request.param == "compiled" and not compiled.fresh_modules():
        pytest.skip("the compiled modules are not built, or not from these sources")
    return str(request.param)


@pytest.fixture(scope="module")
def wheel(build: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of each kind, built where the compiled modules exist or not."""
    ignore = shutil.ignore_patterns("*.egg-info", "__pycache__")
    copy = copy_sources(tmp_path_factory.mktemp("sources"), ignore)
    built = build_wheel(copy, {"MILLRACE_WHEEL": "compiled"} if build == "compiled" else {})
    assert ("py3-none-any" in built.name) == (build != "compiled")
    names = zipfile.ZipFile(built).namelist()
    assert any("_compiled" in name for name in names) == (build == "compiled")
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment. Its dependencies are copied from this one, so that no index is needed."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    for name in closure(PROJECT["dependencies"]):
        for file in metadata.distribution(name).files or []:
            source = Path(str(file.locate()))
            if not {"..", "__pycache__"} & {*file.parts} and source.is_file():
                target = packages / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, target)
    subprocess.run(
        [
            sys.executable, "-m", "pip", "-q", "--python", str(folder / "bin" / "python"),
            "install", "--no-deps", "--no-index", "--no-compile", str(wheel),
        ],
        check=True,
    )  # fmt: skip
    # As pip does for every package; a file for a newer Python is not an error.
    compileall.compile_dir(packages, quiet=2)
    return folder


def test_the_installation_is_small(environment: Path) -> None:
    (packages,) = environment.glob("lib/python*/site-packages")
    size = sum(path.stat().st_size for path in packages.rglob("*") if path.is_file())
    assert size < BASE_LIMIT


def test_a_job_runs_with_only_the_wheel(environment: Path, build: str, tmp_path: Path) -> None:
    millrace, python = environment / "bin" / "millrace", environment / "bin" / "python"
    clean = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    ports = [
        f"--{name}-port=0" for name in ("faktory", "workq", "masenko", "qless", "goqueue", "web")
    ]
    shown = subprocess.run(
        [millrace, "version", "--json"], capture_output=True, check=True, cwd=tmp_path, env=clean
    )
    assert json.loads(shown.stdout)["build"] == build
    command = [str(millrace), "serve", "--data", str(tmp_path / "data"), *ports]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tmp_path, env=clean) as server:
        try:
            assert server.stdout is not None
            ready = json.loads(server.stdout.readline())["ports"]
            ran = subprocess.run(
                [str(python), "-c", SCRIPT.format(port=ready["faktory"])],
                capture_output=True, text=True, timeout=60, cwd=tmp_path, env=clean,
            )  # fmt: skip
            assert (ran.stdout.strip(), ran.returncode) == ("3", 0), ran.stderr
            stats = subprocess.run(
                [str(millrace), "stats", "--json", "--data", str(tmp_path / "data")],
                capture_output=True, text=True, timeout=60, cwd=tmp_path, env=clean,
            )  # fmt: skip
            assert json.loads(stats.stdout)["jobs"]["done"] == 1
            # The web process starts without the packages of the extras.
            for path in ("/", "/jobs", "/analytics", "/api/v1/overview", "/api/v1/openapi.json"):
                with urlopen(f"http://127.0.0.1:{ready['web']}{path}", timeout=30) as page:
                    assert page.status == 200
        finally:
            server.terminate()
        assert server.wait(30) == 0


def test_a_missing_extra_is_named(environment: Path, tmp_path: Path) -> None:
    ran = subprocess.run(
        [str(environment / "bin" / "millrace"), "pipeline", "run", "--data", str(tmp_path)],
        capture_output=True, text=True, timeout=60, env={"PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert ran.returncode
    assert re.search(r"millrace\[(spark|lake)\]", ran.stderr + ran.stdout), ran.stderr


def test_the_compiled_wheel_also_has_the_sources(
    environment: Path, build: str, tmp_path: Path
) -> None:
    ran = subprocess.run(
        [environment / "bin" / "millrace", "version", "--json"],
        env={"PATH": "/usr/bin:/bin", "MILLRACE_PURE": "1"},
        capture_output=True, cwd=tmp_path, check=True,
    )  # fmt: skip
    assert json.loads(ran.stdout)["build"] == "pure Python"

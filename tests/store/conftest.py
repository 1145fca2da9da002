"""Stores in a folder that is deleted after the test."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import millrace.store.sqlite.generations
from disk.recording import missing
from failing_stores import FailingSqliteStore
from millrace.store.sqlite import reserve
from scene import Scene, commit

MEMORY = Path("/dev/shm")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def quick_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on a fast file system, for tests that write thousands of folders."""
    monkeypatch.setattr(reserve, "MAX_RESERVE_BYTES", 1 << 16)
    if reason := missing():
        pytest.skip(reason)
    if not MEMORY.is_dir():
        yield tmp_path / "quick"
        return
    with tempfile.TemporaryDirectory(prefix="millrace-", dir=MEMORY) as home:
        yield Path(home) / "data"


class OpenStore:
    """Opens the store of the test's folder, and closes it first if it is open."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.opened: FailingSqliteStore | None = None

    def __call__(self, **options: Any) -> FailingSqliteStore:
        self.close()
        self.opened = FailingSqliteStore(self.folder, sync=False, **options)
        return self.opened

    def close(self) -> None:
        if self.opened is not None:
            self.opened.close()
            self.opened = None


@pytest.fixture
def open_store(folder: Path) -> Iterator[OpenStore]:
    opener = OpenStore(folder)
    yield opener
    opener.close()


@pytest.fixture
def filled(open_store: OpenStore) -> Scene:
    """Jobs of two queues in a store that is left open, with entries in its log."""
    store, scene = open_store(), Scene()
    store.load()
    for n in range(30):
        scene.push(f"job-{n}", "ab"[n % 2], payload=b"x" * n * 300)
        commit(scene.engine, store)
    return scene


@pytest.fixture
def small_generations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folding starts after a few jobs instead of a hundred thousand, and takes several commits."""
    monkeypatch.setattr(millrace.store.sqlite.generations, "GENERATION_JOBS", 3)
    monkeypatch.setattr(millrace.store.sqlite.generations, "GENERATION_BYTES", 2000)
    monkeypatch.setattr(FailingSqliteStore, "max_write_back", 3)

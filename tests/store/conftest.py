"""Stores on a folder that goes away with the test."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import millrace.store.sqlite
from failing_stores import FailingSqliteStore

OpenStore = Callable[..., FailingSqliteStore]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def open_store(folder: Path) -> Iterator[OpenStore]:
    """Opens the store of this test's folder, closing it first where it is open."""
    opened: list[FailingSqliteStore] = []

    def open_(**options: Any) -> FailingSqliteStore:
        while opened:
            opened.pop().close()
        opened.append(FailingSqliteStore(folder, sync=False, **options))
        return opened[0]

    yield open_
    for store in opened:
        store.close()


@pytest.fixture
def small_generations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folding begins after a few jobs, not after a hundred thousand."""
    monkeypatch.setattr(millrace.store.sqlite, "GENERATION_JOBS", 3)
    monkeypatch.setattr(millrace.store.sqlite, "GENERATION_BYTES", 2000)

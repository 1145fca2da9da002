"""The library that makes syncing fail, slow or traceable (sync_shim.c), compiled where gcc is."""

from pathlib import Path

import pytest

from disk.recording import compiled, missing


@pytest.fixture(scope="session")
def sync_shim() -> Path:
    if reason := missing():
        pytest.skip(reason)
    return compiled(Path(__file__).with_name("sync_shim.c"))

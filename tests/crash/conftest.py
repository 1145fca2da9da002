"""The library that makes syncs fail, slow or traceable (sync_shim.c), compiled if gcc is
installed.
"""

from pathlib import Path

import pytest

from disk.recording import compiled, missing


@pytest.fixture(scope="session")
def sync_shim() -> Path:
    if reason := missing():
        pytest.skip(reason)
    return compiled(Path(__file__).with_name("sync_shim.c"))

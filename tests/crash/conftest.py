"""The library that makes syncing fail, slow or traceable (sync_shim.c), compiled where gcc is."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("sync_shim.c")


@pytest.fixture(scope="session")
def sync_shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if sys.platform != "linux":
        pytest.skip("LD_PRELOAD as used here needs Linux")
    if shutil.which("gcc") is None:
        pytest.skip("gcc not found: install it (Debian: apt-get install gcc libc6-dev)")
    library = tmp_path_factory.mktemp("shim") / "sync_shim.so"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", library, SOURCE], check=True
    )
    return library

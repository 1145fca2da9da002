"""Adds tests/protocols to the import path: some tests here use its conversations."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "protocols"))

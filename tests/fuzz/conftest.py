"""Import paths for the worlds of the protocol tests and the checks of the engine tests."""

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path += [str(TESTS / folder) for folder in ("protocols", "engine")]

"""The targets play on the worlds of the protocols' conversations, and ask what the engine's tests ask."""

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path += [str(TESTS / folder) for folder in ("protocols", "engine")]

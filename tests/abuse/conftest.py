"""The rows of tests/crash describe every command; the tests here send them in other forms."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "crash"))

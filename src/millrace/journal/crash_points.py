"""Points at which a test can kill the process: after each step that has a durable effect.

With `CRASH_MILLRACE=committed` the process kills itself when it first reaches that point.
"""

import os
import signal
from typing import Final

STEPS: Final = ("written", "committed", "synced", "reported", "trimmed")
_STEP: Final = os.environ.get("CRASH_MILLRACE", "")


def crash_point(step: str) -> None:
    if step == _STEP:
        os.kill(os.getpid(), signal.SIGKILL)

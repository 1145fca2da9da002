"""The watchdog leaves no pending exception and no trace in the interpreter."""

import subprocess
import sys

import pytest

#: In Python 3.11 a call never returns under a profiler while the interpreter's flag for pending
#: exceptions is set. Therefore the program runs in a separate process.
PROGRAM = """
import sys
from millrace.client.worker.watchdog import Watch, Watchdog

class Stopped(BaseException):
    pass

def job():
    pass

watchdog = Watchdog(Stopped)
watch = Watch("a")
watchdog.start(watch, None)
try:
    if {interrupted}:
        watchdog.interrupt("a", Stopped)
        while {received}:
            pass
except Stopped:
    pass
try:
    watchdog.finish(watch)
except Stopped:
    watchdog.finish(watch)
sys.setprofile(lambda *_: None)
job()
sys.setprofile(None)
watchdog.close()
print("done")
"""


@pytest.mark.parametrize(("interrupted", "received"), [(False, False), (True, True), (True, False)])
def test_a_profiler_works_after_a_job(interrupted: bool, received: bool) -> None:
    program = PROGRAM.format(interrupted=interrupted, received=received)
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert result.stdout == "done\n"

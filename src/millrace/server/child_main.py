"""Entry point of the server's child processes: run a module that ends together with the server.

    python -P -m millrace.server.child_main PARENT_PID MODULE ARGUMENT...

When the server ends, the child sees the end of its input pipe, but it reads that pipe only after
its imports. A child that outlives a killed server
keeps the listening sockets, and the next server cannot bind them. On Linux the kernel therefore
kills the child together with its parent; elsewhere a thread checks the parent's process id.
"""

import os
import runpy
import signal
import sys
import time
from threading import Thread
from typing import Final

PR_SET_PDEATHSIG: Final = 1
PARENT_CHECK_INTERVAL: Final = 0.2


def end_with_parent(parent: int) -> None:
    """Kill this process as soon as `parent` has ended, or now if it has ended already."""
    if not _request_kernel_kill():
        Thread(target=_watch, args=(parent,), name="parent watch", daemon=True).start()
    # The parent can end before the request reaches the kernel.
    if os.getppid() != parent:
        os._exit(1)


def _request_kernel_kill() -> bool:
    if sys.platform != "linux":
        return False
    import ctypes  # noqa: PLC0415 - only Linux needs it

    return bool(ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) == 0)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_INTERVAL)
    os._exit(1)


if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]))
    del sys.argv[:2]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)

"""Counts the lines of Python that a call executes."""

import ctypes
import sys
import sysconfig
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from disk.recording import compiled, missing


def counted(call: Callable[[], None], ignored: str) -> Counter[CodeType]:
    """The number of lines by function, without files whose path starts with `ignored`. Calls,
    returns and exceptions count as lines.
    """
    library = in_c()
    if library is None:
        return counted_in_python(call, ignored)
    library.begin(ignored.encode())
    try:
        call()
    finally:
        found = library.end()
    return Counter(found)


def counted_in_python(call: Callable[[], None], ignored: str) -> Counter[CodeType]:
    """The same without a C compiler: most of the time is spent in `trace`."""
    lines: Counter[CodeType] = Counter()

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename.startswith(ignored):
            return None
        lines[frame.f_code] += 1
        return trace

    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(None)
    return lines


@cache
def in_c() -> ctypes.PyDLL | None:
    """The counter in C (line_counter.c), or None without gcc or the header files of Python."""
    headers = Path(sysconfig.get_paths()["include"])
    if missing() or not (headers / "Python.h").exists():
        return None
    library = ctypes.PyDLL(
        str(compiled(Path(__file__).with_name("line_counter.c"), f"-I{headers}"))
    )
    library.begin.restype = None
    library.begin.argtypes = [ctypes.c_char_p]
    library.end.restype = ctypes.py_object
    return library

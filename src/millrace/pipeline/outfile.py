"""Files for people and programs outside of the lake: there when they are whole, or not at all."""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from .errors import PipelineError

#: The name that means the standard output.
STANDARD: Final = "-"


@contextlib.contextmanager
def whole(name: str) -> Iterator[BinaryIO]:
    """Write a file aside, and give it its name when all is written; what had the name goes."""
    if name == STANDARD:
        try:
            yield sys.stdout.buffer
            sys.stdout.buffer.flush()
        except BrokenPipeError:  # as `head` does it, when it has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    path = Path(name)
    aside = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        if path.is_dir():
            raise IsADirectoryError(0, "it is a folder")
        with aside.open("wb") as file:
            yield file
        aside.replace(path)
    except OSError as error:
        raise PipelineError(f"cannot write {name}: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)

"""Writes output files outside the lake atomically."""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from .errors import PipelineError

#: The file name for standard output.
STANDARD: Final = "-"


@contextlib.contextmanager
def output_file(name: str) -> Iterator[BinaryIO]:
    """Write to a temporary file and rename it when it is complete, replacing any existing file."""
    if name == STANDARD:
        try:
            yield sys.stdout.buffer
            sys.stdout.buffer.flush()
        except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
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

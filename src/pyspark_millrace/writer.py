"""Write rows: tasks stage jobs in a load, and the driver releases the load after all tasks finish.

A retried task stages the same jobs again, and the server accepts each jid once. Workers receive no
job before the release, so a failure before the release leaves no jobs behind.
"""

import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Self

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from .connection import Refused, ServerAddress, ServerConnection
from .options import Options
from .work_units import Shape, Units

log = logging.getLogger("millrace")

#: Jobs per frame and unanswered frames in flight: defaults and maximums.
FRAME: Final = 200
MAX_FRAME: Final = 10_000
WINDOW: Final = 8
MAX_WINDOW: Final = 100
#: A frame is sent when it reaches this size.
FRAME_BYTES: Final = 1 << 20
#: Number of jobs released or discarded per command.
RELEASE_BATCH_SIZE: Final = 10_000
#: Number of attempts to release a load while the server is unavailable, and seconds between them.
ATTEMPTS: Final = 5
PAUSE: Final = 1.0


@dataclass
class Staged(WriterCommitMessage):
    """Result of one task: the number of new jobs, and of jobs staged by a previous attempt."""

    load: str
    new: int
    known: int


class Writer(DataSourceArrowWriter):
    def __init__(
        self, address: ServerAddress, load: str, shape: Shape, given: Options, *, is_open: bool
    ) -> None:
        self.address = address
        self.load = load
        self.shape = shape
        self.frame = given.count("frame", FRAME, MAX_FRAME)
        self.window = given.count("window", WINDOW, MAX_WINDOW)
        #: If false, the release of the load has started and no jobs can be added.
        self.is_open = is_open

    @classmethod
    def begun(cls, address: ServerAddress, load: str, shape: Shape, given: Options) -> Self:
        """Open the load on the server and create the writer."""
        with ServerConnection(address) as wire:
            state = wire.ask({"open": load})["state"]
        return cls(address, load, shape, given, is_open=state == "open")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        if not self.is_open:
            return Staged(self.load, 0, 0)
        task = TaskContext.get()
        units = Units(self.shape, self.load, 0 if task is None else task.partitionId())
        jobs = (unit for batch in iterator for unit in units.of(batch))
        with ServerConnection(self.address) as wire:
            return stage(wire, self.load, jobs, self.frame, self.window)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        staged = [message for message in messages if isinstance(message, Staged)]
        released = released_at(self.address, self.load)
        again = sum(message.known for message in staged)
        log.info(
            "load %s: %s jobs released; %s were staged a second time, and are there once",
            *(self.load, f"{released:,}", f"{again:,}"),
        )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        if self.is_open:
            discarded_at(self.address, self.load)


def released_at(address: ServerAddress, load: str) -> int:
    """Release a load. Retry if the server is temporarily unavailable; a release is idempotent."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with ServerConnection(address) as wire:
                return release(wire, load)
        except OSError as error:
            if attempt == ATTEMPTS:
                raise ConnectionError(
                    f"the release of the load {load} did not come to its end: {error}. If it has "
                    f"begun, `millrace pipeline loads --release {load}` ends it"
                ) from error
            time.sleep(PAUSE)
    raise AssertionError("the last attempt returns or raises")


def discarded_at(address: ServerAddress, load: str) -> None:
    """Discard a load, unless its release has already started (for example, a failed release)."""
    with ServerConnection(address) as wire:
        try:
            discard(wire, load)
        except Refused as refused:
            log.warning("%s", refused)


def stage(
    wire: ServerConnection, load: str, jobs: Iterable[bytes], frame: int, window: int
) -> Staged:
    """Stage jobs in frames, with up to `window` frames in flight."""
    staged, flying = Staged(load, 0, 0), 0
    for line in frames(load, jobs, frame):
        wire.send(line)
        flying += 1
        if flying == window:
            _count(wire, staged)
            flying -= 1
    for _ in range(flying):
        _count(wire, staged)
    return staged


def frames(load: str, jobs: Iterable[bytes], most: int) -> Iterator[bytes]:
    """Build commands with `most` jobs each, or fewer if the jobs are large."""
    head = b'MILLRACE {"stage":"%b","jobs":[' % load.encode()
    held: list[bytes] = []
    size = 0
    for job in jobs:
        held.append(job)
        size += len(job)
        if len(held) == most or size >= FRAME_BYTES:
            yield b"%b%b]}\r\n" % (head, b",".join(held))
            held, size = [], 0
    if held:
        yield b"%b%b]}\r\n" % (head, b",".join(held))


def _count(wire: ServerConnection, staged: Staged) -> None:
    answer = wire.receive()
    if answer["invalid"]:
        jid, reason = next(iter(answer["invalid"].items()))
        count = len(answer["invalid"])
        raise ValueError(f"{count} of {staged.load}'s jobs cannot be taken; {jid!r}: {reason}")
    staged.new += answer["new"]
    staged.known += answer["known"]


def release(wire: ServerConnection, load: str) -> int:
    """Release all jobs of a load and return their number."""
    return _end(wire, "release", load)


def discard(wire: ServerConnection, load: str) -> int:
    """Remove all jobs of a load that is not released, and return their number."""
    return _end(wire, "discard", load)


def _end(wire: ServerConnection, how: str, load: str) -> int:
    done = 0
    while True:
        answer = wire.ask({how: load, "most": RELEASE_BATCH_SIZE})
        done += int(answer["done"])
        if not answer["left"]:
            return done

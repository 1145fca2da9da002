"""Rows in: tasks stage jobs in a load, and the driver releases it when all of them are done.

A task that is tried again stages the same jobs again, and the server takes each jid once. Nobody
gets a job before all tasks are done, so whatever fails before that leaves nothing behind.
"""

import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Self

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from .options import Options
from .units import Shape, Units
from .wire import Address, Connection, Refused

log = logging.getLogger("millrace")

#: Jobs of one frame, and frames that are sent ahead of their answers, by default and at most.
FRAME: Final = 200
MOST_FRAME: Final = 10_000
WINDOW: Final = 8
MOST_WINDOW: Final = 100
#: A frame is sent when it is so large.
FRAME_BYTES: Final = 1 << 20
#: So many jobs are released or discarded by one command.
AT_ONCE: Final = 10_000
#: So often a release is tried, so many seconds after one another, while the server is away.
ATTEMPTS: Final = 5
PAUSE: Final = 1.0


@dataclass
class Staged(WriterCommitMessage):
    """What one task has staged: how many were new, and how many an attempt before had staged."""

    load: str
    new: int
    known: int


class Writer(DataSourceArrowWriter):
    def __init__(
        self, address: Address, load: str, shape: Shape, given: Options, *, is_open: bool
    ) -> None:
        self.address = address
        self.load = load
        self.shape = shape
        self.frame = given.count("frame", FRAME, MOST_FRAME)
        self.window = given.count("window", WINDOW, MOST_WINDOW)
        #: Or it is one of which the release has begun: there is nothing to add.
        self.is_open = is_open

    @classmethod
    def begun(cls, address: Address, load: str, shape: Shape, given: Options) -> Self:
        """With its load open at the server."""
        with Connection(address) as wire:
            state = wire.ask({"open": load})["state"]
        return cls(address, load, shape, given, is_open=state == "open")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        if not self.is_open:
            return Staged(self.load, 0, 0)
        task = TaskContext.get()
        units = Units(self.shape, self.load, 0 if task is None else task.partitionId())
        jobs = (unit for batch in iterator for unit in units.of(batch))
        with Connection(self.address) as wire:
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


def released_at(address: Address, load: str) -> int:
    """Release a load, also if the server is away for a moment: nothing is done twice."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with Connection(address) as wire:
                return release(wire, load)
        except OSError as error:
            if attempt == ATTEMPTS:
                raise ConnectionError(
                    f"the release of the load {load} did not come to its end: {error}. If it has "
                    f"begun, `millrace pipeline loads --release {load}` ends it"
                ) from error
            time.sleep(PAUSE)
    raise AssertionError("the last attempt returns or raises")


def discarded_at(address: Address, load: str) -> None:
    """Discard a load, unless its release has begun, as when that could not be ended."""
    with Connection(address) as wire:
        try:
            discard(wire, load)
        except Refused as refused:
            log.warning("%s", refused)


def stage(wire: Connection, load: str, jobs: Iterable[bytes], frame: int, window: int) -> Staged:
    """Stage jobs in frames, some of them in flight at a time."""
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
    """Commands of so many jobs each, or fewer if they are large."""
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


def _count(wire: Connection, staged: Staged) -> None:
    answer = wire.receive()
    if answer["invalid"]:
        jid, reason = next(iter(answer["invalid"].items()))
        count = len(answer["invalid"])
        raise ValueError(f"{count} of {staged.load}'s jobs cannot be taken; {jid!r}: {reason}")
    staged.new += answer["new"]
    staged.known += answer["known"]


def release(wire: Connection, load: str) -> int:
    """Let all jobs of a load go; how many did."""
    return _end(wire, "release", load)


def discard(wire: Connection, load: str) -> int:
    """Remove all jobs of a load that is not released; how many there were."""
    return _end(wire, "discard", load)


def _end(wire: Connection, how: str, load: str) -> int:
    done = 0
    while True:
        answer = wire.ask({how: load, "most": AT_ONCE})
        done += int(answer["done"])
        if not answer["left"]:
            return done

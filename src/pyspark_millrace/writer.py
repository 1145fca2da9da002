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
    def opened(cls, address: ServerAddress, load: str, shape: Shape, given: Options) -> Self:
        """Open the load on the server and create the writer."""
        with ServerConnection(address) as connection:
            state = connection.ask({"open": load})["state"]
        return cls(address, load, shape, given, is_open=state == "open")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        if not self.is_open:
            return Staged(self.load, 0, 0)
        task = TaskContext.get()
        units = Units(self.shape, self.load, 0 if task is None else task.partitionId())
        jobs = (unit for batch in iterator for unit in units.of(batch))
        with ServerConnection(self.address) as connection:
            return stage(connection, self.load, jobs, self.frame, self.window)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        staged = [message for message in messages if isinstance(message, Staged)]
        released = release_load(self.address, self.load)
        repeated = sum(message.known for message in staged)
        log.info(
            "Load %s: %s jobs released; %s were staged again, and exist once",
            *(self.load, f"{released:,}", f"{repeated:,}"),
        )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        if self.is_open:
            discard_load(self.address, self.load)


def release_load(address: ServerAddress, load: str) -> int:
    """Release a load. Retry if the server is temporarily unavailable; a release is idempotent."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with ServerConnection(address) as connection:
                return release(connection, load)
        except OSError as error:
            if attempt == ATTEMPTS:
                raise ConnectionError(
                    f"The release of load {load} failed: {error}. If it has started, complete it "
                    f"with `millrace pipeline loads --release {load}`."
                ) from error
            time.sleep(PAUSE)
    raise AssertionError("the last attempt returns or raises")


def discard_load(address: ServerAddress, load: str) -> None:
    """Discard a load, unless its release has already started (for example, a failed release)."""
    with ServerConnection(address) as connection:
        try:
            discard(connection, load)
        except Refused as refused:
            log.warning("%s", refused)


def stage(
    connection: ServerConnection, load: str, jobs: Iterable[bytes], frame: int, window: int
) -> Staged:
    """Stage jobs in frames, with up to `window` frames in flight."""
    staged, flying = Staged(load, 0, 0), 0
    for line in frames(load, jobs, frame):
        connection.send(line)
        flying += 1
        if flying == window:
            _count(connection, staged)
            flying -= 1
    for _ in range(flying):
        _count(connection, staged)
    return staged


def frames(load: str, jobs: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Build commands with `size` jobs each, or fewer if the jobs are large."""
    head = b'MILLRACE {"stage":"%b","jobs":[' % load.encode()
    pending: list[bytes] = []
    length = 0
    for job in jobs:
        pending.append(job)
        length += len(job)
        if len(pending) == size or length >= FRAME_BYTES:
            yield b"%b%b]}\r\n" % (head, b",".join(pending))
            pending, length = [], 0
    if pending:
        yield b"%b%b]}\r\n" % (head, b",".join(pending))


def _count(connection: ServerConnection, staged: Staged) -> None:
    reply = connection.receive()
    if reply["invalid"]:
        jid, reason = next(iter(reply["invalid"].items()))
        count = len(reply["invalid"])
        raise ValueError(
            f"the server rejected {count} of the jobs of load {staged.load}; {jid!r}: {reason}"
        )
    staged.new += reply["new"]
    staged.known += reply["known"]


def release(connection: ServerConnection, load: str) -> int:
    """Release all jobs of a load and return their number."""
    return _end(connection, "release", load)


def discard(connection: ServerConnection, load: str) -> int:
    """Remove all jobs of a load that is not released, and return their number."""
    return _end(connection, "discard", load)


def _end(connection: ServerConnection, how: str, load: str) -> int:
    done = 0
    while True:
        reply = connection.ask({how: load, "most": RELEASE_BATCH_SIZE})
        done += int(reply["done"])
        if not reply["left"]:
            return done

"""Payloads of jobs, in memory or in the store."""

from collections.abc import Callable
from typing import Any, Final, Protocol

from .errors import PayloadDamaged
from .job import Job
from .jobs_by_seq import JobsBySeq

#: A stored payload up to this size is read when it is needed, on the same thread. A larger one is
#: read in advance by another thread: reading 32 MiB takes 40 ms.
MAX_DIRECT_READ: Final = 256 << 10
#: Maximum bytes of verified payloads that are kept in memory for the replies with their jobs.
MAX_VERIFIED_BYTES: Final = 1 << 20


class PayloadReader(Protocol):
    """Reads committed payloads. The payload of a job that was removed is empty. A method raises
    PayloadDamaged if it reads a payload that differs from the one that was written.
    """

    def read(self, seq: int) -> bytes: ...

    def read_large(self, seq: int) -> bytes:
        """Read as `read` does, but let other threads run during the read: 32 MiB take 15 ms."""
        ...

    def read_part(self, seq: int, start: int, size: int) -> bytes: ...

    def open_another(self) -> "PayloadReader":
        """A reader for another thread."""
        ...

    def close(self) -> None: ...


class PayloadRead:
    """A request for payloads that another thread reads."""

    __slots__ = ("damaged", "error", "owner", "payloads", "seqs")

    def __init__(self, seqs: list[int], owner: Any = None) -> None:
        self.seqs = seqs
        #: The owner of the work that waits for the read: its `wake` is called at the end. If
        #: leased jobs wait for it, `Connection.handle_payloads_read` is called instead.
        self.owner = owner
        #: The payloads by seq after the read. After an error, some are missing.
        self.payloads: dict[int, bytes] | None = None
        #: The errors of damaged payloads by seq.
        self.damaged: dict[int, PayloadDamaged] = {}
        self.error: Exception | None = None


#: Starts a read.
PayloadFetcher = Callable[[PayloadRead], None]


class Payloads:
    """Reads the payloads of jobs."""

    __slots__ = (
        "_jobs",
        "_verified",
        "_verified_bytes",
        "awaited",
        "damage_found",
        "fetched",
        "fetcher",
        "reader",
    )

    def __init__(self, jobs: JobsBySeq) -> None:
        self._jobs = jobs
        #: Reads payloads that are in the store; None: all are in memory.
        self.reader: PayloadReader | None = None
        #: Reads them on another thread; None: there is no other thread.
        self.fetcher: PayloadFetcher | None = None
        #: Payloads that were read on another thread, while they are needed.
        self.fetched: dict[int, bytes] = {}
        #: The read that the last slice of a long command waits for.
        self.awaited: PayloadRead | None = None
        #: Called with each job that is dead because its payload is damaged, and the error.
        self.damage_found: Callable[[Job, str], None] | None = None
        #: Payloads that were read before their jobs were leased, until the replies read them.
        self._verified: dict[int, bytes] = {}
        self._verified_bytes = 0

    def take_awaited(self) -> PayloadRead | None:
        """Return the read that the last slice waits for, and clear it. This is a method because
        mypy would infer None from an assignment before the slice, and so would the compiled code.
        """
        read, self.awaited = self.awaited, None
        return read

    def use_jobs(self, jobs: JobsBySeq) -> None:
        """Read jobs from this table: a flush has replaced the old one."""
        self._jobs = jobs

    def read(self, job: Job) -> bytes:
        """The payload of a job, from memory or from the store."""
        if not job.stored_size:
            return job.inline_payload
        if job.seq in self.fetched:
            return self.fetched[job.seq]
        if self._verified and job.seq in self._verified:
            payload = self._verified.pop(job.seq)
            self._verified_bytes -= len(payload)
            return payload
        assert self.reader is not None
        return self.reader.read(job.seq)

    def find_damage(self, job: Job) -> str:
        """Read a stored payload before its job is leased. Return the error if it is damaged. A
        large payload that another thread reads after the lease is not read here.
        """
        size, seq = job.stored_size, job.seq
        if size > MAX_DIRECT_READ and self.fetcher is not None:
            return ""
        if seq in self.fetched or seq in self._verified:
            return ""
        assert self.reader is not None
        try:
            payload = self.reader.read(seq)
        except PayloadDamaged as damage:
            return str(damage)
        except Exception:
            return ""  # the payload may be undamaged: the read for the reply reports the error
        if size <= MAX_DIRECT_READ:
            if self._verified_bytes + size > MAX_VERIFIED_BYTES:
                self._verified.clear()
                self._verified_bytes = 0
            self._verified[seq] = payload
            self._verified_bytes += len(payload)
        return ""

    def read_part(self, job: Job, start: int, size: int) -> bytes:
        """Up to `size` bytes of the payload of a job, starting at `start`."""
        if not job.stored_size:
            return job.inline_payload[start : start + size]
        assert self.reader is not None
        return self.reader.read_part(job.seq, start, size)

    def move_out_of_memory(self, seq: int, payload: bytes) -> None:
        """Remove a payload from memory after the store has committed it, unless the job has
        another payload by now.
        """
        earlier = self._verified.pop(seq, None)
        if earlier is not None:
            self._verified_bytes -= len(earlier)
        job = self._jobs.get(seq)
        if job is not None and job.inline_payload is payload:
            job.inline_payload, job.stored_size = b"", len(payload)

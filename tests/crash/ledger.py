"""What the clients of a crash test know, and what must therefore be true.

For each job the ledger keeps what was sent and what was acknowledged. A client that sends a command
and hears nothing knows nothing: either may be so. What it heard must hold for ever:

    the PUSH was acknowledged, no ACK was sent    the job is there
    the ACK was acknowledged                      the job is gone and is never handed out again
    never sent                                    never seen
    one life of the server, one lease             nobody else is handed the job
    the FAIL was acknowledged                     the job carries that failure when it comes again

Whatever is seen later settles what was open: a job handed out after a restart came from the disk,
so its PUSH took effect and its ACK, if one was sent, did not.
"""

import json
import threading
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

QUEUES = ("crash-a", "crash-b", "crash-c")
RESERVE_FOR = 7200  # longer than any run, so that no lease ends by itself
FOREVER = "2100-01-01T00:00:00Z"


class ViolationError(Exception):
    """The server broke a promise."""


@dataclass(slots=True)
class Job:
    jid: str
    retry: int
    at: str | None
    life: int  # the server's life in which it was last pushed
    pushed: bool = False  # the PUSH was acknowledged
    finishing: bool = False  # an ACK (or the FAIL that discards it) was sent
    finished: bool = False  # and acknowledged
    held_in: int = 0  # the server's life in which a client holds it
    fails_sent: int = 0
    fails_acknowledged: int = 0

    @property
    def must_be_there(self) -> bool:
        return self.pushed and not self.finishing

    def work_unit(self) -> dict[str, Any]:
        unit = {
            "jid": self.jid,
            "queue": queue_of(self.jid),
            "jobtype": "crash",
            "args": args_of(self.jid),
            "reserve_for": RESERVE_FOR,
            "retry": self.retry,
        }
        if self.at is not None:
            unit["at"] = self.at
        return unit


def queue_of(jid: str) -> str:
    return QUEUES[zlib.crc32(jid.encode()) % len(QUEUES)]


def args_of(jid: str) -> list[Any]:
    """Arguments that can be known again from the jid alone: mostly small ones, some large.

    A jid with `-large-` in it always means 64 KiB.
    """
    draw = zlib.crc32(jid[::-1].encode())
    size = draw % 300
    if draw % 17 == 0:
        size = draw % 9_000
    if draw % 401 == 0:
        size = draw % 200_000
    if "-large-" in jid:
        size = 65_536
    return [jid, draw, "x" * size]


class Ledger:
    def __init__(self) -> None:
        self.life = 1  # counts the server's starts
        self.acknowledged_pushes = 0
        self.acknowledged_acks = 0
        self._jobs: dict[str, Job] = {}  # all that may still be there
        self._gone: set[str] = set()  # all that must never be seen again
        self._lock = threading.Lock()

    # What the clients write down, before a command is sent and after it was acknowledged

    def pushing(self, jid: str, retry: int, at: str | None = None) -> dict[str, Any]:
        job = Job(jid, retry, at, self.life)
        with self._lock:
            assert jid not in self._jobs
            assert jid not in self._gone
            self._jobs[jid] = job
        return job.work_unit()

    def pushed(self, jid: str) -> None:
        with self._lock:
            self.acknowledged_pushes += 1
            job = self._jobs.get(jid)
            if job is not None:  # another client may have finished it in the meantime
                job.pushed = True

    def refused(self, jid: str) -> None:
        """The PUSH was answered with an error, so the job must not be there."""
        with self._lock:
            self._forget(jid)

    def handed_out(self, unit: dict[str, Any]) -> Job:
        with self._lock:
            jid = unit.get("jid")
            if jid in self._gone:
                raise ViolationError(f"{jid} was handed out although it was done: {unit}")
            job = self._jobs.get(str(jid))
            if job is None:
                raise ViolationError(f"nobody ever pushed what was handed out: {unit}")
            if job.held_in == self.life:
                raise ViolationError(f"{jid} was handed out twice, with no FAIL in between")
            self._compare(job, unit)
            job.held_in = self.life
            job.finishing = False
            job.pushed = job.pushed or job.life < self.life
            return job

    def finishing(self, jid: str) -> None:
        with self._lock:
            self._jobs[jid].finishing = True

    def finished(self, jid: str) -> None:
        with self._lock:
            self.acknowledged_acks += 1
            self._forget(jid)

    def failing(self, job: Job) -> int:
        """How many failures the job has at least once this FAIL is acknowledged."""
        with self._lock:
            job.held_in = 0
            job.fails_sent += 1
            job.finishing = job.retry == 0
            return job.fails_acknowledged + 1

    def failed(self, job: Job, at_least: int) -> None:
        with self._lock:
            # It may have been handed out again before its sender heard of this one.
            job.fails_acknowledged = max(job.fails_acknowledged, at_least)
            if job.retry == 0:
                self._forget(job.jid)

    def not_found(self, job: Job) -> None:
        """FAIL says that nobody holds it, and no other place had it: it is gone."""
        with self._lock:
            self._forget(job.jid)

    def not_finished(self, jid: str) -> None:
        """The ACK was answered with an error, so the job must still be there."""
        with self._lock:
            self._jobs[jid].finishing = False

    def not_failed(self, job: Job) -> None:
        """The FAIL was answered with an error, so the job must still be leased."""
        with self._lock:
            job.fails_sent -= 1
            job.finishing = False

    def flushed(self) -> None:
        with self._lock:
            self._gone |= self._jobs.keys()
            self._jobs.clear()

    # What follows from it

    @property
    def open_count(self) -> int:
        return len(self._jobs)

    def open_jobs(self) -> list[Job]:
        """Every job that is there or may be there."""
        with self._lock:
            return list(self._jobs.values())

    def check_total(self, present: int) -> None:
        """Compare with the number of jobs that the server says it has, in all places together."""
        with self._lock:
            at_least = sum(job.must_be_there for job in self._jobs.values())
            at_most = len(self._jobs)
        if present < at_least:
            raise ViolationError(
                f"lost: the server has {present} jobs, but at least {at_least} are acknowledged"
            )
        if present > at_most:
            raise ViolationError(
                f"too many: the server has {present} jobs, but there can be {at_most} at most"
            )

    def check_nothing_left(self) -> None:
        """After everything was drained: whatever must be there and was not seen is lost."""
        lost = [job.jid for job in self.open_jobs() if job.must_be_there]
        if lost:
            raise ViolationError(f"lost, although acknowledged: {_some(lost)}")
        with self._lock:
            self._gone |= self._jobs.keys()
            self._jobs.clear()

    def dump(self, path: Path) -> None:
        with path.open("w", encoding="utf-8") as file:
            for job in self.open_jobs():
                file.write(json.dumps(asdict(job)) + "\n")
            for jid in sorted(self._gone):
                file.write(json.dumps({"jid": jid, "gone": True}) + "\n")

    # Inner works; the lock is held

    def _forget(self, jid: str) -> None:
        self._jobs.pop(jid, None)
        self._gone.add(jid)

    def _compare(self, job: Job, unit: dict[str, Any]) -> None:
        for name, value in job.work_unit().items():
            if unit.get(name) != value:
                raise ViolationError(
                    f"{job.jid} came back with another {name}: {str(unit.get(name))[:200]}"
                )
        failure = unit.get("failure")
        failures = 0 if failure is None else failure["retry_count"] + 1
        if not job.fails_acknowledged <= failures <= job.fails_sent:
            raise ViolationError(
                f"{job.jid} failed {failures} times by what it carries, but {job.fails_sent} FAILs "
                f"were sent and {job.fails_acknowledged} acknowledged"
            )
        job.fails_sent = job.fails_acknowledged = failures


def _some(jids: Iterable[str]) -> str:
    listed = sorted(jids)
    more = f" and {len(listed) - 20} more" if len(listed) > 20 else ""
    return f"{len(listed)} jobs: {', '.join(listed[:20])}{more}"

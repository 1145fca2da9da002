"""The knowledge of the clients of a crash test, and the promises that follow from it.

For each job the ledger records the commands that were sent and acknowledged. Without a reply, a
command may or may not have taken effect. A reply is a promise that always holds:

    the PUSH was acknowledged, no ACK was sent    the job exists
    the ACK was acknowledged                      the job is removed and is never leased again
    never sent                                    never seen
    one life of the server, one lease             no other client gets the job
    the FAIL was acknowledged                     the job has that failure at its next lease

A push that was not acknowledged is sent again. The server then has one copy of the job, or two if
the first one was fetched or is old. The ledger counts the possible copies; if there are several, it
only knows this number.

Later observations resolve open questions: a job that is leased after a restart was on the disk, so
its PUSH took effect, and its ACK, if one was sent, did not.
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
    life: int  # the server's life of its last push
    pushed: bool = False  # the PUSH was acknowledged
    finishing: bool = False  # an ACK (or the FAIL that discards it) was sent
    finished: bool = False  # and acknowledged
    held_in: int = 0  # the server's life in which a client holds it
    held: int = 0  # the number of its leases in that life
    copies: int = 1  # the maximum number of jobs with this jid
    sent_again: bool = False
    fails_sent: int = 0
    fails_acknowledged: int = 0

    @property
    def must_be_there(self) -> bool:
        return self.pushed and not self.finishing

    @property
    def one_copy_ended(self) -> bool:
        return self.sent_again and self.copies == 1

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
    """Arguments that follow from the jid alone: mostly small ones, some large.

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
        self.life = 1  # number of server starts
        self.acknowledged_pushes = 0
        self.acknowledged_acks = 0
        self._jobs: dict[str, Job] = {}  # all jobs that may still exist
        self._gone: set[str] = set()  # all jobs that must never be seen again
        self._lock = threading.Lock()

    # Recorded by clients, before a command is sent and after it was acknowledged

    def pushing(self, jid: str, retry: int, at: str | None = None) -> dict[str, Any]:
        job = Job(jid, retry, at, self.life)
        with self._lock:
            assert jid not in self._jobs
            assert jid not in self._gone
            self._jobs[jid] = job
        return job.work_unit()

    def sending_again(self, count: int) -> list[dict[str, Any]]:
        """Jobs without an acknowledged PUSH before the server ended, as they were sent."""
        with self._lock:
            jobs = [job for job in self._jobs.values() if self._may_send_again(job)][:count]
            for job in jobs:
                job.copies, job.life, job.sent_again = 2, self.life, True
        return [job.work_unit() for job in jobs]

    def _may_send_again(self, job: Job) -> bool:
        unknown = not (job.pushed or job.finishing or job.fails_sent)
        return unknown and not (job.sent_again or job.held_in) and job.life < self.life

    def pushed(self, jid: str) -> None:
        with self._lock:
            self.acknowledged_pushes += 1
            job = self._jobs.get(jid)
            # Another client may have finished the job, or one of its copies, before this reply.
            if job is not None and not job.one_copy_ended:
                job.pushed = True

    def refused(self, jid: str) -> None:
        """The reply to the PUSH was an error, so it has created no job."""
        with self._lock:
            self._end_one(jid)

    def handed_out(self, unit: dict[str, Any]) -> Job:
        with self._lock:
            jid = unit.get("jid")
            if jid in self._gone:
                raise ViolationError(f"{jid} was handed out although it was done: {unit}")
            job = self._jobs.get(str(jid))
            if job is None:
                raise ViolationError(f"a leased job was never pushed: {unit}")
            held = job.held if job.held_in == self.life else 0
            if held >= job.copies:
                raise ViolationError(f"{jid} was handed out twice, with no FAIL in between")
            self._compare(job, unit)
            job.held_in, job.held = self.life, held + 1
            job.finishing = False
            job.pushed = job.pushed or job.life < self.life
            return job

    def finishing(self, jid: str) -> None:
        with self._lock:
            self._jobs[jid].finishing = True

    def finished(self, jid: str) -> None:
        with self._lock:
            self.acknowledged_acks += 1
            self._end_one(jid)

    def failing(self, job: Job) -> int:
        """The minimum number of failures of the job after this FAIL is acknowledged."""
        with self._lock:
            self._release(job)
            job.fails_sent += 1
            job.finishing = job.retry == 0
            return job.fails_acknowledged + 1

    def failed(self, job: Job, at_least: int) -> None:
        with self._lock:
            # It may have been leased again before the sender of this FAIL got the reply.
            job.fails_acknowledged = max(job.fails_acknowledged, at_least)
            if job.retry == 0:
                self._end_one(job.jid)

    def not_found(self, job: Job) -> None:
        """FAIL reports that the job is not leased, and no other place had it: it was removed."""
        with self._lock:
            self._forget(job.jid)

    def not_finished(self, jid: str) -> None:
        """The reply to the ACK was an error, so the job must still exist."""
        with self._lock:
            self._jobs[jid].finishing = False

    def not_failed(self, job: Job) -> None:
        """The reply to the FAIL was an error, so the job must still be leased."""
        with self._lock:
            job.fails_sent -= 1
            job.finishing = False

    def flushed(self) -> None:
        with self._lock:
            self._gone |= self._jobs.keys()
            self._jobs.clear()

    # Conclusions

    @property
    def open_count(self) -> int:
        return len(self._jobs)

    def open_jobs(self) -> list[Job]:
        """Every job that exists or may exist."""
        with self._lock:
            return list(self._jobs.values())

    def check_total(self, present: int) -> None:
        """Compare with the number of jobs that the server reports, in all places together."""
        with self._lock:
            at_least = sum(job.must_be_there for job in self._jobs.values())
            at_most = sum(job.copies for job in self._jobs.values())
        if present < at_least:
            raise ViolationError(
                f"lost: the server has {present} jobs, but at least {at_least} are acknowledged"
            )
        if present > at_most:
            raise ViolationError(
                f"excess jobs: the server has {present} jobs, but there can be {at_most} at most"
            )

    def check_none_lost(self) -> None:
        """After the drain: a job that must exist and was not seen is lost."""
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

    # Internals; the caller holds the lock

    def _end_one(self, jid: str) -> None:
        """One copy has ended; further copies may exist."""
        job = self._jobs.get(jid)
        if job is None or job.copies == 1:
            self._forget(jid)
            return
        job.copies -= 1
        job.pushed = job.finishing = False
        self._release(job)

    def _release(self, job: Job) -> None:
        job.held = max(0, job.held - 1)
        if not job.held:
            job.held_in = 0

    def _forget(self, jid: str) -> None:
        self._jobs.pop(jid, None)
        self._gone.add(jid)

    def _compare(self, job: Job, unit: dict[str, Any]) -> None:
        for name, value in job.work_unit().items():
            if unit.get(name) != value:
                raise ViolationError(
                    f"{job.jid} was leased with another {name}: {str(unit.get(name))[:200]}"
                )
        if job.sent_again:
            return  # each copy has its own failures
        failure = unit.get("failure")
        failures = 0 if failure is None else failure["retry_count"] + 1
        if not job.fails_acknowledged <= failures <= job.fails_sent:
            raise ViolationError(
                f"{job.jid} failed {failures} times by its record, but {job.fails_sent} FAILs "
                f"were sent and {job.fails_acknowledged} acknowledged"
            )
        job.fails_sent = job.fails_acknowledged = failures


def _some(jids: Iterable[str]) -> str:
    listed = sorted(jids)
    more = f" and {len(listed) - 20} more" if len(listed) > 20 else ""
    return f"{len(listed)} jobs: {', '.join(listed[:20])}{more}"

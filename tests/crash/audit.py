"""Compares all jobs of a server with the ledger, and removes them."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from ledger import QUEUES, Job, Ledger, ViolationError

from raw_faktory import RawFaktory, RefusedError, line

WINDOW = 200  # commands in flight
WAITING_SETS = ("scheduled", "retries", "dead")


def total(info: dict[str, Any]) -> int:
    """The number of jobs that the server reports, in all places."""
    faktory = info["faktory"]
    return sum(faktory["queues"].values()) + sum(faktory["sets"].values())


def drain(connection: RawFaktory, ledger: Ledger) -> None:
    """Take out and finish every job. Each must be in the ledger, and all jobs that must exist are
    found.

    No other client may be active. First all jobs in queues and sets are taken out. The remaining
    jobs can only be leased since before a crash; a FAIL of each of the ledger's jobs shows which
    ones are.
    """
    _take_out_all(connection, ledger)
    remaining = ledger.open_jobs()
    leased = connection.set_size("working")
    found = sum(_fail_leased(connection, ledger, remaining))
    if found != leased:
        raise ViolationError(f"INFO counts {leased} leased jobs, but {found} of the ledger's are")
    _take_out_all(connection, ledger)
    left = total(connection.info())
    if left:
        raise ViolationError(f"{left} jobs remain that are not in the ledger")
    ledger.check_none_lost()


def _take_out_all(connection: RawFaktory, ledger: Ledger) -> None:
    while True:
        waiting = connection.info()["faktory"]["sets"]
        for name in WAITING_SETS:
            if waiting[name]:
                connection.mutate("requeue", name)
        ready = sum(connection.info()["faktory"]["queues"].values())
        if not ready:
            return
        for start in range(0, ready, WINDOW):
            _take_out(connection, ledger, min(WINDOW, ready - start))


def _take_out(connection: RawFaktory, ledger: Ledger, count: int) -> None:
    fetch = line(f"FETCH {' '.join(QUEUES)}")
    jobs = []
    for body in replies(connection, [fetch] * count):
        if not isinstance(body, bytes):
            raise ViolationError(f"INFO counted a ready job, but FETCH answered {body!r}")
        jobs.append(ledger.handed_out(json.loads(body)))
    for job in jobs:
        ledger.finishing(job.jid)
    for job, reply in zip(
        jobs, replies(connection, [line("ACK", {"jid": job.jid}) for job in jobs]), strict=True
    ):
        if reply != "OK":
            raise ViolationError(f"ACK of {job.jid} was answered {reply!r}")
        ledger.finished(job.jid)


def _fail_leased(connection: RawFaktory, ledger: Ledger, jobs: Sequence[Job]) -> Iterator[bool]:
    """FAIL each job once for each possible copy."""
    must_be_there = {job.jid for job in jobs if job.must_be_there}  # a FAIL changes the result
    jobs = [job for job in jobs for _ in range(job.copies)]
    found: set[str] = set()
    for start in range(0, len(jobs), WINDOW):
        window = jobs[start : start + WINDOW]
        commands = [
            line("FAIL", {"jid": job.jid, "errtype": "Audit", "message": "leased"})
            for job in window
        ]
        failures = [ledger.failing(job) for job in window]
        for job, at_least, reply in zip(
            window, failures, replies(connection, commands), strict=True
        ):
            if reply == "OK":
                found.add(job.jid)
                ledger.failed(job, at_least)
            elif job.jid in found:
                ledger.not_failed(job)
            elif job.jid in must_be_there:
                raise ViolationError(f"{job.jid} is lost, although acknowledged: {reply}")
            else:
                ledger.not_found(job)
            yield reply == "OK"


def replies(connection: RawFaktory, commands: Sequence[bytes]) -> Iterator[Any]:
    """Send all commands, then yield the replies in order; an error is yielded as an exception."""
    connection.send(b"".join(commands))
    for _ in commands:
        try:
            yield connection.reply()
        except RefusedError as refusal:
            yield refusal

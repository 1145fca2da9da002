"""Looks at everything a server holds, compares it with the ledger, and leaves the server empty."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from ledger import QUEUES, Job, Ledger, ViolationError

from raw_faktory import RawFaktory, RefusedError, line

WINDOW = 200  # how many commands are on their way at once
WAITING_SETS = ("scheduled", "retries", "dead")


def total(info: dict[str, Any]) -> int:
    """How many jobs the server says it has, wherever they are."""
    faktory = info["faktory"]
    return sum(faktory["queues"].values()) + sum(faktory["sets"].values())


def drain(connection: RawFaktory, ledger: Ledger) -> None:
    """Take out and finish every job; each must be in the ledger, and all that must be there are.

    No other client may be at work. First everything in queues and sets; what is left then can only
    be leased since before a crash, and a FAIL tells for each of the ledger's jobs whether it is.
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
        raise ViolationError(f"{left} jobs remain that nobody can name")
    ledger.check_nothing_left()


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
    for start in range(0, len(jobs), WINDOW):
        window = jobs[start : start + WINDOW]
        commands = [
            line("FAIL", {"jid": job.jid, "errtype": "Audit", "message": "leased"})
            for job in window
        ]
        must_be_there = [job.must_be_there for job in window]
        failures = [ledger.failing(job) for job in window]
        for job, must, at_least, reply in zip(
            window, must_be_there, failures, replies(connection, commands), strict=True
        ):
            if reply == "OK":
                ledger.failed(job, at_least)
            elif must:
                raise ViolationError(f"{job.jid} is lost, although acknowledged: {reply}")
            else:
                ledger.not_found(job)
            yield reply == "OK"


def replies(connection: RawFaktory, commands: Sequence[bytes]) -> Iterator[Any]:
    """Send all at once, then give the replies in order; an error comes as the exception itself."""
    connection.send(b"".join(commands))
    for _ in commands:
        try:
            yield connection.reply()
        except RefusedError as refusal:
            yield refusal

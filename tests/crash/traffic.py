"""Clients that keep a server busy until it dies, and record their knowledge in the ledger."""

import datetime as dt
import itertools
import json
import random
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from audit import replies
from ledger import FOREVER, QUEUES, Job, Ledger, ViolationError

from raw_faktory import RawFaktory, RefusedError, line

BACKLOG = 4000  # number of open jobs at which producers pause
LARGE_JOBS = 400  # of 64 KiB each: enough for the store to start a new generation


class Report(NamedTuple):
    """An ACK, or a FAIL with the ledger's count of failures."""

    job: Job
    command: bytes
    failures: int | None


class Traffic:
    """A random mix of producers and consumers, each a thread with its own connection."""

    def __init__(
        self, port: int, ledger: Ledger, rng: random.Random, on_reply: Callable[[int], None]
    ) -> None:
        self.stopping = False  # set before SIGTERM: from then on commands may be refused
        self._port = port
        self._ledger = ledger
        self._on_reply = on_reply
        self._count = itertools.count(1)
        self._name = f"{ledger.life:06d}"
        self._over = threading.Event()
        self._error: BaseException | None = None
        roles = [self._produce] * rng.randint(1, 3) + [self._consume] * rng.randint(1, 4)
        roles += [self._move_jobs] * rng.randint(0, 1)
        roles += [self._produce_large] * (rng.random() < 0.25)
        self._large = 0
        self._threads = [
            threading.Thread(
                target=self._run, args=(role, f"{self._name}-{n}", random.Random(rng.random()))
            )
            for n, role in enumerate(roles)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        """The server has ended: wait for the clients, and raise the first violation that one
        found.
        """
        self._over.set()
        for thread in self._threads:
            thread.join()
        if self._error is not None:
            raise self._error

    def _run(self, role: Callable[..., None], name: str, rng: random.Random) -> None:
        try:
            with RawFaktory(self._port, wid=name) as connection:
                while not self._over.is_set():
                    role(connection, name, rng)
        except OSError:
            pass  # killed, as expected
        except BaseException as error:
            self._error = self._error or error

    def _succeeded(self, reply: Any, command: str) -> bool:
        """Whether a reply is a success; an error is a violation unless the server is stopping."""
        if isinstance(reply, RefusedError):
            if not self.stopping:
                raise ViolationError(f"{command} was refused: {reply}")
            return False
        self._on_reply(next(self._count))
        return True

    # Producers

    def _produce(self, connection: RawFaktory, name: str, rng: random.Random) -> None:
        if self._ledger.open_count > BACKLOG:
            self._over.wait(0.005)
            return
        units = self._ledger.sending_again(rng.choice((0, 5, 50)))
        units += [self._new_unit(name, rng) for _ in range(rng.choice((1, 1, 2, 5, 20, 60)))]
        if rng.random() < 0.2:
            self._push_bulk(connection, units)
        else:
            self._push_each(connection, units)

    def _produce_large(self, connection: RawFaktory, name: str, rng: random.Random) -> None:
        if self._large >= LARGE_JOBS:
            self._produce(connection, name, rng)
            return
        units = [self._new_unit(f"{name}-large", rng) for _ in range(rng.randint(1, 40))]
        self._large += len(units)
        self._push_bulk(connection, units)

    def _push_each(self, connection: RawFaktory, units: list[dict[str, Any]]) -> None:
        commands = [line("PUSH", unit) for unit in units]
        for unit, reply in zip(units, replies(connection, commands), strict=True):
            if self._succeeded(reply, "PUSH"):
                self._ledger.pushed(unit["jid"])
            else:
                self._ledger.refused(unit["jid"])

    def _push_bulk(self, connection: RawFaktory, units: list[dict[str, Any]]) -> None:
        (reply,) = replies(connection, [line("PUSHB", units)])
        accepted = self._succeeded(reply, "PUSHB")
        if accepted and reply != b"{}":
            raise ViolationError(f"PUSHB refused good jobs: {reply!r}")
        for unit in units:
            if accepted:
                self._ledger.pushed(unit["jid"])
            else:
                self._ledger.refused(unit["jid"])

    def _new_unit(self, name: str, rng: random.Random) -> dict[str, Any]:
        retry = rng.choice((25, 25, 25, 25, 25, 3, 1, 0, -1))
        draw = rng.random()
        at = None
        if draw < 0.1:
            at = FOREVER
        elif draw < 0.2:
            at = _soon(rng.uniform(0.05, 1.5))
        return self._ledger.pushing(f"{name}-{rng.getrandbits(48):012x}", retry, at)

    # Consumers

    def _consume(self, connection: RawFaktory, name: str, rng: random.Random) -> None:
        """Fetch some jobs, then report on them together with the next FETCHes."""
        done: list[tuple[str, Job]] = []
        while not self._over.is_set():
            reports = [self._report(how, job) for how, job in done]
            queues = rng.sample(QUEUES, len(QUEUES))
            fetches = [line(f"FETCH {' '.join(queues)}")] * rng.choice((1, 1, 1, 3, 10, 40))
            answers = replies(connection, [report.command for report in reports] + fetches)
            for report in reports:
                self._reported(report, next(answers))
            done = []
            for reply in answers:
                if self._succeeded(reply, "FETCH") and reply is not None:
                    job = self._ledger.handed_out(json.loads(reply))
                    how = rng.choices(("ACK", "FAIL", "keep"), (70, 25, 5))[0]
                    if how != "keep":
                        done.append((how, job))

    def _report(self, how: str, job: Job) -> Report:
        if how == "ACK":
            self._ledger.finishing(job.jid)
            return Report(job, line("ACK", {"jid": job.jid}), None)
        failure = {"jid": job.jid, "errtype": "Crash", "message": "on purpose"}
        return Report(job, line("FAIL", failure), self._ledger.failing(job))

    def _reported(self, report: Report, reply: Any) -> None:
        job, command, failures = report
        good = self._succeeded(reply, command.decode())
        if good and reply != "OK":
            raise ViolationError(f"{command.decode()} was answered {reply!r}")
        if failures is None:
            (self._ledger.finished if good else self._ledger.not_finished)(job.jid)
        elif good:
            self._ledger.failed(job, failures)
        else:
            self._ledger.not_failed(job)

    # Moves between sets

    def _move_jobs(self, connection: RawFaktory, name: str, rng: random.Random) -> None:
        """Only failed jobs are killed: a dead job is no reason to ignore the same PUSH again."""
        cmd, target = rng.choice(
            (
                ("requeue", "retries"),
                ("requeue", "scheduled"),
                ("requeue", "dead"),
                ("kill", "retries"),
            )
        )
        for reply in replies(
            connection, [line("MUTATE", {"cmd": cmd, "target": target}), line("INFO")]
        ):
            self._succeeded(reply, "MUTATE")
        self._over.wait(rng.uniform(0.001, 0.05))


def _soon(seconds: float) -> str:
    at = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=seconds)
    return at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000 | 1:03d}Z"

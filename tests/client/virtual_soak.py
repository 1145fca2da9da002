"""Workers of the SDK for hours of virtual time, with lost requests, lost replies and restarts.

The engine, the Faktory protocol and the parts of the SDK that need no socket run in this process on
one clock. Every copy of a job must end exactly once, and none may be lost.

Usage: python tests/client/virtual_soak.py [--hours 24] [--seed 1]
"""

import argparse
import contextlib
import heapq
import itertools
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from millrace import Millrace
from millrace.client import wire
from millrace.client.errors import ConnectionLost
from millrace.client.jobs import read_jobs
from millrace.client.pool import require_body
from millrace.client.wire import Reply, ReplyBuffer
from millrace.client.worker.execution import Outcome, execute
from millrace.client.worker.reports import report_groups
from millrace.engine.engine import Engine
from millrace.engine.events import Event
from millrace.protocols.faktory.connection import FaktoryConnection
from millrace.protocols.faktory.hub import FaktoryHub
from millrace.protocols.spec import protocol_rules
from millrace.store import must_write
from millrace.store.memory import MemoryStore

SECOND = 1_000_000
START = 1_790_000_000 * SECOND
HOUR = 3600 * SECOND
LOST_REQUEST = 0.03
LOST_REPLY = 0.03
TASK_FAILS = 0.1
WORKERS = 4
CONCURRENCY = 3
#: Mean seconds between two pushes, between two restarts, and between two polls of an idle worker.
PUSH_EVERY = 12
RESTART_EVERY = 3000
POLL_EVERY = 10
BEAT_EVERY = 15
#: Virtual time after the last push in which all jobs must have ended.
DRAIN = 400 * HOUR


class VirtualServer:
    """The engine and its store. A restart loses all uncommitted changes and all connections."""

    def __init__(self, seed: int) -> None:
        self.now = START
        self.store = MemoryStore()
        self.restarts = 0
        self._seed = seed
        self._start()

    def _start(self) -> None:
        self.engine = Engine(Random(self._seed), protocol_rules())
        self.store.load().fill(self.engine)
        self.engine.restoration.after_restart(self.now)
        self.hub = FaktoryHub(
            self.engine, started_at=self.now, challenge=lambda: (1, ""), memory_mb=lambda: 0
        )
        self.commit()

    def restart(self) -> None:
        self.restarts += 1
        self._start()

    def commit(self) -> None:
        change_set = self.engine.take_changes()
        if must_write(change_set, self.store):
            self.store.prepare(change_set, self.engine)
            self.store.commit()

    def advance(self, until: int) -> None:
        while (due := self.engine.next_timer()) is not None and due <= until:
            self.now = max(self.now, due)
            self.engine.tick(self.now)
            self.engine.alarms.clear()
            self.commit()
        self.now = max(self.now, until)

    def ends(self) -> tuple[Counter[str], Counter[str]]:
        """The number of copies of each job that were pushed, and that have ended."""
        pushed: Counter[str] = Counter()
        ended: Counter[str] = Counter()
        for row in self.store.events():
            event = Event(*row)  # type: ignore[arg-type]
            pushed[event.jid] += event.type == "pushed"
            ended[event.jid] += event.type == "completed"
        return pushed, ended


class LossyConnection:
    """A connection of the SDK over a network that loses requests and replies."""

    def __init__(self, server: VirtualServer, random: Random, identity: dict[str, Any]) -> None:
        self._server, self._random, self._identity = server, random, identity
        self._connection: FaktoryConnection | None = None
        self._life = -1
        self.faulty = True

    def request_many(self, commands: Sequence[bytes]) -> list[Reply]:
        server = self._server
        if self._connection is None or self._life != server.restarts:
            self._life = server.restarts
            self._connection = FaktoryConnection(server.hub)
            hello = wire.command("HELLO", {**self._identity, "v": wire.PROTOCOL_VERSION})
            greeting, answer = self._exchange(self._connection, [hello])
            assert (str(greeting)[:2], answer) == ("HI", "OK")
        if self._lost(LOST_REQUEST):
            raise ConnectionLost("The request was lost.")
        replies = self._exchange(self._connection, commands)
        if self._lost(LOST_REPLY):
            raise ConnectionLost("The reply was lost.")
        return replies

    def close(self) -> None:
        """A pool keeps its connections."""

    def _lost(self, probability: float) -> bool:
        if not self.faulty or self._random.random() >= probability:
            return False
        assert self._connection is not None
        self._connection.connection_lost(self._server.now)
        self._server.commit()
        self._connection = None
        return True

    def _exchange(self, connection: FaktoryConnection, commands: Sequence[bytes]) -> list[Reply]:
        server = self._server
        more = connection.receive(b"".join(commands), server.now, 1000)
        while more:
            more = connection.run(server.now, 1000)
        if connection.waiter is not None:  # no job is ready
            server.engine.cancel_wait(connection.waiter)
            connection.timed_out(server.now)
        server.commit()
        buffer = ReplyBuffer()
        buffer.feed(b"".join([reply.data for reply in connection.replies]))
        connection.replies.clear()
        return buffer.take()


class ResendingPool:
    """Like the pool of the SDK: sends a command again after a lost connection."""

    def __init__(self, connection: LossyConnection) -> None:
        self._connection = connection

    def request_many(self, commands: Sequence[bytes]) -> list[Reply]:
        while True:
            try:
                return self._connection.request_many(commands)
            except ConnectionLost:
                continue

    def close(self) -> None:
        """The server is in this process."""


class Soak:
    def __init__(self, seed: int, hours: float) -> None:
        self.random = Random(seed)
        self.server = VirtualServer(seed)
        self.until = START + round(hours * HOUR)
        self.runs: Counter[int] = Counter()
        self.pushed = 0
        self._order = itertools.count()
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self.connections: list[LossyConnection] = []
        self.app = Millrace("tcp://127.0.0.1:1")
        self.app.use_transport(ResendingPool(self.connect({})), None)
        self.task = self.app.task(name="step", queue="soak", timeout=120)(self._step)
        self.workers = [SoakWorker(self, number) for number in range(WORKERS)]

    def _step(self, number: int) -> int:
        self.runs[number] += 1
        if self.random.random() < TASK_FAILS:
            raise RuntimeError("failed by chance")
        return number

    def connect(self, identity: dict[str, Any]) -> LossyConnection:
        connection = LossyConnection(self.server, self.random, identity)
        self.connections.append(connection)
        return connection

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        when = self.server.now + round(seconds * SECOND)
        heapq.heappush(self._events, (when, next(self._order), action))

    def run(self) -> None:
        self._push()
        self._restart()
        for worker in self.workers:
            worker.poll()
            worker.beat()
        self._play(self.until)
        for connection in self.connections:
            connection.faulty = False
        end = self.until
        while self.server.engine.jobs and end < self.until + DRAIN:
            end += HOUR
            self._play(end)
        self._check()

    def _play(self, until: int) -> None:
        while self._events and self._events[0][0] <= until:
            when, _, action = heapq.heappop(self._events)
            self.server.advance(when)
            action()
        self.server.advance(until)

    def _push(self) -> None:
        if self.server.now >= self.until:
            return
        self.task.push(self.pushed)
        self.pushed += 1
        self.later(self.random.expovariate(1 / PUSH_EVERY), self._push)

    def _restart(self) -> None:
        if self.server.now >= self.until:
            return
        self.server.restart()
        self.later(self.random.expovariate(1 / RESTART_EVERY), self._restart)

    def _check(self) -> None:
        left = [job.jid for job in self.server.engine.jobs.values()]
        assert not left, f"{len(left)} jobs have not ended: {left[:3]}"
        pushed, ended = self.server.ends()
        assert len(pushed) == self.pushed
        wrong = {jid: (count, ended[jid]) for jid, count in pushed.items() if count != ended[jid]}
        assert not wrong, f"copies and ends differ: {dict(list(wrong.items())[:3])}"
        assert set(self.runs) == set(range(self.pushed))


class SoakWorker:
    """A worker that fetches, runs, renews and reports as the worker of the SDK does."""

    def __init__(self, soak: Soak, number: int) -> None:
        self._soak = soak
        identity = {"wid": f"soak-{number}", "hostname": "soak", "pid": number + 1, "labels": []}
        self._fetching = soak.connect(identity)
        self._reporting = soak.connect(identity)
        self._beating = soak.connect(identity)
        self._wid = identity["wid"]
        self._running: Counter[str] = Counter()

    def poll(self) -> None:
        free = CONCURRENCY - self._running.total()
        if free > 0:
            request = {"fetch": {"queues": ["soak"], "count": free}}
            try:
                (reply,) = self._fetching.request_many([wire.command("MILLRACE", request)])
            except ConnectionLost:
                self._soak.later(1, self.poll)
                return
            for job in read_jobs(require_body(reply)):
                outcome = execute(self._soak.app, job)
                self._running[job.id] += 1
                # Some jobs end after their reservation: the server has returned them by then.
                longest = 400 if self._soak.random.random() < 0.03 else 20
                seconds = self._soak.random.uniform(0.01, longest)
                self._soak.later(seconds, lambda ended=outcome: self._end(ended))  # type: ignore[misc]
        self._soak.later(POLL_EVERY, self.poll)

    def _end(self, outcome: Outcome) -> None:
        self._running[outcome.job.id] -= 1
        self._running += Counter()  # drops zeros
        self._report(outcome)

    def _report(self, outcome: Outcome) -> None:
        commands = [command for command, _ in report_groups([outcome], bulk=True)]
        try:
            self._reporting.request_many(commands)
        except ConnectionLost:
            self._soak.later(1, lambda: self._report(outcome))

    def beat(self) -> None:
        beat = wire.command("BEAT", {"wid": self._wid, "running": list(self._running)})
        with contextlib.suppress(ConnectionLost):  # the next beat opens a new connection
            self._beating.request_many([beat])
        self._soak.later(BEAT_EVERY, self.beat)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=24)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    began = time.monotonic()
    soak = Soak(given.seed, given.hours)
    soak.run()
    pushed, _ = soak.server.ends()
    sys.stdout.write(
        f"{given.hours:g} h, seed {given.seed}: {soak.pushed} jobs in {pushed.total()} copies, "
        f"{soak.runs.total()} attempts, {soak.server.restarts} restarts, nothing lost "
        f"({time.monotonic() - began:.0f} s)\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

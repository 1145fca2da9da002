"""The world of one run: the server with its clock and its disk, through all its lives.

The engine, the protocols, the sessions, the turns and the store are the real ones. What they stand
on is not: the loop, the network, the clock, the disk, and the thread on which COMMIT runs.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, MutableSet
from pathlib import Path
from random import Random
from typing import Any

import fault_plan
from history import Seen, Watch, check_journal
from promises import BrokenPromise, Promises
from simulated_disk import SimulatedDisk
from simulated_loop import ProcessEnded, Schedule, SimulatedLoop, unopened
from simulated_network import Network
from state_checks import (
    check_engine,
    check_qless,
    check_reasons,
    check_recovered,
    nobody_waits_in_vain,
)
from steps import Steps

import millrace.store.sqlite
from millrace.config import Config
from millrace.engine.engine import Engine
from millrace.protocols.faktory import FaktoryHub
from millrace.protocols.qless import QlessHub
from millrace.server.app import listeners, recover
from millrace.server.server import Server
from millrace.store import SqliteStore, StoreError, SyncFailed

START = 1_700_000_000.0
#: The engine is looked at after so many steps of the server.
LOOK_EVERY = 150
#: A stop takes so long at most, with a disk that works.
STOP_WITHIN = 60.0


class World:
    def __init__(self, seed: int, root: Path, steps: int) -> None:
        self.random = Random(seed)
        self.plan = fault_plan.draw(self.random)
        self.schedule = Schedule(self.random)
        self.steps = Steps(lambda: self.schedule.now, steps)
        self.clients_loop = SimulatedLoop(self.schedule)
        self.network = Network(self.clients_loop, self.random, self.steps)
        self.network.weather = self.plan.weather
        self.disk = SimulatedDisk(root, self.random)
        self.promises = Promises(lambda: self.schedule.now, self.wall)
        self.seen = Seen()
        self.config = Config()
        #: How far the server's clock is ahead.
        self.offset = 0.0
        self.slow_sync = 0.0
        #: The next commit is one that a crash hits: "kill" or "power".
        self.doom = ""
        self.life: Life | None = None
        self._set_generations()
        self._log = Complaints()
        logger = logging.getLogger("millrace")
        logger.addHandler(self._log)
        logger.propagate = False

    # Clocks

    def wall(self) -> float:
        return START + self.schedule.now + self.offset

    def clock(self) -> int:
        return int(self.wall() * 1_000_000)

    def their_clock(self) -> int:
        """The clients'; it is right."""
        return int((START + self.schedule.now) * 1_000_000)

    def jump(self, seconds: float) -> None:
        self.steps.note("clock", round(seconds, 3))
        before = self.wall()
        self.offset += seconds
        self.promises.clock_jumped(before)

    # The lives of the server

    def start(self) -> None:
        """Start a server, if the disk lets it."""
        self.steps.note("start", self.promises.life + 1)
        self.disk.start()
        try:
            life = Life(self)
        except StoreError as error:
            self.disk.release()
            if not self.disk.state:
                raise BrokenPromise(f"the server does not start: {error}") from error
            self.steps.note("no start", type(error).__name__)
            self.clients_loop.call_later(1.0, self.start)
            return
        if self.random.random() < self.plan.hit_start:
            life.kill()
            self.crash(power=self.random.random() < 0.5, since=0)
            return
        self.promises.life += 1
        self.life = life
        check_recovered(life.engine, self.promises)
        check_journal(self.disk.folder, life.engine)
        self.seen.begin_anew(life.engine, self.promises)
        life.listen()

    def crash(self, *, power: bool, since: int | None = None) -> None:
        """The process is killed, or the power fails, now, or within what was last written."""
        kind = "power" if power else "kill"
        self.steps.note("crash", kind, "within a write" if since is not None else "")
        self.steps.counts[f"crash: {kind}"] += 1
        life, self.life = self.life, None
        self.doom = ""
        if life is not None:
            life.kill()
        self.network.power_off()
        self.disk.crash(power=power, since=since)
        if life is not None:
            life.bury()
        self.clients_loop.call_later(self.random.choice((0.05, 1.0, 15.0)), self.start)

    def restart(self) -> None:
        """Stop as SIGTERM does, then start again."""
        if self.life is not None and not self.life.stopping:
            self.steps.note("stop")
            self.life.stop(self.random.choice((0.0, 2.0, 30.0)))

    def stopped(self) -> None:
        life, self.life = self.life, None
        assert life is not None
        self.steps.note("stopped")
        life.kill()
        self.network.power_off()
        try:
            life.store.close()
        except StoreError as error:
            self.steps.note("not closed", type(error).__name__)
        self.disk.release()
        self.clients_loop.call_later(self.random.choice((0.05, 5.0)), self.start)

    def step(self) -> bool:
        try:
            going = self.schedule.step()
        except Struck as struck:
            going = True
            self.crash(power=struck.power, since=struck.since)
        except ProcessEnded as end:
            going = True
            self.steps.note("ended", str(end).rpartition("/")[2])
            # After a failed sync the kernel may have dropped what it could not write.
            self.disk.become("")
            self.crash(power=self.random.random() < 0.7)
        self._log.raise_first()
        return going

    def run_until(self, done: Callable[[], bool]) -> None:
        while not done() and self.step():
            pass

    def close(self) -> None:
        logging.getLogger("millrace").removeHandler(self._log)
        if self.life is not None:
            self.life.kill()
            self.life.bury()
        self.clients_loop.kill()
        self.disk.remove()

    def _set_generations(self) -> None:
        """Folding in a life of seconds, too."""
        sqlite: Any = millrace.store.sqlite
        sqlite.GENERATION_JOBS = self.plan.generation_jobs
        sqlite.GENERATION_BYTES = self.plan.generation_bytes
        sqlite.FOLD_BYTES = self.plan.fold_bytes


class Struck(ProcessEnded):
    """A crash has hit a commit."""

    def __init__(self, *, power: bool, since: int) -> None:
        super().__init__()
        self.power = power
        self.since = since


class Life:
    """One process of the server."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.loop = SimulatedLoop(world.schedule)
        self.engine = Engine(Random(world.random.getrandbits(64)))
        self.stopping = False
        self.store = SqliteStore(world.disk.folder)
        try:
            pages = world.plan.checkpoint
            self.store._db.execute(f"PRAGMA wal_autocheckpoint = {pages}")
            recover(self.engine, self.store, world.clock)
        except BaseException:
            self.bury()
            raise
        self._looked = 0
        self._reverts = 0

    def listen(self) -> None:
        world = self.world
        self.watch = Watch(self.engine, world.promises, world.seen)
        with self.loop:
            self.server = Server(
                self.engine,
                self.store,
                world.clock,
                max_connections=world.config.server.max_connections,
                max_output=world.config.server.max_output,
                ended=_ended,
                commits=lambda loop, after: SimulatedCommits(world, loop, after),  # type: ignore[arg-type]
            )
        # What is told to several at once is told in an order that a replay has again.
        self.server.sessions = InOrder()  # type: ignore[assignment]
        self.server.touched = InOrder()  # type: ignore[assignment]
        self.server.buffers._sessions = self.server.sessions
        self.loop.after_each = self._look
        self.loop.create_task(self._open())

    async def _open(self) -> None:
        config = self.world.config
        most = config.server.max_connections
        serving = listeners(config, self.engine, self.world.clock(), most)
        for listener in serving:
            if isinstance(listener.hub, FaktoryHub):
                listener.hub.memory_mb = lambda: 1  # INFO tells it, and it is never the same
        ports = await self.server.listen(serving, unopened(serving), None)
        self.world.steps.note("ready")
        self.world.network.serve(self.loop, ports)

    def stop(self, grace: float) -> None:
        self.stopping = True
        self.loop.create_task(self._stop(grace))
        self.loop.call_later(grace + STOP_WITHIN, self._too_late)

    async def _stop(self, grace: float) -> None:
        await self.server.stop(grace, asyncio.Event())
        self.world.clients_loop.call_soon(self.world.stopped)

    def _too_late(self) -> None:
        if not self.world.disk.state:
            raise BrokenPromise("the server was told to stop, and does not")

    def kill(self) -> None:
        self.loop.kill()

    def bury(self) -> None:
        """Let go of its files, wherever they are now."""
        with contextlib.suppress(StoreError):
            self.store.close()

    def _look(self) -> None:
        self.watch.absorb()
        if self.engine.reverts != self._reverts:
            self._reverts = self.engine.reverts
            self.world.steps.note("undone")
            self.world.promises.undone()
            self.look()
        nobody_waits_in_vain(self.engine, stopping=self.stopping)
        self._looked += 1
        if self._looked % LOOK_EVERY == 0:
            self.look()

    def look(self) -> None:
        """Is everything as it must be between two steps?"""
        check_engine(self.engine, self.world.promises)
        check_reasons(self.engine, self.world.clock())
        for hub in self.server.hubs:
            if isinstance(hub, QlessHub):
                check_qless(hub)


class SimulatedCommits:
    """COMMIT some time later, on the loop; a crash may hit it."""

    def __init__(
        self, world: World, loop: SimulatedLoop, after: Callable[[Exception | None], None]
    ) -> None:
        self._world = world
        self._loop = loop
        self._after = after

    def commit(self, store: SqliteStore) -> None:
        world = self._world
        delay = world.random.uniform(*world.plan.sync) + world.slow_sync
        self._loop.call_later(delay, self._commit, store, world.promises.stamp)

    def _commit(self, store: SqliteStore, begun: int) -> None:
        world = self._world
        doom = world.doom
        since = world.disk.position() if doom else 0
        outcome: Exception | None = None
        try:
            world.disk.commit(store)
        except Exception as error:
            outcome = error
        world.steps.note("commit", "ok" if outcome is None else type(outcome).__name__)
        if doom:
            raise Struck(power=doom == "power", since=since)
        if outcome is None:
            world.promises.committed(begun)
        delay = world.random.choice((0.0, 0.0, 0.0005, 0.02))
        self._loop.call_later(delay, self._over, outcome)

    def _over(self, outcome: Exception | None) -> None:
        self._after(outcome)
        if isinstance(outcome, SyncFailed):
            raise BrokenPromise("the server goes on after a failed sync")

    def close(self) -> None:
        pass


class InOrder(MutableSet[Any]):
    """A set that gives its members in the order in which they came."""

    def __init__(self) -> None:
        self._members: dict[Any, None] = {}

    def __contains__(self, member: object) -> bool:
        return member in self._members

    def __iter__(self) -> Iterator[Any]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def add(self, member: Any) -> None:
        self._members[member] = None

    def discard(self, member: Any) -> None:
        self._members.pop(member, None)

    def pop(self) -> Any:
        member = next(iter(self._members))
        del self._members[member]
        return member


class Complaints(logging.Handler):
    """What the server logs about its own mistakes is a finding."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._found: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            self._found.append(record.exc_info[1])

    def raise_first(self) -> None:
        if self._found:
            raise BrokenPromise(f"a mistake of the server's: {self._found[0]!r}") from self._found[
                0
            ]


def _ended(reason: str) -> None:
    raise ProcessEnded(reason)

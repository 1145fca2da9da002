"""The environment of one run: the server with its clock and its disk, through all its lives.

The engine, the protocols, the sessions, the turns and the store are real. The loop, the network,
the clock, the disk and the thread for COMMIT are simulated.
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
from promises import NO_MEMORY, BrokenPromise, Promises
from simulated_disk import SimulatedDisk
from simulated_loop import ProcessEnded, Schedule, SimulatedLoop, unopened
from simulated_network import Network
from state_checks import (
    check_limits,
    check_promises,
    check_qless,
    check_reasons,
    check_recovered,
    no_waiter_is_stuck,
)
from steps import Steps

import millrace.store.sqlite.generations
from millrace.config import Config
from millrace.engine.engine import Engine
from millrace.protocols.faktory.hub import FaktoryHub
from millrace.protocols.qless.hub import QlessHub
from millrace.protocols.spec import protocol_rules
from millrace.server.app import listeners, recover
from millrace.server.memory_watch import CHECK_INTERVAL, MemoryWatch
from millrace.server.server import Server
from millrace.store import SqliteStore, StoreError, SyncFailed

START = 1_700_000_000.0
#: Number of server steps between two checks of the engine.
STEPS_PER_CHECK = 150
#: Number of engine checks between two checks of the wait reasons, which need a sort.
CHECKS_PER_REASONS_CHECK = 8
#: The limit of the server's memory, in bytes.
MAX_MEMORY = 100 << 20
#: Maximum duration of a stop on a working disk.
STOP_TIMEOUT = 60.0


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
        #: Current and maximum offset of the server's clock.
        self.offset = self.farthest = 0.0
        #: The memory of the server's process, in MiB.
        self.memory_used = 1
        self.slow_sync = 0.0
        #: The kind of crash that hits the next commit: "kill" or "power".
        self.doom = ""
        self.life: Life | None = None
        self._set_generations()
        self._log = LoggedErrors()
        logger = logging.getLogger("millrace")
        logger.addHandler(self._log)
        logger.propagate = False

    # Clocks

    def wall(self) -> float:
        return START + self.schedule.now + self.offset

    def clock(self) -> int:
        return int(self.wall() * 1_000_000)

    def their_clock(self) -> int:
        """The clients' clock, which is correct."""
        return int((START + self.schedule.now) * 1_000_000)

    def jump(self, seconds: float) -> None:
        self.steps.note("clock", round(seconds, 3))
        before = self.wall()
        self.offset += seconds
        self.farthest = max(self.farthest, self.offset)
        self.promises.clock_jumped(before)

    # The lives of the server

    def start(self) -> None:
        """Start a server, if the disk permits it."""
        self.steps.note("start", self.promises.life + 1)
        self._boot()
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
        self.seen.after_recovery(life.engine, self.promises)
        life.listen()

    def _boot(self) -> None:
        """The machine may boot with a wrong clock, which is corrected soon."""
        ahead = self.plan.boot_clock
        if ahead and self.random.random() < 0.5:
            self.jump(ahead - self.offset)
            self.clients_loop.call_later(self.random.choice((0.01, 2.0, 20.0)), self._set_clock)

    def _set_clock(self) -> None:
        if self.plan.boot_clock:
            self.jump(-self.offset)

    def crash(self, *, power: bool, since: int | None = None) -> None:
        """The process is killed, or the power fails, now or during the last writes."""
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
            life.close_files()
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
            # After a failed sync the kernel may have dropped the unwritten pages.
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
            self.life.close_files()
        self.clients_loop.kill()
        self.disk.remove()

    def _set_generations(self) -> None:
        """Fold generations even in a life of seconds."""
        generations: Any = millrace.store.sqlite.generations
        generations.GENERATION_JOBS = self.plan.generation_jobs
        generations.GENERATION_BYTES = self.plan.generation_bytes
        generations.WRITE_BACK_BYTES = self.plan.fold_bytes


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
        self.engine = Engine(Random(world.random.getrandbits(64)), protocol_rules())
        self.stopping = False
        # In a third of the runs, nearly all payloads live in the store.
        max_inline = 2 if world.plan.generation_bytes == 4000 else 4096
        self.store = SqliteStore(world.disk.folder, max_inline_payload=max_inline)
        try:
            pages = world.plan.checkpoint
            self.store._db.execute(f"PRAGMA wal_autocheckpoint = {pages}")
            recover(self.engine, self.store, world.clock)
        except BaseException:
            self.close_files()
            raise
        self._checked = 0
        self._reverts = 0
        #: The usage of each limit after the last step.
        self._usage: dict[str, int] = {}
        self._reclaimed = False
        self._watch_reclaims()

    def _watch_reclaims(self) -> None:
        reclaim = self.engine.reclaim

        def reclaim_and_note(*given: Any, **named: Any) -> bool:
            self._reclaimed = True
            return reclaim(*given, **named)

        self.engine.reclaim = reclaim_and_note  # type: ignore[method-assign]

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
                on_fatal_error=_ended,
                commits=lambda loop, after: SimulatedCommits(world, loop, after),  # type: ignore[arg-type]
            )
        # Messages to several sessions are sent in an order that a replay repeats.
        self.server.sessions = InOrder()  # type: ignore[assignment]
        self.server.connections_with_messages = InOrder()  # type: ignore[assignment]
        self.server.buffers._sessions = self.server.sessions
        self.loop.after_each = self._check
        self.loop.create_task(self._open())
        self._memory = MemoryWatch(
            self.engine, self.server.gate, lambda: world.memory_used, MAX_MEMORY
        )
        self._watch_memory()

    def _watch_memory(self) -> None:
        self._memory.check()
        promises = self.world.promises
        refusing = self.engine.push_refusal_reason.startswith(NO_MEMORY)
        if not refusing:
            promises.refusing_since = None
        elif promises.refusing_since is None:
            promises.refusing_since = self.world.schedule.now
        self.loop.call_later(CHECK_INTERVAL, self._watch_memory)

    async def _open(self) -> None:
        config = self.world.config
        most = config.server.max_connections
        serving = listeners(config, self.engine, self.world.clock(), most)
        for listener in serving:
            if isinstance(listener.hub, FaktoryHub):
                listener.hub.memory_mb = lambda: (
                    1
                )  # INFO shows it, and the real value differs in each run
        ports = await self.server.listen(serving, unopened(serving), None)
        self.world.steps.note("ready")
        self.world.network.serve(self.loop, ports)

    def stop(self, grace: float) -> None:
        self.stopping = True
        self.loop.create_task(self._stop(grace))
        self.loop.call_later(grace + STOP_TIMEOUT, self._too_late)

    async def _stop(self, grace: float) -> None:
        await self.server.stop(grace, asyncio.Event())
        self.world.clients_loop.call_soon(self.world.stopped)

    def _too_late(self) -> None:
        if not self.world.disk.state:
            raise BrokenPromise("the server received a stop request and does not stop")

    def kill(self) -> None:
        self.loop.kill()
        self.world.promises.refusing_since = None

    def close_files(self) -> None:
        """Close its files, which may have moved."""
        with contextlib.suppress(StoreError):
            self.store.close()

    def _check(self) -> None:
        self.watch.absorb()
        if self.engine.revert_count != self._reverts:
            self._reverts = self.engine.revert_count
            self.world.steps.note("undone")
            self.world.promises.undone()
            self.check_invariants()
            self._usage.clear()
        no_waiter_is_stuck(self.engine, self.world.clock(), stopping=self.stopping)
        self._check_limits()
        self._checked += 1
        if self._checked % STEPS_PER_CHECK == 0:
            self.check_invariants()

    def _check_limits(self) -> None:
        """The usage of a key does not grow above its limit."""
        limits, before = self.engine.limits, self._usage
        self._usage = {key: limits.usage(key) for key in limits.by_key}
        if self._reclaimed:  # a worker keeps its job when the limit is lowered
            self._reclaimed = False
            return
        for key, usage in self._usage.items():
            maximum = limits.by_key[key].maximum
            if maximum and usage > max(maximum, before.get(key, usage)):
                raise BrokenPromise(f"{usage} jobs of {key} are leased, the limit is {maximum}")

    def check_invariants(self) -> None:
        """Check all invariants between two steps."""
        check_promises(self.engine, self.world.promises)
        if self._checked % (CHECKS_PER_REASONS_CHECK * STEPS_PER_CHECK) == 0:
            check_reasons(self.engine, self.world.clock())
        check_limits(self.engine, self.world.clock())
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
    """A set with insertion order."""

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


class LoggedErrors(logging.Handler):
    """Errors that the server logs are findings."""

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

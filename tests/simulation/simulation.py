"""One run of one seed: clients work while faults happen; afterwards all jobs must finish."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fault_plan import Plan
from feature_roles import all_clients, final_clients
from promises import BrokenPromise
from roles import Client
from simulated_world import World
from state_checks import check_promises, check_reasons, explained, unfinished

from scene import durable_but_for_seqs

#: Maximum time until all jobs are done after the faults stop.
DRAIN_TIMEOUT: Final = 4 * 3600.0
#: Durations of a full or broken disk and of a client that does not read.
LASTS: Final = (0.2, 3.0, 12.0)


@dataclass
class Outcome:
    seed: int
    plan: str = ""
    #: The problem that was found, or empty.
    problem: str = ""
    error: BaseException | None = None
    last: list[str] = field(default_factory=list)
    hash: str = ""
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    limits: str = ""


def simulate(
    seed: int, root: Path, steps: int = 60, focus: Callable[[Plan], None] | None = None
) -> Outcome:
    """Run a seed. The same seed always gives the same run. Keeps the last `steps` steps; `focus`
    can change the drawn plan.
    """
    world = World(seed, root, steps)
    if focus is not None:
        focus(world.plan)
    outcome = Outcome(seed, world.plan.described(), limits=world.disk.limits)
    try:
        Simulation(world).run()
    except (Exception, BrokenPromise) as error:
        outcome.error = error
        outcome.problem = f"{type(error).__name__}: {error}"
    finally:
        outcome.last = world.steps.last()
        outcome.hash = world.steps.hash
        outcome.seconds = world.schedule.now
        outcome.counts = world.steps.counts + world.promises.counts
        outcome.counts["jobs"] = len(world.promises.jobs)
        outcome.counts["steps"] = world.schedule.steps
        world.close()
    return outcome


class Simulation:
    def __init__(self, world: World) -> None:
        self.world = world
        world.promises.heartbeat = world.plan.heartbeat
        self.peace = False
        self.clients: list[Client] = []

    def run(self) -> None:
        world = self.world
        world.start()
        self.clients = all_clients(world)
        self._send_out(self.clients)
        for kind, gap in world.plan.faults.items():
            self._spawn(self._happen_again(kind, gap))
        world.run_until(lambda: world.schedule.now > world.plan.length)
        self._end_faults()
        world.run_until(self._drained)
        self._end()

    def _spawn(self, coroutine: object) -> None:
        with self.world.clients_loop:
            self.world.clients_loop.create_task(coroutine)  # type: ignore[arg-type]

    def _send_out(self, clients: list[Client]) -> None:
        for client in clients:
            self._spawn(client.live())

    # Faults

    async def _happen_again(self, kind: str, gap: float) -> None:
        """Repeat a fault at random times."""
        world = self.world
        happen: Callable[[], object] = getattr(self, "_" + kind.replace(" ", "_"))
        while True:
            await asyncio.sleep(world.random.expovariate(1 / gap))
            if self.peace:
                return
            if world.life is not None:
                world.steps.note("fault", kind)
                world.steps.counts[f"fault: {kind}"] += 1
                happen()

    def _wire(self):  # type: ignore[no-untyped-def]
        wires = list(self.world.network.wires.values())
        return self.world.random.choice(wires) if wires else None

    def _reset(self) -> None:
        if wire := self._wire():
            wire.reset()
            wire.client.cut("reset")

    def _fin(self) -> None:
        if wire := self._wire():
            wire.fin()

    def _vanish(self) -> None:
        if wire := self._wire():
            wire.vanish()

    def _stall(self) -> None:
        if wire := self._wire():
            wire.stall(self.world.random.choice((*LASTS, 100.0)))

    def _clock(self) -> None:
        jump = self.world.plan.jump
        self.world.jump(self.world.random.uniform(-jump, jump))

    def _full(self) -> None:
        self._trouble("full")

    def _broken(self) -> None:
        self._trouble("broken")

    def _no_sync(self) -> None:
        self._trouble("no sync")

    def _trouble(self, state: str) -> None:
        world = self.world
        world.disk.become(state)
        world.clients_loop.call_later(world.random.choice(LASTS), world.disk.become, "")

    def _slow_sync(self) -> None:
        world = self.world
        world.slow_sync = world.random.choice((0.5, 5.0))
        world.clients_loop.call_later(world.random.choice(LASTS), self._sync_well)

    def _sync_well(self) -> None:
        self.world.slow_sync = 0.0

    def _memory(self) -> None:
        """The server exceeds its memory limit."""
        world = self.world
        world.memory_used = 200
        world.clients_loop.call_later(world.random.choice(LASTS), self._enough_memory)

    def _enough_memory(self) -> None:
        self.world.memory_used = 1

    def _kill(self) -> None:
        self._crash("kill")

    def _power(self) -> None:
        self._crash("power")

    def _crash(self, kind: str) -> None:
        """Now, or during the next commit."""
        world = self.world
        if world.random.random() < world.plan.hit_commit:
            world.doom = kind
        else:
            world.crash(power=kind == "power")

    def _restart(self) -> None:
        self.world.restart()

    # After the faults

    def _end_faults(self) -> None:
        world = self.world
        world.steps.note("peace")
        self.peace = True
        world.doom = ""
        world.disk.become("")
        world.slow_sync = 0.0
        world.plan.hit_start = 0.0
        world.network.weather = type(world.network.weather)()
        for client in self.clients:
            client.over = True
        world.memory_used = 1
        world.plan.boot_clock = 0.0
        # Jobs that failed while the clock was ahead are retried at that time.
        world.jump(max(0.0, world.farthest - world.offset))
        afterwards = final_clients(world)
        self.clients += afterwards
        self._send_out(afterwards)

    def _drained(self) -> bool:
        world = self.world
        since = world.schedule.now - world.plan.length
        if int(world.schedule.steps) % 50 and since < DRAIN_TIMEOUT:
            return False
        engine = None if world.life is None else world.life.engine
        left = [] if engine is None else unfinished(engine)
        if engine is not None and not left:
            return True
        if since > DRAIN_TIMEOUT:
            described = ["the server is not there"]
            if engine is not None:
                described = explained(engine, left, world.clock())
            raise BrokenPromise(f"not done after {since:.0f} s without faults: {described}")
        return False

    def _end(self) -> None:
        """Stop, check all invariants, and compare with the state that a new start reads."""
        world = self.world
        life = world.life
        assert life is not None
        for client in self.clients:
            client.over = True
        life.check_invariants()
        check_reasons(life.engine, world.clock())
        stopped = world.promises.life
        world.restart()
        world.run_until(lambda: world.life is None)
        check_promises(life.engine, world.promises)
        before = durable_but_for_seqs(life.engine)
        world.run_until(lambda: world.life is not None)
        assert world.promises.life == stopped + 1
        after = durable_but_for_seqs(world.life.engine)  # type: ignore[union-attr]
        if before != after:
            wrong = [key for key in before if before[key] != after[key]]
            raise BrokenPromise(f"a restart changed {wrong}")

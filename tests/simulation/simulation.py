"""One run of one seed: clients at work while faults happen, then peace, in which all must be done."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fault_plan import PROTOCOLS, Plan
from promises import BrokenPromise
from roles import Client, DiligentWorker, Resumer, cast
from simulated_world import World
from state_checks import check_engine, check_reasons, unfinished

from scene import durable_but_for_seqs

#: So long after the faults stop everything is done.
DRAINED_WITHIN: Final = 4 * 3600.0
#: How long a full or broken disk stays so, how long a client does not read.
LASTS: Final = (0.2, 3.0, 12.0)


@dataclass
class Outcome:
    seed: int
    plan: str = ""
    #: What went wrong; empty if nothing did.
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
    """The same seed gives the same run, whenever and wherever. So many of its last steps are kept;
    what it draws may be changed by `focus`.
    """
    world = World(seed, root, steps)
    if focus is not None:
        focus(world.plan)
    outcome = Outcome(seed, world.plan.told(), limits=world.disk.limits)
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
        self.clients = cast(world)
        self._send_out(self.clients)
        for kind, gap in world.plan.faults.items():
            self._spawn(self._happen_again(kind, gap))
        world.run_until(lambda: world.schedule.now > world.plan.length)
        self._make_peace()
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
        """Again and again, at random."""
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

    def _kill(self) -> None:
        self._crash("kill")

    def _power(self) -> None:
        self._crash("power")

    def _crash(self, kind: str) -> None:
        """At once, or within the next commit."""
        world = self.world
        if world.random.random() < world.plan.hit_commit:
            world.doom = kind
        else:
            world.crash(power=kind == "power")

    def _restart(self) -> None:
        self.world.restart()

    # Afterwards

    def _make_peace(self) -> None:
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
        workers = [
            DiligentWorker(world, f"diligent-{protocol}-{queue}", protocol, queue)
            for protocol in PROTOCOLS
            for queue in world.plan.queues
        ]
        afterwards = [Resumer(world, "resumer", "faktory"), *workers]
        self.clients += afterwards
        self._send_out(afterwards)

    def _drained(self) -> bool:
        world = self.world
        since = world.schedule.now - world.plan.length
        if world.life is None:
            left = ["the server is not there"]
        elif int(world.schedule.steps) % 50 and since < DRAINED_WITHIN:
            return False
        else:
            left = unfinished(world.life.engine, world.clock())
        if left and since > DRAINED_WITHIN:
            raise BrokenPromise(f"not done after {since:.0f} s without faults: {left[:5]}")
        return not left

    def _end(self) -> None:
        """Stop, look at everything, and compare with what a new start reads."""
        world = self.world
        life = world.life
        assert life is not None
        for client in self.clients:
            client.over = True
        life.look()
        check_reasons(life.engine, world.clock())
        stopped = world.promises.life
        world.restart()
        world.run_until(lambda: world.life is None)
        check_engine(life.engine, world.promises)
        before = durable_but_for_seqs(life.engine)
        world.run_until(lambda: world.life is not None)
        assert world.promises.life == stopped + 1
        after = durable_but_for_seqs(world.life.engine)  # type: ignore[union-attr]
        if before != after:
            wrong = [key for key in before if before[key] != after[key]]
            raise BrokenPromise(f"a restart changed {wrong}")

"""The faults of a seed and their frequency."""

from dataclasses import dataclass, field
from random import Random

from simulated_network import Weather

#: The kinds of faults, with the seconds between two of them if frequent and if rare.
FAULTS = {
    "reset": (0.3, 20.0),
    "fin": (1.0, 30.0),
    "vanish": (2.0, 30.0),
    "stall": (0.3, 10.0),
    "clock": (4.0, 40.0),
    "full": (3.0, 40.0),
    "broken": (3.0, 40.0),
    "no sync": (8.0, 60.0),
    "slow sync": (3.0, 30.0),
    "memory": (4.0, 40.0),
    "kill": (4.0, 60.0),
    "power": (4.0, 60.0),
    "restart": (3.0, 40.0),
}
#: Limits that jobs may have. The limit of a queue has the key QUEUE_LIMIT and its name.
LIMITS = ("limit-0", "limit-1")
QUEUE_LIMIT = "ql:q:"
#: The queue of all recurring jobs. Its workers speak these, which show the ids of such jobs.
RECURRING_QUEUE = "recurring"
RECURRING_WORKERS = ("faktory", "qless")
#: How far a clock can be ahead when the machine boots: not at all, two hours, ten years.
BOOT_CLOCKS = (0.0, 0.0, 0.0, 7200.0, 10 * 365 * 86_400.0)
PROTOCOLS = ("workq", "masenko", "faktory", "qless", "goqueue")
#: The actions of a worker with a job: complete, fail, finish late, renew, disconnect, abandon.
WORK = ("complete", "fail", "late", "renew", "leave", "forget")


@dataclass
class Plan:
    """Drawn once and constant during the run."""

    #: Seconds until the faults stop.
    length: float
    #: fault -> mean seconds between two of them
    faults: dict[str, float]
    #: Probability that a crash hits a commit, in runs with crashes.
    hit_commit: float
    hit_start: float
    clients: dict[str, int]
    queues: list[str]
    #: Seconds between pushes of a producer, and the maximum number of jobs.
    pace: float
    max_jobs: int
    #: Duration of a commit.
    sync: tuple[float, float]
    #: Thresholds of the store, low enough for folds and checkpoints in a short life.
    generation_jobs: int
    generation_bytes: int
    fold_bytes: int
    checkpoint: int
    jump: float
    #: Lease duration of a Qless worker.
    heartbeat: int
    #: Protocols of the workers. With few protocols, workers compete for the same jobs.
    working: list[str]
    #: Relative frequency of each of WORK.
    work_weights: tuple[int, ...]
    #: How often a push is part of a command with more than a hundred jobs.
    large: float
    #: How far the clock is ahead when the machine boots, until it is set.
    boot_clock: float
    weather: Weather = field(default_factory=Weather)

    def described(self) -> str:
        faults = ", ".join(f"{kind} every {gap:.0f} s" for kind, gap in self.faults.items())
        clients = ", ".join(f"{count} {role}" for role, count in self.clients.items())
        boot = f"; at boot the clock is {self.boot_clock:.0f} s ahead" if self.boot_clock else ""
        return f"{self.length:.0f} s with {clients}; faults: {faults or 'none'}{boot}"


def draw(random: Random) -> Plan:
    calm = random.random() < 0.1  # all promises must also hold without faults
    likely = 0.0 if calm else random.choice((0.15, 0.4, 0.4, 0.8))
    faults = {
        kind: random.uniform(*gaps) for kind, gaps in FAULTS.items() if random.random() < likely
    }
    crashes = not calm and bool(faults.keys() & {"kill", "power"})
    plan = Plan(
        length=random.uniform(15, 90),
        faults=faults,
        hit_commit=random.choice((0.3, 0.7, 0.9)) if crashes else 0.0,
        hit_start=random.choice((0.0, 0.2, 0.5)) if crashes else 0.0,
        clients={
            "producer": random.randint(2, 6),
            "worker": random.randint(2, 10),
            "canceller": random.randint(0, 2),
            "looker": random.randint(0, 2),
            "waiter": random.randint(0, 3),
            "pauser": random.choice((0, 0, 1)),
            "asker": random.choice((0, 0, 1)),
            "tagger": random.choice((0, 0, 1)),
            "limiter": random.choice((0, 0, 1)),
            "loader": random.choice((0, 0, 1)),
            "recurrer": random.choice((0, 0, 1)),
            "flusher": random.choice((0,) * 9 + (1,)),
        },
        queues=[f"queue-{n}" for n in range(random.randint(1, 3))],
        pace=random.choice((0.1, 0.5, 2.0, 5.0)),
        max_jobs=random.choice((100, 300)),
        sync=random.choice(((0.0, 0.001), (0.001, 0.01), (0.01, 0.2))),
        generation_jobs=random.choice((2, 5, 30, 100_000)),
        generation_bytes=random.choice((400, 4000, 8 << 20)),
        fold_bytes=random.choice((1, 300, 65_536)),
        checkpoint=random.choice((1, 10, 50, 2000)),
        jump=random.choice((2.0, 60.0, 900.0)),
        heartbeat=random.choice((2, 10, 60)),
        working=random.sample(PROTOCOLS, random.choice((1, 2, 5))),
        work_weights=random.choice(((70, 10, 6, 6, 5, 3), (30, 10, 30, 10, 5, 15))),
        large=random.choice((0.0, 0.0, 0.0, 0.05)),
        boot_clock=0.0 if calm else random.choice(BOOT_CLOCKS),
    )
    if plan.clients["recurrer"]:
        plan.clients["recurring worker"] = random.randint(1, 3)
    if plan.large:
        plan.max_jobs = 800
    weather = plan.weather
    if not calm:
        weather.latency = random.choice(((0.0001, 0.002), (0.001, 0.05)))
        weather.cut = random.choice((0.0, 0.1, 0.6))
        weather.late = random.choice((0.0, 0.01, 0.1))
        weather.latest = random.choice((0.1, 2.0))
        weather.capacity = random.choice((0, 200, 65_536))
    return plan

"""Which faults a seed has, and how often."""

from dataclasses import dataclass, field
from random import Random

from simulated_network import Weather

#: What can happen, and how many seconds lie between two of them where it is frequent and where it
#: is rare.
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
    "kill": (4.0, 60.0),
    "power": (4.0, 60.0),
    "restart": (3.0, 40.0),
}
PROTOCOLS = ("workq", "masenko", "faktory", "qless", "goqueue")
#: What a worker does with a job: completes it, fails it, is late, asks for more time, goes away,
#: forgets it.
WORK = ("complete", "fail", "late", "renew", "leave", "forget")


@dataclass
class Plan:
    """Drawn once; nothing here changes."""

    #: Seconds until the faults stop.
    length: float
    #: fault -> how many seconds between two of them, on average
    faults: dict[str, float]
    #: How often a commit is one that a crash hits, where there are crashes.
    hit_commit: float
    hit_start: float
    clients: dict[str, int]
    queues: list[str]
    #: How often producers push, in seconds; and how many jobs there may be in all.
    pace: float
    most_jobs: int
    #: How long a commit takes.
    sync: tuple[float, float]
    #: What the store is told, so that folding and checkpoints happen in a short life.
    generation_jobs: int
    generation_bytes: int
    fold_bytes: int
    checkpoint: int
    jump: float
    #: How long a Qless worker has a job.
    heartbeat: int
    #: What workers speak: if that is little, they are in each other's way.
    working: list[str]
    #: How often workers do each of WORK with what they get, one against the other.
    manners: tuple[int, ...]
    weather: Weather = field(default_factory=Weather)

    def told(self) -> str:
        faults = ", ".join(f"{kind} every {gap:.0f} s" for kind, gap in self.faults.items())
        clients = ", ".join(f"{count} {role}" for role, count in self.clients.items())
        return f"{self.length:.0f} s with {clients}; faults: {faults or 'none'}"


def draw(random: Random) -> Plan:
    calm = random.random() < 0.1  # also without any fault everything must hold
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
        },
        queues=[f"queue-{n}" for n in range(random.randint(1, 3))],
        pace=random.choice((0.1, 0.5, 2.0, 5.0)),
        most_jobs=random.choice((100, 300)),
        sync=random.choice(((0.0, 0.001), (0.001, 0.01), (0.01, 0.2))),
        generation_jobs=random.choice((2, 5, 30, 100_000)),
        generation_bytes=random.choice((400, 4000, 8 << 20)),
        fold_bytes=random.choice((1, 300, 65_536)),
        checkpoint=random.choice((1, 10, 50, 2000)),
        jump=random.choice((2.0, 60.0, 900.0)),
        heartbeat=random.choice((2, 10, 60)),
        working=random.sample(PROTOCOLS, random.choice((1, 2, 5))),
        manners=random.choice(((70, 10, 6, 6, 5, 3), (30, 10, 30, 10, 5, 15))),
    )
    weather = plan.weather
    if not calm:
        weather.latency = random.choice(((0.0001, 0.002), (0.001, 0.05)))
        weather.cut = random.choice((0.0, 0.1, 0.6))
        weather.late = random.choice((0.0, 0.01, 0.1))
        weather.latest = random.choice((0.1, 2.0))
        weather.capacity = random.choice((0, 200, 65_536))
    return plan

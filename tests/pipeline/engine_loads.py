"""The queues of a generated history: their producers, workers and failure rates."""

from random import Random
from typing import Final, NamedTuple

from millrace.engine.job import NewJob
from millrace.protocols.registry import FAKTORY, GOQUEUE, MASENKO, QLESS, WORKQ

SECOND: Final = 1_000_000
#: Relative to the start of the history: a clock that was never set, and one that is a day ahead.
NEVER_SET: Final = -1_794_500_000 * SECOND
AHEAD: Final = 86_400 * SECOND


class Load(NamedTuple):
    """A queue: its share of all jobs, its burst size, the run time (median in seconds, and spread),
    and the percentages of attempts that fail and that never end.
    """

    queue: str
    origins: tuple[int, ...]
    workers: tuple[int, ...]
    share: float
    burst: int
    run: float
    spread: float
    kinds: tuple[str, ...]
    fails: int
    hangs: int
    skews: tuple[int, ...] = (0,)


LOADS: Final = (
    Load("mail", (FAKTORY,), (FAKTORY,), 0.43, 6, 0.2, 1.1, ("SendMail", "Digest"), 3, 1),
    Load("thumbs", (WORKQ,), (WORKQ, FAKTORY), 0.18, 3, 1.5, 0.7, ("resize", "crop"), 4, 3),
    Load("index", (QLESS,), (QLESS,), 0.12, 20, 0.9, 1.0, ("Crawl", "Parse", "Store"), 5, 3),
    Load("tasks", (GOQUEUE,), (GOQUEUE,), 0.11, 2, 4.0, 0.9, ("",), 0, 5),
    Load(
        "shared ✓",
        (FAKTORY, QLESS, WORKQ, MASENKO, GOQUEUE),
        (MASENKO, GOQUEUE, QLESS, FAKTORY, WORKQ),
        0.09, 8, 2.0, 1.3, ("any", "Ünïcode/kind", "third"), 8, 5,
    ),
    Load("webhooks", (MASENKO,), (MASENKO, QLESS), 0.05, 4, 0.5, 1.6, ("post",), 30, 6),
    Load("reports", (MASENKO, QLESS), (MASENKO,), 0.008, 30, 240.0, 0.8, ("monthly",), 10, 4),
    Load("nightly", (FAKTORY,), (FAKTORY,), 0.002, 3, 9000.0, 0.5, ("Backup", "Vacuum"), 15, 5),
    Load("odd", (QLESS,), (QLESS,), 0.01, 3, 3.0, 1.0, ("Odd",), 10, 10, (0, NEVER_SET, AHEAD)),
)  # fmt: skip

#: Group and message; the braces get numbers, so that messages differ but have the same shape.
ERRORS: Final = (
    ("TimeoutError", "no answer from 10.0.0.{} after {} ms"),
    ("KeyError", "'user-{}'"),
    ("ValueError", "cannot read 0x{:x} of file {}"),
    ("HTTPError", "503 for url: https://example.org/items/{}?page={}"),
    ("", "worker {} says: käse « {} »"),
    ("OSError", '[Errno 28] No space left on device: "/var/tmp/{}"'),
)


def error(random: Random) -> tuple[str, str]:
    group, message = ERRORS[int(random.random() ** 2 * len(ERRORS))]
    return group, message.format(random.randrange(10_000), random.randrange(100))


def push(load: Load, random: Random, now: int) -> NewJob:
    """One job for this queue, in the form of one of its protocols."""
    chance = random.random
    origin = random.choice(load.origins)
    kind = load.kinds[int(chance() ** 2 * len(load.kinds))]
    made = NewJob(
        f"j{random.getrandbits(48):012x}" if origin in {FAKTORY, QLESS} else "",
        kind,
        b"x" * int(20 * (1 + chance()) ** 4),
        origin,
        load.queue,
        retries=3,
        lease_duration=int(max(3.0, load.run * 12) * SECOND),
    )
    if origin != GOQUEUE and chance() < 0.05:
        made.due_at = now + int(random.expovariate(1 / 900) * SECOND) + SECOND
    _OF[origin](made, random, now)
    return made


def _faktory(made: NewJob, random: Random, now: int) -> None:
    made.retries = random.choice((25, 25, 3, 1, 0, -1))


def _workq(made: NewJob, random: Random, now: int) -> None:
    made.rank = float(random.choice((0, 0, 0, 5, -3)))
    made.max_attempts = random.choice((0, 2, 5))
    life = random.choice((2.0, 60.0, 3600.0, 86_400.0))
    made.expires_at = now + int(random.expovariate(1 / life) * SECOND) + SECOND
    made.due_at = 0


def _masenko(made: NewJob, random: Random, now: int) -> None:
    made.retries = random.randrange(4)
    if random.random() < 0.1:
        made.dead_queue = "graves"


def _qless(made: NewJob, random: Random, now: int) -> None:
    made.position = now
    made.rank = float(random.choice((0, 0, 10, -1.5)))
    if random.random() < 0.3:
        made.tags = random.sample(["blue", "grün", "vip", "a,b", ""], random.randrange(1, 4))


def _goqueue(made: NewJob, random: Random, now: int) -> None:
    made.rank = -float(random.choice((0, 0, 1, 9)))
    made.max_attempts = random.choice((0, 0, 3))


_OF: Final = {
    FAKTORY: _faktory,
    WORKQ: _workq,
    MASENKO: _masenko,
    QLESS: _qless,
    GOQUEUE: _goqueue,
}

"""What a believable workload consists of: who pushes what and when, and what becomes of it.

All of it is drawn from a seed before anything is sent, so that two runs push the same jobs in the
same order. A live server decides which worker gets which job. The first jobs therefore follow a
script that names the worker too: every run contains every outcome, and every pair of pushing and
leasing protocol.
"""

from collections.abc import Sequence
from random import Random
from typing import Final, Literal, NamedTuple

from speakers import SPEAKERS

#: What a worker does with an attempt: it completes it, says that it failed, says so for good, gives
#: it back, or dies with it.
Deed = Literal["complete", "fail", "bury", "release", "leave"]

#: A lease of a job that somebody will die with ends soon; of the others, not in this run.
SOON: Final = 2.0
LATE: Final = 1800.0
#: Nobody works here, so that what is pushed to it can be taken away again without a race.
DRAFTS: Final = "drafts"
#: Where Masenko's tasks go that have failed for good.
LETTERS: Final = "dead-letters"


class Trouble(NamedTuple):
    """A failure: its class, and its words, which differ from one time to the next in what is in
    brackets.
    """

    group: str
    words: str

    def message(self, dice: Random) -> str:
        number, port = dice.randrange(1, 100_000), dice.randrange(1024, 65_536)
        word = dice.choice(("ada", "grace", "edsger", "barbara"))
        return self.words.format(number=number, port=port, word=word, hex=f"{number:08x}")


class Kind(NamedTuple):
    """What jobs of a queue do: how long they take in the middle, and what they fail with."""

    queue: str
    name: str
    milliseconds: float
    #: How many of a hundred begin with a failure.
    failing: int
    trouble: Trouble
    share: int


_REFUSED: Final = Trouble("ConnectionError", "connection to 10.0.0.7:{port} refused")
_TIMEOUT: Final = Trouble("TimeoutError", "no answer from '{word}.example.com' in {number} ms")
_DECLINED: Final = Trouble("CardDeclined", "card 0x{hex} was declined with code {port}")
_MISSING: Final = Trouble("KeyError", 'row {number} has no column "{word}"')
_CORRUPT: Final = Trouble("CorruptImage", "image {hex} ends after {number} bytes")
TROUBLES: Final = (_REFUSED, _TIMEOUT, _DECLINED, _MISSING, _CORRUPT)

KINDS: Final = (
    Kind("mail", "send_receipt", 2, 2, _REFUSED, 25),
    Kind("mail", "send_digest", 4, 4, _TIMEOUT, 15),
    Kind("images", "thumbnail", 8, 3, _CORRUPT, 15),
    Kind("images", "transcode", 60, 8, _CORRUPT, 3),
    Kind("billing", "charge", 6, 10, _DECLINED, 12),
    Kind("billing", "refund", 6, 2, _TIMEOUT, 4),
    Kind("imports", "read_csv", 15, 12, _MISSING, 8),
    Kind("imports", "read_feed", 10, 6, _TIMEOUT, 6),
    Kind("reports", "monthly", 120, 5, _TIMEOUT, 2),
    Kind("webhooks", "deliver", 3, 15, _REFUSED, 10),
)
QUEUES: Final = tuple(dict.fromkeys(kind.queue for kind in KINDS))


class Plan(NamedTuple):
    """One job: who pushes it, when, and what its workers do with it, attempt by attempt."""

    number: int
    #: Seconds after the beginning.
    at: float
    protocol: str
    queue: str
    kind: str
    #: The last one also stands for all later attempts.
    deeds: tuple[Deed, ...]
    #: How long an attempt takes, in seconds.
    takes: float
    trouble: Trouble
    message: str
    size: int
    rank: int = 0
    #: It shall run so many seconds after its push at the earliest.
    delay: float = 0.0
    ttr: float = LATE
    retries: int | None = None
    #: It waits for the job that the same producer pushed before.
    follows: bool = False
    #: Its producer takes it away at once.
    withdrawn: bool = False
    dead_queue: str = ""
    #: The protocol of the worker that gets the first attempt of a scripted job.
    worker: str = ""

    @property
    def short(self) -> bool:
        return self.ttr < LATE

    def deed(self, attempt: int) -> Deed:
        return self.deeds[min(attempt, len(self.deeds)) - 1]


def plans(seed: int, seconds: float, rate: float) -> list[Plan]:
    """So many jobs a second for so many seconds, in the order of their pushes: first the script."""
    dice = Random(seed)
    scripted = _script(dice)
    moments = _moments(dice, seconds, max(0, round(seconds * rate) - len(scripted)))
    drawn = [_plan(dice, number, at) for number, at in enumerate(moments, len(scripted) + 1)]
    return [*scripted, *drawn]


def _script(dice: Random) -> list[Plan]:
    """Jobs that are pushed and leased one after the other before the others start. A job that
    returns to its queue is the last of this queue, so that no later step meets it.
    """
    steps: list[tuple[str, str, str, tuple[Deed, ...]]] = [
        (origin, worker, "mail", ("complete",)) for origin in SPEAKERS for worker in SPEAKERS
    ]
    steps += [
        ("qless", "qless", "images", ("fail", "complete")),
        ("qless", "qless", "billing", ("bury",)),
        ("qless", "qless", "reports", ("release", "complete")),
        ("workq", "workq", "webhooks", ("leave", "complete")),
    ]
    return [_scripted(dice, number, *step) for number, step in enumerate(steps, start=1)]


def _scripted(
    dice: Random, number: int, protocol: str, worker: str, queue: str, deeds: tuple[Deed, ...]
) -> Plan:
    kind = next(kind for kind in KINDS if kind.queue == queue)
    return Plan(
        number,
        0.0,
        protocol,
        queue,
        kind.name,
        deeds,
        takes=0.001,
        trouble=kind.trouble,
        message=kind.trouble.message(dice),
        size=50,
        ttr=SOON if "leave" in deeds else LATE,
        retries=2 if "retries" in SPEAKERS[protocol].can else None,
        worker=worker,
    )


def _moments(dice: Random, seconds: float, count: int) -> Sequence[float]:
    """Most come evenly, a third in bursts of a twentieth of the time."""
    bursts = [dice.uniform(0, 0.9 * seconds) for _ in range(max(1, int(seconds / 5)))]
    found = []
    for _ in range(count):
        if dice.random() < 1 / 3:
            found.append(dice.choice(bursts) + dice.uniform(0, seconds / 20))
        else:
            found.append(dice.uniform(0, seconds))
    return sorted(found)


def _plan(dice: Random, number: int, at: float) -> Plan:
    protocol = dice.choice(tuple(SPEAKERS))
    kind = dice.choices(KINDS, [each.share for each in KINDS])[0]
    plan = Plan(
        number,
        at,
        protocol,
        kind.queue,
        kind.name,
        _deeds(dice, kind),
        dice.lognormvariate(0, 0.5) * kind.milliseconds / 1000,
        kind.trouble,
        kind.trouble.message(dice),
        size=dice.choice((10, 50, 50, 200, 2000)),
        rank=_rank(dice, protocol, kind),
    )
    can = SPEAKERS[protocol].can
    if "leave" in plan.deeds:
        plan = plan._replace(ttr=SOON)
    if "retries" in can:
        plan = plan._replace(retries=dice.choice((0, 1, 2)))
    if "dead queue" in can and dice.random() < 0.5:
        plan = plan._replace(dead_queue=LETTERS)
    what = dice.random()
    if "schedule" in can and what < 0.08:
        return plan._replace(delay=dice.uniform(0.2, 2.0))
    if "dependency" in can and 0.08 < what < 0.15:
        return plan._replace(follows=True)
    if "cancel" in can and 0.15 < what < 0.18:
        return plan._replace(queue=DRAFTS, withdrawn=True)
    return plan


def _deeds(dice: Random, kind: Kind) -> tuple[Deed, ...]:
    what = dice.uniform(0, 100)
    if what < kind.failing / 3:
        return ("fail",)
    if what < kind.failing * 0.9:
        return ("fail", "complete")
    if what < kind.failing:
        return ("bury",)
    if what < kind.failing + 1:
        return ("leave", "complete")
    if what < kind.failing + 2:
        return ("release", "complete")
    return ("complete",)


def _rank(dice: Random, protocol: str, kind: Kind) -> int:
    """Refunds can wait. Go Job Queue has only what is behind the others."""
    if kind.name == "refund":
        return -5
    return dice.choice((0, 0, 0, 3)) if protocol != "goqueue" else dice.choice((0, 0, -1))

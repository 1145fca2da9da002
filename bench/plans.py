"""The jobs of a realistic workload: the producer, the push time and the outcome of each.

All jobs are drawn from a seed before the first push, so two runs push the same jobs in the same
order. A live server decides which worker gets which job. The first jobs therefore follow a script
that names the worker too: every run contains every outcome, and every pair of pushing and leasing
protocol.
"""

from collections.abc import Sequence
from random import Random
from typing import Final, Literal, NamedTuple

from speakers import SPEAKERS

#: The end of an attempt: the worker completes it, fails it, buries it, releases it, or disconnects.
Action = Literal["complete", "fail", "bury", "release", "leave"]

#: The lease of a job whose worker will disconnect expires soon; other leases outlast the run.
SHORT_LEASE: Final = 2.0
LONG_LEASE: Final = 1800.0
#: A queue without workers, so that its jobs can be cancelled without a race.
DRAFTS: Final = "drafts"
#: The queue for Masenko's tasks that have exhausted their attempts.
DEAD_LETTERS: Final = "dead-letters"


class ErrorTemplate(NamedTuple):
    """A failure: its error type, and a message template with variable parts in braces."""

    group: str
    words: str

    def message(self, dice: Random) -> str:
        number, port = dice.randrange(1, 100_000), dice.randrange(1024, 65_536)
        word = dice.choice(("ada", "grace", "edsger", "barbara"))
        return self.words.format(number=number, port=port, word=word, hex=f"{number:08x}")


class Kind(NamedTuple):
    """The jobs of a queue: their median run time and their error."""

    queue: str
    name: str
    milliseconds: float
    #: Percentage of jobs whose first attempt fails.
    failing: int
    error: ErrorTemplate
    share: int


_REFUSED: Final = ErrorTemplate("ConnectionError", "connection to 10.0.0.7:{port} refused")
_TIMEOUT: Final = ErrorTemplate(
    "TimeoutError", "no answer from '{word}.example.com' in {number} ms"
)
_DECLINED: Final = ErrorTemplate("CardDeclined", "card 0x{hex} was declined with code {port}")
_MISSING: Final = ErrorTemplate("KeyError", 'row {number} has no column "{word}"')
_CORRUPT: Final = ErrorTemplate("CorruptImage", "image {hex} ends after {number} bytes")
ERRORS: Final = (_REFUSED, _TIMEOUT, _DECLINED, _MISSING, _CORRUPT)

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
    """One job: its producer, its push time, and the action of the worker in each attempt."""

    number: int
    #: Seconds after the start.
    at: float
    protocol: str
    queue: str
    kind: str
    #: The last entry also applies to all later attempts.
    actions: tuple[Action, ...]
    #: Run time of an attempt, in seconds.
    takes: float
    error: ErrorTemplate
    message: str
    size: int
    rank: int = 0
    #: Earliest start in seconds after the push.
    delay: float = 0.0
    ttr: float = LONG_LEASE
    retries: int | None = None
    #: It depends on the previous job of the same producer.
    follows: bool = False
    #: Its producer cancels it immediately.
    withdrawn: bool = False
    dead_queue: str = ""
    #: The protocol of the worker that gets the first attempt of a scripted job.
    worker: str = ""

    @property
    def short(self) -> bool:
        return self.ttr < LONG_LEASE

    def action(self, attempt: int) -> Action:
        return self.actions[min(attempt, len(self.actions)) - 1]


def plans(seed: int, seconds: float, rate: float) -> list[Plan]:
    """Jobs for `seconds` at `rate` per second, in push order; the script is first."""
    dice = Random(seed)
    scripted = _script(dice)
    moments = _moments(dice, seconds, max(0, round(seconds * rate) - len(scripted)))
    drawn = [_plan(dice, number, at) for number, at in enumerate(moments, len(scripted) + 1)]
    return [*scripted, *drawn]


def _script(dice: Random) -> list[Plan]:
    """Jobs that are pushed and leased one at a time before all other jobs. A job that returns to
    its queue is the last step of this queue, so that no later step leases it.
    """
    steps: list[tuple[str, str, str, tuple[Action, ...]]] = [
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
    dice: Random, number: int, protocol: str, worker: str, queue: str, actions: tuple[Action, ...]
) -> Plan:
    kind = next(kind for kind in KINDS if kind.queue == queue)
    return Plan(
        number,
        0.0,
        protocol,
        queue,
        kind.name,
        actions,
        takes=0.001,
        error=kind.error,
        message=kind.error.message(dice),
        size=50,
        ttr=SHORT_LEASE if "leave" in actions else LONG_LEASE,
        retries=2 if "retries" in SPEAKERS[protocol].can else None,
        worker=worker,
    )


def _moments(dice: Random, seconds: float, count: int) -> Sequence[float]:
    """Two thirds at a steady rate, a third in bursts of a twentieth of the time."""
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
        _actions(dice, kind),
        dice.lognormvariate(0, 0.5) * kind.milliseconds / 1000,
        kind.error,
        kind.error.message(dice),
        size=dice.choice((10, 50, 50, 200, 2000)),
        rank=_rank(dice, protocol, kind),
    )
    can = SPEAKERS[protocol].can
    if "leave" in plan.actions:
        plan = plan._replace(ttr=SHORT_LEASE)
    if "retries" in can:
        plan = plan._replace(retries=dice.choice((0, 1, 2)))
    if "dead queue" in can and dice.random() < 0.5:
        plan = plan._replace(dead_queue=DEAD_LETTERS)
    what = dice.random()
    if "schedule" in can and what < 0.08:
        return plan._replace(delay=dice.uniform(0.2, 2.0))
    if "dependency" in can and 0.08 < what < 0.15:
        return plan._replace(follows=True)
    if "cancel" in can and 0.15 < what < 0.18:
        return plan._replace(queue=DRAFTS, withdrawn=True)
    return plan


def _actions(dice: Random, kind: Kind) -> tuple[Action, ...]:
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
    """Refunds have a low rank. Go Job Queue only has ranks below the default."""
    if kind.name == "refund":
        return -5
    return dice.choice((0, 0, 0, 3)) if protocol != "goqueue" else dice.choice((0, 0, -1))

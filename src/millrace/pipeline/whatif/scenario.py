"""Scenarios: changes of workers, limits, priorities, policies and load that a replay applies."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import msgspec

from millrace.pipeline.errors import PipelineError

from .slots import SlotRecord

#: The name of the scenario without changes.
UNCHANGED: Final = "as recorded"
#: The options whose values depend on a queue or a kind.
_KEYS: Final = {
    "workers": "queue", "limit": "queue", "priority": "kind", "run": "kind", "arrivals": "queue"
}  # fmt: skip
_SPAN: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)?")
_UNITS: Final = {"ms": 1_000, "s": 1_000_000, None: 1_000_000, "m": 60_000_000, "h": 3_600_000_000}


class Scenario(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """Keys of the mappings are queues or kinds; the key "" applies to all others."""

    name: str = UNCHANGED
    #: Number of slots that serve a queue; "": of all slots.
    workers: dict[str, int] = {}
    #: Maximum number of leased jobs of a queue.
    limits: dict[str, int] = {}
    #: Priority of the jobs of a kind.
    priorities: dict[str, float] = {}
    #: Factor of the run times of a kind.
    runs: dict[str, float] = {}
    #: Factor of the number of jobs of a queue.
    arrivals: dict[str, float] = {}
    #: Maximum number of retries, and the delay before each in microseconds; None: as recorded.
    retries: int | None = None
    retry_delay: int | None = None


def parse(text: str) -> Scenario:
    """Read a scenario such as `workers=8 limit:mail=5 retries=3`."""
    values: dict[str, dict[str, float]] = {option: {} for option in _KEYS}
    retries: int | None = None
    delay: int | None = None
    for word in text.split():
        name, equals, value = word.rpartition("=")
        option, _, key = name.partition(":")
        if not equals or (option not in values and option not in {"retries", "retry_delay"}):
            raise PipelineError(
                f"Unknown change {word!r}. Changes: workers=N, workers:QUEUE=N, limit:QUEUE=N, "
                "priority:KIND=N, run=F, run:KIND=F, arrivals=F, arrivals:QUEUE=F, retries=N, "
                "retry_delay=30s."
            )
        if option == "retry_delay":
            delay = _span(word, value)
            continue
        number = _number(word, value, negative=option == "priority")
        if option in {"workers", "limit", "retries"} and not number.is_integer():
            raise PipelineError(f"{word}: the number must be an integer.")
        if option == "retries":
            retries = int(number)
        else:
            values[option][key] = number
    for option in ("limit", "priority"):
        if "" in values[option]:
            key = _KEYS[option]
            raise PipelineError(f"{option} needs a {key}: {option}:{key.upper()}=N.")
    return Scenario(
        name=text,
        workers={key: int(value) for key, value in values["workers"].items()},
        limits={key: int(value) for key, value in values["limit"].items()},
        priorities=values["priority"],
        runs=values["run"],
        arrivals=values["arrivals"],
        retries=retries,
        retry_delay=delay,
    )


def _number(word: str, value: str, *, negative: bool) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or (number < 0 and not negative):
        raise PipelineError(f"{word}: {value!r} is not a valid number.")
    return number


def _span(word: str, value: str) -> int:
    found = _SPAN.fullmatch(value)
    if found is None:
        raise PipelineError(f"{word}: {value!r} is not a duration such as 30s or 5m.")
    return round(float(found[1]) * _UNITS[found[2]])


def factor(factors: Mapping[str, float], key: str) -> float:
    return factors.get(key, factors.get("", 1.0))


def apply_workers(slots: Sequence[SlotRecord], workers: Mapping[str, int]) -> list[SlotRecord]:
    """Add or remove slots until each queue has its number. A new slot is a copy of a recorded one,
    so it is present at the same times.
    """
    chosen = list(slots)
    for queue, wanted in sorted(workers.items()):
        serving = [slot for slot in chosen if not queue or queue in slot.queues]
        if not serving:
            continue
        # In this order, the chosen slots have the same share of all times of presence.
        serving.sort(key=lambda each: (each.first, each.last))
        if wanted < len(serving):
            removed = {id(serving[at]) for at in _spaced(len(serving), len(serving) - wanted)}
            chosen = [slot for slot in chosen if id(slot) not in removed]
        else:
            chosen += _copies(serving, wanted - len(serving))
    return chosen


def _spaced(size: int, count: int) -> list[int]:
    """Positions that are evenly spaced in a list of this size."""
    return [int((number + 0.5) * size / count) for number in range(count)]


def _copies(serving: Sequence[SlotRecord], count: int) -> Iterable[SlotRecord]:
    rounds, rest = divmod(count, len(serving))
    for source in [*list(serving) * rounds, *(serving[at] for at in _spaced(len(serving), rest))]:
        yield replace(source, leases=[], freed={})

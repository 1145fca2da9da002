"""The events of the journal. The engine creates them; all other packages only read them."""

from functools import lru_cache
from hashlib import blake2s
from re import compile as regex
from typing import Any, NamedTuple

#: Raised when fields are added; the journal stores it with each range of events.
#: 2: `before`, `created` and `source`, so that no reader needs a job's other events.
#: 3: an event that ends a lease or a job carries its totals, so that no reader needs a join.
EVENT_VERSION = 3


class Event(NamedTuple):
    """One event of one job. Times and durations are in microseconds.

    The engine appends plain tuples in this order: a NamedTuple costs three times as much, and each
    job has at least three events.
    """

    time: int
    type: str
    seq: int
    jid: str
    queue: str
    kind: str
    origin: int
    actor: int
    worker: str
    attempt: int
    state: int
    rank: int
    ready_at: int
    leased_at: int
    wait: int
    run: int
    due: int
    size: int
    before: int
    created: int
    group: str = ""
    message: str = ""
    fingerprint: str = ""
    tags: tuple[str, ...] = ()
    source: str = ""
    # Of an event that ends a lease, which also carries its `wait`: the protocol that leased, and
    # the number of renewals.
    holder: int = 0
    renewals: int = 0
    #: 1 if the job's previous failure has the same fingerprint as this one.
    repeat: int = 0
    # Of an event into `done`, `dead` or `gone`: totals over the life of the job, -1 if unknown, the
    # time of its first lease, its first queue if that is another one, and how and when it ended.
    leases: int = 0
    failures: int = 0
    wait_total: int = 0
    run_total: int = 0
    first_leased_at: int = 0
    first_queue: str = ""
    outcome: str = ""
    ended_at: int = 0


#: An event in transit: a tuple, or the list that the store returns.
Row = tuple[Any, ...]

_VARYING = regex(
    r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|0x[0-9a-fA-F]+|[0-9a-fA-F]{8,}|\d+"
    r"|(?<!\w)'[^']*'(?!\w)|\"[^\"]*\""
)


# Many jobs fail with the same message at the same time.
@lru_cache(maxsize=256)
def fingerprint(group: str, message: str) -> str:
    """Equal for errors that differ only in numbers, ids and quoted text."""
    shape = group + "\0" + _VARYING.sub("#", message[:1000])
    return blake2s(shape.encode("utf-8", "replace"), digest_size=8).hexdigest()

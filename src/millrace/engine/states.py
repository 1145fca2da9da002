"""The state machine: every permitted transition of a job is in this file.

A job is in one of six states. `scheduled` waits for a time: its first run or its next retry.
`blocked` waits for other jobs, or for the release of its bulk load (see bulk_loads.py). `ready`
waits for a worker. `leased` is held by a worker. `done` has succeeded; its result is available
until its retention ends. `dead` has failed permanently and stays for inspection. Two more names
describe a job outside the engine: `new` before the push, and `gone` after the removal, when only
its events remain.

Each transition has a cause, which is also the type of its event in the journal. One cause can lead
to several states, because the retry policy decides the state after a failure (see policies.py).
TRANSITIONS lists all transitions. `Transitions.apply` checks this list and is the only code that
assigns `job.state`.

Timers usually cause `due`, `expired`, `purged` and `evicted`; commands cause most others. A job is
`evicted` if its time to live ends before the job does. `renewed` changes no state; the table
lists it because the journal records it. If the protocol of the worker permits it, a job that is not
leased can be completed or failed, because its lease may have expired during the work. A job is
`doomed` if it waited for another job that failed permanently. A `moved` job starts again in another
queue. `advanced` is a successful step of a job that then moves to the next queue; between the two
transitions the job is done. An `expired` lease may stay with its holder for a grace period.
"""

from typing import Final

SCHEDULED: Final = 0
BLOCKED: Final = 1
READY: Final = 2
LEASED: Final = 3
DONE: Final = 4
DEAD: Final = 5
NEW: Final = 6
GONE: Final = 7

STATE_NAMES: Final = ("scheduled", "blocked", "ready", "leased", "done", "dead", "new", "gone")

#: Cause -> state before -> states after.
TRANSITIONS: Final[dict[str, dict[int, tuple[int, ...]]]] = {
    "pushed": {NEW: (SCHEDULED, BLOCKED, READY)},
    "due": {SCHEDULED: (READY,)},
    "unblocked": {BLOCKED: (SCHEDULED, READY)},
    "leased": {READY: (LEASED,)},
    "renewed": {LEASED: (LEASED,)},
    "released": {LEASED: (READY,)},
    "completed": {SCHEDULED: (DONE, GONE), READY: (DONE, GONE), LEASED: (DONE, GONE)},
    "failed": {
        SCHEDULED: (SCHEDULED, READY, DEAD, GONE),
        READY: (SCHEDULED, READY, DEAD, GONE),
        LEASED: (SCHEDULED, READY, DEAD, GONE),
    },
    "expired": {LEASED: (LEASED, SCHEDULED, READY, DEAD, GONE)},
    "doomed": {BLOCKED: (DEAD,)},
    "advanced": {LEASED: (DONE,)},
    "moved": {
        SCHEDULED: (SCHEDULED, BLOCKED, READY),
        BLOCKED: (SCHEDULED, BLOCKED, READY),
        READY: (SCHEDULED, BLOCKED, READY),
        LEASED: (SCHEDULED, BLOCKED, READY),
        DONE: (SCHEDULED, BLOCKED, READY),
        DEAD: (SCHEDULED, BLOCKED, READY),
    },
    "requeued": {SCHEDULED: (READY,), DEAD: (READY,)},
    "killed": {SCHEDULED: (DEAD,), BLOCKED: (DEAD,), READY: (DEAD,), DEAD: (DEAD,)},
    "cancelled": {
        SCHEDULED: (GONE,),
        BLOCKED: (GONE,),
        READY: (GONE,),
        LEASED: (GONE,),
        DONE: (GONE,),
        DEAD: (GONE,),
    },
    "evicted": {SCHEDULED: (GONE,), BLOCKED: (GONE,), READY: (GONE,), LEASED: (GONE,)},
    "purged": {DONE: (GONE,), DEAD: (GONE,)},
}

#: Causes of a failure.
FAILURE_CAUSES: Final = frozenset({"failed", "expired", "doomed"})

#: The same table as one set of small numbers per cause, for fast checks.
LEGAL_TRANSITIONS: Final[dict[str, frozenset[int]]] = {
    cause: frozenset(before * 8 + after for before, targets in moves.items() for after in targets)
    for cause, moves in TRANSITIONS.items()
}


def diagram() -> str:
    """The table as a Mermaid state diagram; docs/explanation/states.md shows it."""
    arrows: dict[tuple[int, int], list[str]] = {}
    for cause, moves in TRANSITIONS.items():
        for before, targets in moves.items():
            for after in targets:
                arrows.setdefault((before, after), []).append(cause)
    lines = ["stateDiagram-v2"]
    for (before, after), causes in sorted(arrows.items()):
        left = "[*]" if before == NEW else STATE_NAMES[before]
        right = "[*]" if after == GONE else STATE_NAMES[after]
        lines.append(f"    {left} --> {right}: {', '.join(causes)}")
    return "\n".join(lines) + "\n"

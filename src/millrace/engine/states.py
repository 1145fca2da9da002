"""The state machine: every permitted transition of a job is in this file.

A job is in one of six states. `scheduled` waits for a time: its first run or its next retry.
`blocked` waits for other jobs, or for the release of its bulk load (see loads.py). `ready` waits
for a worker. `leased` is with a worker. `done` has succeeded; its result is available for a while.
`dead` has failed finally and stays for inspection. Two more names stand for the outside: `new`
before the push, and `gone` after the removal, when only the events of the job remain.

Each transition has a cause, which is also the type of its event in the journal. One cause can lead
to several states, because the retry policy decides what follows a failure (see policy.py).
TRANSITIONS lists all of them, and `Transitions.apply`, which checks this list, is the only code
that assigns `job.state`.

Timers cause `due`, `expired`, `purged` and `evicted`; `evicted` is a job whose time to live ended
before the job did. Commands cause all other transitions. `renewed` changes no state; it is listed
because the journal has it. A job that is not leased can be completed or failed where the protocol
of the worker permits it, because its lease may have expired during the work. `doomed` is a job that
waited for another job which failed finally. `moved` is a job that starts again in another queue.
`advanced` is a successful step of a job that then moves to the next queue; in between it is done.
An `expired` lease may stay with its holder for a grace period.
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

#: The same as one set of small numbers per cause, for fast checks.
LEGAL: Final[dict[str, frozenset[int]]] = {
    cause: frozenset(before * 8 + after for before, afters in moves.items() for after in afters)
    for cause, moves in TRANSITIONS.items()
}


def diagram() -> str:
    """The table as a Mermaid state diagram; docs/explanation/states.md shows it."""
    arrows: dict[tuple[int, int], list[str]] = {}
    for cause, moves in TRANSITIONS.items():
        for before, afters in moves.items():
            for after in afters:
                arrows.setdefault((before, after), []).append(cause)
    lines = ["stateDiagram-v2"]
    for (before, after), causes in sorted(arrows.items()):
        left = "[*]" if before == NEW else STATE_NAMES[before]
        right = "[*]" if after == GONE else STATE_NAMES[after]
        lines.append(f"    {left} --> {right}: {', '.join(causes)}")
    return "\n".join(lines) + "\n"

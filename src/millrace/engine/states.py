"""The state machine: everything that may change a job's state is in this file.

A job is in one of six states.

`scheduled` waits for a moment: its first run or its next try. `blocked` waits for other jobs, or
for the release of the load that it came with (see loads.py). `ready` waits for a worker. `leased`
is with one. `done` has succeeded and is kept for whoever asks for its result. `dead` has failed for
good and is kept for a person to look at. Two more names stand for what lies outside: `new` before a
job is pushed, `gone` when nothing is kept of it but its events.

A change of state has a cause, and the cause is also the type of the event that the journal gets.
The same cause may lead to different states, because what follows a failure is the policy's decision
(see policy.py); but no cause leads anywhere that TRANSITIONS does not list, and no code assigns
`job.state` except `Transitions.apply`, which looks here first.

How time acts: `due` and `expired` come from the timer, `purged` and `evicted` too: `evicted` is a
job whose time to live ended before the job did. Everything else is somebody's command. `renewed`
changes no state; it is listed because the journal has it. A job may be completed or failed while
nobody holds it, where the protocol of whoever says so allows that: a lease may have run out while
its worker still worked. `doomed` is a job that waited for one that has failed for good, and `moved`
one that went to another queue: there it begins anew. `advanced` is a step that succeeded of a job
that goes on to the next queue; between the two it is done for a moment. An `expired` lease may stay
with its holder for a time of grace.
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

#: cause -> from -> where it may lead
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

#: The same, folded into one set of small numbers per cause: the hot path asks it.
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

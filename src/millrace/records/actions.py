"""The actions on jobs, declared once: routes, buttons, confirmations and reports derive from them.

The function of each action is in admin.actions, under the same name.
"""

from typing import Final, Literal, NamedTuple

from .types import State

Argument = Literal["queue", "priority", "tags", "waits_for"]


class JobAction(NamedTuple):
    name: str
    #: Label of the button.
    label: str
    #: Completes "3 jobs were ...".
    past: str
    #: States in which the action applies.
    states: tuple[State, ...]
    #: Effect, as a sentence without a subject.
    effect: str
    #: Name of the HTTP operation.
    operation: str
    argument: Argument | None = None
    #: Cannot be undone: pages ask for confirmation.
    destructive: bool = False


_UNFINISHED: Final[tuple[State, ...]] = ("scheduled", "blocked", "ready")
_ALL: Final[tuple[State, ...]] = ("scheduled", "blocked", "ready", "leased", "done", "dead")

JOB_ACTIONS: Final = (
    JobAction(
        "retry",
        "Retry",
        "made ready",
        ("scheduled", "dead"),
        "Make a scheduled or dead job ready now",
        "retry_job",
    ),
    JobAction(
        "kill",
        "Kill",
        "killed",
        _UNFINISHED,
        "Move the job to the dead set",
        "kill_job",
    ),
    JobAction(
        "cancel",
        "Cancel",
        "cancelled",
        (*_UNFINISHED, "done", "dead"),
        "Remove the job, unless it is leased or other jobs depend on it",
        "cancel_job",
        destructive=True,
    ),
    JobAction(
        "delete",
        "Delete",
        "deleted",
        _ALL,
        "Remove the job in any state",
        "delete_job",
        destructive=True,
    ),
    JobAction(
        "move",
        "Move",
        "moved",
        (*_UNFINISHED, "dead"),
        "Move the job to another queue",
        "move_job",
        "queue",
    ),
    JobAction(
        "priority",
        "Set priority",
        "given the new priority",
        (*_UNFINISHED, "leased", "dead"),
        "Change the priority",
        "change_priority",
        "priority",
    ),
    JobAction("tag", "Add tags", "tagged", _ALL, "Add tags", "tag_job", "tags"),
    JobAction("untag", "Remove tags", "untagged", _ALL, "Remove tags", "untag_job", "tags"),
    JobAction("track", "Track", "marked as tracked", _ALL, "Track the job", "track_job"),
    JobAction(
        "untrack", "Stop tracking", "no longer tracked", _ALL, "Stop tracking", "untrack_job"
    ),
    JobAction(
        "undepend",
        "Remove dependency",
        "freed of dependencies",
        ("blocked",),
        "Remove dependencies on other jobs",
        "undepend_job",
        "waits_for",
    ),
    JobAction(
        "timeout",
        "Time out",
        "timed out",
        ("leased",),
        "End the lease as if it had expired",
        "time_out_job",
    ),
)
ACTIONS_BY_NAME: Final = {action.name: action for action in JOB_ACTIONS}

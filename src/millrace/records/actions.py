"""Operator actions, each declared once.

Derived from the tables: the names that the admin socket accepts, the HTTP routes, the actions of a
bulk request, the buttons of the pages with their confirmations and notices, the verbs of the
command line, and the table in docs/reference/actions.md. The function of a job action is in
admin.actions and has the name of the action.
"""

from typing import Any, Final, Literal, NamedTuple

from .types import State

#: An argument has one name as a field of a request, a member of a body and an option of a command.
Argument = Literal["queue", "priority", "tags", "waits_for", "keep_results", "limit"]


class OperatorAction(NamedTuple):
    name: str
    #: Label of the button.
    label: str
    #: Effect, as a sentence without a subject and a full stop.
    effect: str
    #: Completes "3 jobs were ...".
    past: str
    #: States of a job in which the action applies.
    states: tuple[State, ...] = ()
    argument: Argument | None = None
    #: The argument may be omitted.
    optional: bool = False
    #: Text after the question of the confirmation. Without it, no confirmation is required.
    warning: str = ""
    #: The target no longer exists afterwards.
    removes: bool = False
    #: Labels that differ in some states.
    state_labels: tuple[tuple[State, str], ...] = ()
    #: Identifier of the HTTP operation.
    operation: str = ""
    #: Title of a run; a format with {target} and the names of arguments.
    title: str = ""

    @property
    def has_input(self) -> bool:
        """The action requires an argument."""
        return self.argument is not None and not self.optional

    @property
    def state_list(self) -> str:
        """`scheduled, blocked or ready`"""
        return " or ".join(filter(None, (", ".join(self.states[:-1]), self.states[-1])))

    def label_in(self, state: str) -> str:
        return next((label for each, label in self.state_labels if each == state), self.label)

    def describe(self, target: str, request: Any) -> str:
        """The title of a run of this action: `Move 3 jobs to mail`."""
        arguments = {
            "queue": request.queue,
            "priority": request.priority,
            "tags": ", ".join(request.tags),
        }
        return self.title.format(target=target, **arguments)

    @property
    def confirmed_title(self) -> str:
        """The title of a confirmation, with {target} and without arguments."""
        return f"{self.label}: {{target}}" if self.has_input else self.title

    def question(self, target: str) -> str:
        """The text of the confirmation: `Kill this job? ...`."""
        return f"{self.label} {target}? {self.warning}" if self.warning else ""


_WAITING: Final[tuple[State, ...]] = ("scheduled", "blocked", "ready")
ALL_STATES: Final[tuple[State, ...]] = (*_WAITING, "leased", "done", "dead")
_PERMANENT: Final = "This cannot be undone."


def _table(kind: str, *actions: OperatorAction) -> dict[str, OperatorAction]:
    """The actions on jobs, queues, workers or recurring jobs, by name."""
    target = {"queue": "queue {target}", "recurring": "recurring job {target}"}.get(
        kind, "{target}"
    )
    return {
        action.name: action._replace(
            operation=action.operation or f"{action.name}_{kind}",
            title=action.title.replace("{target}", target) or f"{action.label} {target}",
        )
        for action in actions
    }


JOB_ACTIONS: Final = _table(
    "job",
    OperatorAction(
        "retry",
        "Retry",
        "Make a scheduled or dead job ready now",
        "made ready",
        ("scheduled", "dead"),
        state_labels=(("scheduled", "Run now"),),
    ),
    OperatorAction(
        "kill",
        "Kill",
        "Move a job to the dead set",
        "killed",
        _WAITING,
        warning="Killed jobs move to the dead set.",
    ),
    OperatorAction(
        "cancel",
        "Cancel",
        "Remove a job and revoke its lease, unless other jobs depend on it",
        "cancelled",
        ALL_STATES,
        warning="Jobs with dependents remain. " + _PERMANENT,
        removes=True,
    ),
    OperatorAction(
        "delete",
        "Delete",
        "Remove a job in any state, even if other jobs depend on it",
        "deleted",
        ALL_STATES,
        warning="Jobs that depend on a deleted job may run. " + _PERMANENT,
        removes=True,
    ),
    OperatorAction(
        "timeout",
        "Time out",
        "End the lease of a job as if it had expired",
        "timed out",
        ("leased",),
        warning="The lease ends, and another worker may run the job.",
        operation="time_out_job",
    ),
    OperatorAction(
        "undepend",
        "Remove dependencies",
        "Remove the dependencies of a job on other jobs",
        "freed of dependencies",
        ("blocked",),
        "waits_for",
        optional=True,
        warning="The jobs may run before the jobs they depend on.",
        title="Remove the dependencies of {target}",
    ),
    OperatorAction(
        "track",
        "Track",
        "Track a job: show it on the Tracked page",
        "marked as tracked",
        ALL_STATES,
    ),
    OperatorAction(
        "untrack", "Stop tracking", "Stop tracking a job", "no longer tracked", ALL_STATES
    ),
    OperatorAction(
        "move",
        "Move",
        "Move a job to another queue",
        "moved",
        (*_WAITING, "done", "dead"),
        "queue",
        title="Move {target} to {queue}",
    ),
    OperatorAction(
        "priority",
        "Set priority",
        "Change the priority of a job",
        "given a new priority",
        (*_WAITING, "leased", "dead"),
        "priority",
        operation="change_priority",
        title="Set the priority of {target} to {priority:g}",
    ),
    OperatorAction(
        "tag",
        "Add tags",
        "Add tags to a job",
        "tagged",
        ALL_STATES,
        "tags",
        title="Tag {target} with {tags}",
    ),
    OperatorAction(
        "untag",
        "Remove tags",
        "Remove tags from a job",
        "untagged",
        ALL_STATES,
        "tags",
        title="Remove {tags} from {target}",
    ),
)


def job_actions(*states: str) -> list[OperatorAction]:
    """The actions that apply in one of these states, with their labels; "retrying" is a scheduled
    job that has failed. Delete removes jobs that have ended, so Cancel is not among their actions.
    """
    stored = {"scheduled" if state == "retrying" else state for state in states}
    ended = stored <= {"done", "dead"}
    label_state = states[0] if len(states) == 1 else ""
    return [
        action._replace(label=action.label_in(label_state))
        for action in JOB_ACTIONS.values()
        if stored.intersection(action.states) and not (ended and action.name == "cancel")
    ]


QUEUE_ACTIONS: Final = _table(
    "queue",
    OperatorAction(
        "pause", "Pause", "Stop leasing jobs of a queue; running jobs continue", "paused"
    ),
    OperatorAction("resume", "Resume", "Lease jobs of a paused queue again", "resumed"),
    OperatorAction(
        "retain",
        "Keep results",
        "Set how long completed jobs of a queue are kept with their results",
        "changed",
        argument="keep_results",
        optional=True,
        title="Set how long {target} keeps completed jobs",
    ),
    OperatorAction(
        "limit",
        "Limit",
        "Set the maximum number of leased jobs of a queue",
        "changed",
        argument="limit",
        optional=True,
        title="Set the limit of {target}",
    ),
    OperatorAction(
        "clear",
        "Clear",
        "Remove the ready jobs of a queue; jobs in other states remain",
        "cleared",
        warning="Its ready jobs are removed. " + _PERMANENT,
    ),
    OperatorAction(
        "remove",
        "Remove",
        "Remove a queue and its ready jobs",
        "removed",
        warning="The queue and its ready jobs are removed. " + _PERMANENT,
        removes=True,
    ),
)

WORKER_ACTIONS: Final = _table(
    "worker",
    OperatorAction(
        "quiet",
        "Quiet",
        "Signal a Faktory worker to stop fetching",
        "signalled to stop fetching at the next heartbeat",
        warning="Workers finish their current jobs and fetch no more.",
    ),
    OperatorAction(
        "terminate",
        "Terminate",
        "Signal a Faktory worker to exit",
        "signalled to exit at the next heartbeat",
        warning="Workers finish or return their current jobs, then exit.",
    ),
)

RECURRING_ACTIONS: Final = _table(
    "recurring",
    OperatorAction(
        "cancel",
        "Cancel",
        "Cancel a recurring job",
        "cancelled",
        warning="Jobs that it created remain.",
        removes=True,
    ),
    OperatorAction(
        "move",
        "Move",
        "Move a recurring job to another queue",
        "moved",
        argument="queue",
        title="Move {target} to {queue}",
    ),
    OperatorAction(
        "priority",
        "Set priority",
        "Change the priority of a recurring job",
        "given a new priority",
        argument="priority",
        operation="change_recurring_priority",
        title="Set the priority of {target} to {priority:g}",
    ),
    OperatorAction(
        "tag",
        "Add tags",
        "Add tags to a recurring job",
        "tagged",
        argument="tags",
        title="Tag {target} with {tags}",
    ),
    OperatorAction(
        "untag",
        "Remove tags",
        "Remove tags from a recurring job",
        "untagged",
        argument="tags",
        title="Remove {tags} from {target}",
    ),
)

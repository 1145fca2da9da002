"""Operator commands that change something: push, the actions on jobs, and those on queues.

The actions on jobs are the table of millrace.records.actions.
"""

import inspect
import json as jsonlib
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, Self

import typer

from millrace.cli.listings import Search
from millrace.cli.operator_command import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_SKIPPED,
    EXIT_USAGE,
    Yes,
    confirm,
    fail,
    operator_command,
)
from millrace.cli.output import ProgressBar
from millrace.cli.tables import plural, print_json, printable
from millrace.records.actions import ALL_STATES, JOB_ACTIONS, QUEUE_ACTIONS, OperatorAction

if TYPE_CHECKING:
    from millrace.cli.remote import Changed, Remote

#: Skipped jobs that are listed.
MAX_LISTED: Final = 10

QueueName = Annotated[
    str, typer.Argument(metavar="QUEUE", help="Name of the queue.", show_default=False)
]


@operator_command
def push_command(
    remote: "Remote",
    queue: QueueName,
    payload: Annotated[
        str,
        typer.Argument(
            metavar="PAYLOAD", help="JSON, or - to read it from standard input.", show_default=False
        ),
    ],
    kind: Annotated[str, typer.Option(help="Kind of the job: the code to run.")] = "",
    jid: Annotated[str, typer.Option("--id", help="ID of the job. Default: generated.")] = "",
    delay: Annotated[float, typer.Option(min=0, help="Seconds until the job is due.")] = 0,
    priority: Annotated[float, typer.Option(help="Higher priorities are leased first.")] = 0,
    retries: Annotated[int, typer.Option(min=0, help="Maximum number of retries.")] = 25,
    tag: Annotated[list[str] | None, typer.Option(help="A tag; repeatable.")] = None,
    waits_for: Annotated[
        list[str] | None, typer.Option(help="ID of a job that must complete first; repeatable.")
    ] = None,
    keep_result: Annotated[
        float | None, typer.Option(min=0, help="Seconds to keep the completed job with its result.")
    ] = None,
    key: Annotated[
        str, typer.Option(help="Idempotency key: a repeated push returns the same job.")
    ] = "",
    *,
    json: bool,
) -> int:
    """Push a job and print its ID.

    Examples:
    - `millrace push mail '{"to": "ada@example.org"}' --kind send`
    - `millrace push reports - --delay 3600 < report.json`
    - `millrace push mail '[7]' --key order-7`: repeating it pushes nothing

    """
    text = sys.stdin.read() if payload == "-" else payload
    try:
        value = jsonlib.loads(text)
    except ValueError as error:
        return fail(f"The payload is not JSON: {error}", EXIT_USAGE)
    job: dict[str, Any] = {
        "queue": queue,
        "payload": value,
        "kind": kind,
        "id": jid,
        "delay": delay,
        "priority": priority,
        "retries": retries,
        "tags": tag or [],
        "waits_for": waits_for or [],
    }
    if keep_result is not None:
        job["keep_result"] = keep_result
    pushed = remote.push([job], key)
    if json:
        print_json(pushed)
    else:
        sys.stdout.write(pushed["jobs"][0]["id"] + "\n")
    return 0


# Actions on jobs

All = Annotated[bool, typer.Option("--all", help="Select every job, without a search.")]


class ActionOption(NamedTuple):
    """The option of an argument of actions, and its use in an example."""

    name: str
    type: Any
    example: str
    default: Any = inspect.Parameter.empty


_OPTIONS: Final = {
    "queue": ActionOption(
        "queue",
        Annotated[
            str, typer.Option("--to", metavar="QUEUE", help="Target queue.", show_default=False)
        ],
        " --to other",
    ),
    "priority": ActionOption(
        "priority",
        Annotated[
            float,
            typer.Option("--priority", metavar="N", help="New priority.", show_default=False),
        ],
        " --priority 5",
    ),
    "tags": ActionOption(
        "tags",
        Annotated[
            list[str],
            typer.Option("--tag", metavar="TAG", help="A tag; repeatable.", show_default=False),
        ],
        " --tag urgent",
    ),
    "waits_for": ActionOption(
        "waits_for",
        Annotated[
            list[str] | None,
            typer.Option(
                "--waits-for",
                metavar="JID",
                help="ID of a dependency; repeatable. Default: all dependencies.",
            ),
        ],
        "",
        None,
    ),
}


def job_verb(action: OperatorAction) -> Callable[..., None]:
    """The command of an action on jobs."""
    option = _OPTIONS.get(action.argument or "")

    def command(
        remote: "Remote",
        query: Search = None,
        *,
        everything: All = False,
        yes: Yes = False,
        json: bool,
        **arguments: Any,
    ) -> int:
        text = " ".join(query or [])
        given = {name: value for name, value in arguments.items() if value is not None}
        return act(remote, action, text, given, everything=everything, yes=yes, json=json)

    parameters = [*inspect.signature(command).parameters.values()][:-1]
    if option is not None:
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters.append(
            inspect.Parameter(option.name, kind, default=option.default, annotation=option.type)
        )
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    example = f"queue:mail state:{action.states[-1]}{option.example if option else ''}"
    applies = "in any state" if action.states == ALL_STATES else f"that are {action.state_list}"
    command.__doc__ = f"""{action.effect}.

    Prints the number of jobs that match the search, asks for confirmation, and changes them.
    Applies to jobs {applies}. Jobs that cannot be changed are skipped, and the
    exit code is 3. Ctrl-C stops the command; completed changes remain.

    Examples:
    - `millrace {action.name} {example}`
    - `millrace {action.name} id:17 --yes{option.example if option else ""}`: one job

    """
    return operator_command(command)


def act(
    remote: "Remote",
    action: OperatorAction,
    text: str,
    arguments: dict[str, Any],
    *,
    everything: bool,
    yes: bool,
    json: bool,
) -> int:
    from millrace.records import ActionRequest  # noqa: PLC0415

    if bool(text.strip()) == everything:
        return fail("Give a search, or --all for every job.", EXIT_USAGE)
    with ProgressBar("Searching") as progress:
        numbers = remote.find_numbers(text, progress)
    found = plural(len(numbers))
    if not numbers:
        if json:
            print_json({"matched": 0, "done": 0, "skipped": 0, "skipped_jobs": []})
        else:
            sys.stdout.write("No jobs match.\n")
        return 0
    if not json:
        match = "matches" if len(numbers) == 1 else "match"
        sys.stderr.write(f"{found} {match}.\n")
    title = action.describe(found, ActionRequest(action.name, **arguments))
    question = action.question(found) or f"{title}?"
    if not confirm(question, yes=yes):
        return EXIT_USAGE if not sys.stdin.isatty() else EXIT_FAILED
    outcome = _change(remote, action, numbers, arguments)
    _report(action, len(numbers), outcome, json=json)
    if outcome.error:
        return fail(outcome.error)
    if outcome.is_interrupted:
        return EXIT_INTERRUPTED
    return EXIT_SKIPPED if outcome.changed.skipped else 0


class StopRequest:
    """Ctrl-C asks a block to stop after the current batch, so that its numbers are exact. The
    second Ctrl-C interrupts the block.
    """

    def __init__(self) -> None:
        self.is_requested = False

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGINT, self._request)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _request(self, *_: object) -> None:
        if self.is_requested:
            raise KeyboardInterrupt
        self.is_requested = True


class BulkOutcome(NamedTuple):
    """The result of all batches. It does not include a batch that was interrupted or failed."""

    changed: "Changed"
    is_interrupted: bool = False
    is_exact: bool = True
    error: str = ""


def _change(
    remote: "Remote", action: OperatorAction, numbers: list[int], arguments: dict[str, Any]
) -> BulkOutcome:
    from millrace.cli.control import NotAnswered  # noqa: PLC0415
    from millrace.cli.remote import ACTION_BATCH_SIZE, Changed  # noqa: PLC0415

    total = Changed(0, 0, [])
    try:
        with StopRequest() as stop, ProgressBar(action.label) as progress:
            for first in range(0, len(numbers), ACTION_BATCH_SIZE):
                if stop.is_requested:
                    return BulkOutcome(total, is_interrupted=True)
                changed = remote.act(
                    action.name, numbers[first : first + ACTION_BATCH_SIZE], arguments
                )
                total = Changed(
                    total.done + changed.done,
                    total.skipped + changed.skipped,
                    total.reasons + changed.reasons,
                )
                progress(first + ACTION_BATCH_SIZE, len(numbers))
    except KeyboardInterrupt:
        return BulkOutcome(total, is_interrupted=True, is_exact=False)
    except NotAnswered as error:
        return BulkOutcome(total, is_exact=False, error=str(error))
    return BulkOutcome(total)


def _report(action: OperatorAction, matched: int, outcome: BulkOutcome, *, json: bool) -> None:
    total = outcome.changed
    if json:
        skipped = [{"id": jid, "reason": reason} for jid, reason in total.reasons]
        print_json(
            {
                "matched": matched,
                "done": total.done,
                "skipped": total.skipped,
                "skipped_jobs": skipped,
                "interrupted": outcome.is_interrupted,
            }
        )
        return
    sys.stdout.write(f"{plural(total.done)} {_was(total.done)} {action.past}.\n")
    if total.skipped:
        sys.stderr.write(f"{plural(total.skipped)} {_was(total.skipped)} skipped:\n")
        for jid, reason in total.reasons[:MAX_LISTED]:
            sys.stderr.write(f"  {printable(jid)}: {printable(reason)}\n")
    if outcome.is_interrupted or outcome.error:
        left = matched - total.done - total.skipped
        start = "Interrupted. " if outcome.is_interrupted else ""
        bound = "" if outcome.is_exact else "At most "
        sys.stderr.write(f"{start}{bound}{plural(left)} {_was(left)} not changed.\n")


def _was(count: int) -> str:
    return "was" if count == 1 else "were"


# Actions on queues


def _argument(metavar: str, text: str) -> Any:
    return Annotated[str, typer.Argument(metavar=metavar, help=text, show_default=False)]


#: By the argument of the action: its parameter, and an example.
_QUEUE_ARGUMENTS: Final = {
    "keep_results": (
        _argument("SECONDS", 'Number of seconds, or "default" to remove the setting.'),
        " 86400",
    ),
    "limit": (_argument("N", 'Number of jobs, or "default" to remove the limit.'), " 5"),
}


def queue_verb(action: OperatorAction) -> Callable[..., None]:
    """The command of an action on a queue."""
    value_type, example = _QUEUE_ARGUMENTS.get(action.argument or "", (None, ""))

    def command(
        remote: "Remote",
        queue: QueueName,
        value: str = "default",
        *,
        yes: Yes = False,
        json: bool,
    ) -> int:
        arguments: dict[str, float | None] = {}
        if action.argument:
            try:
                arguments[action.argument] = _number(value)
            except ValueError:
                return fail("Give a number, or `default`.", EXIT_USAGE)
        if action.warning and not _confirm_removal(remote, queue, action, yes=yes, json=json):
            return EXIT_USAGE if not sys.stdin.isatty() else EXIT_FAILED
        removed = remote.act_on_queue(queue, action.name, arguments)
        if json:
            print_json({"queue": queue, "action": action.name, "removed": removed})
        elif action.warning:
            sys.stdout.write(f"{plural(removed)} {_was(removed)} removed.\n")
        else:
            sys.stdout.write(f'Queue "{printable(queue)}" was {action.past}.\n')
        return 0

    own = inspect.signature(command).parameters
    kept = [own["remote"], own["queue"]]
    if value_type is not None:
        kept.append(own["value"].replace(annotation=value_type, default=inspect.Parameter.empty))
    kept += [own["yes"], own["json"]] if action.warning else [own["json"]]
    command.__signature__ = inspect.Signature(kept)  # type: ignore[attr-defined]
    yes_option = " --yes" if action.warning else ""
    command.__doc__ = f"""{action.effect}.

    Examples:
    - `millrace {action.name} mail{example}{yes_option}`

    """
    return operator_command(command)


def _number(text: str) -> float | None:
    if text == "default":
        return None
    return int(text) if text.isdecimal() else float(text)


def _confirm_removal(
    remote: "Remote", queue: str, action: OperatorAction, *, yes: bool, json: bool
) -> bool:
    detail = remote.queue(queue)
    name, ready = printable(queue), detail["queue"]["jobs"]["ready"]
    if not json:
        sys.stderr.write(f'Queue "{name}" has {plural(ready)} in the state ready.\n')
    return confirm(action.question(f'queue "{name}"'), yes=yes)


VERBS: Final = {action.name: job_verb(action) for action in JOB_ACTIONS.values()}
QUEUE_VERBS: Final = {action.name: queue_verb(action) for action in QUEUE_ACTIONS.values()}

"""How a dialect changes the reply or the error of a command of dialect C."""

from collections.abc import Callable, Generator
from typing import Any

from .errors import ScriptError

Change = Callable[[Any], Any] | None
ErrorHandler = Callable[[ScriptError], Any] | None


def adapt(command: Callable[[], Any], change: Change = None, on_error: ErrorHandler = None) -> Any:
    """Carry out a command, and return its reply as converted by `change`, or the result of
    `on_error` if it fails. If the command runs in slices, both are called after its last one.
    `change` may itself return work in slices.
    """
    try:
        reply = command()
    except ScriptError as error:
        if on_error is None:
            raise
        return on_error(error)
    if isinstance(reply, Generator):
        return _in_slices(reply, change, on_error)
    return reply if change is None else change(reply)


def _in_slices(
    work: Generator[None, None, Any], change: Change, on_error: ErrorHandler
) -> Generator[None, None, Any]:
    try:
        reply = yield from work
    except ScriptError as error:
        if on_error is None:
            raise
        return on_error(error)
    if change is not None:
        reply = change(reply)
    return (yield from reply) if isinstance(reply, Generator) else reply

"""How a dialect changes the reply or the error of a command of dialect C."""

from collections.abc import Callable, Generator
from typing import Any

from .errors import ScriptError

Change = Callable[[Any], Any] | None
Refuse = Callable[[ScriptError], Any] | None


def adapt(command: Callable[[], Any], change: Change = None, refuse: Refuse = None) -> Any:
    """Carry out a command, and return its reply after `change`, or the result of `refuse` after an
    error. If the command runs in slices, both are called after its last one. `change` may itself
    return work in slices.
    """
    try:
        reply = command()
    except ScriptError as error:
        if refuse is None:
            raise
        return refuse(error)
    if isinstance(reply, Generator):
        return _in_slices(reply, change, refuse)
    return reply if change is None else change(reply)


def _in_slices(
    work: Generator[None, None, Any], change: Change, refuse: Refuse
) -> Generator[None, None, Any]:
    try:
        reply = yield from work
    except ScriptError as error:
        if refuse is None:
            raise
        return refuse(error)
    if change is not None:
        reply = change(reply)
    return (yield from reply) if isinstance(reply, Generator) else reply

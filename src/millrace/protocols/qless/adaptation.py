"""How a dialect changes the reply or the error of a command of dialect C."""

from collections.abc import Callable, Generator
from typing import Any, NoReturn

from .errors import ScriptError


def unchanged(reply: Any) -> Any:
    return reply


def raised(error: ScriptError) -> NoReturn:
    raise error


def adapt(
    command: Callable[[], Any],
    change: Callable[[Any], Any] = unchanged,
    refuse: Callable[[ScriptError], Any] = raised,
) -> Any:
    """Carry out a command, and return its reply after `change`, or the result of `refuse` after an
    error. If the command runs in slices, both are called after its last one. `change` may itself
    return work in slices.
    """
    try:
        reply = command()
    except ScriptError as error:
        return refuse(error)
    return _in_slices(reply, change, refuse) if isinstance(reply, Generator) else change(reply)


def _in_slices(
    work: Generator[None, None, Any],
    change: Callable[[Any], Any],
    refuse: Callable[[ScriptError], Any],
) -> Generator[None, None, Any]:
    try:
        reply = yield from work
    except ScriptError as error:
        return refuse(error)
    reply = change(reply)
    return (yield from reply) if isinstance(reply, Generator) else reply

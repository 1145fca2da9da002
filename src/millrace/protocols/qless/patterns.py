"""Patterns for the names of queues, which reqless keeps for its workers: which queues a name stands
for, and in which order they are asked.
"""

from typing import Any, Final

import msgspec

from . import lua
from .arguments import texts
from .contract import ScriptError
from .first import Call
from .resp import Reply
from .state import PATTERNS, Qless

_IDENTIFIERS: Final = PATTERNS + "identifiers"
_PRIORITIES: Final = PATTERNS + "priorities"
_ANY_QUEUE: Final = '["*"]'
_IN_TURN: Final = '{"fairly": false, "pattern": ["default"]}'


def identifiers(q: Qless) -> dict[str, str]:
    """Which queues a name stands for: lists in JSON by name."""
    kept = q.engine.notes.get(_IDENTIFIERS)
    found = {} if kept is None else msgspec.msgpack.decode(kept, type=dict[str, str])
    return {"default": _ANY_QUEUE, **found}


def priorities(q: Qless) -> list[str]:
    """In which order queues are asked: objects in JSON."""
    kept = q.engine.notes.get(_PRIORITIES)
    return [_IN_TURN] if kept is None else msgspec.msgpack.decode(kept, type=list[str])


def get_identifiers(api: Any, call: Call) -> Reply:
    return lua.encode(identifiers(api.qless))


def set_identifiers(api: Any, call: Call) -> Reply:
    """Names and lists by turns. A name with an empty list is left out."""
    if len(call.args) % 2:
        raise ScriptError("Odd number of identifier patterns: table: 0x0")
    given = zip(texts(call.args[::2]), call.args[1::2], strict=True)
    chosen = {name: value.decode("utf-8", "replace") for name, value in given if _filled(value)}
    chosen.setdefault("default", _ANY_QUEUE)
    api.engine.note(_IDENTIFIERS, msgspec.msgpack.encode(chosen))
    return None


def _filled(value: bytes) -> bool:
    return bool(lua.decode_list(value))


def get_priorities(api: Any, call: Call) -> Reply:
    return lua.encode(priorities(api.qless))


def set_priorities(api: Any, call: Call) -> Reply:
    """Patterns, among which is always a default one; or nothing, and all are forgotten."""
    chosen = texts(call.args)
    if chosen and not any(_pattern(value) == ["default"] for value in call.args):
        chosen.append(_IN_TURN)
    api.engine.note(_PRIORITIES, msgspec.msgpack.encode(chosen) if chosen else None)
    return None


def _pattern(value: bytes) -> Any:
    found = lua.decode(value)
    if not isinstance(found, dict) or not isinstance(found.get("pattern"), list):
        raise ScriptError('queuePriorityPatterns.setAll(): Arg "pattern" missing or not a list')
    return found["pattern"]

"""Patterns for queue names, which reqless stores for its workers: the queues that an identifier
matches, and the order in which workers poll them. Clients set them with commands, or write the keys
`ql:qp:identifiers` and `ql:qp:priorities`. Clients of qmore, the predecessor of reqless, write them
to scratch keys. The scratch keys apply until a client sets patterns.
"""

from typing import Any, Final

import msgspec

from millrace.engine.errors import QueueRefused
from millrace.protocols.errors import ClientError

from . import lua_values as lua
from .arguments import texts
from .dialect_a import Call
from .errors import ChangeRefused, ScriptError
from .names import decode_name
from .resp import Reply
from .scratch import scratch_prefix
from .state import PATTERNS_PREFIX, QlessState

_IDENTIFIERS: Final = "identifiers"
_PRIORITIES: Final = "priorities"
_QMORE_IDENTIFIERS: Final = b"qmore:dynamic"
_QMORE_PRIORITIES: Final = b"qmore:priority"
#: Maximum size of the patterns of each kind, in bytes.
MAX_PATTERN_BYTES: Final = 1 << 20
_ANY_QUEUE: Final = '["*"]'
_DEFAULT_PRIORITY: Final = '{"fairly": false, "pattern": ["default"]}'


def _setting_key(q: QlessState, name: str) -> str:
    """Return the key of the setting with the patterns of the current database."""
    return PATTERNS_PREFIX + q.engine_name(name)


def is_stored(q: QlessState, name: str) -> bool:
    return _setting_key(q, name) in q.engine.settings


def stored_identifiers(q: QlessState) -> dict[str, str]:
    """Return the queues that each identifier matches: JSON lists by name."""
    stored = q.engine.settings.get(_setting_key(q, _IDENTIFIERS))
    return {} if stored is None else msgspec.msgpack.decode(stored, type=dict[str, str])


def stored_priorities(q: QlessState) -> list[str]:
    """Return the priority patterns, which define the polling order of queues: JSON objects."""
    stored = q.engine.settings.get(_setting_key(q, _PRIORITIES))
    return [] if stored is None else msgspec.msgpack.decode(stored, type=list[str])


def _store(q: QlessState, key: str, value: dict[str, str] | list[str]) -> None:
    check_rule(q)
    packed = msgspec.msgpack.encode(value)
    if len(packed) > MAX_PATTERN_BYTES:
        raise ClientError(
            f"OOM command not allowed: the patterns may use at most {MAX_PATTERN_BYTES} bytes"
        )
    q.engine.set_setting(_setting_key(q, key), packed if value else None)


# Commands


def get_identifiers(api: Any, call: Call) -> Reply:
    found = stored_identifiers(api.qless)
    if not found:
        legacy = (
            api.hub.scratch.hash_at(_scratch_name(api, _QMORE_IDENTIFIERS), _server_time(api, call))
            or {}
        )
        found = {decode_name(name): decode_name(value) for name, value in legacy.items()}
    return lua.encode({"default": _ANY_QUEUE, **found})


def _scratch_name(api: Any, key: bytes) -> bytes:
    """Return the scratch key of the current database."""
    prefix: str = api.hub.prefix
    return scratch_prefix(int(prefix[2:-1]) if prefix else 0) + key


def _server_time(api: Any, call: Call) -> int:
    """Return the server's time, which scratch keys use."""
    now: int = api.engine.caller.server_time(call.now)
    return now


def set_identifiers(api: Any, call: Call) -> Reply:
    """Set identifiers from alternating names and lists. A name with an empty list is omitted."""
    if len(call.args) % 2:
        raise ScriptError("Odd number of identifier patterns: table: 0x0")
    given = zip(texts(call.args[::2]), call.args[1::2], strict=True)
    chosen = {name: decode_name(value) for name, value in given if _has_items(value)}
    chosen.setdefault("default", _ANY_QUEUE)
    _store(api.qless, _IDENTIFIERS, chosen)
    api.hub.scratch.delete(_scratch_name(api, _QMORE_IDENTIFIERS), _server_time(api, call))
    return None


def _has_items(value: bytes) -> bool:
    return bool(lua.decode_list(value))


def get_priorities(api: Any, call: Call) -> Reply:
    found = stored_priorities(api.qless)
    if not found:
        legacy = (
            api.hub.scratch.list_at(_scratch_name(api, _QMORE_PRIORITIES), _server_time(api, call))
            or []
        )
        found = list(map(decode_name, legacy))
    return lua.encode(found or [_DEFAULT_PRIORITY])


def set_priorities(api: Any, call: Call) -> Reply:
    """Set the priority patterns. A default pattern is added if it is missing. Without arguments,
    remove all patterns.
    """
    chosen = texts(call.args)
    if chosen and not any(_pattern(value) == ["default"] for value in call.args):
        chosen.append(_DEFAULT_PRIORITY)
    _store(api.qless, _PRIORITIES, chosen)
    api.hub.scratch.delete(_scratch_name(api, _QMORE_PRIORITIES), _server_time(api, call))
    return None


def _pattern(value: bytes) -> Any:
    found = lua.decode(value)
    if not isinstance(found, dict) or not isinstance(found.get("pattern"), list):
        raise ScriptError('queuePriorityPatterns.setAll(): Arg "pattern" missing or not a list')
    return found["pattern"]


# Keys


def add_identifiers(q: QlessState, fields: dict[bytes, bytes]) -> int:
    """Add identifiers, and return the number of new names."""
    _refuse_if_unavailable(q)
    stored = stored_identifiers(q)
    given = {decode_name(name): decode_name(value) for name, value in fields.items()}
    _store(q, _IDENTIFIERS, {**stored, **given})
    return len(given.keys() - stored.keys())


def add_priorities(q: QlessState, items: list[bytes], *, left: bool) -> int:
    """Add patterns one by one at one end of the list, and return the new length."""
    _refuse_if_unavailable(q)
    stored, given = stored_priorities(q), list(map(decode_name, items))
    stored = [*reversed(given), *stored] if left else [*stored, *given]
    _store(q, _PRIORITIES, stored)
    return len(stored)


def remove_patterns(q: QlessState, name: str) -> bool:
    """Remove all identifiers or all priorities. Return False if there are none."""
    check_rule(q)
    if not is_stored(q, name):
        return False
    _refuse_if_unavailable(q)
    q.engine.set_setting(_setting_key(q, name), None)
    return True


def check_rule(q: QlessState) -> None:
    """Refuse a change on a port with a rule for queues: patterns apply to all queues."""
    if q.hub.rule is not None:
        raise QueueRefused("patterns are not allowed on this port: it has a rule for queues")


def _refuse_if_unavailable(q: QlessState) -> None:
    if q.engine.unavailable_reason:
        raise ChangeRefused

"""The keys that a command may use.

Keys under `ql:` belong to Qless and can be read; clients of reqless also write patterns and
throttles there. All other keys are scratch keys.
"""

from typing import TYPE_CHECKING, Final

from millrace.protocols.errors import ClientError

from .commands import (
    WRONG_TYPE,
    clip_argument,
    parse_integer,
)
from .scratch import key_type_of
from .writable_keys import writable_key_type

if TYPE_CHECKING:
    from .connection import QlessConnection

QLESS_PREFIX: Final = b"ql:"


def type_of_key(connection: "QlessConnection", key: bytes, now: int) -> str:
    if key.startswith(QLESS_PREFIX):
        return connection.hub.redis_view.key_type(key)
    value = connection.hub.scratch.get(scratch_name(connection, key), now)
    return "" if value is None else key_type_of(value)


def scratch_name(connection: "QlessConnection", key: bytes) -> bytes:
    """Return the name of a scratch key in the current database."""
    return connection.scratch_prefix + key


def exists_as(connection: "QlessConnection", key: bytes, key_type: str, now: int) -> bool:
    """Return whether the key exists. Reject a key of a different type."""
    found = type_of_key(connection, key, now)
    if found not in {"", key_type}:
        raise ClientError(WRONG_TYPE)
    return bool(found)


def is_writable(key: bytes, key_type: str) -> bool:
    """Return whether this is a writable key of Qless. Reject a key of a different type."""
    found = writable_key_type(key)
    if found not in {"", key_type}:
        raise ClientError(WRONG_TYPE)
    return bool(found)


def require_scratch_keys(*keys: bytes) -> None:
    for key in keys:
        if key.startswith(QLESS_PREFIX):
            raise ClientError(
                f"ERR '{clip_argument(key)}' belongs to Qless: only Qless commands can change it"
            )


def slice_range(length: int, first: bytes, last: bytes) -> slice:
    """Return the range from `first` to `last` inclusive. Negative values count from the end."""
    start, stop = parse_integer(first), parse_integer(last)
    start = max(0, start + length) if start < 0 else start
    stop = stop + length if stop < 0 else stop
    return slice(start, max(start, stop + 1))

"""The JSON of the frequent commands. This module is not compiled, because mypyc ignores the keyword
arguments of struct classes.
"""

from typing import Final

import msgspec

DEFAULT_QUEUE: Final = "default"
DEFAULT_RETRY: Final = 20
ABSENT: Final = msgspec.Raw()


class PushArguments(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    name: str = ""
    queue: str = DEFAULT_QUEUE
    deadqueue: str = ""
    payload: msgspec.Raw = ABSENT
    retry: int = DEFAULT_RETRY
    execute_at: str | None = None
    blocked_by: list[int] = []


class FetchArguments(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    queues: tuple[str, ...] | None = (DEFAULT_QUEUE,)
    timeout: int | str | msgspec.UnsetType | None = msgspec.UNSET


class AckArguments(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    id: int = 0

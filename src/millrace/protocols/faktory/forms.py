"""The JSON of a work unit. This module is not compiled, because mypyc ignores the keyword arguments
of struct classes.
"""

from typing import Final

import msgspec

DEFAULT_RETRY: Final = 25
ABSENT: Final = msgspec.Raw()


class WorkUnit(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A work unit as nearly every client writes it; work_unit.py reads other forms."""

    jid: str
    jobtype: str
    args: msgspec.Raw
    queue: str = "default"
    retry: int = DEFAULT_RETRY
    reserve_for: int = 0
    at: str = ""
    backtrace: int = 0
    created_at: str = ""
    custom: msgspec.Raw = ABSENT

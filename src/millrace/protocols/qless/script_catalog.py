"""Identify a script. Each client sends its own copy of Qless, and the meaning of a call depends on
the copy. Dialect A has one script per command. B and C have one script that takes the command as
its first argument; `put` takes a worker in C but not in B. D is reqless, with different command
names, and T is reqless before it introduced these names.

The server never runs a script. It identifies a script by its SHA1 or by its source text: forks and
rebuilds change the SHA1, but not the relevant text.
"""

import re
from hashlib import sha1
from typing import Final, NamedTuple

from .known_scripts import DIALECT_A_SHAS, DIALECT_B_SHAS, DIALECT_C_SHAS

#: More than ten times the size of the largest build of Qless.
MAX_SCRIPT_BYTES: Final = 1 << 20


class Script(NamedTuple):
    """A dialect, and in dialect A the command. In other dialects each call names its command."""

    dialect: str
    command: str = ""


#: The commands of dialect A, and the commands that only the spec has. Both are also available as
#: plain commands: QLESS.PUT and so on.
SPEC_COMMANDS: Final = frozenset(DIALECT_A_SHAS) | {"consistencycheck"}

_KNOWN: Final = {
    **{sha: Script("A", name) for name, shas in DIALECT_A_SHAS.items() for sha in shas.split()},
    **dict.fromkeys(DIALECT_B_SHAS.split(), Script("B")),
    **dict.fromkeys(DIALECT_C_SHAS.split(), Script("C")),
}

_REQLESS: Final = re.compile(rb"\bReqlessAPI\b")
_THROTTLES: Final = re.compile(rb"\bQlessThrottle\b")
_UNIFIED_PUT: Final = re.compile(
    rb"\bQlessAPI\.put\s*=\s*function\s*\(\s*now\s*,\s*(\w+\s*,\s*)?queue\s*,"
)
#: Text that no script of dialect A contains: the library that plugins use.
_LIBRARY: Final = re.compile(rb"\b(?:Req|Q)less(?:API|Job|Queue|Worker)?\b\s*[.=]")
_TITLE: Final = re.compile(rb"\s*--\s*(\w+)\(\d")
_PREFIX: Final = re.compile(rb"\b(\w+)\(\): ")
#: Commands of dialect A by the title in the first line of the script.
_TITLES: Final = {
    **{name.replace("_", ""): name for name in DIALECT_A_SHAS},
    "deregisterworker": "deregister_workers",
}


def sha_of(text: bytes) -> str:
    return sha1(text, usedforsecurity=False).hexdigest()


def find_known_script(sha: str) -> Script | None:
    """Return the script with this SHA1 if it is known."""
    return _KNOWN.get(sha)


def recognise(text: bytes) -> Script | None:
    """Identify a script of Qless, or return None."""
    if len(text) > MAX_SCRIPT_BYTES:
        return None
    script = find_known_script(sha_of(text))
    if script is not None:
        return script
    if _REQLESS.search(text):
        return Script("D")
    put = _UNIFIED_PUT.search(text)
    if put is not None:
        dialect = "T" if _THROTTLES.search(text) else "C"
        return Script("B" if put[1] is None else dialect)
    return _recognise_command(text)


def _recognise_command(text: bytes) -> Script | None:
    """Identify a script of dialect A by its title or by the prefix of its errors."""
    if b"ARGV" not in text or b"redis.call" not in text or _LIBRARY.search(text):
        return None
    named = _TITLE.match(text) or _PREFIX.search(text)
    name = _TITLES.get(named[1].decode().lower()) if named is not None else None
    if name is None:
        return None
    if name == "pause" and b"'srem'" in text:
        name = "unpause"  # its error messages contain Pause()
    return Script("A", name)

"""Which script is this? Clients bring their own copy of Qless, and what they mean by a call depends
on which one: dialect A has a script per command; B and C have one script that takes the command as
its first argument, without and with a worker in `put`; D is reqless, with other names, and T is
reqless before it had them.

Nothing of a script is ever run. It is known by its SHA1, or by how it is written: forks and
rebuilds change the SHA1, but not that.
"""

import re
from hashlib import sha1
from typing import Final, NamedTuple

from .known_scripts import PER_COMMAND, WITH_WORKER, WITHOUT_WORKER

#: No build of Qless was ever longer than a tenth of this.
MAX_SCRIPT_BYTES: Final = 1 << 20


class Script(NamedTuple):
    """A dialect, and in dialect A the command; elsewhere each call names its own."""

    dialect: str
    command: str = ""


#: The commands of dialect A, and with them those that only the spec has. Both are also served as
#: plain commands, QLESS.PUT and so on.
SPEC_COMMANDS: Final = frozenset(PER_COMMAND) | {"consistencycheck"}

_KNOWN: Final = {
    **{sha: Script("A", name) for name, shas in PER_COMMAND.items() for sha in shas.split()},
    **dict.fromkeys(WITHOUT_WORKER.split(), Script("B")),
    **dict.fromkeys(WITH_WORKER.split(), Script("C")),
}

_REQLESS: Final = re.compile(rb"\bReqlessAPI\b")
_THROTTLES: Final = re.compile(rb"\bQlessThrottle\b")
_UNIFIED_PUT: Final = re.compile(
    rb"\bQlessAPI\.put\s*=\s*function\s*\(\s*now\s*,\s*(\w+\s*,\s*)?queue\s*,"
)
#: What is in no script of dialect A: the library that plugins build upon.
_LIBRARY: Final = re.compile(rb"\b(?:Req|Q)less(?:API|Job|Queue|Worker)?\b\s*[.=]")
_TITLE: Final = re.compile(rb"\s*--\s*(\w+)\(\d")
_PREFIX: Final = re.compile(rb"\b(\w+)\(\): ")
#: As they are titled, where that is not the name of the file.
_TITLES: Final = {
    **{name.replace("_", ""): name for name in PER_COMMAND},
    "deregisterworker": "deregister_workers",
}


def sha_of(text: bytes) -> str:
    return sha1(text, usedforsecurity=False).hexdigest()


def known(sha: str) -> Script | None:
    """The script that has this SHA1, if it is a known one."""
    return _KNOWN.get(sha)


def recognise(text: bytes) -> Script | None:
    """Which script of Qless this is, or None."""
    if len(text) > MAX_SCRIPT_BYTES:
        return None
    script = known(sha_of(text))
    if script is not None:
        return script
    if _REQLESS.search(text):
        return Script("D")
    put = _UNIFIED_PUT.search(text)
    if put is not None:
        throttled = "T" if _THROTTLES.search(text) else "C"
        return Script("B" if put[1] is None else throttled)
    return _recognise_command(text)


def _recognise_command(text: bytes) -> Script | None:
    """A script of dialect A, by its title or by how its errors begin."""
    if b"ARGV" not in text or b"redis.call" not in text or _LIBRARY.search(text):
        return None
    named = _TITLE.match(text) or _PREFIX.search(text)
    name = _TITLES.get(named[1].decode().lower()) if named is not None else None
    if name is None:
        return None
    if name == "pause" and b"'srem'" in text:
        name = "unpause"  # its errors say Pause()
    return Script("A", name)

"""The interface between the RESP server and the Qless commands, and their errors."""

from collections.abc import Generator, Iterator
from typing import Any, Final, Protocol

from millrace.protocols.errors import ClientError

from .resp import Reply
from .script_catalog import Script

#: Keys of Qless that clients write directly, and their types.
WRITABLE: Final = {b"ql:qp:identifiers": "hash", b"ql:qp:priorities": "list"}
#: Prefix of the keys of throttles. These keys are also writable.
THROTTLE_KEY: Final = b"ql:th:"


def writable_kind(key: bytes) -> str:
    """Return the type of a writable key of Qless, or an empty string for any other key."""
    return "hash" if key.startswith(THROTTLE_KEY) else WRITABLE.get(key, "")


class ScriptError(ClientError):
    """A command failed; the text is what a script would have raised, `Put(): Arg "jid" missing`."""


class QlessRefused(Exception):
    """Nothing can be made durable now, so nothing was changed."""


class Api(Protocol):
    """The commands of Qless, and the client state that must survive a restart."""

    def call(
        self, dialect: str, command: str, keys: list[bytes], args: list[bytes], now: int
    ) -> Reply | Generator[None, None, Any]:
        """Run a command as a script would, and return the result of the script.

        `dialect` is A, B, C or D, or "spec" for QLESS.<COMMAND>. `now` is the server's time; `args`
        contains the caller's time. Raises ScriptError, or Refused if the command would change state
        while engine.halted is set. Messages are published with hub.publish.
        """
        ...

    def flush(self, now: int, *, everything: bool) -> Iterator[None]:
        """Remove all jobs of the database in use, or of all databases, in slices."""
        ...

    def forget_queue(self, name: str) -> None:
        """Forget when the first job was put into a queue that the engine has forgotten."""
        ...

    def flush_server(self, now: int) -> None:
        """Remove all jobs of all protocols."""
        ...

    def load_script(self, sha: str, script: Script) -> None:
        """Store durably which script has this SHA1. hub.scripts contains it after the next start.

        The call has no effect if the script is already stored. It stores the script again if the
        engine has reverted an earlier call. Raises Refused like `call`.
        """
        ...

    def loaded_scripts(self) -> dict[str, Script]:
        """Return the stored scripts by SHA1."""
        ...

    def flush_scripts(self) -> None:
        """Remove all stored scripts, for SCRIPT FLUSH."""
        ...

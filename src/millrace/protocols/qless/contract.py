"""The interface between the RESP server and the Qless commands, and the types of replies."""

from collections.abc import Generator, Iterable, Iterator
from typing import Any, Final, Protocol

from millrace.engine.job import Job
from millrace.engine.why import Reason
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


class Refused(Exception):
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

    def flush_server(self, now: int) -> None:
        """Remove all jobs of all protocols."""
        ...

    def job_tagged(self, job: Job, now: int) -> None:
        """Handle a job with tags that a client of another protocol has pushed."""
        ...

    def learn(self, sha: str, script: Script) -> None:
        """Store durably which script has this SHA1. hub.scripts contains it after the next start.

        The call has no effect if the script is already stored. It stores the script again if the
        engine has reverted an earlier call. Raises Refused like `call`.
        """
        ...

    def forget(self) -> None:
        """Remove all stored scripts, for SCRIPT FLUSH."""
        ...

    def holds_back(self, job: Job, now: int) -> list[Reason]:
        """Return the limits that prevent Qless workers from popping a ready job."""
        ...


class Virtual(Protocol):
    """The keys under `ql:` as they would be in Redis. A method for one type is only called for keys
    of that type. All keys are readable; only `WRITABLE` keys are writable.
    """

    def kind(self, key: bytes) -> str:
        """Return `zset`, `hash`, `list` or `set`, or an empty string if the key does not exist."""
        ...

    def ttl(self, key: bytes, now: int) -> int:
        """Return the seconds until the key expires, -1 if it does not expire, -2 if it does not
        exist.
        """
        ...

    def length(self, key: bytes) -> int:
        """Return the number of members, or 0 if the key does not exist."""
        ...

    def scores(self, key: bytes) -> list[tuple[bytes, float]]:
        """Return the members of a sorted set and their scores, the lowest score first."""
        ...

    def range(
        self, key: bytes, first: int, last: int
    ) -> Generator[None, None, list[tuple[bytes, float]]]:
        """Return the members of a sorted set from `first` to `last`, as in ZRANGE, in slices."""
        ...

    def scan(self, start: int, count: int) -> tuple[int, list[bytes]]:
        """Return the cursor of the next scan, and the keys of about `count` jobs from `start`."""
        ...

    def score(self, key: bytes, member: bytes) -> float | None:
        """Return the score of one member of a sorted set."""
        ...

    def fields(self, key: bytes) -> list[tuple[bytes, bytes]]:
        """Return the fields of a hash and their values."""
        ...

    def items(self, key: bytes) -> list[bytes]:
        """Return the items of a list, in order."""
        ...

    def members(self, key: bytes) -> list[bytes]:
        """Return the members of a set, in a stable order."""
        ...

    def names(self) -> Iterable[bytes]:
        """Return all keys."""
        ...

    def set_fields(self, key: bytes, fields: dict[bytes, bytes], now: int) -> int:
        """Set fields of a hash, and return the number of new fields. This method and the following
        ones apply to `WRITABLE` keys, and raise Refused if changes cannot be made durable now.
        """
        ...

    def push(self, key: bytes, items: list[bytes], *, left: bool) -> int:
        """Add items one by one at one end of a list, and return its length."""
        ...

    def delete(self, key: bytes, now: int) -> bool:
        """Remove a key, and return whether it existed."""
        ...

"""What the RESP side asks of the Qless commands, and what a command may answer with."""

from collections.abc import Iterable
from typing import Protocol

from millrace.protocols.errors import ClientError

from .dialects import Script
from .resp import Reply


class ScriptError(ClientError):
    """A command failed; the text is what a script would have raised, `Put(): Arg "jid" missing`."""


class Refused(Exception):
    """Nothing can be made durable now, so nothing was changed."""


class Api(Protocol):
    """The commands of Qless, and what of a client must survive a restart."""

    def call(
        self, dialect: str, command: str, keys: list[bytes], args: list[bytes], now: int
    ) -> Reply:
        """Do a command as a script would, and return what the script would.

        `dialect` is A, B, C or D, or "spec" for QLESS.<COMMAND>; `now` is the server's time, the
        caller's is among `args`. Raises ScriptError, or Refused if the command would change
        something while engine.halted. Messages go out with hub.publish.
        """
        ...

    def flush(self, now: int) -> None:
        """Forget every job; FLUSHDB."""
        ...

    def learn(self, sha: str, script: Script) -> None:
        """Keep for good which script has this SHA1; at the next start hub.scripts has it.

        Nothing changes if it is kept already; but what was to be kept may have been undone since.
        Raises Refused like `call`.
        """
        ...

    def forget(self) -> None:
        """Keep no script; SCRIPT FLUSH."""
        ...


class Virtual(Protocol):
    """The keys under `ql:` as they would be in Redis; they can be looked at, not written. A method
    that is of one kind is only asked about keys of that kind.
    """

    def kind(self, key: bytes) -> str:
        """`zset`, `hash`, `list`, `set`, or empty if there is no such key."""
        ...

    def length(self, key: bytes) -> int:
        """How many members it has; 0 if there is no such key."""
        ...

    def scores(self, key: bytes) -> list[tuple[bytes, float]]:
        """The members of a sorted set and their scores, the lowest first."""
        ...

    def score(self, key: bytes, member: bytes) -> float | None:
        """The score of one member of a sorted set."""
        ...

    def fields(self, key: bytes) -> list[tuple[bytes, bytes]]:
        """The fields of a hash and their values."""
        ...

    def items(self, key: bytes) -> list[bytes]:
        """The items of a list, in order."""
        ...

    def members(self, key: bytes) -> list[bytes]:
        """The members of a set, in any order that stays."""
        ...

    def names(self) -> Iterable[bytes]:
        """All keys there are."""
        ...

    def count(self) -> int:
        """How many keys there are."""
        ...

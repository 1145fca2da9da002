"""What the RESP side asks of the Qless commands, and what a command may answer with."""

from collections.abc import Generator, Iterable, Iterator
from typing import Any, Final, Protocol

from millrace.engine.job import Job
from millrace.engine.why import Reason
from millrace.protocols.errors import ClientError

from .resp import Reply
from .script_catalog import Script

#: Keys of Qless that clients write without its commands, and their kinds.
WRITABLE: Final = {b"ql:qp:identifiers": "hash", b"ql:qp:priorities": "list"}
#: The key of a throttle begins with this, and can be written as well.
THROTTLE_KEY: Final = b"ql:th:"


def writable_kind(key: bytes) -> str:
    """The kind of a key of Qless that can be written; empty for every other key."""
    return "hash" if key.startswith(THROTTLE_KEY) else WRITABLE.get(key, "")


class ScriptError(ClientError):
    """A command failed; the text is what a script would have raised, `Put(): Arg "jid" missing`."""


class Refused(Exception):
    """Nothing can be made durable now, so nothing was changed."""


class Api(Protocol):
    """The commands of Qless, and what of a client must survive a restart."""

    def call(
        self, dialect: str, command: str, keys: list[bytes], args: list[bytes], now: int
    ) -> Reply | Generator[None, None, Any]:
        """Do a command as a script would, and return what the script would.

        `dialect` is A, B, C or D, or "spec" for QLESS.<COMMAND>; `now` is the server's time, the
        caller's is among `args`. Raises ScriptError, or Refused if the command would change
        something while engine.halted. Messages go out with hub.publish.
        """
        ...

    def flush(self, now: int, *, everything: bool) -> Iterator[None]:
        """Remove all jobs of the database in use, or of all databases, in slices."""
        ...

    def flush_server(self, now: int) -> None:
        """Remove all jobs of all protocols."""
        ...

    def job_tagged(self, job: Job, now: int) -> None:
        """A client of another protocol has pushed a job with tags."""
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

    def holds_back(self, job: Job, now: int) -> list[Reason]:
        """The limits that keep a ready job from workers that pop over Qless."""
        ...


class Virtual(Protocol):
    """The keys under `ql:` as they would be in Redis. A method that is of one kind is only asked
    about keys of that kind. They can be looked at; only `WRITABLE` ones can be written.
    """

    def kind(self, key: bytes) -> str:
        """`zset`, `hash`, `list`, `set`, or empty if there is no such key."""
        ...

    def ttl(self, key: bytes, now: int) -> int:
        """Seconds until it goes, -1 for a key that stays, -2 for one that is gone."""
        ...

    def length(self, key: bytes) -> int:
        """How many members it has; 0 if there is no such key."""
        ...

    def scores(self, key: bytes) -> list[tuple[bytes, float]]:
        """The members of a sorted set and their scores, the lowest first."""
        ...

    def range(
        self, key: bytes, first: int, last: int
    ) -> Generator[None, None, list[tuple[bytes, float]]]:
        """Members of a sorted set from `first` to `last`, as ZRANGE counts them, in slices."""
        ...

    def scan(self, start: int, count: int) -> tuple[int, list[bytes]]:
        """Where the next scan continues, and the keys of about `count` jobs from `start` on."""
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

    def set_fields(self, key: bytes, fields: dict[bytes, bytes], now: int) -> int:
        """Set fields of a hash; how many of them are new. This and what follows is for `WRITABLE`
        keys, and raises Refused if nothing can be made durable now.
        """
        ...

    def push(self, key: bytes, items: list[bytes], *, left: bool) -> int:
        """Put items at an end of a list, one after the other; its length."""
        ...

    def delete(self, key: bytes, now: int) -> bool:
        """Forget it; was it there?"""
        ...

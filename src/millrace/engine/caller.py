"""The client whose command the engine executes.

The server executes one command at a time, so the engine has one current caller: the dispatcher of a
connection sets `engine.caller` for the duration of a command. Between commands, for timers and
deliveries, it is `engine.server_caller`.

A method that makes a durable change sets `must_wait` on the current caller: its reply is sent after
the commit. A lease sets it only if an earlier change to its job is not committed. A reply that
depends on changes by other clients, because it reports something as present, absent or ended, calls
`wait()`.

A caller may have its own clock. The `now` of a method is then the time on this clock, and
`clock_offset` converts it to the server's. A job and a lease store the offset of the client that
changed them, so a wrong clock affects only the jobs of this client.
"""

from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .engine import Engine
    from .queue_rules import QueueRule


class Caller:
    __slots__ = ("_engine", "clock_offset", "holder", "must_wait", "own_clock", "protocol", "rule")

    def __init__(
        self,
        engine: "Engine",
        protocol: int,
        holder: str = "",
        rule: "QueueRule | None" = None,
    ) -> None:
        self._engine = engine
        #: The code of its protocol; 0 is the server.
        self.protocol = protocol
        #: The queues that the client may use; None for all queues.
        self.rule = rule
        #: The name under which the connection holds leases; empty if its workers have names.
        self.holder = holder
        #: Whether the times of the current command are those of the client's clock.
        self.own_clock = False
        #: How far this clock was ahead of the server's in the last command that contained a time.
        self.clock_offset = 0
        #: The next reply must wait until the changes of this turn are committed.
        self.must_wait = False

    def wait(self) -> None:
        """Make the reply wait if any change is uncommitted."""
        if not self.must_wait and self._engine.has_uncommitted:
            self.must_wait = True

    def use_own_clock(self, time: int, now: int) -> None:
        """Begin a command whose time was sent by its client. `now` is the server's time."""
        self.clock_offset = time - now
        self.own_clock = True

    def server_time(self, now: int) -> int:
        """The time of the current command by the server's clock."""
        return now - self.clock_offset if self.own_clock else now

    def on_server_clock(self) -> "OnServerClock":
        """Use this in a `with` statement around changes whose times are on the server's clock."""
        return OnServerClock(self)

    def time(self, now: int, offset: int) -> int:
        """The time of the current command on the clock of the client that wrote a record, which is
        ahead by `offset`. If the caller has its own clock, that clock is used instead.
        """
        return now if self.own_clock else now + offset


class OnServerClock:
    """See `Caller.on_server_clock`. It may be nested."""

    __slots__ = ("_caller", "_own_clock")

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._own_clock = caller.own_clock

    def __enter__(self) -> None:
        self._caller.own_clock = False

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._caller.own_clock = self._own_clock

"""The server: listeners, sessions, the timer, and the dispatch of engine results to sessions."""

import asyncio
import logging
import ssl
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from socket import socket
from time import perf_counter
from typing import NamedTuple, cast

from millrace.engine.durations import ServerDurations
from millrace.engine.engine import Engine
from millrace.engine.job import FOREVER, Job
from millrace.engine.payloads import PayloadRead
from millrace.engine.states import LEASED
from millrace.engine.waiters import Waiter
from millrace.protocols.connection import Connection, Hub
from millrace.store import Store

from .closed_connection import ClosedConnection
from .commit_thread import CommitThread
from .control_socket import remove_socket, remove_stale_socket, short_address
from .file_limits import MAX_UNAUTHENTICATED
from .journal_shipper import JournalShipper
from .memory_limit import BufferLimit
from .payload_thread import PayloadThread
from .push_gate import PushGate
from .run_queue import RunQueue
from .session import HANDSHAKE_TIMEOUT, Session
from .sockets import BACKLOG, is_unix
from .turns import MAX_UNAWAITED_EVENTS, Turns

log = logging.getLogger(__name__)

#: The wall clock can jump, so no timer sleeps longer than this (microseconds).
MAX_SLEEP = 1_000_000
#: A difference of this size between the clocks is a jump: the engine adjusts its waits.
CLOCK_JUMP = 2_000_000
#: Seconds for the replies of long commands when the server stops.
LAST_REPLIES_TIMEOUT = 0.5
#: Seconds between two measurements of the lag of the loop.
LAG_INTERVAL = 0.5


class Listener(NamedTuple):
    """A protocol: its port, its hub, and a factory for its connections. With a path it is a Unix
    domain socket without a port.
    """

    name: str
    port: int | None
    hub: Hub
    connect: Callable[[], Connection]
    path: Path | None = None


def log_damaged_payload(job: Job, message: str) -> None:
    """Log that a job is dead because its payload is damaged. The message contains the seq."""
    log.error("Moved job %s of queue %s to the dead set: %s.", job.jid, job.queue, message)


class Server:
    """All objects that the event loop uses. `listen` and `stop` are called once."""

    def __init__(
        self,
        engine: Engine,
        store: Store | None,
        clock: Callable[[], int],
        *,
        max_connections: int,
        max_output: int,
        max_buffered: int = 1 << 62,
        max_unauthenticated: int = MAX_UNAUTHENTICATED,
        on_fatal_error: Callable[[str], None],
        commits: type[CommitThread] = CommitThread,
    ) -> None:
        self.engine = engine
        self.hubs: list[Hub] = []
        #: Connections with replies that are caused by a command of another connection.
        self.connections_with_messages: set[Connection] = set()
        self.clock = clock
        self.max_connections = max_connections
        #: Connections that have not completed their handshake may exceed the limit by this number.
        self.max_unauthenticated = max_unauthenticated
        self.max_output = max_output
        self.loop = asyncio.get_running_loop()
        self.queue = RunQueue(self.loop, clock, lambda: self.turns.is_change_set_large)
        self.server_durations = ServerDurations()
        self.gate = PushGate(engine)
        self.turns = Turns(
            engine,
            store,
            clock,
            gate=self.gate,
            measured=self.server_durations,
            on_resume=lambda: self.after_commands(clock()),
            on_fatal_error=on_fatal_error,
            on_turn_end=self._turn_finished,
            commits=commits,
        )
        engine.payloads.damage_found = log_damaged_payload
        self._payloads: PayloadThread | None = None
        if store is not None and store.payload_reader is not None:
            self._payloads = PayloadThread(self.loop, store.payload_reader, self._payloads_read)
            engine.payloads.fetcher = self._payloads.fetch
        #: Set when the server is ready.
        self.shipper: JournalShipper | None = None
        self.sessions: set[Session] = set()
        self.closed_connection = ClosedConnection(Hub(engine, max_connections=0))
        self.buffers = BufferLimit(max_buffered, self.sessions)
        self._listening: list[asyncio.Server] = []
        self._socket_paths: list[Path] = []
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for = FOREVER
        self._dispatching = False
        #: The last times of the wall clock and of the loop.
        self._last_clocks = (clock(), self.loop.time())
        self._lag_due = 0.0

    async def listen(
        self,
        listeners: list[Listener],
        sockets: Mapping[str, Sequence[socket]],
        tls: ssl.SSLContext | None,
    ) -> dict[str, int]:
        """Accept connections on the sockets of every listener; return the ports by protocol."""
        ports: dict[str, int] = {}
        for listener in listeners:
            self.hubs.append(listener.hub)
            listener.hub.hubs = self.hubs
            listener.hub.connections_with_messages = self.connections_with_messages

            # The default binds `connect` now: the loop changes `listener`.
            def session(
                connect: Callable[[], Connection] = listener.connect,
            ) -> asyncio.BaseProtocol:
                return cast("asyncio.BaseProtocol", Session(self, connect))

            if listener.path is not None:
                remove_stale_socket(listener.path)
                with short_address(listener.path) as path:
                    server = await self.loop.create_unix_server(session, path)
                listener.path.chmod(0o600)
                self._socket_paths.append(listener.path)
                self._listening.append(server)
                continue
            for opened in sockets[listener.name]:
                if is_unix(opened):
                    self._socket_paths.append(Path(opened.getsockname()))
                    server = await self.loop.create_unix_server(session, sock=opened)
                    self._listening.append(server)
                    continue
                server = await self.loop.create_server(
                    session,
                    sock=opened,
                    backlog=BACKLOG,
                    ssl=tls,
                    ssl_handshake_timeout=HANDSHAKE_TIMEOUT if tls else None,
                )
                self._listening.append(server)
                ports.setdefault(listener.name, server.sockets[0].getsockname()[1])
        self._arm()
        self._measure_lag()
        return ports

    async def stop(self, grace: float, force_stop: asyncio.Event) -> None:
        """Stop accepting connections, wait up to `grace` seconds for workers, commit, and close all
        sessions.
        """
        for path in self._socket_paths:
            remove_socket(path)
        for server in self._listening:
            server.close()
        self._listening.clear()
        for hub in self.hubs:
            hub.stop()
        until = self.loop.time() + grace
        while (
            any(hub.delays_shutdown for hub in self.hubs)
            and self.loop.time() < until
            and not force_stop.is_set()
        ):
            try:
                await asyncio.wait_for(force_stop.wait(), 0.05)
            except TimeoutError:
                continue
        await self._finish_commands()
        for session in list(self.sessions):
            session.close()
        for _ in range(100):
            if not self.sessions:
                break
            await asyncio.sleep(0.01)
        for session in list(self.sessions):
            session.transport.abort()
        await asyncio.sleep(0)
        await self.turns.drain()
        if self.shipper is not None:
            await self.shipper.stop(force_stop)
            await self.turns.drain()
        self.turns.close()
        if self._payloads is not None:
            self._payloads.close()

    async def _finish_commands(self) -> None:
        """Answer the clients that wait, and those that begin to wait at the end of a long command.
        Wait for the replies to long commands, whose changes may be committed already.
        """
        until = self.loop.time() + LAST_REPLIES_TIMEOUT
        while True:
            self._end_waits()
            is_working = any(session.is_working for session in self.sessions)
            await self.turns.drain()
            if not is_working or self.engine.unavailable_reason or self.loop.time() >= until:
                return
            await asyncio.sleep(0.001)

    def _end_waits(self) -> None:
        now = self.clock()
        for session in list(self.sessions):
            if session.connection.waiter is not None:
                session.cancel_lease_read(now)
                session.connection.notify(now, session.connection.stop_waiting)
                session.flush()

    # Called by sessions

    def add(self, session: Session) -> bool:
        if len(self.sessions) >= self.max_connections + self.max_unauthenticated:
            return False
        self.sessions.add(session)
        return True

    def remove(self, session: Session) -> None:
        self.sessions.discard(session)

    def release_undelivered(self, job: Job, now: int) -> None:
        """Release a lease whose reply could not be written, unless it has ended."""
        engine = self.engine
        if (
            job.state == LEASED
            and engine.jobs.get(job.seq) is job
            and not engine.unavailable_reason
        ):
            engine.release(job, now)

    def after_commands(self, now: int) -> None:
        """Complete the work after commands: dispatch results to clients, end the turn, set the
        timer.
        """
        engine = self.engine
        waiters = engine.waiters
        if (
            waiters.deliveries
            or waiters.timeouts
            or waiters.outcomes
            or engine.alarms
            or self.connections_with_messages
        ):
            self._dispatch(now)
        change_set, turns = engine.change_set, self.turns
        if not turns.due:
            if change_set.event_count >= MAX_UNAWAITED_EVENTS:
                turns.schedule()
            elif not turns.durable:
                if change_set.unlogged_change_count >= MAX_UNAWAITED_EVENTS:
                    turns.schedule()
            elif change_set:
                if change_set.has_only_leases:
                    turns.end_soon()
                else:
                    turns.schedule()
        heap = engine.timers.heap
        if heap and heap[0][0] < self._armed_for:
            self._arm()

    # Internal

    def _payloads_read(self, read: PayloadRead) -> None:
        """Continue the work that waits for large payloads: they are in memory now."""
        owner = read.owner
        if owner is None:
            return
        now = self.clock()
        if isinstance(owner, Connection) and owner.lease_read is not None:
            owner.session.notify(now, owner.handle_payloads_read, read)
        else:
            owner.wake(now)
        self.after_commands(now)

    def _turn_finished(self) -> None:
        """Continue after the end of a turn: its changes are committed or refused."""
        self.queue.resume()
        engine = self.engine
        if engine.commit_waiters or engine.waiters.outcomes:
            now = self.clock()
            waiters, engine.commit_waiters = engine.commit_waiters, {}
            for waiter in waiters:
                _attempt(waiter.wake, now)
            self.after_commands(now)
        if self.shipper is not None:
            self.shipper.check_pending()

    def _has_results(self) -> bool:
        engine = self.engine
        waiters = engine.waiters
        return bool(
            waiters.deliveries
            or waiters.timeouts
            or waiters.outcomes
            or engine.alarms
            or self.connections_with_messages
        )

    def _dispatch(self, now: int) -> None:
        """Pass results to their connections, which can then run further commands."""
        engine, waiters = self.engine, self.engine.waiters
        if self._dispatching:
            return
        self._dispatching = True
        try:
            while self._has_results():
                deliveries, waiters.deliveries = waiters.deliveries, []
                outcomes, waiters.outcomes = waiters.outcomes, []
                timeouts, waiters.timeouts = waiters.timeouts, []
                alarms, engine.alarms = engine.alarms, []
                for waiter, job in deliveries:
                    _attempt(self._deliver, waiter, job, now)
                for waiter, outcome in outcomes:
                    _attempt(waiter.owner.session.notify, now, waiter.owner.job_ended, outcome)
                for waiter in timeouts:
                    _attempt(waiter.owner.session.notify, now, waiter.owner.timed_out)
                for key in alarms:
                    _attempt(self._alarm, key, now)
                while self.connections_with_messages:
                    _attempt(_send_messages, self.connections_with_messages.pop())
        finally:
            self._dispatching = False

    def _deliver(self, waiter: Waiter, job: Job, now: int) -> None:
        connection: Connection = waiter.owner
        if connection.session.transport.is_closing():
            self.release_undelivered(job, now)
        else:
            connection.session.notify(now, connection.end_wait, waiter, job)

    def _alarm(self, key: Hashable, now: int) -> None:
        assert isinstance(key, tuple)
        owner, name = key
        if isinstance(owner, Connection):
            owner.session.notify(now, owner.handle_alarm, name)
        else:
            owner.handle_alarm(name, now)

    def _arm(self) -> None:
        """Set the timer to the earliest due time."""
        if self._timer is not None:
            self._timer.cancel()
        now = self.clock()
        when = self.engine.timers.next()
        delay = MAX_SLEEP if when is None else min(MAX_SLEEP, max(0, when - now))
        # A due timer stays armed; otherwise each command of a busy server would cancel its
        # callback.
        self._armed_for = now + delay if when is None or when > now else when
        self._timer = self.loop.call_later(delay / 1_000_000, self._tick)

    def _check_clock(self, now: int) -> None:
        """Detect a jump of the wall clock."""
        time = self.loop.time()
        before, since = self._last_clocks
        self._last_clocks = (now, time)
        moved = now - before - round((time - since) * 1_000_000)
        if abs(moved) >= CLOCK_JUMP:
            log.warning("The system clock jumped by %+.1f s.", moved / 1_000_000)
            self.engine.clock_moved(moved)
            for hub in self.hubs:
                hub.clock_moved(moved)

    def wait_began(self) -> None:
        """Compare the clocks when a client begins to wait. A jump before this time, which this call
        detects, must not change the wait; a later jump must.
        """
        self._check_clock(self.clock())
        self.engine.waiters.tick()

    def _measure_lag(self) -> None:
        """Measure the lag of the loop: the delay of a timer."""
        now = perf_counter()
        if self._lag_due:
            self.server_durations.lag.add(max(0, round((now - self._lag_due) * 1_000_000)))
        self._lag_due = now + LAG_INTERVAL
        self.loop.call_later(LAG_INTERVAL, self._measure_lag)

    def _tick(self) -> None:
        now = self.clock()
        try:
            self._check_clock(now)
            self.engine.tick(now)
            self.after_commands(now)
        finally:
            self._arm()  # even after an error


def _send_messages(connection: Connection) -> None:
    try:
        connection.session.flush()
    except Exception as error:
        connection.session.abort_after_error(error)


def _attempt(action: Callable[..., None], *arguments: object) -> None:
    """Call a function whose error must not stop the ones that follow."""
    try:
        action(*arguments)
    except Exception:
        log.exception("Internal server error.")

"""Ships the journal: a child process writes the outbox to the lake, and the server removes shipped
events from the outbox.

The process (millrace.journal.shipper) starts when events are pending and ends after an idle period.
If it fails, the server logs the error once and retries with exponential backoff. The outbox is
bounded.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from millrace.extras import install_command, is_installed
from millrace.journal.crash_points import crash_point
from millrace.journal.messages import ShipperReply, ShipRequest, decode_reply, encode
from millrace.records import ShippingStatus
from millrace.store.store import Outbox

from .child_process import ChildProcess, python_module

log = logging.getLogger(__name__)

#: Pause after the first failure; each further failure doubles it.
MIN_RETRY_PAUSE: Final = 1.0
MAX_RETRY_PAUSE: Final = 60.0
#: Idle time after which the process ends.
IDLE_TIMEOUT: Final = 90.0
#: Time that a stopping server waits for the last shipment, and then for the process.
SHIP_TIMEOUT: Final = 30.0
EXIT_TIMEOUT: Final = 5.0
MISSING_PACKAGES_TEXT: Final = (
    "Shipping requires deltalake and arro3-io. Events stay in the outbox, up to "
    f"journal.outbox_max. Install the packages with: {install_command('deltalake')}"
)

#: Called with the reason for a failure, or with an empty string.
ShipCallback = Callable[[str], None]


class ShipperSettings(NamedTuple):
    folder: Path
    #: A folder, or the URI of an object store.
    lake: str
    #: Maximum age of a pending event in seconds; 0: ship only on request.
    every: float
    #: Number of pending events that triggers shipping early.
    events: int

    def command(self, first_event: int) -> list[str]:
        words = (str(self.folder), self.lake, str(self.events), str(first_event))
        return python_module("millrace.journal.shipper", *words)


class JournalShipper:
    """Starts the shipper process and sends it the range to ship. It calls `trim` when shipped
    events can be removed, and `on_request_done` after a request is done.
    """

    def __init__(
        self,
        outbox: Outbox,
        settings: ShipperSettings,
        *,
        trim: Callable[[], None],
        on_request_done: Callable[[], None],
    ) -> None:
        self._outbox = outbox
        self._settings = settings
        self._trim = trim
        self._on_request_done = on_request_done
        self._loop = asyncio.get_running_loop()
        self._server = ""
        #: The next event when the server started. A lake that is ahead of it belongs to another
        #: copy of the folder.
        self._first_event = outbox.next_committed
        #: The first event that is not known to be in the lake, and the oldest in the outbox.
        self._next = self._first_kept = outbox.first_event
        self._child: ChildProcess | None = None
        #: The end of the current shipment; 0: none.
        self._until = 0
        #: Arrival of the oldest pending event, and of the first event after the current shipment.
        self._oldest: float | None = None
        self._next_oldest: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._idle: asyncio.TimerHandle | None = None
        #: The current error, and the number of consecutive failures.
        self._failing = ""
        self._failures = 0
        self._lacks_packages = False
        self._files = 0
        self._dropped = 0
        self._requests: list[tuple[int, ShipCallback]] = []
        self._stopping = False
        #: Set at the end of a shipment, successful or not, and at the end of the process.
        self._progress = asyncio.Event()

    # Called by the server

    def check_pending(self) -> None:
        """Check for pending events. Called after every turn and when the server is ready."""
        outbox = self._outbox
        if outbox.first_event != self._first_kept:
            self._first_kept = outbox.first_event
            crash_point("trimmed")
        if outbox.next_committed <= self._next:
            return
        if outbox.dropped > self._dropped and self._settings.every:
            self._log_dropped()
        if self._until:
            if self._next_oldest is None and outbox.next_committed > self._until:
                self._next_oldest = self._loop.time()
            return
        if self._oldest is None:
            self._oldest = self._loop.time()
        if not self._settings.every or self._lacks_packages or self._stopping:
            return
        reaches_limit = (
            outbox.next_committed - self._next >= self._settings.events and not self._failing
        )
        if self._timer is None or reaches_limit:
            self._schedule_shipment(reaches_limit=reaches_limit)

    def ship(self, done: ShipCallback) -> None:
        """Ship all committed events, then call `done` with an empty string or the reason for a
        failure.
        """
        until = self._outbox.next_committed
        if until <= self._next or self._stopping or not self._check_packages():
            reason = "The server is stopping." if self._stopping else self._failing
            self._loop.call_soon(self._answer, done, reason if until > self._next else "")
            return
        self._requests.append((until, done))
        if not self._until:
            self._start_shipment()

    def current_status(self) -> ShippingStatus:
        """The progress and the backlog of shipping."""
        outbox = self._outbox
        waiting = max(0, outbox.next_committed - self._next)
        age = self._loop.time() - self._oldest if waiting and self._oldest is not None else 0.0
        return ShippingStatus(
            server=self._server,
            lake=self._settings.lake,
            next_event=outbox.next_committed,
            next_shipped=self._next,
            events=waiting,
            bytes=outbox.size,
            seconds=round(age, 3),
            dropped=outbox.dropped,
            files=self._files,
            failing=self._failing,
        )

    async def stop(self, force_stop: asyncio.Event) -> None:
        """Ship the pending events within a time limit, then end the process."""
        self._stopping = True
        self._cancel_timers()
        if (
            self._settings.every
            and self._outbox.next_committed > self._next
            and self._check_packages()
        ):
            await self._ship_the_rest(force_stop)
        if self._child is not None:
            self._progress.clear()
            self._child.close_input()
            await _first_of(self._progress, force_stop, within=EXIT_TIMEOUT)
        if self._child is not None:
            self._child.kill()

    # Shipments

    async def _ship_the_rest(self, force_stop: asyncio.Event) -> None:
        until = self._loop.time() + SHIP_TIMEOUT
        while self._outbox.next_committed > self._next and not force_stop.is_set():
            failures, left = self._failures, until - self._loop.time()
            if not self._until and left > 0:
                self._start_shipment()
            if self._until and left > 0:
                await _first_of(self._progress, force_stop, within=left)
            if self._failures > failures or left <= 0:
                return

    def _schedule_shipment(self, *, reaches_limit: bool) -> None:
        assert self._oldest is not None
        wait = self._oldest + self._settings.every - self._loop.time()
        if reaches_limit or wait <= 0:
            self._start_if_able()
        else:
            self._timer = self._loop.call_later(wait, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._outbox.next_committed > self._next and not self._until:
            self._start_if_able()

    def _start_if_able(self) -> None:
        if self._check_packages():
            self._start_shipment()

    def _start_shipment(self) -> None:
        self._cancel_timers()
        self._progress.clear()
        self._until = self._outbox.next_committed
        if self._child is None:
            try:
                command = self._settings.command(0 if self._server else self._first_event)
                self._child = ChildProcess(command, self._on_line, self._on_exit)
            except OSError as error:
                self._failed(f"cannot start the shipper: {error.strerror}")
                return
        self._child.send(encode(ShipRequest(self._until)) + b"\n")

    def _check_packages(self) -> bool:
        if not self._lacks_packages and not all(map(is_installed, ("deltalake", "arro3.io"))):
            self._lacks_packages = True
            self._failing = MISSING_PACKAGES_TEXT
            log.warning("%s", MISSING_PACKAGES_TEXT)
        return not self._lacks_packages

    # Replies from the process

    def _on_line(self, child: ChildProcess, line: bytes) -> None:
        if child is not self._child:
            return
        try:
            reply = decode_reply(line)
        except msgspec.DecodeError:
            log.warning("Shipper: %s", line.decode(errors="replace"))
            return
        if reply.error:
            self._failed(reply.error)
            return
        self._server = reply.server
        self._files += reply.files
        if reply.missing:
            log.warning("%d events were deleted before they were shipped.", reply.missing)
        if reply.next > self._next:
            self._record_progress(reply)
        if reply.done:
            self._done()

    def _record_progress(self, reply: ShipperReply) -> None:
        if reply.files:
            self._report_recovery()
        self._next = reply.next
        self._outbox.mark_shipped(reply.next)
        if self._outbox.has_shipped_events:
            self._trim()
        ready = [done for until, done in self._requests if until <= reply.next]
        self._requests = [each for each in self._requests if each[0] > reply.next]
        for done in ready:
            self._answer(done, "")

    def _done(self) -> None:
        if self._next < self._until:
            self._failed(f"the shipper stopped before event {self._until}")
            return
        self._report_recovery()
        self._until = 0
        self._oldest, self._next_oldest = self._next_oldest, None
        if self._outbox.next_committed <= self._next:
            self._oldest = None
        self._progress.set()
        if self._requests:
            self._start_shipment()
            return
        self._idle = self._loop.call_later(IDLE_TIMEOUT, self._end_idle_process)
        self.check_pending()

    def _report_recovery(self) -> None:
        self._failures = 0
        if self._failing:
            self._failing = ""
            log.info("Shipping works again.")

    def _failed(self, reason: str) -> None:
        """End the process after a failure, and retry later."""
        child, self._child = self._child, None
        if child is not None:
            child.close_input()
        self._until, self._next_oldest = 0, None
        self._failures += 1
        if reason != self._failing:
            log.error(
                "Shipping failed: %s. Retrying; events stay in the outbox, up to "
                "journal.outbox_max.",
                reason,
            )
        self._failing = reason
        requests, self._requests = self._requests, []
        for _, done in requests:
            self._answer(done, reason)
        self._progress.set()
        if self._settings.every and not self._stopping:
            self._cancel_timers()
            pause = min(MAX_RETRY_PAUSE, MIN_RETRY_PAUSE * 2 ** min(self._failures - 1, 30))
            self._timer = self._loop.call_later(pause, self._on_timer)

    def _on_exit(self, child: ChildProcess, code: int) -> None:
        if child is not self._child:
            return
        self._child = None
        if self._until:
            how = f"was killed by signal {-code}" if code < 0 else f"exited with status {code}"
            self._failed(f"the shipper {how}")
        self._progress.set()

    def _end_idle_process(self) -> None:
        self._idle = None
        if self._child is not None and not self._until:
            self._child.close_input()
            self._child = None

    def _answer(self, done: ShipCallback, reason: str) -> None:
        done(reason)
        self._on_request_done()

    def _log_dropped(self) -> None:
        log.warning(
            "%d events were deleted before they were shipped: the outbox exceeded "
            "journal.outbox_max.",
            self._outbox.dropped - self._dropped,
        )
        self._dropped = self._outbox.dropped

    def _cancel_timers(self) -> None:
        for timer in (self._timer, self._idle):
            if timer is not None:
                timer.cancel()
        self._timer = self._idle = None


async def _first_of(*events: asyncio.Event, within: float) -> None:
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait(waits, timeout=within, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()

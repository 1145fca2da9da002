"""What all requests share."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

from millrace.admin.client import AdminClient
from millrace.admin.errors import AdminError
from millrace.records import AuditNote, Ok

from .analytics import Analytics
from .auth import Gate
from .live import Live
from .long_actions import Tasks
from .settings import Settings


class Room:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.control = AdminClient(settings.control)
        self.gate = Gate(Path(settings.data) if settings.data else None)
        self.live = Live(self.control)
        self.tasks = Tasks(self.control)
        self.analytics = Analytics()
        #: The bytes that requests have sent which are not answered yet.
        self.held = 0
        #: Those who wait for a job, and whether it is too late to.
        self.waiting: set[asyncio.Task[Any]] = set()
        self.closed = False
        self._noting: set[asyncio.Task[None]] = set()

    def reload(self, settings: Settings) -> None:
        """From now on. Whoever listens to the live stream is to show again who they are."""
        self.settings = settings
        self.live.close()

    def note(self, action: str, target: str, by: str) -> None:
        """Into the audit log; nobody waits for it."""
        noting = asyncio.create_task(self._note(AuditNote(action, target, by)))
        self._noting.add(noting)
        noting.add_done_callback(self._noting.discard)

    def close(self) -> None:
        """The server is about to stop."""
        self.closed = True
        for waiting in self.waiting:
            waiting.cancel()
        self.live.close()
        self.tasks.close()
        self.control.close()

    async def _note(self, note: AuditNote) -> None:
        with contextlib.suppress(AdminError):
            await self.control.ask(Ok, note=note)

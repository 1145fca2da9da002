"""State shared by all requests."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

from millrace.admin.client import AdminClient
from millrace.admin.errors import AdminError
from millrace.records import AuditNote, Ok

from .analytics import Analytics
from .auth import Authenticator
from .live import LiveStream
from .long_actions import BulkActions
from .settings import WebSettings


class AppState:
    def __init__(self, settings: WebSettings) -> None:
        self.settings = settings
        self.control = AdminClient(settings.control, settings.queues)
        self.authenticator = Authenticator(Path(settings.data) if settings.data else None)
        self.live = LiveStream(self.control)
        self.tasks = BulkActions(self.control)
        self.analytics = Analytics(is_limited=bool(settings.queues))
        #: Total bytes of the bodies of requests in progress.
        self.held = 0
        #: Requests that wait for a job. After `closed` is set, no further request may wait.
        self.waiting: set[asyncio.Task[Any]] = set()
        self.closed = False
        self._noting: set[asyncio.Task[None]] = set()

    def reload(self, settings: WebSettings) -> None:
        """Apply new settings. Live streams end, so that their clients authenticate again."""
        self.settings = settings
        self.live.close()

    def note(self, action: str, target: str, by: str) -> None:
        """Write an entry to the audit log in the background."""
        noting = asyncio.create_task(self._note(AuditNote(action, target, by)))
        self._noting.add(noting)
        noting.add_done_callback(self._noting.discard)

    def close(self) -> None:
        """Cancel waiting requests, streams and actions before the server stops."""
        self.closed = True
        for waiting in self.waiting:
            waiting.cancel()
        self.live.close()
        self.tasks.close()
        self.control.close()

    async def _note(self, note: AuditNote) -> None:
        with contextlib.suppress(AdminError):
            await self.control.ask(Ok, note=note)

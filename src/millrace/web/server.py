"""HTTP server: uvicorn, with limits for slow clients.

A client must send the head of a request within 10 seconds and its body within 60 seconds, and it
must continue to read the response. If the number of connections reaches its limit, a new connection
replaces an idle one, or else the one with the oldest incomplete request.
"""

import asyncio
import resource
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from .settings import WebSettings

#: Timeouts in seconds: TLS handshake, request head, request body, and progress of reading.
TLS_HANDSHAKE_TIMEOUT: Final = 5.0
HEADER_TIMEOUT: Final = 10.0
BODY_TIMEOUT: Final = 60.0
WRITE_TIMEOUT: Final = 60.0
#: Maximum seconds between two requests of a connection.
KEEP_ALIVE_TIMEOUT: Final = 30
#: Maximum number of connections; at most half the limit of open files.
MAX_CONNECTIONS: Final = 1000
#: Maximum bytes of a request's first line and headers.
MAX_HEADER_BYTES: Final = 32_768
#: Seconds that a shutdown waits for responses. Live streams do not end by themselves.
SHUTDOWN_TIMEOUT: Final = 1


class LimitedProtocol(H11Protocol):
    """One connection."""

    most = MAX_CONNECTIONS

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._waits_for: Any = None
        self._timer: asyncio.TimerHandle | None = None
        self._choked: asyncio.TimerHandle | None = None
        self._unread = 0
        #: Time at which the current part of a request started.
        self.waiting_since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.most:
            self._make_room()
        self._wait_for(h11.IDLE)

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_for(None)
        self._reads()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        state = self.conn.their_state
        if state is h11.IDLE and not self.conn.trailing_data[0]:
            self._wait_for(None)  # uvicorn waits for the next request
        else:
            self._wait_for(state if state in {h11.IDLE, h11.SEND_BODY} else None)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._choked is None:
            self._unread = self.transport.get_write_buffer_size()
            self._choked = self.loop.call_later(WRITE_TIMEOUT, self._check_progress)

    def resume_writing(self) -> None:
        self._reads()
        super().resume_writing()

    def _check_progress(self) -> None:
        """Close a connection without progress since the last check. A slow reader may continue."""
        unread = self.transport.get_write_buffer_size()
        if unread >= self._unread:
            self.transport.abort()
            return
        self._unread = unread
        self._choked = self.loop.call_later(WRITE_TIMEOUT, self._check_progress)

    @property
    def is_sending(self) -> bool:
        """True if the client has not sent the whole request body."""
        return self.conn.their_state is h11.SEND_BODY

    @property
    def is_idle(self) -> bool:
        """True if no request of the connection waits for a response."""
        return self.cycle is None or self.cycle.response_complete

    def _make_room(self) -> None:
        """Close an idle connection, or else the one with the oldest incomplete request. If the
        server is answering all requests, refuse the new connection.
        """
        others = [
            each
            for each in self.connections
            if isinstance(each, LimitedProtocol) and each is not self
        ]
        victim = next((each for each in others if each.is_idle), None)
        if victim is None:
            incomplete = [each for each in others if each.is_sending]
            victim = min(incomplete, key=lambda each: each.waiting_since, default=self)
        victim.transport.abort()
        self.connections.discard(victim)

    def _wait_for(self, state: Any) -> None:
        if state is self._waits_for:
            return
        self._waits_for = state
        self.waiting_since = self.loop.time()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if state is not None:
            within = HEADER_TIMEOUT if state is h11.IDLE else BODY_TIMEOUT
            self._timer = self.loop.call_later(within, self.transport.abort)

    def _reads(self) -> None:
        if self._choked is not None:
            self._choked.cancel()
            self._choked = None


class WebServer(uvicorn.Server):
    """Serves on sockets that are already open. Calls `ending` before shutdown, so that waiting
    requests end.
    """

    def __init__(self, config: uvicorn.Config, ending: Callable[[], None]) -> None:
        super().__init__(config)
        self._ending = ending

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        loop, tls = asyncio.get_running_loop(), self.config.ssl
        self.servers = [
            await loop.create_server(
                lambda: LimitedProtocol(self.config, self.server_state, {}),
                sock=opened,
                ssl=tls,
                ssl_handshake_timeout=TLS_HANDSHAKE_TIMEOUT if tls else None,
            )
            for opened in sockets or ()
        ]
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._ending()
        await super().shutdown(sockets)


def server(
    application: Any, settings: WebSettings, ending: Callable[[], None] = lambda: None
) -> WebServer:
    config = uvicorn.Config(
        application,
        http=LimitedProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_TIMEOUT,
        timeout_graceful_shutdown=SHUTDOWN_TIMEOUT,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
    )
    config.load()
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    LimitedProtocol.most = min(MAX_CONNECTIONS, files // 2)
    config.ssl = tls(settings)
    return WebServer(config, ending)


def tls(settings: WebSettings) -> ssl.SSLContext | None:
    if not settings.cert:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load_certificates(context, settings)
    return context


def load_certificates(context: ssl.SSLContext, settings: WebSettings) -> None:
    """Load the files into a context; later connections use them."""
    context.load_cert_chain(settings.cert, settings.key)
    if settings.client_ca:
        context.load_verify_locations(settings.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED

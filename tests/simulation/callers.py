"""A client of the server: sends commands, waits for replies, and records both."""

import asyncio
from collections import deque
from random import Random
from typing import Any

from promises import NO_HEARTBEAT, BrokenPromise, Request
from simulated_world import World

from speakers import SPEAKERS, Answer, Refused

#: A client with a healthy connection gets a reply within this time plus its own waiting time.
REPLY_TIMEOUT = 90.0


class Cut(Exception):
    """The connection is closed. The server may or may not have executed unanswered commands."""


class Call:
    """One connection of a client."""

    def __init__(self, world: World, protocol: str, name: str) -> None:
        self.world = world
        self.protocol = protocol
        self.name = name
        self.speaker: Any = SPEAKERS[protocol](name)
        self.can = self.speaker.can
        self.closed = ""
        self._unanswered: deque[tuple[Request, asyncio.Future[Answer]]] = deque()
        self._unheard: dict[asyncio.Future[Answer], None] = {}
        self.wire = world.network.connect(protocol, self)
        self._life = world.promises.life

    @property
    def random(self) -> Random:
        return self.world.random

    @property
    def now(self) -> int:
        return self.world.their_clock()

    # Requests

    def send(self, command: str, data: bytes, **more: Any) -> "asyncio.Future[Answer]":
        """Send an encoded command. Returns a future of its reply."""
        future: asyncio.Future[Answer] = self.world.clients_loop.create_future()
        request = self.world.promises.sending(command, self.wire, **more)
        future.request = request  # type: ignore[attr-defined]
        if self.closed:
            future.set_exception(Cut(self.closed))
            future.exception()  # mark the exception as retrieved
            return future
        self._unanswered.append((request, future))
        self._unheard[future] = None
        self.wire.send(data)
        patience = request.wait + REPLY_TIMEOUT
        self.world.clients_loop.call_later(patience, self._expect, request, future)
        return future

    async def ask(self, command: str, data: bytes, **more: Any) -> Answer:
        return await self.send(command, data, **more)

    def hang_up(self, *, rudely: bool = False) -> None:
        if rudely:
            self.wire.vanish()
        self.wire.reset()
        self.cut("hung up")

    def _expect(self, request: Request, future: "asyncio.Future[Answer]") -> None:
        if future.done():
            return
        promises = self.world.promises
        same = request.life == promises.life and self.world.life is not None
        # A wait for the result of a job ends with its lease, which depends on the clock. Between
        # two clock checks the server cannot distinguish times before and after a jump.
        unsure = [at for at in promises.jumps if 0 <= at - request.sent_at < 1.5]
        same = same and not unsure and (request.command != "run" or not promises.jumps)
        if same and self.wire.healthy and not self.wire.was_impaired and not self.world.slow_sync:
            raise BrokenPromise(f"a {request.command} of {self.wire} is not answered")
        self.hang_up()

    # Callbacks of the network

    def server_sent(self, data: bytes) -> list[Any]:
        life = self.world.life
        if life is not None:
            life.watch.absorb()
        meanings = []
        for answer in self.speaker.receive(data):
            if not self._unanswered:
                if isinstance(answer, Refused) and answer.text == NO_HEARTBEAT:
                    continue
                raise BrokenPromise(f"{self.wire} received a reply without a request: {answer}")
            request, future = self._unanswered.popleft()
            self.world.promises.server_sent(request, answer)
            meanings.append((future, answer))
        return meanings

    def receive(self, meanings: list[tuple["asyncio.Future[Answer]", Answer]]) -> None:
        for future, answer in meanings:
            self._unheard.pop(future, None)
            if not future.done():
                future.set_result(answer)

    def cut(self, reason: str) -> None:
        if self.closed:
            return
        self.closed = reason
        for future in self._unheard:
            if not future.done():
                future.set_exception(Cut(reason))
                future.exception()
        self._unheard.clear()

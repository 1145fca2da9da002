"""A client that calls the server: sends commands, waits for answers, and writes down both."""

import asyncio
from collections import deque
from random import Random
from typing import Any

from promises import NO_HEARTBEAT, BrokenPromise, Request
from simulated_world import World

from speakers import SPEAKERS, Answer, Refused

#: Whoever asks and has a sound connection is answered within this, beside what it wants to wait.
ANSWERED_WITHIN = 90.0


class Cut(Exception):
    """The connection is over. What was not answered may have been done or not."""


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

    # Asking

    def send(self, command: str, data: bytes, **more: Any) -> "asyncio.Future[Answer]":
        """Send a command whose bytes the speaker has made; its answer comes."""
        future: asyncio.Future[Answer] = self.world.clients_loop.create_future()
        request = self.world.promises.sending(command, self.wire, **more)
        future.request = request  # type: ignore[attr-defined]
        if self.closed:
            future.set_exception(Cut(self.closed))
            future.exception()  # it is no mistake if nobody looks
            return future
        self._unanswered.append((request, future))
        self._unheard[future] = None
        self.wire.send(data)
        patience = request.wait + ANSWERED_WITHIN
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
        # A job that is run is waited for until its lease ends, which is by the clock. And between
        # two looks at it the server cannot know what was before it was set and what after.
        unsure = [at for at in promises.jumps if 0 <= at - request.sent_at < 1.5]
        same = same and not unsure and (request.command != "run" or not promises.jumps)
        if same and self.wire.healthy and not self.wire.was_ill and not self.world.slow_sync:
            raise BrokenPromise(f"a {request.command} of {self.wire} is not answered")
        self.hang_up()

    # What the network calls

    def said(self, data: bytes) -> list[Any]:
        life = self.world.life
        if life is not None:
            life.watch.absorb()
        meanings = []
        for answer in self.speaker.receive(data):
            if not self._unanswered:
                if isinstance(answer, Refused) and answer.text == NO_HEARTBEAT:
                    continue
                raise BrokenPromise(f"{self.wire} was told what it did not ask for: {answer}")
            request, future = self._unanswered.popleft()
            self.world.promises.said(request, answer)
            meanings.append((future, answer))
        return meanings

    def hears(self, meanings: list[tuple["asyncio.Future[Answer]", Answer]]) -> None:
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

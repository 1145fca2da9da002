"""A network that delays, splits and loses bytes, and breaks connections.

Bytes to the server are split and joined at random, because the server must handle any
fragmentation. The server's output goes to the client's tap when it leaves the server's process:
from then on it counts as sent, even if it never arrives. The decoded output arrives later, if at
all.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any, Protocol

from simulated_loop import SimulatedLoop
from steps import Steps

#: Seconds until the server detects a vanished peer.
PEER_TIMEOUT = (20.0, 900.0)
MAX_READ = 65_536


class Weather:
    """The quality of the network; the plan of a seed sets it, and it may change."""

    def __init__(self) -> None:
        self.latency = (0.0001, 0.002)
        #: Probability that a piece is late, and its maximum delay.
        self.late = 0.0
        self.latest = 0.0
        #: Probability that a client's data is split.
        self.cut = 0.0
        #: Bytes that the kernel buffers for a client that does not read.
        self.capacity = 65_536

    def delay(self, random: Random) -> float:
        least, most = self.latency
        delay = random.uniform(least, most)
        if self.late and random.random() < self.late:
            delay += random.uniform(0, self.latest)
        return delay


class Client(Protocol):
    """The other end of a connection."""

    name: str

    def server_sent(self, data: bytes) -> list[Any]:
        """Decode bytes that have left the server."""
        ...

    def receive(self, meanings: list[Any]) -> None:
        """The replies have arrived."""
        ...

    def cut(self, reason: str) -> None:
        """The connection is closed from the client's point of view."""
        ...


class Network:
    """All connections, and the server if one is reachable."""

    def __init__(self, loop: SimulatedLoop, random: Random, steps: Steps) -> None:
        self.clients_loop = loop
        self.random = random
        self.steps = steps
        self.weather = Weather()
        self.server_loop: SimulatedLoop | None = None
        self.ports: dict[str, int] = {}
        self.wires: dict[int, Wire] = {}
        self._made = 0

    def connect(self, protocol: str, client: Client) -> "Wire":
        self._made += 1
        wire = Wire(self, self._made, protocol, client)
        self.clients_loop.call_later(self.weather.delay(self.random), wire.open)
        return wire

    def serve(self, loop: SimulatedLoop, ports: dict[str, int]) -> None:
        """Make this the reachable server."""
        self.server_loop, self.ports = loop, ports

    def power_off(self) -> None:
        """The server is down: clients notice after a while, or when they send."""
        self.server_loop, self.ports = None, {}
        for wire in list(self.wires.values()):
            wire.server_died()


class Wire:
    """One connection, from the client's connect to the last byte."""

    def __init__(self, network: Network, number: int, protocol: str, client: Client) -> None:
        self.network = network
        self.number = number
        self.protocol = protocol
        self.client = client
        self.transport: SimulatedTransport | None = None
        #: The client neither sends nor receives any more; the server may not know.
        self.vanished = False
        #: The client's side is closed: it receives no more data.
        self.over = False
        #: The client currently does not read.
        self.stalled = False
        #: It was stalled or is about to end: neither side can be sure of the other's state.
        self.was_impaired = False
        self._unsent: list[bytes] = []
        self._ended = False
        self._arrives_at = 0.0
        self._heard_at = 0.0

    def __str__(self) -> str:
        return f"connection {self.number} ({self.protocol})"

    @property
    def _random(self) -> Random:
        return self.network.random

    # Actions of the client

    def open(self) -> None:
        network = self.network
        if self.over:
            return
        loop = network.server_loop
        factory = loop.ports.get(network.ports.get(self.protocol, 0)) if loop else None
        if loop is None or factory is None:
            self._deliver_cut("refused")
            return
        network.wires[self.number] = self
        loop.call_soon(self._accept, loop, factory)

    def _accept(self, loop: SimulatedLoop, factory: Callable[[], asyncio.Protocol]) -> None:
        self.network.steps.note("connected", self.number, self.protocol)
        self.transport = transport = SimulatedTransport(loop, self, factory())
        transport.protocol.connection_made(transport)
        unsent, self._unsent = self._unsent, []
        for data in unsent:
            self.send(data)
        if self._ended:
            self._end()

    def send(self, data: bytes) -> None:
        """Send data, which arrives in pieces."""
        if self.over or not data:
            return
        if self.transport is None:
            self._unsent.append(data)
            return
        for piece in self._pieces(data):
            self._later(self._arrive, piece)

    def fin(self) -> None:
        """The client sends no more data but continues to read."""
        self._ended = self.was_impaired = True
        if self.transport is not None:
            self._end()

    def reset(self) -> None:
        """The client disconnects; the server notices, unless the connection was lost before."""
        if self.over:
            return
        self.over = True
        if self.transport is not None and not self.vanished:
            self._later(self._reset)

    def vanish(self) -> None:
        """Neither side receives data any more, and neither notices, possibly for very long."""
        self.vanished = self.was_impaired = True
        if self.transport is not None:
            after = self._random.uniform(*PEER_TIMEOUT)
            self.transport.loop.call_later(after, self._reset)

    def stall(self, seconds: float) -> None:
        """The client does not read for a while."""
        self.stalled = self.was_impaired = True
        loop = self.network.clients_loop
        self._heard_at = max(self._heard_at, loop.time() + seconds)
        loop.call_later(seconds, self._read_on)

    @property
    def healthy(self) -> bool:
        """Whether the connection is intact, so that the server must reply."""
        return self.transport is not None and not (self.vanished or self.stalled or self.over)

    # On the way to the server

    def _pieces(self, data: bytes) -> list[bytes]:
        random, weather = self._random, self.network.weather
        if len(data) < 2 or random.random() >= weather.cut:
            return [data]
        cuts = sorted(random.randrange(1, len(data)) for _ in range(random.randrange(1, 5)))
        edges = [0, *cuts, len(data)]
        return [data[a:b] for a, b in itertools.pairwise(edges) if a < b]

    def _later(self, what: Callable[..., None], *args: Any) -> None:
        """On the server's side, in the order of sending."""
        transport = self.transport
        assert transport is not None
        loop = transport.loop
        at = loop.time() + self.network.weather.delay(self._random)
        self._arrives_at = at = max(at, self._arrives_at)
        loop.call_at(at, what, *args)

    def _arrive(self, piece: bytes) -> None:
        if not self.vanished and self.transport is not None:
            self.network.steps.note(">", self.number, piece)
            self.transport.arrive(piece)

    def _end(self) -> None:
        self._later(self._arrive_end)

    def _arrive_end(self) -> None:
        if not self.vanished and self.transport is not None:
            self.network.steps.note("fin", self.number)
            self.transport.arrive(None)

    def _reset(self) -> None:
        if self.transport is not None:
            self.network.steps.note("reset", self.number)
            self.transport.broken(ConnectionResetError())

    # On the way to the client

    def server_sent(self, data: bytes) -> None:
        """Bytes have left the server."""
        self.network.steps.note("<", self.number, data)
        meanings = self.client.server_sent(data)
        if meanings:
            self._deliver(self.client.receive, meanings)

    def server_closed(self, reason: str) -> None:
        self.network.wires.pop(self.number, None)
        self.transport = None
        self._deliver_cut(reason)

    def server_died(self) -> None:
        self.server_closed("the server died")

    def _deliver_cut(self, reason: str) -> None:
        self._deliver(self._receive_cut, reason)

    def _receive_cut(self, reason: str) -> None:
        self.over = True
        self.client.cut(reason)

    def _deliver(self, what: Callable[..., None], *args: Any) -> None:
        loop = self.network.clients_loop
        at = loop.time() + self.network.weather.delay(self._random)
        self._heard_at = at = max(at, self._heard_at)
        loop.call_at(at, self._if_there, what, *args)

    def _if_there(self, what: Callable[..., None], *args: Any) -> None:
        if not self.over and not self.vanished:
            what(*args)

    def _read_on(self) -> None:
        self.stalled = False
        if self.transport is not None:
            self.transport.loop.call_soon(self.transport.drain)


class SimulatedTransport(asyncio.Transport):
    """The server's side of a wire."""

    def __init__(self, loop: SimulatedLoop, wire: Wire, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.loop = loop
        self.protocol = protocol
        self._wire = wire
        self._high, self._low = 65_536, 16_384
        self._buffer = bytearray()
        #: Bytes that the kernel has for a client that does not read.
        self._in_kernel = 0
        self._choked = False
        self._closing = False
        self._lost = False
        self._reading = True
        self._inbox: deque[bytes | None] = deque()
        self._ended = False

    # The interface for the session

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("simulated", self._wire.number) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high, self._low = high or 0, low or 0

    def get_write_buffer_size(self) -> int:
        return len(self._buffer)

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def write(self, data: bytes) -> None:
        if self._closing or not data:
            return
        self._buffer += data
        self._send()
        if len(self._buffer) > self._high and not self._choked:
            self._choked = True
            self._wire.network.steps.note("choked", self._wire.number)
            self.protocol.pause_writing()

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        if self._inbox:
            self.loop.call_soon(self._read)

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._inbox.clear()
            if not self._buffer:
                self.loop.call_soon(self._lose, None, "closed")

    def abort(self) -> None:
        self._closing = True
        self._buffer.clear()
        self.loop.call_soon(self._lose, None, "aborted")

    # The interface for the wire

    def arrive(self, piece: bytes | None) -> None:
        if self._closing:
            return
        self._inbox.append(piece)
        if self._reading:
            self._read()

    def broken(self, error: Exception) -> None:
        self._closing = True
        self._buffer.clear()
        self._lose(error, "reset")

    def drain(self) -> None:
        """The client reads again."""
        if self._lost:
            return
        self._in_kernel = 0
        self._send()
        if self._choked and len(self._buffer) <= self._low:
            self._choked = False
            if not self._closing:
                self.protocol.resume_writing()
        if self._closing and not self._buffer:
            self._lose(None, "closed")

    # Internals

    def _send(self) -> None:
        """Pass as much data to the kernel as it accepts."""
        wire = self._wire
        room = len(self._buffer)
        if wire.stalled or wire.vanished:
            room = min(room, max(0, wire.network.weather.capacity - self._in_kernel))
            self._in_kernel += room
        if room:
            data = bytes(self._buffer[:room])
            del self._buffer[:room]
            wire.server_sent(data)

    def _read(self) -> None:
        """Deliver the received data as one read."""
        while self._inbox and self._reading and not self._closing:
            piece = self._inbox.popleft()
            if piece is None:
                if not self.protocol.eof_received():
                    self.close()
                return
            while self._inbox and self._inbox[0] is not None and len(piece) < MAX_READ:
                piece += self._inbox.popleft() or b""
            self.protocol.data_received(piece)

    def _lose(self, error: Exception | None, reason: str) -> None:
        if self._lost:
            return
        self._lost = True
        self._inbox.clear()
        self._wire.server_closed(reason)
        self.protocol.connection_lost(error)

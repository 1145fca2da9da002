"""What must hold when five protocols talk at once, on one engine, each in pieces of any size: every
reply is whole and well-formed, the engine's indexes say what its jobs say after every step, what was
done can be written down and read back, and nothing stays of a client that is gone.

The stream is steps: a byte that says who, a byte that says how much, and so many bytes to be said.
"""

from typing import Any

import conversation
import goqueue_conversation
import masenko_conversation
import resp_conversation
import workq_conversation
from conversation import START, Dice, Wire
from playing import HEAD, Journal, agree, leave
from resp_conversation import SCRIPT_C, RespWorld, request

from millrace.engine.engine import Engine
from millrace.protocols.connection import Connection
from millrace.protocols.faktory import FaktoryConnection, FaktoryHub
from millrace.protocols.goqueue import GoqueueConnection, GoqueueHub
from millrace.protocols.masenko import MasenkoConnection, MasenkoHub
from millrace.protocols.qless import QlessApi, QlessConnection, QlessHub
from millrace.protocols.workq import WorkqConnection, WorkqHub

#: Two clients of each.
CLIENTS = 10
(TIME, GONE, ENDED) = (5, 6, 7)
_SPANS = (1_000, 1_000_000, 60_000_000, 3_600_000_000)


class FiveWorld(RespWorld):
    """One engine, and all who are served from it."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.now = START
        self.dice = Dice()
        self.engine = engine = Engine(self.dice, dead_max=3)
        faktory = FaktoryHub(
            engine,
            started_at=START,
            challenge=lambda: (1, "salt"),
            memory_mb=lambda: 7,
            recover_lost_workers=True,
        )
        workq = WorkqHub(engine, started_at=START)
        masenko, goqueue = MasenkoHub(engine), GoqueueHub(engine, max_deliveries=3)
        self.hub = QlessHub(engine, started_at=START, **options)
        self.api = QlessApi(self.hub)
        self.hubs = [faktory, workq, masenko, goqueue, self.hub]
        for hub in self.hubs:
            hub.hubs, hub.touched = self.hubs, self.hub.touched
        self._kinds = (
            (FaktoryConnection, faktory, conversation.assert_one_reply),
            (WorkqConnection, workq, workq_conversation.assert_one_reply),
            (MasenkoConnection, masenko, masenko_conversation.assert_one_reply),
            (GoqueueConnection, goqueue, goqueue_conversation.assert_one_reply),
            (QlessConnection, self.hub, resp_conversation.assert_one_reply),
        )
        self.clients = []
        for number in range(CLIENTS):
            self.clients.append(self.joins(number))

    def joins(self, number: int) -> Wire:
        """Somebody new in this place, who has said what comes before all else."""
        kind, hub, check = self._kinds[number % 5]
        connection: Connection = kind(hub)  # type: ignore[arg-type]
        wire = Wire(self, connection, check)
        wire.flush()
        if kind is FaktoryConnection:
            wire.receive(b'HELLO {"v":2,"wid":"w%d"}\r\n' % number)
        if kind is QlessConnection:
            wire.receive(request("SCRIPT", "LOAD", SCRIPT_C))
        self.tell()
        return wire


def check(data: bytes) -> None:
    stream = data[HEAD:]
    world = FiveWorld({})
    store = Journal(world)
    at = 0
    while at + 1 < len(stream):
        who, much = stream[at], stream[at + 1]
        at += 2
        what, number = who % 8, (who % 8 + 5 * (who // 8)) % CLIENTS
        if what == TIME:
            world.advance(_SPANS[much % 4] * (1 + much // 4))
        elif what == GONE:
            world.clients[much % CLIENTS].lose()
            world.tell()
        elif what == ENDED:
            world.clients[much % CLIENTS].end()
            world.tell()
        else:
            if world.clients[number].closed:
                world.clients[number] = world.joins(number)
            world.clients[number].receive(stream[at : at + much])
            at += much
        agree(world)
    store.check(world)
    leave(world)
    agree(world)

"""Invariants of five protocols on one engine, each fed in pieces of any size: every reply is
complete and well-formed, the engine's indexes match its jobs after every step, all changes can be
written and read back, and a disconnected client leaves no state behind.

The stream consists of steps: a byte for the client, a byte for the length, and that number of
bytes.
"""

import conversation
import goqueue_conversation
import masenko_conversation
import resp_conversation
import workq_conversation
from resp_conversation import SCRIPT_C, request
from stream_checks import HEAD, Journal, check_indexes, leave

from house import House
from wires import Wire

#: Two clients of each.
CLIENTS = 10
(TIME, GONE, ENDED) = (5, 6, 7)
_SPANS = (1_000, 1_000_000, 60_000_000, 3_600_000_000)
_REPLIES = {
    "faktory": conversation.assert_one_reply,
    "workq": workq_conversation.assert_one_reply,
    "masenko": masenko_conversation.assert_one_reply,
    "goqueue": goqueue_conversation.assert_one_reply,
    "qless": resp_conversation.assert_one_reply,
}


class AllProtocols(House):
    """All protocols, with clients that have sent their greetings."""

    def __init__(self) -> None:
        super().__init__(goqueue={"max_deliveries": 3}, faktory={"recover_lost_workers": True})
        self.hubs = [listener.hub for listener in self.listeners.values()]
        for number in range(CLIENTS):
            self.clients.append(self.joins(number))

    def joins(self, number: int) -> Wire:
        """Connect a new client at this position."""
        name, check = list(_REPLIES.items())[number % 5]
        wire = Wire(self, self.listeners[name].connect(), check)
        wire.flush()
        if name == "faktory":
            wire.receive(b'HELLO {"v":2,"wid":"w%d"}\r\n' % number)
        if name == "qless":
            wire.receive(request("SCRIPT", "LOAD", SCRIPT_C))
        self.tell()
        return wire


def check(data: bytes) -> None:
    stream = data[HEAD:]
    world = AllProtocols()
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
        check_indexes(world)
    store.check(world)
    leave(world)
    check_indexes(world)

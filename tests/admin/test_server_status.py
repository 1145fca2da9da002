"""`health`, `server`, `pipeline` and `faktory`."""

import pytest

from admin_room import Room
from millrace.admin.connection import OPERATIONS
from millrace.admin.overview import QUEUE_SLICE_SIZE
from millrace.protocols.faktory import info
from millrace.records import PipelineRun, ServerStatus
from wires import START


class Host:
    """A process with minimal details."""

    def server_status(self) -> ServerStatus:
        return ServerStatus(
            version="1", pid=1, host="h", started_at=START - 1_000_000, now=0, memory_mb=5, data="",
            lake="", durability="memory", halted="", sizes={}, store_bytes=0, disk_free=0,
            disk_size=0, tls=False, settings=[], qless={}, protocols=[], pipeline=self.pipeline(),
        )  # fmt: skip

    def pipeline(self) -> PipelineRun:
        return PipelineRun(True, False, 0, 0, -1, [], 0)

    def run_pipeline(self) -> str:
        return "not now"


@pytest.fixture
def room() -> Room:
    room = Room()
    room.hub.host = Host()
    room.hub.ports = {"faktory": 7419}
    room.hub.started_at, room.hub.memory_mb = START - 1_000_000, lambda: 5
    return room


def test_health(room):
    room.faktory_worker("w1")
    answer = room.asks(health=True)
    assert (answer["now"], answer["halted"]) == (START, "")
    assert (answer["connections"], answer["commands"]) == (1, room.faktory.commands)
    room.engine.unavailable_reason = "disk full"
    room.hub.hubs = [room.hub]
    answer = room.asks(health=True)
    assert (answer["halted"], answer["connections"], answer["commands"]) == ("disk full", 0, 0)


def test_server(room):
    room.push("a1")
    room.faktory_worker("w1")
    room.speaks_qless("config.set", "heartbeat", "20")
    answer = room.asks(server=True)
    assert answer["now"] == START
    assert answer["sizes"]["jobs"] == 1
    assert answer["qless"]["heartbeat"] == "20"
    assert answer["qless"]["application"] == "qless"
    rows = {row["name"]: row for row in answer["protocols"]}
    assert (rows["faktory"]["port"], rows["faktory"]["connections"]) == (7419, 1)
    assert rows["qless"]["port"] == 0
    room.engine.unavailable_reason = "disk full"
    assert room.asks(server=True)["halted"] == "disk full"


def test_pipeline(room):
    assert room.asks(pipeline=True)["code"] == -1


def test_without_a_host_the_status_is_unavailable():
    room = Room(qless=False)
    assert room.refused(server=True)[0] == "unavailable"
    assert room.refused(pipeline=True)[0] == "unavailable"


def test_faktory_status_without_the_protocol(room):
    room.push("a1")
    served = room.asks(faktory=True)
    room.hub.hubs = [room.hub]
    alone = room.asks(faktory=True)
    assert served["faktory"] == alone["faktory"]
    assert served["faktory"]["queues"] == {"q": 1}
    assert (served["server"]["used_memory_mb"], alone["server"]["used_memory_mb"]) == (7, 5)
    assert alone["server"]["uptime"] == 1


def test_faktory_queues_are_counted_in_slices(room):
    names = [f"q{number}" for number in range(3 * QUEUE_SLICE_SIZE)]
    for name in names:
        room.push(queue=name)
    telling = OPERATIONS["faktory"](room.hub, True, START)
    *turns, answer = telling
    assert (len(turns), set(turns)) == (6, {None})
    assert answer == info.collect_info(room.faktory, START)
    assert list(answer["faktory"]["queues"]) == sorted(names)

"""`ship`, then kill -9 after or before the reply: the lake has each event once.

The restart table does not send `ship`, because it changes the lake and not the state that a client
sees. `run_pipeline` has no row either: it starts a process that reads the lake and writes only
derived tables, and the server stores no state of it.
"""

import json
import socket
import time
from pathlib import Path

import pytest
from command_rows import control, faktory
from forked_server import ForkedServer
from raw_conversation import SocketConversation

from millrace.admin.client import hello
from millrace.journal.events_table import EventsTable
from millrace.server.control_socket import control_socket_path

pytest.importorskip("deltalake")


@pytest.fixture
def server(tmp_path):
    server = ForkedServer(tmp_path)
    try:
        server.start()
        yield server
    finally:
        server.kill()


def push(server: ForkedServer, first: int, count: int) -> None:
    conversation = SocketConversation(server.ports, server.data)
    for number in range(first, first + count):
        unit = {"jid": f"job-{number:06}", "jobtype": "t", "args": [number]}
        assert conversation.send("faktory", faktory("PUSH", unit)) == b"+OK\r\n"
    conversation.close()


def ship(server: ForkedServer) -> dict:
    """Ship all events, and return the status."""
    conversation = SocketConversation(server.ports, server.data)
    try:
        return json.loads(conversation.send("control", control(ship=True)))
    finally:
        conversation.close()


def begin_to_ship(server: ForkedServer) -> None:
    """Send `ship` without waiting for the reply."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(control_socket_path(server.data)))
        connection.sendall(hello() + control(ship=True))
        connection.recv(1)  # the reply to the hello: the server has read the request, or will


def shipped_jids(data: Path) -> list[str]:
    """The job ids of all `pushed` events in the lake, by event number."""
    table = EventsTable(data / "lake").table
    if table is None:
        return []
    found = table.to_pyarrow_table(columns=["event_id", "type", "jid"]).to_pylist()
    numbers = [each["event_id"] for each in found]
    assert len(numbers) == len(set(numbers)), "an event is in the lake twice"
    assert sorted(numbers) == list(range(1, len(numbers) + 1)), "an event is missing"
    rows = sorted(found, key=lambda each: each["event_id"])
    return [each["jid"] for each in rows if each["type"] == "pushed"]


def test_a_shipment_that_was_acknowledged_is_in_the_lake_once(server):
    push(server, 0, 30)
    assert ship(server)["events"] == 0
    server.kill()
    assert len(shipped_jids(server.data)) == 30
    server.start()
    push(server, 30, 10)
    assert ship(server)["events"] == 0
    assert shipped_jids(server.data) == [f"job-{number:06}" for number in range(40)]


@pytest.mark.parametrize("delay", [0.0, 0.05, 0.3])
def test_a_kill_during_a_shipment_loses_and_repeats_no_event(server, delay):
    push(server, 0, 30)
    begin_to_ship(server)
    time.sleep(delay)  # any time works: no event may be lost or repeated
    server.kill()
    server.start()
    push(server, 30, 10)
    assert ship(server)["events"] == 0
    assert shipped_jids(server.data) == [f"job-{number:06}" for number in range(40)]

"""Every command alone on a quiet server, then kill -9: the restarted server shows the same
state.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from command_rows import ROWS, Row, Stage, control, request_of
from command_tables import served, unknown_requests
from forked_server import ForkedServer
from observed_state import differences, observe
from raw_conversation import SocketConversation

PROTOCOLS = list(dict.fromkeys(row.protocol for row in ROWS))


def test_every_command_has_a_row() -> None:
    rows = {(row.protocol, row.command) for row in ROWS}
    variants = {row for row in rows if row[1].endswith(" scratch")}
    assert rows - variants == served()
    assert not unknown_requests()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ForkedServer]:
    server = ForkedServer(tmp_path)
    try:
        server.start()
        yield server
    finally:
        server.kill()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_change_alone_in_a_turn_survives_a_kill(protocol: str, server: ForkedServer) -> None:
    lost: list[str] = []
    for number, row in enumerate(ROWS):
        if row.protocol == protocol and row.effect == "changes":
            lost += (f"{row.command}: {each}" for each in _lost(server, row, f"row-{number}"))
    assert not lost, "\n".join(lost)


def _lost(server: ForkedServer, row: Row, name: str) -> list[str]:
    """The changes of the command that the restarted server does not show."""
    conversation = SocketConversation(server.ports, server.data)
    stage = Stage(conversation, name)
    request = request_of(row, stage)
    before = observe(conversation)
    reply = stage.need(*request)
    after = observe(conversation)
    assert before != after, f"{row.name} had no effect: {reply!r}"
    server.kill()
    conversation.close()
    server.start()
    conversation = SocketConversation(server.ports, server.data)
    try:
        return differences(after, observe(conversation))
    finally:
        conversation.send("control", control(flush={}))
        conversation.close()

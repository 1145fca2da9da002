"""The loop that executes the commands of every protocol, shown with the Tiny protocol."""

from random import Random

import pytest
from tiny.settings import TinyConfig
from tiny.spec import SPEC, TinyConnection, make_hub

from millrace.engine.engine import Engine
from millrace.engine.policies import ProtocolRules
from millrace.protocols.connection import LARGE_REPLY, SLICE_COST
from millrace.protocols.spec import HubContext, RuleTable
from wires import data_of, waiting

NOW = 1_700_000_000_000_000


@pytest.fixture
def connection() -> TinyConnection:
    rules = RuleTable([ProtocolRules(7, "tiny", "Tiny", SPEC.policy)])
    engine = Engine(Random(1), rules)
    context = HubContext(engine, NOW, 10, 1 << 20, lambda: 0, lambda bits: 0)
    return TinyConnection(make_hub(TinyConfig(), context))


def test_a_client_gets_its_share_of_commands(connection: TinyConnection) -> None:
    assert connection.receive(b"get q\n" * 5, NOW, 3)
    assert len(connection.replies) == 3
    assert not connection.run(NOW, 3)
    assert len(connection.replies) == 5


def test_the_last_command_of_a_share_leaves_no_work(connection: TinyConnection) -> None:
    assert not connection.receive(b"get q\n" * 3, NOW, 3)


def test_a_slice_costs_as_much_as_several_commands(connection: TinyConnection) -> None:
    assert connection.receive(b"count 3\nget q\n", NOW, 1 + 2 * SLICE_COST)
    assert connection.long_command is not None
    assert connection.replies == []
    assert not connection.run(NOW, 3 * SLICE_COST)
    assert data_of(connection) == [b"counted\n", b"nothing\n"]


def test_a_large_reply_ends_the_share(connection: TinyConnection) -> None:
    connection.receive(b"put q %b\n" % bytes(LARGE_REPLY), NOW, 3)
    assert connection.receive(b"get q\nget q\n", NOW, 3)
    assert len(connection.replies) == 2


def test_only_replies_to_changes_wait(connection: TinyConnection) -> None:
    connection.receive(b"get q\nput q a\nget empty\nput q b\n", NOW, 10)
    assert waiting(connection) == [1, 3]


@pytest.mark.parametrize("cause", ["unavailable_reason", "push_refusal_reason"])
def test_an_unavailable_store_is_reported_with_one_text(
    connection: TinyConnection, cause: str
) -> None:
    setattr(connection.engine, cause, "the disk is full")
    connection.receive(b"put q a\n", NOW, 10)
    expected = b"error: the disk is full: nothing was changed, try again later\n"
    assert data_of(connection) == [expected] == [connection.unavailable_reply("the disk is full")]
    assert waiting(connection) == []
    assert not connection.engine.jobs

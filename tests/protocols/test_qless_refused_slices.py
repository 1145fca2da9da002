"""Long commands of Qless when commits are refused or other clients act between their slices."""

import json
from random import Random

import pytest
from test_qless_slices import NOW, Port
from test_queue_rules import exchange, limited, resp

from millrace.engine.engine import Engine
from millrace.protocols.spec import protocol_rules


@pytest.mark.parametrize("size", [10, 20_000])
@pytest.mark.parametrize("slices", range(2, 14))
def test_a_large_pop_returns_all_jobs_that_it_holds(size: int, slices: int) -> None:
    """The store refuses the commit of another client's change, after which the pop continues."""
    port = Port()
    for number in range(100):
        data = json.dumps("x" * size)
        assert port.other.call("put", "w", "q", f"j{number}", "klass", data, 0).startswith(b"$")
    port.client.send("pop", "q", "w", 90)
    for _ in range(slices - 1):
        assert port.commit()
        port.client.connection.run(NOW, 1)
    if port.client.connection.replies:
        return  # the pop needed fewer slices
    port.other.send("put", "w", "q2", "other", "klass", "{}", 0)
    port.store.fail = "commit"
    assert not port.commit()
    port.store.fail = ""
    port.engine.resume(NOW)
    reply = port.client.reply()
    assert reply.count(b'"jid"') == port.leased_count


@pytest.mark.parametrize("last", ["ql:th:ql:q:billing", "ql:qp:priorities"])
def test_del_changes_nothing_if_the_port_refuses_one_of_its_keys(last: str) -> None:
    engine = Engine(Random(1), protocol_rules())
    port = limited("qless", engine)
    exchange(port, resp("HSET", "ql:th:ql:q:signup-q", "maximum", "3"))
    exchange(port, resp("SET", "s", "v"))
    reply = exchange(port, resp("DEL", "s", "ql:th:ql:q:signup-q", last))
    assert reply.startswith(b"-NOPERM")
    assert engine.limits.by_key
    assert exchange(port, resp("GET", "s")) == b"$1\r\nv\r\n"

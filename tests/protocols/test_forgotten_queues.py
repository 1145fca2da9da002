"""Qless also forgets a queue that the engine has forgotten."""

from random import Random

from millrace.engine.engine import Engine
from millrace.engine.idle_queues import IdleQueues
from millrace.protocols.qless.calls import QlessApi
from millrace.protocols.qless.hub import QlessHub
from millrace.protocols.spec import protocol_rules

NOW = 1_700_000_000_000_000
HOUR = 3_600_000_000


def test_the_first_put_of_a_forgotten_queue_is_forgotten() -> None:
    engine = Engine(Random(1), protocol_rules())
    hub = QlessHub(engine, started_at=NOW)
    api = QlessApi(hub)
    words = [b"1700000000", b"w", b"mail", b"job-1", b"K", b"{}", b"0"]
    api.call("C", "put", [], words, NOW)
    api.call("C", "cancel", [], [b"1700000000", b"job-1"], NOW)
    assert list(api.qless.first_seen) == ["mail"]
    idle = IdleQueues(engine)
    assert idle.remove_idle_batch(NOW, HOUR) == []
    (name,) = idle.remove_idle_batch(NOW + HOUR, HOUR)
    hub.queue_forgotten(name)
    assert not api.qless.first_seen
    assert not engine.settings

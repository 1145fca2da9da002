"""Jobs whose payload in the store is damaged."""

from random import Random

import pytest

from millrace.engine.engine import Engine
from millrace.engine.errors import PayloadDamaged
from millrace.engine.job import NewJob
from millrace.engine.states import DEAD
from millrace.protocols.registry import FAKTORY, MASENKO, WORKQ
from millrace.protocols.spec import protocol_rules

NOW = 1_700_000_000_000_000


class DamagedPayloads:
    """A reader that finds only damaged payloads."""

    def read(self, seq: int) -> bytes:
        raise PayloadDamaged(seq, "the checksum is wrong")


@pytest.mark.parametrize("actor", [FAKTORY, WORKQ])
def test_a_dependent_in_an_examined_queue_is_leased(actor: int) -> None:
    """The end of the damaged job moves its dependent to the first queue, which was empty before."""
    engine = Engine(Random(1), protocol_rules())
    engine.payloads.reader = DamagedPayloads()  # type: ignore[assignment]
    damaged = engine.push(NewJob("d", "k", b"payload", MASENKO, "b", 3, 10**9), NOW)
    engine.payloads.move_out_of_memory(damaged.seq, damaged.inline_payload)
    dependent = NewJob("dep", "k", b"p", MASENKO, "c", 3, 10**9, dead_queue="a")
    dependent.blockers = [damaged.seq]
    engine.push(dependent, NOW)
    leased = engine.lease(["a", "b"], "w", actor, NOW + 1, random_queue=actor == WORKQ)
    assert leased is not None
    assert (leased.jid, leased.queue) == ("dep", "a")
    assert damaged.state == DEAD

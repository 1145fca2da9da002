"""Somebody sets the clock of a machine on which a server runs: spans stay what they were."""

import pytest
from stepped_machine import Machine

HOUR = 3600.0


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.mark.parametrize("jump", [-HOUR, HOUR])
def test_whoever_waits_waits_as_long_as_it_asked_for(machine, jump):
    wire, ear = machine.call("workq")
    asked_at = machine.schedule.now
    wire.send(b"lease queue 10000\r\n")
    machine.run(2)
    machine.ahead += jump
    machine.run(20)
    assert [data for _, data in ear.heard] == [b"-TIMEOUT\r\n"]
    assert 9 < ear.heard[0][0] - asked_at < 12


@pytest.mark.parametrize("jump", [-HOUR, HOUR])
def test_a_masenko_client_has_its_heartbeat_to_speak_again(machine, jump):
    wire, ear = machine.call("masenko")
    wire.send(b"PING\n")
    machine.run(30)
    machine.ahead += jump
    machine.run(14)
    assert not ear.closed
    wire.send(b"PING\n")
    machine.run(40)
    assert not ear.closed
    machine.run(10)
    assert ear.closed

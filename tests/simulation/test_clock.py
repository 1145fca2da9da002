"""The clock of the server's machine is set: durations stay the same, due times follow the clock."""

from datetime import UTC, datetime

import pytest
from stepped_machine import Machine

from millrace.engine.states import READY, SCHEDULED
from millrace.store import MemoryStore

HOUR = 3600.0
YEAR = 365 * 24 * HOUR


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


def schedule(machine: Machine, name: str, seconds: float) -> None:
    """Push a Faktory job that is due so far ahead of the right clock."""
    at = datetime.fromtimestamp(1_700_000_000 + machine.schedule.now + seconds, UTC)
    wire, _ = machine.call("faktory")
    machine.says(wire, b'HELLO {"v":2}\r\n')
    fields = b'"jid":"%b-1234567","jobtype":"Some","args":[]' % name.encode()
    machine.says(wire, b'PUSH {%b,"at":"%b"}\r\n' % (fields, at.isoformat().encode()))
    machine.commit_all()


def state(machine: Machine, name: str) -> int:
    job = machine.engine.find(f"{name}-1234567")
    assert job is not None
    return job.state


@pytest.mark.parametrize("ahead", [2 * HOUR, 10 * YEAR])
def test_a_clock_that_was_ahead_at_boot_makes_no_later_job_due(ahead):
    """The machine boots with a wrong clock, NTP sets it back, and the server restarts twice."""
    store = MemoryStore()
    machine = Machine(store, ahead=ahead)
    schedule(machine, "early", 60)
    assert state(machine, "early") == READY  # it is due by the wrong clock
    machine.ahead -= ahead
    machine.run(2)
    schedule(machine, "later", 60)
    assert state(machine, "later") == SCHEDULED
    machine = Machine(store)
    schedule(machine, "third", 60)
    machine.run(20)
    assert (state(machine, "later"), state(machine, "third")) == (SCHEDULED, SCHEDULED)
    machine.run(45)
    assert (state(machine, "later"), state(machine, "third")) == (READY, READY)
    machine.commit_all()
    machine = Machine(store, ahead=-HOUR)  # and back
    schedule(machine, "fourth", -60)
    machine.run(60)
    assert state(machine, "fourth") == SCHEDULED
    machine.ahead += HOUR
    machine.run(3)
    assert state(machine, "fourth") == READY

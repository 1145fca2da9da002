"""The server's clock is set: durations stay the same, due times follow the clock."""

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
def test_a_clock_change_does_not_change_a_wait(machine, jump):
    wire, recorder = machine.call("workq")
    asked_at = machine.schedule.now
    wire.send(b"lease queue 10000\r\n")
    machine.run(2)
    machine.ahead += jump
    machine.run(20)
    assert [data for _, data in recorder.received] == [b"-TIMEOUT\r\n"]
    assert 9 < recorder.received[0][0] - asked_at < 12


@pytest.mark.parametrize("jump", [-HOUR, HOUR])
def test_a_wait_that_began_just_before_the_jump_keeps_its_duration(machine, jump):
    """The server checks its clock once per second; this wait began after the last check."""
    wire, recorder = machine.call("workq")
    asked_at = machine.schedule.now
    wire.send(b"lease queue 10000\r\n")
    machine.schedule.run_until(lambda: "queue" in machine.engine.queues)
    machine.ahead += jump
    machine.run(20)
    assert [data for _, data in recorder.received] == [b"-TIMEOUT\r\n"]
    assert 9 < recorder.received[0][0] - asked_at < 12


@pytest.mark.parametrize("jump", [-HOUR, HOUR])
def test_a_wait_that_begins_just_after_the_jump_has_its_duration(machine, jump):
    wire, recorder = machine.call("workq")
    machine.ahead += jump
    asked_at = machine.schedule.now
    wire.send(b"lease queue 10000\r\n")
    machine.run(20)
    assert [data for _, data in recorder.received] == [b"-TIMEOUT\r\n"]
    assert 9 < recorder.received[0][0] - asked_at < 12


@pytest.mark.parametrize("jump", [-HOUR, HOUR])
def test_a_clock_change_does_not_shorten_the_masenko_heartbeat(machine, jump):
    wire, recorder = machine.call("masenko")
    wire.send(b"PING\n")
    machine.run(30)
    machine.ahead += jump
    machine.run(14)
    assert not recorder.closed
    wire.send(b"PING\n")
    machine.run(40)
    assert not recorder.closed
    machine.run(10)
    assert recorder.closed


def schedule(machine: Machine, name: str, seconds: float) -> None:
    """Push a Faktory job that is due this number of seconds after the correct time."""
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
def test_a_clock_ahead_at_boot_does_not_make_later_jobs_due(ahead):
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

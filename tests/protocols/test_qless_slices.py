"""Long Qless commands, and what happens between their slices: other clients, refused commits."""

import json
import re
from random import Random

import pytest
from resp_conversation import SCRIPT_C, SHA_C

from failing_stores import FailingMemoryStore
from millrace.engine.engine import Engine
from millrace.engine.recurring import RECURRING_PREFIX
from millrace.engine.states import BLOCKED, LEASED
from millrace.protocols.qless.calls import QlessApi
from millrace.protocols.qless.cancellation import CANCEL_BATCH_SIZE
from millrace.protocols.qless.connection import QlessConnection
from millrace.protocols.qless.hub import QlessHub
from millrace.protocols.qless.state import QlessState
from millrace.protocols.spec import protocol_rules
from scene import commit_or_revert, recover
from wires import data_of

NOW = 1_700_000_000_000_000
TIME = NOW // 1_000_000


def request(*words: object) -> bytes:
    parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(p), p) for p in parts)


class Client:
    """A client of the port."""

    def __init__(self, port: "Port") -> None:
        self.port = port
        self.connection = QlessConnection(port.hub)

    def send(self, *words: object, when: int = TIME) -> None:
        """Send a command of dialect C, and run its first slice."""
        command, *args = words
        call = request("EVALSHA", SHA_C, 0, command, when, *args)
        self.connection.receive(call, NOW, 1)

    def reply(self) -> bytes:
        """Run the rest of the command. The changes of each slice are committed."""
        for _ in range(10_000):
            self.port.commit()
            if self.connection.replies:
                replies = data_of(self.connection)
                self.connection.replies.clear()
                return b"".join(replies)
            self.connection.run(NOW, 1)
        raise AssertionError("no reply")

    def refuse_commit(self) -> None:
        """Run a slice whose commit is refused. Then the store is writable again."""
        self.connection.run(NOW, 1)
        self.port.store.fail = "commit"
        assert not self.port.commit()
        self.port.store.fail = ""
        self.port.engine.resume(NOW)

    def call(self, *words: object, when: int = TIME) -> bytes:
        self.send(*words, when=when)
        return self.reply()

    def put(self, jid: str, *options: object) -> None:
        assert self.call("put", "w", "q", jid, "klass", "{}", 0, *options).startswith(b"$")


class Port:
    """A Qless port on a store."""

    def __init__(self) -> None:
        self.store = FailingMemoryStore()
        self.engine = Engine(Random(1), protocol_rules())
        self.engine.durable = True
        self.hub = QlessHub(self.engine, started_at=NOW)
        self.api = QlessApi(self.hub)
        self.client, self.other = Client(self), Client(self)
        self.client.connection.receive(request("SCRIPT", "LOAD", SCRIPT_C), NOW, 1)
        self.client.reply()

    def commit(self) -> bool:
        """Return whether the commit succeeded."""
        return commit_or_revert(self.engine, self.store)

    @property
    def leased_count(self) -> int:
        return sum(job.state == LEASED for job in self.engine.jobs.values())

    def is_blocked(self, jid: str) -> bool:
        job = self.engine.find(jid)
        return job is not None and job.state == BLOCKED


@pytest.fixture
def port() -> Port:
    return Port()


def padded(*jids: str) -> str:
    """A list of dependencies that is too long for one slice."""
    return json.dumps([*[f"unknown{number}" for number in range(2000)], *jids])


# Other clients between two slices


def test_cancel_refuses_to_remove_a_job_that_has_a_new_dependent(port: Port) -> None:
    jids = [f"j{number}" for number in range(150)]
    for jid in jids:
        port.other.put(jid)
    port.client.send("cancel", *jids)
    port.other.put("late", "depends", '["j0"]')
    reply = port.client.reply()
    assert b"j0 is a dependency of late but is not mentioned to be canceled" in reply
    assert port.is_blocked("late")
    assert port.engine.find("j0") is not None


def test_cancel_removes_a_job_that_waits_for_itself(port: Port) -> None:
    port.other.put("own", "depends", '["own"]')
    assert port.is_blocked("own")
    assert port.client.call("cancel", "own", *[f"j{number}" for number in range(150)])
    assert port.engine.find("own") is None


def test_requeue_does_not_create_a_job_that_was_cancelled_meanwhile(port: Port) -> None:
    port.other.put("base")
    port.other.put("job")
    port.client.send("requeue", "w", "q", "job", "klass", "{}", 0, "depends", padded("base"))
    port.other.call("cancel", "job")
    refusal = b"-ERR user_script:1: Requeue(): Job job does not exist\r\n"
    assert port.client.reply() == refusal
    assert port.engine.find("job") is None


# Long options


@pytest.mark.parametrize("spaces", [0, 9000])
def test_an_empty_list_of_dependencies_keeps_the_earlier_ones(port: Port, spaces: int) -> None:
    port.other.put("base")
    port.other.put("job", "depends", '["base"]')
    port.client.put("job", "depends", f"[{' ' * spaces}]")
    assert port.is_blocked("job")


def test_a_long_list_of_unknown_jobs_replaces_the_dependencies(port: Port) -> None:
    port.other.put("base")
    port.other.put("job", "depends", '["base"]')
    port.client.put("job", "depends", padded())
    assert not port.is_blocked("job")


# pop of many jobs


@pytest.mark.parametrize("count", [50, 60])
def test_pop_returns_all_jobs_whose_grace_period_has_ended(port: Port, count: int) -> None:
    for number in range(30):
        port.other.put(f"j{number}")
    port.other.call("pop", "q", "w1", 30)
    assert port.client.call("pop", "q", "w2", count, when=TIME + 100) == b"$2\r\n{}\r\n"
    assert port.client.call("pop", "q", "w2", count, when=TIME + 111).count(b'"jid"') == 30


@pytest.mark.parametrize("count", [50, 60])
def test_pop_continues_after_jobs_without_attempts(port: Port, count: int) -> None:
    port.other.call("config.set", "grace-period", 0)
    for number in range(20):
        port.other.put(f"bad{number}", "retries", 0)
    port.other.call("pop", "q", "w1", 20)
    for number in range(30):
        port.other.put(f"good{number}")
    port.other.call("pop", "q", "w1", 30, when=TIME + 1)
    assert port.client.call("pop", "q", "w2", count, when=TIME + 100).count(b'"jid"') == 30


@pytest.mark.parametrize("count", [50, 60])
def test_pop_returns_expired_jobs_before_waiting_ones(port: Port, count: int) -> None:
    port.other.call("config.set", "grace-period", 0)
    for number in range(20):
        port.other.put(f"bad{number}", "retries", 0)
    port.other.call("pop", "q", "w1", 20)
    for number in range(15):
        port.other.put(f"good{number}")
    port.other.call("pop", "q", "w1", 15, when=TIME + 1)
    for number in range(100):
        port.other.put(f"new{number}")
    reply = port.client.call("pop", "q", "w2", count, when=TIME + 100)
    jids = re.findall(rb'"jid":"([a-z]+)', reply)
    assert jids == [b"good"] * 15 + [b"new"] * (count - 15)


@pytest.mark.parametrize("count", [50, 60])
def test_a_paused_queue_ends_a_pop(port: Port, count: int) -> None:
    port.other.put("job")
    port.other.call("pause", "q")
    assert port.client.call("pop", "q", "w", count) == b"$2\r\n{}\r\n"


@pytest.mark.parametrize("count", [50, 60])
def test_the_maximum_concurrency_limits_a_pop_of_many_jobs(port: Port, count: int) -> None:
    port.other.call("config.set", "q-max-concurrency", 25)
    for number in range(100):
        port.other.put(f"j{number}")
    assert port.client.call("pop", "q", "w", count).count(b'"jid"') == 25
    assert port.client.call("pop", "q", "w", count) == b"$2\r\n{}\r\n"
    reply = port.client.call("pop", "q", "w", count, when=TIME + 60)
    assert reply == b"$2\r\n{}\r\n"  # the grace period of all 25 jobs begins


# FLUSHDB of many settings


def begin_flush(port: Port, slices: int) -> None:
    port.client.connection.receive(request("FLUSHDB"), NOW, 1)
    for _ in range(slices):
        assert port.commit()
        port.client.connection.run(NOW, 1)


def put_recurring(port: Port) -> None:
    for number in range(450):
        jid = f"r{number:03}"
        port.other.call("recur", "q", jid, "klass", "{}", "interval", 60, 0)


def memory(engine: Engine) -> dict[str, object]:
    """Return what a start reads from the settings."""
    q = QlessApi(QlessHub(engine, started_at=NOW)).qless
    q.refresh()
    return settings_in_memory(q)


def settings_in_memory(q: QlessState) -> dict[str, object]:
    return {
        "recurring": sorted(q.recurring),
        "by queue": {queue: sorted(each) for queue, each in q.engine.recurring.by_queue.items()},
        "limits": sorted(q.engine.limits.by_key),
        "concurrency": dict(q.engine.limits.concurrency),
        "tracked": dict(q.tracked),
        "options": dict(q.options.config),
        "history": q.options.max_history,
        "queues": dict(q.first_seen),
        "paused": set(q.paused_in_advance),
        "workers": dict(q.workers.last_seen),
    }


@pytest.mark.parametrize("slices", range(1, 5))
def test_a_flush_whose_client_disconnects_removes_settings_also_from_memory(
    port: Port, slices: int
) -> None:
    for number in range(70):
        jid, every = f"r{number}", ("klass", "{}", "interval", 60, 0)
        port.other.call("recur", "q", jid, *every)
        port.other.call("config.set", f"q{number}-max-concurrency", 1)
        port.engine.set_limit(f"t{number}", 1, 0, NOW)
        port.other.call("put", "w", f"q{number}", f"j{number}", "klass", "{}", 0)
        port.other.call("track", "track", f"j{number}")
        port.other.call("pause", f"new{number}")
        port.other.call("pop", f"q{number}", f"w{number}", 1)
    port.other.call("config.set", "max-job-history", 7)
    begin_flush(port, slices)
    assert port.commit()
    port.client.connection.connection_lost(NOW)
    assert port.commit()
    assert settings_in_memory(port.api.qless) == memory(recover(port.store))


@pytest.mark.parametrize("slices", [1, 2, 3])
def test_a_pop_between_two_slices_of_a_flush_keeps_no_recurring_job(
    port: Port, slices: int
) -> None:
    put_recurring(port)
    begin_flush(port, slices)
    port.other.send("pop", "q", "w", 50)
    assert port.client.reply() == b"+OK\r\n"
    assert not port.engine.recurring.by_id
    assert not [key for key in port.engine.settings if key.startswith(RECURRING_PREFIX)]


def test_a_flush_of_another_database_keeps_the_options(port: Port) -> None:
    port.other.call("config.set", "max-job-history", 7)
    port.client.connection.receive(request("SELECT", 3) + request("FLUSHDB"), NOW, 10)
    assert port.client.reply() == b"+OK\r\n+OK\r\n"
    assert port.api.qless.options.max_history == 7


# Refused commits

PARTLY = b"-MISCONF the store failed: only part of the command was executed; try again later\r\n"
UNCHANGED = b"-MISCONF the store failed: nothing was changed, try again later\r\n"


def fill(port: Port, count: int) -> list[str]:
    jids = [f"j{number}" for number in range(count)]
    for jid in jids:
        port.other.put(jid)
    return jids


@pytest.mark.parametrize("count", [120, 150, 600, 620])
def test_a_cancel_whose_last_slice_is_refused_is_partly_executed(port: Port, count: int) -> None:
    jids = fill(port, count)
    port.client.send("cancel", *jids)
    while len(port.engine.jobs) > CANCEL_BATCH_SIZE:
        assert port.commit()
        port.client.connection.run(NOW, 1)
    port.client.refuse_commit()
    assert port.client.reply() == PARTLY
    assert 0 < len(port.engine.jobs) < count


def test_a_long_reply_about_changes_waits_for_their_commit(port: Port) -> None:
    jids = fill(port, 150)
    port.client.send("cancel", *jids)
    for _ in range(50):
        port.client.connection.run(NOW, 1)
        if port.engine.jobs:
            port.commit()
    assert not port.client.connection.replies
    assert port.client.connection.long_command_waits
    assert port.client.reply().startswith(b"*150")


def test_a_refused_commit_of_other_changes_does_not_concern_a_durable_reply(port: Port) -> None:
    jids = fill(port, 2000)
    port.client.send("cancel", *jids)
    while port.engine.jobs:
        assert port.commit()
        port.client.connection.run(NOW, 1)
    assert port.commit()
    port.other.put("other")
    assert port.client.reply().startswith(b"*2000")


def test_a_long_command_that_is_refused_before_its_changes(port: Port) -> None:
    jids = fill(port, 150)
    port.client.send("cancel", *jids)
    port.other.send("put", "w", "q", "other", "klass", "{}", 0)
    port.client.refuse_commit()
    assert port.client.reply() == UNCHANGED
    assert len(port.engine.jobs) == 150


@pytest.mark.parametrize("slices", range(1, 6))
def test_a_pop_returns_the_jobs_that_it_keeps_after_a_refused_commit(
    port: Port, slices: int
) -> None:
    fill(port, 100)
    port.client.send("pop", "q", "w", 90)
    for _ in range(slices - 1):
        assert port.commit()
        port.client.connection.run(NOW, 1)
    port.store.fail = "commit"
    assert not port.commit()
    port.store.fail = ""
    port.engine.resume(NOW)
    reply = port.client.reply()
    assert reply.count(b'"jid"') == port.leased_count == 20 * (slices - 1)
    if slices == 1:
        assert reply == UNCHANGED


def test_a_pop_of_many_jobs_keeps_them_after_a_later_refused_commit(port: Port) -> None:
    fill(port, 100)
    port.client.send("pop", "q", "w", 90)
    while port.leased_count < 90:
        assert port.commit()
        port.client.connection.run(NOW, 1)
    assert port.client.reply().count(b'"jid"') == 90

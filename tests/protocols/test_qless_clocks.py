"""A Qless client with a wrong clock affects its own jobs, and no job of another client."""

import json
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from qless_conversation import Qless

from failing_stores import FailingMemoryStore
from millrace.engine.annotations import read_details
from millrace.engine.engine import Engine
from millrace.engine.events import Event
from millrace.engine.job import SECOND, Job
from millrace.engine.jobs_by_seq import JobsBySeq
from millrace.engine.states import DONE, LEASED, READY, SCHEDULED
from millrace.engine.waiters import Waiter
from millrace.protocols.qless.calls import QlessApi
from millrace.protocols.qless.errors import ScriptError
from millrace.protocols.qless.hub import QlessHub
from millrace.protocols.registry import FAKTORY
from millrace.protocols.spec import protocol_rules
from scene import commit, commit_or_revert, recover, unit

START = 1_794_771_831 * SECOND
HOUR = 3600


class Clocks:
    """A server with a store, and clients with clocks that differ by some seconds."""

    def __init__(self) -> None:
        self.store = FailingMemoryStore()
        self.now = START
        self._begin(Engine(Random(1), protocol_rules()))

    def _begin(self, engine: Engine) -> None:
        self.engine = engine
        self.api = QlessApi(QlessHub(engine, started_at=self.now))

    def call(self, ahead: int, command: str, *args: object) -> Any:
        words = [str(word).encode() for word in (self.now // SECOND + ahead, *args)]
        return self.api.call("C", command, [], words, self.now)

    def put(self, jid: str, *options: object, ahead: int = 0, delay: int = 0) -> None:
        self.call(ahead, "put", "w", "q", jid, "klass", "{}", delay, *options)

    def pop(self, ahead: int = 0) -> list[str]:
        return [job["jid"] for job in json.loads(self.call(ahead, "pop", "q", "w", 9))]

    def peek(self, ahead: int = 0) -> list[tuple[str, str]]:
        jobs = json.loads(self.call(ahead, "peek", "q", 9))
        return [(job["jid"], job["state"]) for job in jobs]

    def scheduled(self, ahead: int = 0) -> list[str]:
        return self.call(ahead, "jobs", "scheduled", "q")

    def shown(self, jid: str) -> str:
        return json.loads(self.call(0, "get", jid))["state"]

    def counts(self, ahead: int = 0) -> tuple[int, int]:
        found = json.loads(self.call(ahead, "queues", "q"))
        return found["waiting"], found["scheduled"]

    def passes(self, seconds: int) -> None:
        self.now += seconds * SECOND
        self.engine.tick(self.now)

    def state(self, jid: str) -> int:
        job = self.engine.find(jid)
        assert job is not None
        return job.state

    def restarts(self) -> None:
        commit(self.engine, self.store)
        self._begin(recover(self.store))
        self.engine.restoration.after_restart(self.now)
        self.api.qless.refresh()


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


#: Commands that read, and show the jobs that are due by the clock of the client as waiting.
LOOKS = [("peek", "q", 9), ("jobs", "scheduled", "q"), ("queues",), ("queues", "q")]


@pytest.mark.parametrize("command", [("get", "a"), *LOOKS])
def test_a_client_that_only_reads_makes_no_job_run(clocks: Clocks, command: tuple) -> None:
    clocks.put("a", delay=60)
    clocks.call(HOUR, *command)
    assert clocks.state("a") == SCHEDULED
    assert clocks.engine.lease(["q"], "w", FAKTORY, clocks.now) is None
    clocks.passes(59)
    assert clocks.state("a") == SCHEDULED
    clocks.passes(1)
    assert clocks.state("a") == READY


def test_a_client_sees_jobs_that_are_due_by_its_clock(clocks: Clocks) -> None:
    clocks.put("a", "priority", 5, delay=60)
    clocks.put("b")
    assert clocks.peek() == [("b", "waiting")]
    assert clocks.peek(HOUR) == [("a", "waiting"), ("b", "waiting")]
    assert clocks.scheduled(HOUR) == []
    assert clocks.scheduled() == ["a"]


@pytest.mark.parametrize("command", LOOKS)
def test_a_job_that_a_client_has_found_due_is_shown_as_waiting(
    clocks: Clocks, command: tuple
) -> None:
    clocks.put("a", delay=60)
    clocks.put("b", delay=2 * HOUR)
    assert [clocks.shown(jid) for jid in "ab"] == ["scheduled", "scheduled"]
    clocks.call(HOUR, *command)
    assert [clocks.shown(jid) for jid in "ab"] == ["waiting", "scheduled"]
    with pytest.raises(ScriptError, match="not currently running: waiting"):
        clocks.call(0, "heartbeat", "a", "w")
    clocks.put("a", delay=60)
    assert clocks.shown("a") == "scheduled"


@pytest.mark.parametrize("command", LOOKS)
def test_a_pop_chooses_from_all_jobs_that_a_client_found_due(
    clocks: Clocks, command: tuple
) -> None:
    clocks.put("a", delay=60)
    clocks.put("b", "priority", 5, delay=61)
    clocks.call(HOUR, *command)
    peeked = json.loads(clocks.call(HOUR, "peek", "q", 1))
    assert [job["jid"] for job in peeked] == ["b"]
    popped = json.loads(clocks.call(HOUR, "pop", "q", "w", 1))
    assert [job["jid"] for job in popped] == ["b"]


def test_a_pop_finds_a_job_found_due_behind_jobs_with_earlier_due_times(clocks: Clocks) -> None:
    clocks.put("found", "priority", 5, delay=60)
    clocks.peek(HOUR)
    clocks.put("a", delay=30)
    clocks.put("b", delay=40)
    popped = json.loads(clocks.call(HOUR, "pop", "q", "w", 1))
    assert [job["jid"] for job in popped] == ["found"]


def test_a_new_priority_moves_a_job_that_is_found_due_ahead_of_its_equals(clocks: Clocks) -> None:
    clocks.put("a")
    clocks.put("b", delay=60)
    clocks.peek(HOUR)
    clocks.call(HOUR, "priority", "b", 0)
    assert clocks.peek(HOUR) == [("b", "waiting"), ("a", "waiting")]


def test_queues_counts_the_jobs_that_are_due_by_the_clock_of_the_client(clocks: Clocks) -> None:
    clocks.put("a", delay=60)
    clocks.put("b")
    assert clocks.counts() == (1, 1)
    assert clocks.counts(HOUR) == (2, 0)
    assert clocks.counts() == (1, 1)


def test_the_jobs_found_due_are_bounded(clocks: Clocks) -> None:
    clocks.engine.deadlines.max_found = 2
    for jid in "abc":
        clocks.put(jid, delay=60)
    clocks.peek(HOUR)
    assert [clocks.shown(jid) for jid in "abc"].count("waiting") == 2


def test_a_reader_does_not_start_a_delayed_job_when_its_blocker_ends(clocks: Clocks) -> None:
    blocker = clocks.engine.push(unit("blocker", "other"), clocks.now)
    clocks.put("a", "depends", '["blocker"]', delay=60)
    clocks.engine.lease(["other"], "w", FAKTORY, clocks.now)
    clocks.call(HOUR, "get", "a")
    clocks.engine.complete(blocker, clocks.now, FAKTORY)
    assert clocks.state("a") == SCHEDULED
    clocks.passes(60)
    assert clocks.state("a") == READY


@pytest.mark.parametrize("ahead", [-HOUR, 0, HOUR])
def test_a_delay_follows_the_clock_of_the_client_even_after_a_restart(
    clocks: Clocks, ahead: int
) -> None:
    clocks.put("a", ahead=ahead, delay=60)
    clocks.restarts()
    clocks.passes(59)
    assert clocks.state("a") == SCHEDULED
    clocks.passes(1)
    assert clocks.state("a") == READY


def test_an_undone_command_keeps_the_time_of_a_scheduled_job(clocks: Clocks) -> None:
    clocks.put("a", delay=60)
    commit(clocks.engine, clocks.store)
    clocks.pop(HOUR)
    clocks.store.fail = "commit"
    assert not commit_or_revert(clocks.engine, clocks.store)
    clocks.store.fail = ""
    clocks.engine.resume(clocks.now)
    clocks.passes(59)
    assert clocks.state("a") == SCHEDULED
    clocks.passes(1)
    assert clocks.state("a") == READY


def test_a_put_with_a_clock_ahead_makes_no_later_job_reclaimable(clocks: Clocks) -> None:
    clocks.put("ahead", ahead=30 * 24 * HOUR)
    clocks.restarts()
    clocks.put("later")
    job = clocks.engine.find("later")
    assert job is not None
    assert not clocks.engine.reclaim(job, "w", FAKTORY, clocks.now)
    assert clocks.engine.reclaim_by_id("later", "w", FAKTORY, clocks.now) is None
    assert clocks.state("later") == READY


@pytest.mark.parametrize("ahead", [-HOUR, 0, HOUR])
def test_a_delay_of_a_job_of_another_protocol_follows_the_server(
    clocks: Clocks, ahead: int
) -> None:
    clocks.engine.push(unit("a", "q"), clocks.now)
    clocks.put("a", ahead=ahead, delay=60)
    for _ in range(2):
        assert clocks.scheduled(ahead) == ["a"]
        assert clocks.scheduled() == ["a"]
        clocks.restarts()
    clocks.passes(59)
    assert clocks.state("a") == SCHEDULED
    clocks.passes(1)
    assert clocks.engine.lease(["q"], "w", FAKTORY, clocks.now) is not None


def test_a_lease_of_a_client_whose_clock_is_behind_counts_until_it_ends_by_that_clock(
    clocks: Clocks,
) -> None:
    clocks.call(0, "config.set", "q-max-concurrency", 1)
    clocks.call(0, "config.set", "heartbeat", 60)
    clocks.put("a")
    clocks.put("b")
    assert clocks.pop(-HOUR) == ["a"]
    clocks.call(HOUR, "get", "a")
    assert clocks.engine.lease(["q"], "w", FAKTORY, clocks.now) is None
    clocks.passes(61)
    assert clocks.engine.lease(["q"], "w", FAKTORY, clocks.now) is not None
    assert clocks.state("a") == LEASED


def test_leases_by_different_clocks_count_until_each_has_ended(clocks: Clocks) -> None:
    clocks.call(0, "config.set", "q-max-concurrency", 2)
    clocks.call(0, "config.set", "heartbeat", 60)
    for jid in "abc":
        clocks.put(jid)
    clocks.call(2 * HOUR, "pop", "q", "w", 1)
    clocks.passes(50)
    clocks.call(HOUR, "pop", "q", "w", 1)
    assert clocks.engine.lease(["q"], "w", FAKTORY, clocks.now) is None
    clocks.passes(20)
    leased = clocks.engine.lease(["q"], "w", FAKTORY, clocks.now)
    assert leased is not None
    assert leased.jid == "c"


def test_a_failed_attempt_starts_by_the_servers_clock(clocks: Clocks) -> None:
    """The clocks of the pop and of the failure differ; only that of the pop moves the start."""
    clocks.engine.push(unit("a", "q"), clocks.now)
    assert clocks.pop(ahead=5) == ["a"]
    leased = clocks.now
    clocks.passes(10)
    clocks.call(2, "retry", "a", "q", "w", 0)
    assert Event(*clocks.engine.change_set.events[-1]).leased_at == leased


def test_a_lease_to_a_waiting_worker_keeps_the_clock_of_the_jobs_client(clocks: Clocks) -> None:
    """A client with another clock frees the limit that the job of the first client waits for."""
    clocks.engine.set_limit("k", 1, 0, clocks.now)
    clocks.put("mine", "throttles", '["k"]', ahead=HOUR)
    assert clocks.pop(HOUR) == ["mine"]
    clocks.put("parked", "throttles", '["k"]', ahead=-HOUR)
    job = clocks.engine.find("parked")
    assert job is not None
    assert clocks.engine.lease(["q"], "w", FAKTORY, clocks.now) is None
    clocks.engine.add_waiter(Waiter(("q",), "w", FAKTORY, None), clocks.now + 60 * SECOND)
    clocks.call(HOUR, "complete", "mine", "w", "q", "{}")
    assert job.state == LEASED
    assert read_details(job).clock_offset == -HOUR * SECOND


@pytest.mark.parametrize("ahead", [-HOUR, HOUR])
def test_a_completed_job_of_another_protocol_is_retained_by_the_servers_clock(
    clocks: Clocks, ahead: int
) -> None:
    clocks.engine.push(unit("a", "q", retention=60 * SECOND), clocks.now)
    clocks.pop(ahead)
    clocks.call(ahead, "complete", "a", "w", "q", "{}")
    assert clocks.state("a") == DONE
    clocks.passes(59)
    assert clocks.state("a") == DONE
    clocks.passes(1)
    assert clocks.engine.find("a") is None


def test_a_reclaimed_lease_has_the_clock_of_its_worker(clocks: Clocks) -> None:
    clocks.put("a")
    clocks.restarts()
    clocks.call(HOUR, "heartbeat", "a", "w")
    job = clocks.engine.find("a")
    assert job is not None
    assert (job.state, read_details(job).lease_offset) == (LEASED, HOUR * SECOND)


# Clients with a connection each


@pytest.fixture
def talk() -> Iterator[Qless]:
    conversation = Qless()
    yield conversation
    conversation.close()


@pytest.mark.parametrize("dialect", ["A", "spec"])
@pytest.mark.parametrize("ahead", [0, -HOUR])
def test_a_command_without_a_time_has_the_clock_of_its_own_client(
    talk: Qless, dialect: str, ahead: int
) -> None:
    commands = ("put", "peek", "depends")
    mine, other = talk.speaks(dialect, *commands), talk.speaks(dialect, *commands)
    now = talk.world.now // SECOND
    mine("put", 1, "q", "blocker", "klass", "{}", now + ahead, 0)
    mine("put", 1, "q", "a", "klass", "{}", now + ahead, 60, "depends", '["blocker"]')
    other("peek", 1, "q", 9, now + HOUR)
    assert mine("depends", 0, "a", "off", "all")
    job = talk.world.engine.find("a")
    assert job is not None
    assert job.state == SCHEDULED


@pytest.mark.parametrize("dialect", ["A", "spec"])
def test_a_connection_without_a_clock_keeps_the_clock_of_the_job(talk: Qless, dialect: str) -> None:
    mine, fresh = (talk.speaks(dialect, "put", "depends") for _ in range(2))
    late = talk.world.now // SECOND - HOUR
    mine("put", 1, "q", "blocker", "klass", "{}", late, 0)
    mine("put", 1, "q", "a", "klass", "{}", late, 60, "depends", '["blocker"]')
    assert fresh("depends", 0, "a", "off", "all")
    job = talk.world.engine.find("a")
    assert job is not None
    assert job.state == SCHEDULED


def test_repeated_peeks_do_not_repeat_the_entries_of_due_jobs() -> None:
    """More jobs are due by the clock of the client than the server remembers as found."""
    clocks = Clocks()
    deadlines = clocks.engine.deadlines
    deadlines.max_found = 100
    for number in range(300):
        clocks.put(f"job-{number}", delay=1 + number % 50)
    for count in (*[20] * 30, *[1] * 80):
        assert len(json.loads(clocks.call(HOUR, "peek", "q", count))) == count
    (heap,) = deadlines.due.values()
    assert len(heap) < 3 * 300


class CountedJobs(dict[int, Job]):
    gets = 0

    def get(self, *arguments: Any) -> Any:
        self.gets += 1
        return super().get(*arguments)


def test_a_pop_does_not_examine_the_jobs_found_due_in_other_queues() -> None:
    clocks = Clocks()
    for number in range(1000):
        clocks.put(f"job-{number}", delay=5)
    clocks.call(HOUR, "peek", "q", 1000)
    for number in range(3):
        clocks.call(0, "put", "w", "other", f"other-{number}", "klass", "{}", 5)
    table = JobsBySeq()
    table.recent = jobs = CountedJobs(clocks.engine.jobs.recent)
    assert len(jobs) == len(clocks.engine.jobs) > 1000
    clocks.engine.deadlines.use_jobs(table)
    assert "other-" in clocks.call(HOUR, "pop", "other", "w", 1).decode()
    assert jobs.gets < 100

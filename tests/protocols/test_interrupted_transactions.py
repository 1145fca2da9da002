"""EXEC takes effect completely or not at all, even if a crash or a refused commit interrupts it."""

from random import Random

import pytest

from failing_stores import FailingMemoryStore
from millrace.engine.engine import Engine
from millrace.engine.states import LEASED
from millrace.protocols.qless.connection import QlessConnection
from millrace.protocols.qless.redo import PIECE_SIZE, SETTING_PREFIX
from millrace.protocols.qless.settings import QlessConfig
from millrace.protocols.qless.spec import make_hub
from millrace.protocols.qless.transactions import STEP_COST
from millrace.protocols.spec import HubContext, protocol_rules
from scene import commit, commit_or_revert, recover
from wires import data_of

NOW = 1_700_000_000_000_000
MANY = 7 * STEP_COST + 3


def request(*words: object) -> bytes:
    parts = [str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(p), p) for p in parts)


def put(jid: str, data: str = "{}") -> bytes:
    return request("QLESS.PUT", 1, "q", jid, "klass", data, NOW // 1_000_000, 0)


class StoredPort:
    """A Qless port on a store: `step` runs one step of a transaction and commits it."""

    def __init__(
        self, store: FailingMemoryStore, engine: Engine | None = None, at: int = 0
    ) -> None:
        self.store = store
        self.engine = engine or Engine(Random(1), protocol_rules())
        self.engine.durable = True
        context = HubContext(self.engine, NOW + at, 100, 64 << 20, lambda: 1, lambda bits: 1)
        self.hub = make_hub(QlessConfig(), context)
        self.client = QlessConnection(self.hub)

    def restarted(self) -> "StoredPort":
        """The port after a crash: everything since the last commit is lost."""
        again = StoredPort(self.store, recover(self.store), at=1)
        commit(again.engine, self.store)
        return again

    def begin(self, *commands: bytes) -> None:
        self.client.receive(request("MULTI") + b"".join(commands), NOW, 20_000)
        self.client.replies.clear()
        self.client.receive(request("EXEC"), NOW, 1)
        assert not self.client.replies

    def step(self) -> bool:
        """Return whether the commit succeeded."""
        written = commit_or_revert(self.engine, self.store)
        waiters, self.engine.commit_waiters = self.engine.commit_waiters, {}
        for waiter in waiters:
            waiter.wake(NOW)
        self.advance()
        return written

    def advance(self) -> None:
        self.engine.tick(NOW + 60_000_000)
        alarms, self.engine.alarms = self.engine.alarms, []
        for owner, what in alarms:
            owner.handle_alarm(what, NOW)
        self.client.run(NOW, 1)

    def steps_to_the_end(self) -> int:
        for number in range(10_000):
            if self.client.replies:
                commit(self.engine, self.store)
                return number
            self.step()
        raise AssertionError("no reply")

    @property
    def jids(self) -> list[str]:
        return [job.jid for job in self.engine.jobs.values()]

    def records(self) -> list[str]:
        return [key for key in self.engine.settings if key.startswith(SETTING_PREFIX)]


@pytest.fixture
def port() -> StoredPort:
    return StoredPort(FailingMemoryStore())


ALL = [f"t{number}" for number in range(MANY)]
EXPECTED = b"*%d\r\n" % MANY + b"".join(b"$%d\r\n%b\r\n" % (len(t), t.encode()) for t in ALL)


@pytest.mark.parametrize("steps", range(1, 9))
def test_a_crash_between_two_steps_loses_no_part(port: StoredPort, steps: int) -> None:
    port.begin(*map(put, ALL))
    for _ in range(steps):
        port.step()
    again = port.restarted()
    assert again.jids == ALL
    assert not again.records()
    once_more = again.restarted()
    assert once_more.jids == ALL


def test_a_crash_before_the_first_commit_leaves_nothing(port: StoredPort) -> None:
    port.begin(*map(put, ALL))
    assert port.jids
    again = port.restarted()
    assert not again.jids
    assert not again.records()


def test_a_crash_during_the_first_commit_after_a_restart(port: StoredPort) -> None:
    """The restarted server ends the transaction, and its first commit is refused."""
    port.begin(*map(put, ALL))
    port.step()
    again = StoredPort(port.store, recover(port.store), at=1)
    port.store.fail = "commit"
    assert not commit_or_revert(again.engine, again.store)
    assert again.jids == ALL[:STEP_COST]
    port.store.fail = ""
    again.engine.resume(NOW)
    for _ in range(20):
        again.step()
    assert again.jids == ALL
    assert not again.records()


def test_the_reply_and_the_end_of_the_record(port: StoredPort) -> None:
    port.begin(*map(put, ALL))
    assert port.records()
    port.steps_to_the_end()
    assert data_of(port.client) == [EXPECTED]
    assert not port.records()
    assert port.restarted().jids == ALL


def test_a_transaction_waits_for_its_commit_without_using_the_loop(port: StoredPort) -> None:
    port.begin(*map(put, ALL))
    while len(port.jids) < MANY:
        port.step()
    port.advance()  # the last changes are not committed yet
    assert not port.client.replies
    assert port.client.long_command_waits
    assert port.engine.next_timer() is None
    assert list(port.engine.commit_waiters) == [port.hub]


@pytest.mark.parametrize("at", range(2, 9))
def test_a_refused_step_is_repeated(port: StoredPort, at: int) -> None:
    """A part of the transaction is durable, so the rest follows when the store is writable."""
    port.begin(*map(put, ALL))
    for _ in range(at - 1):
        assert port.step()
    port.store.fail = "commit"
    assert not port.step()
    assert not port.client.replies
    port.store.fail = ""
    port.engine.resume(NOW)
    port.steps_to_the_end()
    assert data_of(port.client) == [EXPECTED]
    assert port.jids == ALL
    assert not port.records()
    assert port.restarted().jids == ALL


def test_a_refused_first_step_refuses_the_transaction(port: StoredPort) -> None:
    port.begin(*map(put, ALL))
    port.store.fail = "commit"
    port.step()
    [reply] = data_of(port.client)
    assert reply.startswith(b"-MISCONF disk full")
    assert not port.jids
    assert not port.records()


def test_other_clients_continue_while_the_store_fails(port: StoredPort) -> None:
    port.begin(*map(put, ALL))
    port.step()
    port.store.fail = "commit"
    port.step()
    other = QlessConnection(port.hub)
    other.receive(request("ZCARD", "ql:q:q-work"), NOW, 64)
    while not other.replies:
        other.run(NOW, 64)
    assert data_of(other) == [b":%d\r\n" % STEP_COST]


def test_a_large_transaction_is_recorded_in_pieces(port: StoredPort) -> None:
    data = '"' + "x" * (PIECE_SIZE // 16) + '"'
    port.begin(*[put(jid, data) for jid in ALL])
    sizes = []
    while not port.jids:
        sizes.append(sum(len(value or b"") for value in port.engine.change_set.settings.values()))
        port.step()
    assert len(sizes) > 10
    assert max(sizes) < 2 * PIECE_SIZE
    early = StoredPort(port.store, recover(port.store), at=1)
    assert not early.jids
    assert not early.records()
    port.step()
    port.step()
    again = port.restarted()
    assert again.jids == ALL
    assert {again.engine.payload(job) for job in again.engine.jobs.values()} == {data.encode()}
    for _ in range(50):
        again.step()
    assert not again.records()


def test_a_refused_piece_refuses_the_transaction_and_leaves_no_piece(port: StoredPort) -> None:
    data = '"' + "x" * (PIECE_SIZE // 16) + '"'
    port.begin(*[put(jid, data) for jid in ALL])
    for _ in range(5):
        port.step()
    port.store.fail = "commit"
    port.step()
    assert data_of(port.client)[0].startswith(b"-MISCONF")
    port.store.fail = ""
    port.engine.resume(NOW)
    for _ in range(20):
        port.step()
    assert not port.jids
    assert not port.records()


def test_the_database_of_a_step_is_recorded(port: StoredPort) -> None:
    port.begin(request("SELECT", 3), *map(put, ALL))
    port.step()
    again = port.restarted()
    assert len(again.jids) == MANY
    assert len({jid.partition("t")[0] for jid in again.jids}) == 1
    other = QlessConnection(again.hub)
    other.receive(request("SELECT", 3) + request("ZCARD", "ql:q:q-work"), NOW, 64)
    while len(other.replies) < 2:
        other.run(NOW, 64)
    assert data_of(other)[1] == b":%d\r\n" % MANY


def test_an_interrupted_pop_leases_no_further_jobs(port: StoredPort) -> None:
    port.begin(*map(put, ALL))
    port.steps_to_the_end()
    port.client.replies.clear()
    port.begin(request("QLESS.POP", 1, "q", "w", 300, NOW // 1_000_000), put("last"))
    port.step()
    again = port.restarted()
    leased = [job for job in again.engine.jobs.values() if job.state == LEASED]
    assert 0 < len(leased) < 300
    assert "last" in again.jids


def test_a_transaction_that_only_reads_is_not_recorded(port: StoredPort) -> None:
    port.client.receive(put("a"), NOW, 1)
    commit(port.engine, port.store)
    port.client.replies.clear()
    port.begin(*[request("QLESS.GET", 0, "a")] * MANY)
    for _ in range(3):
        assert not port.records()
        port.step()
    port.steps_to_the_end()
    assert data_of(port.client)[0].startswith(b"*%d\r\n" % MANY)


@pytest.mark.parametrize("steps", range(1, 4))
def test_a_command_after_a_pop_is_continued_after_a_crash(port: StoredPort, steps: int) -> None:
    port.begin(*map(put, ALL))
    port.steps_to_the_end()
    port.client.replies.clear()
    pop = request("QLESS.POP", 1, "q", "w", 1, NOW // 1_000_000)
    port.begin(pop, request("FLUSHDB"), put("last"))
    for _ in range(steps):
        port.step()
    assert "last" not in port.jids
    assert port.restarted().jids == ["last"]


def test_commands_of_other_clients_do_not_end_a_pop(port: StoredPort) -> None:
    """An interrupted pop is not repeated, whatever other clients did in between."""
    port.begin(*map(put, ALL))
    port.steps_to_the_end()
    port.client.replies.clear()
    port.begin(request("QLESS.POP", 1, "q", "w", 300, NOW // 1_000_000), put("last"))
    port.hub.transactions.exclusive = None  # its steps have taken too long
    other = QlessConnection(port.hub)
    for _ in range(2):
        other.receive(request("PING"), NOW, 1)
        port.step()
    leased = [job.jid for job in port.engine.jobs.values() if job.state == LEASED]
    again = port.restarted()
    kept = {job.jid for job in again.engine.jobs.values() if job.state == LEASED}
    assert kept
    assert kept < set(leased)  # the last ones were not committed


def refuse(port: StoredPort) -> None:
    port.store.fail = "commit"
    assert not port.step()
    port.store.fail = ""
    port.engine.resume(NOW)


def jobs_in(reply: bytes) -> int:
    return reply.count(b'"jid"')


@pytest.mark.parametrize("at", range(1, 14))
def test_the_reply_of_a_repeated_pop_contains_all_jobs_that_it_leases(
    port: StoredPort, at: int
) -> None:
    port.begin(*map(put, ALL))
    port.steps_to_the_end()
    port.client.replies.clear()
    port.begin(request("QLESS.POP", 1, "q", "w", 200, NOW // 1_000_000), put("last"))
    for _ in range(at):
        port.step()
    if not port.client.replies:
        refuse(port)
        port.steps_to_the_end()
    [reply] = data_of(port.client)
    leased = [job for job in port.engine.jobs.values() if job.state == LEASED]
    assert jobs_in(reply) == len(leased) == 200
    assert {job.attempt for job in leased} == {1}


@pytest.mark.parametrize("at", range(6))
def test_repeated_pops_of_few_jobs_lease_no_others(port: StoredPort, at: int) -> None:
    port.begin(*map(put, ALL))
    port.steps_to_the_end()
    port.client.replies.clear()
    pop = request("QLESS.POP", 1, "q", "w", 20, NOW // 1_000_000)
    port.begin(*[pop] * 5, *[put(f"more{number}") for number in range(STEP_COST)], pop)
    for _ in range(at):
        port.step()
    if not port.client.replies:
        refuse(port)
        if not port.client.replies:
            port.steps_to_the_end()
    [reply] = data_of(port.client)
    leased = [job for job in port.engine.jobs.values() if job.state == LEASED]
    assert jobs_in(reply) == len(leased) == (0 if at == 0 else 120)


def test_a_pop_that_a_crash_has_interrupted_is_not_repeated_by_a_refused_commit(
    port: StoredPort,
) -> None:
    port.begin(*map(put, ALL))
    port.steps_to_the_end()
    port.client.replies.clear()
    pop = request("QLESS.POP", 1, "q", "w", 100, NOW // 1_000_000)
    port.begin(pop, request("FLUSHDB"), *map(put, ALL))
    port.step()
    port.step()
    again = StoredPort(port.store, recover(port.store), at=1)
    port.store.fail = "commit"
    assert not commit_or_revert(again.engine, again.store)
    port.store.fail = ""
    again.engine.resume(NOW)
    for _ in range(40):
        again.step()
    assert again.jids == ALL
    assert not again.records()
    assert not [job for job in again.engine.jobs.values() if job.state == LEASED]


def fail_jobs(port: StoredPort, count: int) -> None:
    """Put jobs, and fail all of them."""
    jids = [f"f{number}" for number in range(count)]
    port.begin(*map(put, jids), request("QLESS.POP", 1, "q", "w", count, NOW // 1_000_000))
    port.steps_to_the_end()
    port.client.replies.clear()
    fail = "group", "message", NOW // 1_000_000
    port.begin(*[request("QLESS.FAIL", 0, jid, "w", *fail, "{}") for jid in jids])
    port.steps_to_the_end()
    port.client.replies.clear()
    assert len(port.engine.tables.dead_untrimmed) == count


def jobs_of(port: StoredPort, queue: str) -> int:
    return sum(job.queue == queue for job in port.engine.jobs.values())


UNFAIL = request("QLESS.UNFAIL", 0, NOW // 1_000_000, "group", "again", 120)


@pytest.mark.parametrize("steps", range(1, 6))
def test_an_interrupted_unfail_moves_as_many_jobs_as_requested(
    port: StoredPort, steps: int
) -> None:
    fail_jobs(port, 200)
    port.begin(UNFAIL, put("last"))
    for _ in range(steps):
        port.step()
    again = port.restarted()
    assert jobs_of(again, "again") == (120 if "last" in again.jids else 0)


@pytest.mark.parametrize("steps", range(1, 6))
def test_the_reply_of_a_repeated_unfail_counts_all_jobs_that_it_has_moved(
    port: StoredPort, steps: int
) -> None:
    fail_jobs(port, 200)
    port.begin(UNFAIL, put("last"))
    for _ in range(steps):
        port.step()
    if not port.client.replies:
        refuse(port)
        port.steps_to_the_end()
    [reply] = data_of(port.client)
    if reply.startswith(b"-MISCONF"):
        assert not jobs_of(port, "again")
    else:
        assert reply == b"*2\r\n:120\r\n$4\r\nlast\r\n"
        assert jobs_of(port, "again") == 120


@pytest.mark.parametrize("steps", range(4, 11))
def test_each_unfail_of_a_transaction_counts_its_own_jobs(port: StoredPort, steps: int) -> None:
    fail_jobs(port, 300)
    port.begin(UNFAIL, UNFAIL, UNFAIL)
    for _ in range(steps):
        port.step()
    if not port.client.replies:
        refuse(port)
        port.steps_to_the_end()
    assert data_of(port.client) == [b"*3\r\n:120\r\n:120\r\n:60\r\n"]
    assert jobs_of(port, "again") == 300

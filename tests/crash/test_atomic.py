"""ATOMIC under SIGKILL and power cuts: a transaction is stored completely or not at all."""

import json
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ledger import ViolationError
from power_cut import cut_back
from rounds import KILL_DURING_START, Run, _evidence, _log_uniform
from transactions import Book, Books, Change, Clients, ack, atomic, fetch, push

from raw_masenko import RawMasenko
from raw_workq import RawWorkq
from server_process import ServerProcess, server_process

CLIENTS = 3
DRAIN = 0.25


def alias(number: int) -> bytes:
    """The Workq id of a task."""
    return b"00000000-0000-4000-8000-%012x" % number


class AtomicRun(Run):
    """Like the rounds of rounds.py, with other clients and another comparison."""

    def __init__(self, server: ServerProcess, seed: int, after_kill: Callable[[], None]) -> None:
        super().__init__(server, seed)
        self.ledger = self.books = Books(CLIENTS)  # type: ignore[assignment]
        self.replies = 0
        self._after_kill = after_kill

    def round(self, number: int) -> None:
        rng = random.Random(f"{self.seed}/{number}")
        if self.tally.rounds and rng.random() < KILL_DURING_START:
            self._kill_during_start(rng)
        self._start()
        self._compare()
        if rng.random() < DRAIN:
            self._complete_all()
        self._work("killed at a reply" if rng.random() < 0.5 else "killed after a while", rng)
        self.tally.rounds += 1

    def finish(self) -> None:
        """Complete every task, and check that none of them is ready again."""
        self._start()
        self._compare()
        self._complete_all()
        self._kill()
        self._start()
        self._compare()
        assert not any(book.acknowledged for book in self.books.books)

    # The steps of a round

    def _compare(self) -> None:
        """The existing tasks, ready or blocked, and Masenko's counts of them."""
        found: dict[int, dict[str, Any]] = {}
        with RawWorkq(self._server.ports["workq"]) as workq:
            for number in self.books.candidate_ids():
                job = workq.inspect(alias(number))
                if job is None:
                    continue
                found[number] = json.loads(job["payload"])
                if job["state"] not in {"0", "3"} or job["fails"] != "0":
                    raise ViolationError(f"{number} should be waiting, and not have failed: {job}")
        self.books.settle(found)
        with RawMasenko(self._server.ports["masenko"]) as wire:
            self._compare_counts(wire)

    def _compare_counts(self, wire: RawMasenko) -> None:
        shown = {queue: counts for queue, counts in wire.queues().items() if any(counts)}
        expected = {
            queue: (len(ready), 0, 0)
            for book in self.books.books
            for queue in book.queues
            if (ready := book.ready(queue))
        }
        if shown != expected:
            raise ViolationError(f"INFO should show {expected}, and shows {shown}")

    def _complete_all(self) -> None:
        """Fetch and finish every ready task until all blocked tasks have become ready."""
        with RawMasenko(self._server.ports["masenko"]) as wire:
            for book in self.books.books:
                while book.acknowledged:
                    for _ in [number for queue in book.queues for number in book.ready(queue)]:
                        wire.send(fetch(*book.queues))
                        book.handed_out(wire.line())
                    done = Change(done=list(book.held))
                    wire.send(atomic(*[ack(number) for number in book.held.values()]))
                    book.sending(done)
                    book.replied(done, wire.line())
                wire.send(fetch(*book.queues))
                if (reply := wire.line()) != b"EMPTY {}":
                    raise ViolationError(f"everything is done, but FETCH was answered {reply!r}")
        self.tally.drains += 1

    def _work(self, ending: str, rng: random.Random) -> None:
        last_reply = round(_log_uniform(rng, 1, 400)) if ending == "killed at a reply" else 0

        def on_reply(number: int) -> None:
            self.replies += 1
            if number == last_reply:
                self._server.signal(signal.SIGKILL)

        clients = Clients(self._server.ports["masenko"], self.books, rng, on_reply)
        clients.start()
        try:
            if last_reply:
                self._wait_for_exit(2.0)
            else:
                time.sleep(_log_uniform(rng, 0.01, 0.4))
        finally:
            self._kill()
            clients.join()
        self._after_kill()


def atomic_rounds(
    rounds: int,
    seed: int,
    folder: Path,
    after_kill: Callable[[Path], None] = lambda data: None,
    **env: str,
) -> AtomicRun:
    with server_process(folder / "data", **env) as server:
        run = AtomicRun(server, seed, lambda: after_kill(server.data))
        with _evidence(run, server, f"atomic_rounds({rounds}, {seed}, ...)"):
            for number in range(rounds):
                run.round(number)
            run.finish()
    return run


def new_seed() -> int:
    return random.SystemRandom().randrange(10**6)  # printed with a failure


# At random times


def test_a_kill_keeps_transactions_complete_or_absent(tmp_path: Path) -> None:
    run = atomic_rounds(12, new_seed(), tmp_path)
    assert run.tally.kills >= 12
    assert run.replies > 500


def test_a_power_cut_keeps_transactions_complete_or_absent(tmp_path: Path, sync_shim: Path) -> None:
    syncs = tmp_path / "syncs.log"

    def cut(data: Path) -> None:
        for log in data.rglob("*-wal"):
            cut_back(log, syncs)

    atomic_rounds(6, new_seed(), tmp_path, cut, LD_PRELOAD=str(sync_shim), SYNC_SHIM_LOG=str(syncs))


def test_the_rounds_detect_a_server_without_durability(tmp_path: Path) -> None:
    with pytest.raises(ViolationError, match="are lost"):
        atomic_rounds(4, 1, tmp_path, MILLRACE_SERVER_DURABILITY="memory")


# At chosen times


@pytest.fixture
def run(tmp_path: Path) -> Iterator[AtomicRun]:
    with server_process(tmp_path / "data") as server:
        run = AtomicRun(server, 0, lambda: None)
        run._start()
        yield run


def restart(run: AtomicRun) -> None:
    run._kill()
    run._start()


def test_blocked_tasks_stay_blocked_across_kills(run: AtomicRun) -> None:
    """The specification's example: the third waits for the first, the fourth for the third and the
    first.
    """
    book = run.books.books[0]
    one, two = (book.new_task(book.queues[0]) for _ in range(2))
    three = book.new_task(book.queues[1], {one.number})
    four = book.new_task(book.queues[0], {three.number, one.number})
    change = Change(pushed=[one, two, three, four])
    with RawMasenko(run._server.ports["masenko"]) as wire:
        book.sending(change)
        wire.send(atomic(push(one), push(two), push(three, [-2]), push(four, [-1, -3])))
        book.replied(change, wire.line())
    order = []
    while book.acknowledged:
        restart(run)
        run._compare()
        with RawMasenko(run._server.ports["masenko"]) as wire:
            wire.send(fetch(*book.queues))
            order.append(book.handed_out(wire.line()))
            change = Change(done=[order[-1]])
            wire.send(ack(book.held[order[-1]]))
            book.sending(change)
            book.replied(change, wire.line())
    assert sorted(order) == [one.number, two.number, three.number, four.number]
    assert order.index(one.number) < order.index(three.number) < order.index(four.number)


def test_an_unfinished_transaction_has_no_effect(run: AtomicRun) -> None:
    book, other = run.books.books[:2]
    tasks = [book.new_task(book.queues[0]) for _ in range(2)]
    with (
        RawMasenko(run._server.ports["masenko"]) as wire,
        RawMasenko(run._server.ports["masenko"]) as second,
    ):
        wire.send(b"ATOMIC\n" + b"".join(map(push, tasks)))
        book.pushes_sent += len(tasks)  # they may have ids by now, but must not be pushed
        change = Change(pushed=[other.new_task(other.queues[0])])
        other.sending(change)
        second.send(push(change.pushed[0]))
        other.replied(change, second.line())
        restart(run)
    run._compare()


def test_half_a_transaction_is_detected(run: AtomicRun) -> None:
    book = run.books.books[0]
    change = Change(pushed=[book.new_task(book.queues[0]) for _ in range(2)])
    with RawMasenko(run._server.ports["masenko"]) as wire:
        book.sending(change)
        wire.send(push(change.pushed[0]))  # the first one without a transaction
        assert wire.line().startswith(b"OK ")
        restart(run)
    with pytest.raises(ViolationError, match="none of the 2 states"):
        run._compare()


# Violations that a book detects


@pytest.fixture
def book() -> Book:
    """1 and 2 are acknowledged; then 3 and 4 were pushed and 1 was done, and then 5: unanswered."""
    book = Book("some-client")
    tasks = [book.new_task(book.queues[0]) for _ in range(5)]
    first = Change(pushed=tasks[:2])
    book.sending(first)
    book.replied(first, b'OK {"ids":[11,12]}')
    book.sending(Change(pushed=tasks[2:4], done=[1]))
    book.sending(Change(pushed=tasks[4:]))
    return book


@pytest.mark.parametrize("found", [[1, 2], [2, 3, 4], [2, 3, 4, 5]])
def test_unanswered_transactions_may_be_applied_in_order(book: Book, found: list[int]) -> None:
    book.settle(found)
    assert sorted(book.acknowledged) == found


@pytest.mark.parametrize(
    "found",
    [
        [],
        [1],
        [1, 2, 3],  # half of its pushes
        [2, 3],
        [2],  # its ACK without its pushes
        [1, 2, 3, 4],  # its pushes without its ACK
        [1, 2, 5],  # the second without the first
        [2, 3, 4, 5, 6],
        [1, 2, 2],
    ],
)
def test_any_other_state_is_a_violation(book: Book, found: list[int]) -> None:
    with pytest.raises(ViolationError, match="none of the 3 states"):
        book.settle(found)


@pytest.mark.parametrize(
    ("changed", "violation"),
    [
        ({}, None),
        ({"failures": 1}, "was leased as"),
        ({"id": 11}, "had the id 12, but was leased as 11"),
        ({"queue": "some-client-b"}, "was leased as"),
        ({"payload": {"client": "some-client", "number": 2, "text": "?"}}, "was leased as"),
        ({"payload": {"client": "some-client", "number": 9, "text": ""}}, "unexpected lease of"),
    ],
)
def test_a_leased_task_must_equal_the_pushed_task(
    changed: dict[str, Any], violation: str | None
) -> None:
    book = Book("some-client")
    change = Change(pushed=[book.new_task(book.queues[0]) for _ in range(2)])
    change.pushed.append(book.new_task(book.queues[0], {2}))
    book.sending(change)
    book.replied(change, b'OK {"ids":[11,12,13]}')
    received = {"id": 12, "queue": "some-client-a", "name": "task-2"}
    received |= {"payload": change.pushed[1].payload, **changed}
    reply = b"OK " + json.dumps(received).encode()
    if violation is not None:
        with pytest.raises(ViolationError, match=violation):
            book.handed_out(reply)
        return
    assert book.handed_out(reply) == 2
    with pytest.raises(ViolationError, match="unexpected lease of"):
        book.handed_out(reply)
    received |= {"id": 13, "name": "task-3", "payload": change.pushed[2].payload}
    with pytest.raises(ViolationError, match="before its blockers"):
        book.handed_out(b"OK " + json.dumps(received).encode())

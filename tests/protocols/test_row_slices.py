"""Long lists in slices: no slice frees, copies or sorts a large part of the rows."""

import json
from collections.abc import Generator, Iterator
from random import Random
from typing import Any, ClassVar

import pytest

from millrace.engine.engine import Engine
from millrace.engine.job import NewJob
from millrace.engine.tables import (
    MAX_COPIED,
    items_to_examine,
    jobs_to_examine,
    keys_to_examine,
)
from millrace.protocols.qless.calls import QlessApi
from millrace.protocols.qless.hub import QlessHub
from millrace.protocols.qless.locks import PEEK_BATCH_SIZE
from millrace.protocols.qless.resp import BulkStringParts
from millrace.protocols.registry import FAKTORY, QLESS
from millrace.protocols.slices import (
    FREE_BATCH_SIZE,
    free_in_slices,
    keep_range_in_slices,
    replace_in_slices,
    run_all_slices,
    sort_in_slices,
)
from millrace.protocols.spec import protocol_rules

NOW = 1_700_000_000_000_000
COUNT = 3 * FREE_BATCH_SIZE


class Row:
    """A row that counts how many rows are freed."""

    freed: ClassVar[int] = 0

    def __init__(self, number: int) -> None:
        self.number = number

    def __lt__(self, other: "Row") -> bool:
        return self.number < other.number

    def __del__(self) -> None:
        Row.freed += 1


def most_freed(work: Generator[None, None, Any]) -> tuple[Any, int]:
    """The result, and the number of rows that one slice has freed at most."""
    most = 0
    while True:
        Row.freed = 0
        try:
            next(work)
        except StopIteration as ended:
            return ended.value, max(most, Row.freed)
        most = max(most, Row.freed)


def shuffled() -> list[Row]:
    numbers = list(range(COUNT))
    Random(1).shuffle(numbers)
    return [Row(number) for number in numbers]


def test_rows_are_replaced_and_freed_in_slices() -> None:
    order, _ = most_freed(sort_in_slices(iter(shuffled())))
    found, most = most_freed(replace_in_slices(order, lambda row: row.number))
    assert found == list(range(COUNT))
    assert found is order
    assert most <= FREE_BATCH_SIZE


@pytest.mark.parametrize(
    ("first", "end"),
    [(0, COUNT), (0, 0), (0, 3), (COUNT, COUNT), (5000, 5010), (2, COUNT + 9), (7, 3)],
)
def test_a_page_is_cut_and_the_other_rows_are_freed_in_slices(first: int, end: int) -> None:
    rows = [Row(number) for number in range(COUNT)]
    page, most = most_freed(keep_range_in_slices(rows, first, end))
    assert [row.number for row in page] == list(range(COUNT))[first:end]
    assert most <= FREE_BATCH_SIZE


def test_all_rows_are_freed_in_slices() -> None:
    rows = [Row(number) for number in range(COUNT)]
    _, most = most_freed(free_in_slices(rows))
    assert not rows
    assert most <= FREE_BATCH_SIZE


def test_rows_that_are_none_are_not_sorted() -> None:
    rows = (None if number % 3 else -number for number in range(COUNT))
    assert run_all_slices(sort_in_slices(rows)) == sorted(-n for n in range(0, COUNT, 3))


@pytest.fixture
def engine() -> Engine:
    """A scheduled job after each ready one."""
    engine = Engine(Random(1), protocol_rules())
    for number in range(2 * MAX_COPIED + 200):
        due = NOW * 2 if number % 2 else 0
        push = NewJob(f"j{number}", "x", b"[]", FAKTORY, "q", 5, 1_800_000_000, due_at=due)
        engine.push(push, NOW)
    return engine


def test_a_large_index_is_examined_without_a_copy(engine: Engine) -> None:
    jobs = jobs_to_examine(engine.scheduled, engine.jobs)
    found = [job for job in jobs if job is not None]
    assert found == list(engine.scheduled.values())
    times = {seq: job.due_at for seq, job in engine.scheduled.items()}
    items = [item for item in items_to_examine(times, engine.jobs) if item is not None]
    assert items == list(times.items())


def test_a_job_that_ends_meanwhile_is_not_listed(engine: Engine) -> None:
    jobs = jobs_to_examine(engine.scheduled, engine.jobs)
    first = next(job for job in jobs if job is not None)
    last = max(engine.scheduled.values(), key=lambda job: job.seq)
    engine.cancel(last, NOW, FAKTORY)
    engine.push(NewJob("new", "x", b"[]", FAKTORY, "q", 5, 1, due_at=NOW * 2), NOW)
    found = [first, *(job for job in jobs if job is not None)]
    assert [job.jid for job in found] == [f"j{n}" for n in range(1, 2 * MAX_COPIED + 198, 2)]


@pytest.mark.parametrize("change", ["grows", "shrinks", "stays"])
def test_keys_are_complete_if_the_dictionary_changes(change: str) -> None:
    index = dict.fromkeys(range(1000))

    def keys() -> Iterator[int]:
        for number, key in enumerate(keys_to_examine(index)):
            if number == 300 and change == "grows":
                index[-1] = None
            elif number == 300 and change == "shrinks":
                del index[0], index[500]
            yield key

    found = list(keys())
    assert len(set(found)) == len(found)
    assert set(range(1000)) - {500} <= set(found)


def test_a_peek_is_complete_if_its_queue_changes_meanwhile() -> None:
    engine = Engine(Random(1), protocol_rules())
    api = QlessApi(QlessHub(engine, started_at=NOW))
    for number in range(3 * PEEK_BATCH_SIZE):
        engine.push(NewJob(f"j{number}", "x", b"[]", QLESS, "q", 5, 1_800_000_000), NOW)
    work = api.call("C", "peek", [], [b"1", b"q", b"%d" % (3 * PEEK_BATCH_SIZE)], NOW)
    assert isinstance(work, Generator)
    next(work)
    engine.lease(["q"], "worker", QLESS, NOW)
    reply = run_all_slices(work)
    found = json.loads(b"".join(reply.parts) if isinstance(reply, BulkStringParts) else reply)
    assert [job["jid"] for job in found] == [f"j{n}" for n in range(1, 3 * PEEK_BATCH_SIZE)]

"""Nobody waits long for whoever looks: one step takes no longer with many jobs than with few."""

import gc
from random import Random
from time import thread_time
from typing import Any

import pytest

from millrace.admin.connection import OPERATIONS
from millrace.admin.service import AdminService, Operation
from millrace.engine.engine import Engine
from millrace.engine.job import FAKTORY
from millrace.records import JobFilter, ListWorkers, PageRequest, SearchJobs
from scene import SECOND, START, unit

FEW, MANY = 5_000, 150_000
#: A machine that does other things as well is given this, and the caches of a small one.
MOST = 10
ROUNDS = 5


def world(size: int) -> AdminService:
    """As many ready jobs, and a fifth as many of those that are scheduled, leased and dead."""
    engine = Engine(Random(1))
    for number in range(size):
        engine.push(unit(f"job-{number}", "ready", payload=b'["someone@example.com"]'), START)
    for number in range(size // 5):
        due = START + number * SECOND + 1
        engine.push(unit(f"later-{number}", "later", due=due), START)
        engine.push(unit(f"held-{number}", "held"), START)
        engine.lease(("held",), f"worker-{number % 100}", FAKTORY, START)
        engine.kill(engine.push(unit(f"dead-{number}", "dead", tags=["t"]), START), START)
    engine.take_batch()
    return AdminService(engine, 10)


@pytest.fixture(scope="module")
def worlds() -> tuple[AdminService, AdminService]:
    return world(FEW), world(MANY)


def longest_step(hub: AdminService, tell: Operation, asked: Any) -> float:
    """The longest one of the luckiest round."""
    return min(max(_steps(hub, tell, asked)) for _ in range(ROUNDS))


def _steps(hub: AdminService, tell: Operation, asked: Any) -> list[float]:
    telling, took = tell(hub, asked, START), []
    while True:
        began = thread_time()
        more = next(telling, False)
        took.append(thread_time() - began)
        if more is False:
            return took


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("search", SearchJobs(JobFilter(), look=1_000_000)),
        ("search", SearchJobs(JobFilter(words=["nobody"]), look=50_000)),
        ("search", SearchJobs(JobFilter(words=["nö"]), look=10_000)),
        ("search", SearchJobs(JobFilter(kind="Nothing"), look=1_000_000)),
        ("search", SearchJobs(JobFilter(queue="ready", state="ready"), "queue")),
        ("search", SearchJobs(JobFilter(state="scheduled"), "due")),
        ("search", SearchJobs(JobFilter(state="dead"), "ended")),
        ("search", SearchJobs(JobFilter(state="dead", error="x"), "ended", look=1_000_000)),
        ("workers", ListWorkers()),
        ("tags", PageRequest()),
    ],
)
def test_a_step_is_short(worlds: tuple[AdminService, AdminService], name: str, asked: Any) -> None:
    few, many = worlds
    gc.disable()
    try:
        with_few = longest_step(few, OPERATIONS[name], asked)
        with_many = longest_step(many, OPERATIONS[name], asked)
    finally:
        gc.enable()
    # Thirty times as many jobs; what is too short to be measured is no measure.
    assert with_many < MOST * max(with_few, 0.0005), (with_few, with_many)

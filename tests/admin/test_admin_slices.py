"""An admin request delays no client: a step takes equally long for small and large numbers of jobs."""

import gc
from random import Random
from time import thread_time
from typing import Any

import pytest

from millrace.admin.connection import OPERATIONS
from millrace.admin.service import AdminService, Operation
from millrace.engine.engine import Engine
from millrace.protocols.registry import FAKTORY
from millrace.protocols.spec import protocol_rules
from millrace.records import JobFilter, ListTags, ListWorkers, SearchJobs
from scene import SECOND, START, unit

FEW, MANY = 5_000, 150_000
#: Allows for other load on the machine and for larger caches.
MAX_RATIO = 10
ROUNDS = 5


def world(size: int) -> AdminService:
    """This number of ready jobs; for each of scheduled, leased and dead a fifth of it."""
    engine = Engine(Random(1), protocol_rules())
    for number in range(size):
        engine.push(unit(f"job-{number}", "ready", payload=b'["someone@example.com"]'), START)
    for number in range(size // 5):
        due = START + number * SECOND + 1
        engine.push(unit(f"later-{number}", "later", due_at=due), START)
        engine.push(unit(f"held-{number}", "held"), START)
        engine.lease(("held",), f"worker-{number % 100}", FAKTORY, START)
        engine.kill(engine.push(unit(f"dead-{number}", "dead", tags=["t"]), START), START)
    engine.take_changes()
    return AdminService(engine, 10)


@pytest.fixture(scope="module")
def worlds() -> tuple[AdminService, AdminService]:
    return world(FEW), world(MANY)


def longest_step(hub: AdminService, operation: Operation, admin_request: Any) -> float:
    """The longest step of the fastest round."""
    return min(max(_steps(hub, operation, admin_request)) for _ in range(ROUNDS))


def _steps(hub: AdminService, operation: Operation, admin_request: Any) -> list[float]:
    steps_left, took = operation(hub, admin_request, START), []
    while True:
        began = thread_time()
        more = next(steps_left, False)
        took.append(thread_time() - began)
        if more is False:
            return took


@pytest.mark.parametrize(
    ("name", "admin_request"),
    [
        ("search", SearchJobs(JobFilter(), max_examined=1_000_000)),
        ("search", SearchJobs(JobFilter(terms=["nobody"]), max_examined=50_000)),
        ("search", SearchJobs(JobFilter(terms=["nö"]), max_examined=10_000)),
        ("search", SearchJobs(JobFilter(kind="Nothing"), max_examined=1_000_000)),
        ("search", SearchJobs(JobFilter(queue="ready", state="ready"), "queue")),
        ("search", SearchJobs(JobFilter(state="scheduled"), "due")),
        ("search", SearchJobs(JobFilter(state="dead"), "ended")),
        ("search", SearchJobs(JobFilter(state="dead", error="x"), "ended", max_examined=1_000_000)),
        ("workers", ListWorkers()),
        ("tags", ListTags()),
    ],
)
def test_a_step_is_short(
    worlds: tuple[AdminService, AdminService], name: str, admin_request: Any
) -> None:
    few, many = worlds
    gc.disable()
    try:
        with_few = longest_step(few, OPERATIONS[name], admin_request)
        with_many = longest_step(many, OPERATIONS[name], admin_request)
    finally:
        gc.enable()
    # The large engine has thirty times the jobs. Durations too short to measure are ignored.
    assert with_many < MAX_RATIO * max(with_few, 0.0005), (with_few, with_many)

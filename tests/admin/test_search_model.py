"""Searches while jobs change, compared with a simple model: a job that does not change between the
first and the last page is found exactly once, and every found job matches.
"""

from random import Random
from typing import Any

import pytest

from millrace.admin import scans as walks
from millrace.admin import search as searching
from millrace.admin.service import AdminService
from millrace.engine.engine import Engine
from millrace.engine.errors import EngineError
from millrace.engine.job import Job
from millrace.engine.states import STATE_NAMES
from millrace.protocols.registry import FAKTORY
from millrace.protocols.spec import protocol_rules
from millrace.records import JobFilter, JobPage, SearchJobs
from scene import SECOND, START, unit

SMALL = {
    walks: {
        "SORT_SLICE_SIZE": 5,
        "KEYED_SLICE_SIZE": 3,
        "MAX_MISSES": 6,
        "SEQUENCE_STEP": 3,
        "MAX_HEAD_SIZE": 6,
        "MAX_TIMERS_READ": 9,
    },
    searching: {
        "MAX_INDEX_SIZE": 12,
        "MAX_READY_INDEX_SIZE": 8,
        "MAX_DUE_SORTED": 10,
        "MAX_ENDED_SORTED": 10,
        "CHUNK_SIZE": 900,
    },
}
QUERIES: list[tuple[str, dict[str, Any]]] = [
    ("newest", {}),
    ("newest", {"queue": "q1"}),
    ("newest", {"state": "ready"}),
    ("newest", {"state": "dead"}),
    ("newest", {"kind": "Odd", "terms": ["even"]}),
    ("queue", {"queue": "q1", "state": "ready"}),
    ("queue", {"queue": "q0", "state": "ready", "terms": ["number"]}),
    ("due", {"state": "scheduled"}),
    ("due", {"state": "scheduled", "retrying": True}),
    ("newest", {"failing": True}),
    ("ended", {"state": "dead"}),
    ("ended", {"state": "dead", "queue": "q1"}),
]


class World:
    def __init__(self, random: Random) -> None:
        self.random = random
        self.engine = Engine(Random(1), protocol_rules())
        self.hub = AdminService(self.engine, 10)
        self.now = START
        self.pushed = 0

    def change(self) -> None:
        """Make one random change."""
        self.now += self.random.choice((0, 1, SECOND))
        engine, random = self.engine, self.random
        jobs = list(engine.jobs.values())
        if not jobs or random.random() < 0.5:
            return self._push()
        job = random.choice(jobs)
        try:
            match random.randrange(6):
                case 0:
                    engine.kill(job, self.now)
                case 1:
                    engine.retry_now(job, self.now)
                case 2:
                    engine.cancel(job, self.now)
                case 3:
                    engine.set_rank(job, random.randrange(3), job.position)
                case 4:
                    engine.tick(self.now)
                case _:
                    self._work()
        except EngineError:
            pass
        return None

    def _push(self) -> None:
        self.pushed += 1
        number, random = self.pushed, self.random
        due = self.now + random.randrange(1, 30) * SECOND if random.random() < 0.4 else 0
        self.engine.push(
            unit(
                f"job-{number}",
                f"q{number % 2}",
                kind="Odd" if number % 2 else "Even",
                payload=b'["Number", "EVEN-%d"]' % (number // 2),
                rank=random.choice((0, 0, 0, 1, 2)),
                due_at=due,
                retries=random.choice((25, -1)),
            ),
            self.now,
        )

    def _work(self) -> None:
        job = self.engine.lease(("q0", "q1"), "w1", FAKTORY, self.now)
        if job is None:
            return
        if self.random.random() < 0.5:
            self.engine.fail(job, self.now, FAKTORY, "Oops", "it broke", [])
        elif self.random.random() < 0.5:
            self.engine.complete(job, self.now, FAKTORY)

    def meant(self, query: dict[str, Any]) -> dict[int, Job]:
        return {seq: job for seq, job in self.engine.jobs.items() if is_meant(job, query)}

    def keys(self, order: str, query: dict[str, Any]) -> dict[int, Any]:
        return {seq: key(self.engine, order, job) for seq, job in self.meant(query).items()}


def is_meant(job: Job, query: dict[str, Any]) -> bool:
    text = (job.inline_payload.decode() + job.jid + job.kind).lower()
    text += "" if job.failure is None else (job.failure.group + job.failure.message).lower()
    return (
        query.get("queue", job.queue) == job.queue
        and query.get("kind", job.kind) == job.kind
        and query.get("state", STATE_NAMES[job.state]) == STATE_NAMES[job.state]
        and query.get("retrying", bool(job.failures)) == bool(job.failures)
        and query.get("failing", failing(job)) == failing(job)
        and all(word in text for word in query.get("terms", []))
    )


def failing(job: Job) -> bool:
    """A killed job has no failure."""
    return job.failure is not None and STATE_NAMES[job.state] in {"dead", "scheduled"}


def key(engine: Engine, order: str, job: Job) -> Any:
    if order == "queue":
        return (-job.rank, job.position, job.seq)
    if order == "due":
        return (job.due_at, job.seq)
    if order == "ended":
        return (-job.ended_at, -job.seq)
    return -job.seq


@pytest.fixture(autouse=True, params=["usual", "small"])
def _limits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With small limits, a few jobs exceed the size of a list."""
    for module, values in SMALL.items() if request.param == "small" else ():
        for name, value in values.items():
            monkeypatch.setattr(module, name, value)


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize(("order", "query"), QUERIES)
def test_unchanged_jobs_are_found_once(seed: int, order: str, query: dict[str, Any]) -> None:
    random = Random(seed)
    world = World(random)
    for _ in range(random.randrange(120)):
        world.change()
    busy = random.choice((0, 0.3, 1))

    def disturb() -> None:
        if random.random() < busy:
            world.change()
            after = world.keys(order, query)
            for seq in [seq for seq, where in stayed.items() if after.get(seq) != where]:
                del stayed[seq]

    before = world.keys(order, query)
    stayed = dict(before)
    found: list[int] = []
    cursor, pages = "", 0
    while cursor or not pages:
        request_ = SearchJobs(
            JobFilter(**query), order, cursor, random.randrange(1, 9), random.randrange(1, 40)
        )
        page: JobPage | None = None
        for each in searching.search_jobs(world.hub, request_, world.now):
            if each is None:
                disturb()
            else:
                page = each
        assert page is not None
        assert len(page.jobs) <= request_.limit
        assert all(row.state == query.get("state", row.state) for row in page.jobs)
        found += [row.seq for row in page.jobs]
        cursor, pages = page.next, pages + 1
        assert pages < 1000
        disturb()
    assert set(stayed) <= set(found)
    assert [seq for seq in found if found.count(seq) > 1 and seq in stayed] == []
    if not busy:
        assert set(found) == set(before)
        if not is_small():
            assert found == sorted(before, key=before.__getitem__)


def is_small() -> bool:
    return SMALL[walks]["MAX_HEAD_SIZE"] == walks.MAX_HEAD_SIZE


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(("order", "query"), QUERIES)
def test_the_first_page_is_in_order_for_any_number_of_jobs(
    seed: int, order: str, query: dict[str, Any]
) -> None:
    world = World(Random(seed))
    for _ in range(150):
        world.change()
    keys = world.keys(order, query)
    request_ = SearchJobs(JobFilter(**query), order, limit=2)
    (page,) = (each for each in searching.search_jobs(world.hub, request_, world.now) if each)
    expected = sorted(keys, key=keys.__getitem__)[:2]
    if order not in {"ended", "due"} or not is_small():  # otherwise in order of seq
        assert [row.seq for row in page.jobs] == expected

"""`overview`: all of it in numbers, now and lately."""

from collections.abc import Iterator
from typing import Final

from millrace.engine.engine import Engine
from millrace.engine.job import Job
from millrace.engine.states import READY
from millrace.protocols.connection import Hub
from millrace.records import OldestJob, Overview, PortStatus

from .answering import Answering, Telling
from .queues import is_known, spans
from .samples import by_state, days, ready, total
from .service import AdminService

#: So many queues or connections are looked at before others have their turn.
QUEUE_SLICE_SIZE: Final = 500


class QueueTotals:
    """What is known of all queues together, once all have been looked at."""

    def __init__(self) -> None:
        self.queues = 0
        self.paused = 0
        self.waiters = 0
        #: The job that waits longest.
        self.oldest: Job | None = None

    def look(self, engine: Engine) -> Iterator[None]:
        """Some at a time."""
        names = list(engine.queues)
        for first in range(0, len(names), QUEUE_SLICE_SIZE):
            for name in names[first : first + QUEUE_SLICE_SIZE]:
                self._count(engine, name)
            yield None

    def _count(self, engine: Engine, name: str) -> None:
        queue = engine.queues.get(name)
        if queue is None:
            return
        self.waiters += len(queue.waiters)
        if not is_known(queue):
            return
        self.queues += 1
        self.paused += queue.paused
        oldest = queue.ready.oldest() if queue.counts[READY] else None
        if oldest is not None and (self.oldest is None or oldest.ready_at < self.oldest.ready_at):
            self.oldest = oldest


def overview(hub: AdminService, _: bool, now: int) -> Iterator[Overview | None]:
    engine = hub.engine
    census = QueueTotals()
    yield from census.look(engine)
    protocols: list[PortStatus] = []
    for each in hub.hubs:
        protocols.append(protocol(hub, each))
        yield None
    counts = by_state(engine)
    counts[READY] = ready(engine)
    oldest = census.oldest
    yield Overview(
        now=now,
        samples=[*hub.samples.totals, total(engine, now)],
        counts=counts,
        retrying=engine.retrying,
        processed=engine.totals.processed,
        failures=engine.totals.failures,
        queues=census.queues,
        paused=census.paused,
        oldest_job=None
        if oldest is None
        else OldestJob(oldest.jid, oldest.queue, oldest.ready_at, oldest.seq),
        workers=workers(hub),
        protocols=protocols,
        commit=spans(hub.samples.measured.commits.lately()),
        days=days(engine, now),
        halted=engine.halted,
        memory_mb=hub.memory_mb(),
        started_at=hub.started_at,
    )


def protocol(control: AdminService, hub: Hub) -> PortStatus:
    return PortStatus(
        name=hub.protocol,
        port=control.ports.get(hub.protocol, 0),
        connections=len(hub.connections),
        waiters=sum(each.waiter is not None for each in hub.connections),
        commands=hub.commands,
        errors=hub.errors,
    )


def workers(hub: AdminService) -> int:
    """How many have introduced themselves and are there: of Faktory, and of Qless."""
    faktory, qless = hub.faktory, hub.qless
    known = 0 if faktory is None else len(faktory.of_worker)
    return known + (0 if qless is None else len(qless.workers))


ANSWERS: Final[dict[str, Answering]] = {}
LONG: Final[dict[str, Telling]] = {"overview": overview}

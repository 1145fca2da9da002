"""The reply to INFO."""

from collections.abc import Generator
from typing import Final

from millrace.engine.queues import Queue
from millrace.engine.states import LEASED, READY, SCHEDULED

from .hub import MasenkoHub
from .replies import encode_string

#: Queues that one slice writes.
INFO_BATCH_SIZE: Final = 500
#: The object `metrics`. Its members have the names of the original's Prometheus series.
_METRICS = (
    b'{"masenko_clients_total":%d,"masenko_requests_total":%b,"masenko_responses_total":%b,'
    b'"masenko_tasks_total":{%b}}'
)


def write_info(hub: MasenkoHub) -> Generator[None, None, bytes]:
    """The reply with all queues in the order of their creation, in slices."""
    known = [queue for queue in hub.engine.tables.queues.values() if queue.registered]
    queues: list[bytes] = []
    totals: list[bytes] = []
    for number, queue in enumerate(known, 1):
        name, counts = encode_string(queue.name), _counts(queue)
        queues.append(b'{"name":%b,%b}' % (name, counts))
        if hub.with_metrics:
            totals.append(b"%b:{%b}" % (name, counts))
        if number % INFO_BATCH_SIZE == 0:
            yield
    if not hub.with_metrics:
        return b'OK {"queues":[%b]}\n' % b",".join(queues)
    metrics = _METRICS % (
        len(hub.connections),
        _by_verb(hub.requests),
        _by_verb(hub.responses),
        b",".join(totals),
    )
    return b'OK {"queues":[%b],"metrics":%b}\n' % (b",".join(queues), metrics)


def _counts(queue: Queue) -> bytes:
    """The counts of a queue. A delayed task counts as delayed until it is fetched."""
    early = queue.ready.front_count
    return b'"ready":%d,"delayed":%d,"to_ack":%d' % (
        queue.counts[READY] - early,
        queue.counts[SCHEDULED] + early,
        queue.counts[LEASED],
    )


def _by_verb(counts: dict[bytes, int]) -> bytes:
    return b"{%b}" % b",".join(b'"%b":%d' % pair for pair in counts.items())

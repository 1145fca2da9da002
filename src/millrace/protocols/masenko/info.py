"""The reply to INFO."""

from millrace.engine.queues import Queue
from millrace.engine.states import LEASED, READY, SCHEDULED

from .hub import MasenkoHub
from .replies import encoded

#: The names of the original's Prometheus series.
_METRICS = (
    b'{"masenko_clients_total":%d,"masenko_requests_total":%b,"masenko_responses_total":%b,'
    b'"masenko_tasks_total":{%b}}'
)


def answer(hub: MasenkoHub) -> bytes:
    """The reply with all queues in the order of their creation."""
    known = [queue for queue in hub.engine.queues.values() if queue.known]
    named = [(encoded(queue.name), _counts(queue)) for queue in known]
    queues = b",".join(b'{"name":%b,%b}' % pair for pair in named)
    if not hub.with_metrics:
        return b'OK {"queues":[%b]}\n' % queues
    metrics = _METRICS % (
        len(hub.connections),
        _by_verb(hub.requests),
        _by_verb(hub.responses),
        b",".join(b"%b:{%b}" % pair for pair in named),
    )
    return b'OK {"queues":[%b],"metrics":%b}\n' % (queues, metrics)


def _counts(queue: Queue) -> bytes:
    """The counts of a queue. A delayed task counts as delayed until it is fetched."""
    early = queue.ready.early
    return b'"ready":%d,"delayed":%d,"to_ack":%d' % (
        queue.counts[READY] - early,
        queue.counts[SCHEDULED] + early,
        queue.counts[LEASED],
    )


def _by_verb(counts: dict[bytes, int]) -> bytes:
    return b"{%b}" % b",".join(b'"%b":%d' % pair for pair in counts.items())

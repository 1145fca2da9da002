"""The reply to INFO."""

from collections.abc import Generator
from typing import Final

from millrace.engine.queues import Queue
from millrace.engine.states import LEASED, READY, SCHEDULED

from .hub import MasenkoHub
from .replies import encode_string

#: Queues that one slice writes.
INFO_BATCH_SIZE: Final = 500
#: The start of the object `metrics`, with the names of the original's Prometheus series.
_METRICS = (
    b'],"metrics":{"masenko_clients_total":%d,"masenko_requests_total":%b,'
    b'"masenko_responses_total":%b,"masenko_tasks_total":{'
)


def write_info(hub: MasenkoHub) -> Generator[None, None, list[bytes]]:
    """The reply with all queues in the order of their creation, written in slices. It is returned
    in one piece for few queues, otherwise in one for each slice.
    """
    known = [queue for queue in hub.engine.tables.queues.values() if queue.registered]
    pieces, totals = [b'OK {"queues":['], [b""]
    for start in range(0, len(known), INFO_BATCH_SIZE):
        comma = b"," if start else b""
        rows = [
            (encode_string(queue.name), _counts(queue))
            for queue in known[start : start + INFO_BATCH_SIZE]
        ]
        pieces.append(comma + b",".join([b'{"name":%b,%b}' % row for row in rows]))
        if hub.with_metrics:
            totals.append(comma + b",".join([b"%b:{%b}" % row for row in rows]))
        if len(rows) == INFO_BATCH_SIZE:
            yield
    if hub.with_metrics:
        connected, requests = len(hub.connections), _by_verb(hub.requests)
        totals[0] = _METRICS % (connected, requests, _by_verb(hub.responses))
        pieces += [*totals, b"}}}\n"]
    else:
        pieces.append(b"]}\n")
    return [b"".join(pieces)] if len(known) < INFO_BATCH_SIZE else pieces


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

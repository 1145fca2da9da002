"""`/metrics`, for Prometheus.

Each queue and state requires a time series. Therefore only the deepest queues have their own
series. The remaining queues share the series of the queue "", a name that no queue has.
"""

from collections.abc import Iterator
from typing import Final

from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from starlette.responses import Response

from millrace import __version__
from millrace.engine.states import LEASED, READY, SCHEDULED, STATE_NAMES
from millrace.records import Histogram, Metrics

from .context import RequestContext
from .routing import PageRoute

SECOND: Final = 1_000_000
#: Maximum number of queues with their own series.
MAX_METRIC_QUEUES: Final = 100


async def metrics(context: RequestContext) -> Response:
    found = await context.ask(Metrics, metrics={"limit": MAX_METRIC_QUEUES})
    encode, kind = choose_encoder(context.request.headers.get("accept", ""))
    return Response(encode(MetricsCollector(found)), headers={"Content-Type": kind})


class MetricsCollector(Collector):
    """Converts the metrics to the types of the Prometheus library."""

    def __init__(self, found: Metrics) -> None:
        self._found = found

    def collect(self) -> Iterator[Metric]:
        found = self._found
        yield _labelled(
            "millrace_build_info", "Version of the server, as a label.", "version", {__version__: 1}
        )
        yield _gauge("millrace_up", "1 if the server replies.", 1)
        yield _gauge(
            "millrace_start_time_seconds",
            "Start time of the server, in seconds since 1970.",
            found.started_at / SECOND,
        )
        yield _gauge("millrace_halted", "1 while the store cannot be written.", int(found.halted))
        yield _gauge(
            "millrace_pushes_refused",
            "1 while new jobs are refused, because the disk or the memory is full.",
            int(found.pushes_refused),
        )
        yield _gauge("millrace_memory_bytes", "Memory of the server process.", found.memory_bytes)
        yield from self._jobs()
        yield from self._protocols()
        yield from self._spans()
        yield from self._kept()
        yield from self._masenko()

    def _jobs(self) -> Iterator[Metric]:
        found = self._found
        jobs = GaugeMetricFamily(
            "millrace_jobs", "Jobs by queue and state.", labels=["queue", "state"]
        )
        for queue, counts in found.queues.items():
            for state, count in zip(STATE_NAMES, counts, strict=False):
                jobs.add_metric([queue, state], count)
        yield jobs
        yield _labelled(
            "millrace_queue_oldest_seconds",
            "Age of the oldest ready job; no series for a queue without one.",
            "queue",
            {queue: max(0, found.now - at) / SECOND for queue, at in found.oldest.items()},
        )
        yield _gauge("millrace_queues", "Number of queues.", found.queues_count)
        yield _gauge("millrace_queues_paused", "Number of paused queues.", found.paused)
        yield _gauge(
            "millrace_jobs_retrying", "Scheduled jobs that have failed before.", found.retrying
        )
        yield _counter("millrace_pushed", "Pushed jobs.", found.pushed)
        yield _counter("millrace_completed", "Completed attempts.", found.completed)
        yield _counter("millrace_failed", "Failed and expired attempts.", found.failed)

    def _protocols(self) -> Iterator[Metric]:
        rows = self._found.protocols
        labels = ["protocol"]
        commands = CounterMetricFamily("millrace_commands", "Commands of clients.", labels=labels)
        errors = CounterMetricFamily("millrace_errors", "Error replies.", labels=labels)
        for row in rows:
            commands.add_metric([row.name], row.commands)
            errors.add_metric([row.name], row.errors)
        yield commands
        yield errors
        yield _labelled(
            "millrace_connections",
            "Open connections.",
            "protocol",
            {row.name: row.connections for row in rows},
        )
        yield _labelled(
            "millrace_connections_waiting",
            "Connections that wait for a job or for its end.",
            "protocol",
            {row.name: row.waiters for row in rows},
        )
        yield _gauge(
            "millrace_waiters", "Waiting clients, counted once per queue.", self._found.waiters
        )
        yield _gauge("millrace_workers", "Faktory and Qless workers.", self._found.workers)

    def _spans(self) -> Iterator[Metric]:
        found = self._found
        yield _histogram("millrace_job_wait_seconds", "Time from ready to leased.", found.waits)
        yield _histogram("millrace_job_run_seconds", "Time from leased to done.", found.runs)
        yield _histogram(
            "millrace_commit_seconds",
            "Time from the end of a loop turn to its commit.",
            found.commits,
        )
        yield _histogram(
            "millrace_loop_lag_seconds",
            "Delay of the event loop, measured twice a second.",
            found.lag,
        )

    def _kept(self) -> Iterator[Metric]:
        found = self._found
        yield _gauge("millrace_store_bytes", "Size of the store's files.", found.store_bytes)
        yield _gauge("millrace_disk_free_bytes", "Free space on the store's disk.", found.disk_free)
        yield _gauge("millrace_disk_size_bytes", "Size of the store's disk.", found.disk_size)
        yield _gauge("millrace_outbox_bytes", "Size of the pending events.", found.outbox_bytes)
        yield _gauge(
            "millrace_outbox_events", "Events that are not yet in the lake.", found.outbox_events
        )
        yield _gauge(
            "millrace_shipping_lag_seconds", "Age of the oldest pending event.", found.shipping_lag
        )
        yield _counter("millrace_shipped_files", "Files shipped to the lake.", found.shipped_files)
        yield _counter(
            "millrace_dropped_events",
            "Events dropped because the outbox was full.",
            found.dropped_events,
        )

    def _masenko(self) -> Iterator[Metric]:
        """The series that the original Masenko server exports, under its names."""
        original = self._found.original
        clients = original.get("masenko_clients_total")
        if clients is None:
            return
        yield _gauge("masenko_clients_total", "Connected Masenko clients.", clients[""])
        for series, about in (
            (
                "masenko_requests_total",
                "Masenko requests by verb; PUSH, FETCH, ACK, NACK and ATOMIC if they succeeded.",
            ),
            ("masenko_responses_total", "Masenko responses by verb."),
        ):
            counter = CounterMetricFamily(series, about, labels=["verb"])
            for verb, count in original[series].items():
                counter.add_metric([verb], count)
            yield counter
        tasks = GaugeMetricFamily(
            "masenko_tasks_total", "Tasks by queue and kind.", labels=["queue", "kind"]
        )
        for queue, counts in self._found.queues.items():
            for kind, state in (("ready", READY), ("delayed", SCHEDULED), ("to_ack", LEASED)):
                tasks.add_metric([queue, kind], counts[state])
        yield tasks


def _gauge(name: str, about: str, value: float) -> Metric:
    return GaugeMetricFamily(name, about, value=value)


def _counter(name: str, about: str, value: float) -> Metric:
    return CounterMetricFamily(name, about, value=value)


def _labelled(name: str, about: str, label: str, values: "dict[str, float]") -> Metric:
    family = GaugeMetricFamily(name, about, labels=[label])
    for each, value in values.items():
        family.add_metric([each], value)
    return family


def _histogram(name: str, about: str, found: Histogram) -> Metric:
    buckets = [(str(bound), count) for bound, count in zip(found.bounds, found.counts, strict=True)]
    return HistogramMetricFamily(
        name, about, buckets=[*buckets, ("+Inf", found.count)], sum_value=found.sum
    )


ROUTES: Final[list[PageRoute]] = [
    PageRoute("/metrics", metrics, "metrics in the format of Prometheus", kind="api")
]

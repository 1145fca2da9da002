"""Prometheus metrics of a worker."""

from prometheus_client import CollectorRegistry, Counter, Histogram, start_http_server

from .execution import Outcome


class WorkerMetrics:
    """Counts outcomes by task, and measures the run times of jobs."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._jobs = Counter(
            "millrace_worker_jobs",
            "Jobs that ended, by task and outcome.",
            ["task", "outcome"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "millrace_worker_job_seconds",
            "Duration of jobs in seconds, by task.",
            ["task"],
            registry=self._registry,
        )

    def count(self, outcome: Outcome) -> None:
        result = "completed" if outcome.failure is None else "failed"
        self._jobs.labels(outcome.job.name, result).inc()
        self._seconds.labels(outcome.job.name).observe(outcome.seconds)

    def serve(self, port: int) -> int:
        """Serve /metrics on this machine and return the port. For 0, the system chooses a port."""
        server, _ = start_http_server(port, "127.0.0.1", self._registry)
        return int(server.server_port)

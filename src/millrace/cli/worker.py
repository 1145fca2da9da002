"""`millrace worker`: run the tasks of a Python application."""

import json as jsonlib
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import typer

from millrace.client.errors import MillraceError
from millrace.client.worker import JobLogFilter, Outcome, Worker, WorkerOptions
from millrace.client.worker.executors import load_app
from millrace.client.worker.metrics import WorkerMetrics
from millrace.client.worker.options import MODES, ExecutionMode

log = logging.getLogger("millrace.worker")

LOG_FORMAT: Final = "%(asctime)s %(levelname)-7s %(message)s"
JOB_LOG_FORMAT: Final = "%(asctime)s %(levelname)-7s %(task)s %(job_id)s %(message)s"
#: Seconds between two checks for changed files.
RELOAD_INTERVAL: Final = 1.0
#: Set in the process that a reloading worker starts.
CHILD_VARIABLE: Final = "MILLRACE_WORKER_CHILD"

Application = Annotated[
    str,
    typer.Argument(metavar="MODULE:APP", help="The application, for example `shop.tasks:app`."),
]


def worker_command(
    application: Application,
    concurrency: Annotated[
        int, typer.Option("--concurrency", "-c", min=1, help="Number of jobs that run at once.")
    ] = WorkerOptions().concurrency,
    queues: Annotated[
        str, typer.Option("--queues", "-q", help="Queues to fetch from, separated by commas.")
    ] = "default",
    mode: Annotated[str, typer.Option(help=f"Where jobs run: {', '.join(MODES)}.")] = "threads",
    prefetch: Annotated[
        int, typer.Option(min=0, help="Number of fetched jobs that may wait for a free slot.")
    ] = 0,
    shutdown_timeout: Annotated[
        float, typer.Option(min=0, help="Seconds to wait for running jobs on stop.")
    ] = 25.0,
    label: Annotated[
        list[str] | None, typer.Option(help="Label shown in the list of workers. Repeatable.")
    ] = None,
    metrics_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port of 127.0.0.1 for Prometheus metrics.")
    ] = None,
    log_level: Annotated[str, typer.Option(help="Minimum log level.")] = "info",
    *,
    json: Annotated[bool, typer.Option("--json", help="Write the log as JSON lines.")] = False,
    reload: Annotated[
        bool, typer.Option("--reload", help="Restart if a Python file in this folder changes.")
    ] = False,
) -> None:
    """Run the tasks of a Python application.

    The server's address comes from the application, else from MILLRACE_URL or FAKTORY_URL. On
    SIGTERM or SIGINT, the worker fetches no more jobs and waits up to `--shutdown-timeout` for the
    running ones. Then, or on a second signal, it stops them; they fail and are retried.

    Examples:
    - `millrace worker shop.tasks:app`
    - `millrace worker shop.tasks:app -c 8 --queues mail,default`
    - `millrace worker shop.tasks:app --mode processes --metrics-port 9100`
    - `millrace worker shop.tasks:app --reload`: for development
    - `millrace worker shop.tasks:app --json 2>> worker.log`

    """
    if reload and CHILD_VARIABLE not in os.environ:
        raise typer.Exit(_run_and_reload())
    if mode not in MODES:
        raise typer.BadParameter(f"Use one of {', '.join(MODES)}.", param_hint="--mode")
    chosen: ExecutionMode = mode
    _set_up_logging(log_level, json=json)
    options = WorkerOptions(
        queues=tuple(name.strip() for name in queues.split(",") if name.strip()),
        concurrency=concurrency,
        mode=chosen,
        prefetch=prefetch,
        shutdown_timeout=shutdown_timeout,
        labels=("python", *(label or [])),
    )
    raise typer.Exit(_run(application, options, metrics_port))


def _run(application: str, options: WorkerOptions, metrics_port: int | None) -> int:
    try:
        app = load_app(application)
        address = app.connection_options().address
    except (ImportError, AttributeError, TypeError, ValueError, MillraceError) as error:
        typer.echo(f"Cannot load {application}: {error}", err=True)
        return 2
    metrics = None
    if metrics_port is not None:
        metrics = WorkerMetrics()
        log.info("Metrics on http://127.0.0.1:%d/metrics", metrics.serve(metrics_port))

    def report(outcome: Outcome) -> None:
        _log_outcome(outcome)
        if metrics is not None:
            metrics.count(outcome)

    worker = Worker(app, options, app_path=application, on_outcome=report)
    log.info(
        "Worker %s: %d %s, queues %s, server %s, %d %s.",
        worker.wid,
        options.concurrency,
        options.mode,
        ",".join(options.queues),
        address,
        len(app.tasks),
        "task" if len(app.tasks) == 1 else "tasks",
    )
    worker.run()
    log.info("Worker %s stopped.", worker.wid)
    return 0


def _log_outcome(outcome: Outcome) -> None:
    job, failure = outcome.job, outcome.failure
    if failure is None:
        log.info("%s %s completed in %.3f s", job.name, job.id, outcome.seconds)
        return
    log.error(
        "%s %s failed after %.3f s: %s: %s\n%s",
        job.name,
        job.id,
        outcome.seconds,
        failure.kind,
        failure.message,
        "\n".join(failure.backtrace),
    )


class TaskLogFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "task": getattr(record, "task", "-"),
            "job": getattr(record, "job_id", "-"),
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return jsonlib.dumps(fields, ensure_ascii=False)


def _set_up_logging(level: str, *, json: bool) -> None:
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise typer.BadParameter("Use debug, info, warning or error.", param_hint="--log-level")
    handler = logging.StreamHandler()
    handler.setFormatter(TaskLogFormatter() if json else logging.Formatter(LOG_FORMAT))
    handler.addFilter(JobLogFilter())
    logging.basicConfig(level=number, handlers=[handler])


# Reloading


def _run_and_reload() -> int:
    """Run the same command as a child process; restart it whenever a file changes."""
    while True:
        before = _modification_times()
        child = subprocess.Popen(sys.argv, env={**os.environ, CHILD_VARIABLE: "1"})  # noqa: S603
        try:
            while child.poll() is None and _modification_times() == before:
                time.sleep(RELOAD_INTERVAL)
        except KeyboardInterrupt:
            return child.wait()
        if child.poll() is not None:  # it ended by itself: wait for a change, then try again
            typer.echo("The worker ended. Waiting for a changed file.", err=True)
            try:
                while _modification_times() == before:
                    time.sleep(RELOAD_INTERVAL)
            except KeyboardInterrupt:
                return child.returncode
        else:
            typer.echo("A file changed: restarting.", err=True)
            child.terminate()
            child.wait()


def _modification_times() -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in _python_files() if path.exists()}


def _python_files() -> Iterator[Path]:
    for folder, folders, files in os.walk(Path.cwd()):
        folders[:] = [
            name for name in folders if not name.startswith(".") and name != "node_modules"
        ]
        yield from (Path(folder, name) for name in files if name.endswith(".py"))

"""`millrace pipeline ingest`."""

from time import sleep

import typer

from millrace.cli.pipeline.progress import StepProgress
from millrace.cli.pipeline.run import INTERRUPTED, plural, print_checks
from millrace.cli.pipeline.session import tables_session
from millrace.config import Config
from millrace.pipeline import quality
from millrace.pipeline.lake import open_lake
from millrace.pipeline.ledger import Ledger
from millrace.pipeline.run import outstanding


def ingest(config: Config, *, follow: float | None = None) -> int:
    """Return the exit code: 1 if a quality check of a batch failed."""
    lake = open_lake(config.lake_path)
    todo = outstanding(lake)
    if follow is None and not todo.files and Ledger(lake).interrupted() is None:
        typer.echo(f"No new events in {lake.landing}.")
        return 0
    try:
        with StepProgress() as steps:
            steps("start Spark", 0, 0)
            # A long-running process benefits from the optimizing compiler.
            with tables_session(config, events=todo.events if follow is None else 1 << 60) as spark:
                from millrace.pipeline.ingest import ingest as ingest_events  # noqa: PLC0415 - needs Spark

                while True:
                    taken = ingest_events(spark, lake, steps)
                    ledger = Ledger(lake)
                    checks = [c for b in taken.batches for c in quality.check_batch(b, ledger)]
                    if taken.batches:
                        seconds = sum(batch.seconds for batch in taken.batches)
                        typer.echo(
                            f"Ingested {plural(taken.events, 'event')} of "
                            f"{plural(len(taken.days), 'day')} in {seconds:.1f} s."
                        )
                    print_checks(checks)
                    if follow is None:
                        return 1 if any(check.failed for check in checks) else 0
                    sleep(follow)
    except KeyboardInterrupt:
        if follow is None:
            typer.echo(INTERRUPTED, err=True)
            return 130
        return 0

"""`millrace pipeline ingest`."""

from time import sleep

import typer

from millrace.cli.pipeline.progress import Steps
from millrace.cli.pipeline.run import INTERRUPTED, complain, counted
from millrace.cli.pipeline.starting import started
from millrace.config import Config
from millrace.pipeline import quality
from millrace.pipeline.lake import Lake
from millrace.pipeline.ledger import Ledger
from millrace.pipeline.run import outstanding


def ingest(config: Config, *, follow: float | None = None) -> int:
    """The exit code: 1 if a batch is not as it must be."""
    lake = Lake(config.lake_path)
    todo = outstanding(lake)
    if follow is None and not todo.files and Ledger(lake).interrupted() is None:
        typer.echo(f"Nothing new in {lake.landing}.")
        return 0
    try:
        with Steps() as steps:
            steps("start Spark", 0, 0)
            # Whoever follows has the time to compile well.
            with started(config, events=todo.events if follow is None else 1 << 60) as spark:
                from millrace.pipeline.ingest import ingest as take  # noqa: PLC0415 - needs Spark

                while True:
                    taken = take(spark, lake, steps)
                    ledger = Ledger(lake)
                    checks = [c for b in taken.batches for c in quality.check_batch(b, ledger)]
                    if taken.batches:
                        seconds = sum(batch.seconds for batch in taken.batches)
                        typer.echo(
                            f"Took in {counted(taken.events, 'event')} of "
                            f"{counted(len(taken.days), 'day')} in {seconds:.1f} s."
                        )
                    complain(checks)
                    if follow is None:
                        return 1 if any(check.failed for check in checks) else 0
                    sleep(follow)
    except KeyboardInterrupt:
        if follow is None:
            typer.echo(INTERRUPTED, err=True)
            return 130
        return 0

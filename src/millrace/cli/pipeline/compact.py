"""`millrace pipeline compact`."""

import typer

from millrace.cli.pipeline.progress import StepProgress
from millrace.cli.pipeline.run import INTERRUPTED, plural
from millrace.cli.pipeline.session import tables_session
from millrace.config import Config
from millrace.pipeline.compact import compact as act
from millrace.pipeline.compact import due, prune
from millrace.pipeline.lake import open_lake


def compact(config: Config, *, everything: bool = False, prune_landing: bool = False) -> int:
    lake = open_lake(config.lake_path)
    days = due(lake, everything=everything)
    try:
        if days:
            with StepProgress() as steps:
                steps("start Spark", 0, 0)
                with tables_session(config, events=sum(each.rows for each in days)) as spark:
                    done = act(spark, lake, steps, everything=everything)
            typer.echo(
                f"Compacted {plural(done.events, 'event')} of {plural(len(done.days), 'day')}; "
                f"{plural(done.replaced, 'smaller file')} removed."
            )
        else:
            typer.echo("All past days are compacted.")
        if prune_landing:
            typer.echo(f"Removed {plural(prune(lake), 'landing file')}.")
    except KeyboardInterrupt:
        typer.echo(INTERRUPTED, err=True)
        return 130
    return 0

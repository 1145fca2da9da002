"""`millrace pipeline compact`."""

import typer

from millrace.cli.pipeline.progress import Steps
from millrace.cli.pipeline.run import INTERRUPTED, counted
from millrace.cli.pipeline.starting import started
from millrace.config import Config
from millrace.pipeline.compact import compact as act
from millrace.pipeline.compact import due, prune
from millrace.pipeline.lake import Lake


def compact(config: Config, *, everything: bool = False, prune_landing: bool = False) -> int:
    lake = Lake(config.lake_path)
    days = due(lake, everything=everything)
    try:
        if days:
            with Steps() as steps:
                steps("start Spark", 0, 0)
                with started(config, events=sum(each.rows for each in days)) as spark:
                    done = act(spark, lake, steps, everything=everything)
            typer.echo(
                f"Compacted {counted(done.events, 'event')} of {counted(len(done.days), 'day')}; "
                f"{counted(done.replaced, 'smaller file')} went."
            )
        else:
            typer.echo("Every closed day is compacted.")
        if prune_landing:
            typer.echo(f"Removed {counted(prune(lake), 'landing file')}.")
    except KeyboardInterrupt:
        typer.echo(INTERRUPTED, err=True)
        return 130
    return 0

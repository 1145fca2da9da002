"""`millrace pipeline loads`: what was enqueued, and the end of what was left half-way."""

from datetime import UTC, datetime

import typer

from millrace.config import Config
from millrace.pipeline.errors import PipelineError

from . import wiring


def loads(config: Config, release: str | None, discard: str | None, url: str | None) -> int:
    if release is not None and discard is not None:
        raise PipelineError("a load is either released or discarded")
    given = wiring.options(config, url)
    with wiring.talking(given) as wire:
        # It needs pyspark, which is there where loads are made.
        from pyspark_millrace import writing  # noqa: PLC0415

        if release is not None:
            typer.echo(f"{writing.release(wire, release):,} jobs of {release} released.")
        elif discard is not None:
            typer.echo(f"{writing.discard(wire, discard):,} jobs of {discard} discarded.")
        else:
            for load in wire.ask({"loads": True})["loads"]:
                when = datetime.fromtimestamp(load["at"] // 1_000_000, UTC)
                many = f"{load['total']:,} jobs, {load['staged']:,} of them staged"
                typer.echo(f"{load['load']}  {load['state']} since {when:%F %T} UTC  {many}")
    return 0

"""`millrace pipeline loads`."""

from datetime import UTC, datetime

import typer

from millrace.config import Config
from millrace.pipeline.errors import PipelineError

from . import server


def loads(config: Config, release: str | None, discard: str | None, url: str | None) -> int:
    if release is not None and discard is not None:
        raise PipelineError("Use either --release or --discard.")
    given = server.options(config, url)
    with server.connected(given) as wire:
        # Requires pyspark.
        from pyspark_millrace import writing  # noqa: PLC0415

        if release is not None:
            typer.echo(f"Released {writing.release(wire, release):,} jobs of {release}.")
        elif discard is not None:
            typer.echo(f"Discarded {writing.discard(wire, discard):,} jobs of {discard}.")
        else:
            for load in wire.ask({"loads": True})["loads"]:
                when = datetime.fromtimestamp(load["at"] // 1_000_000, UTC)
                many = f"{load['total']:,} jobs, {load['staged']:,} of them staged"
                typer.echo(f"{load['load']}  {load['state']} since {when:%F %T} UTC  {many}")
    return 0

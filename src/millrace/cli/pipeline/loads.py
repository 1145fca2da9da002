"""`millrace pipeline loads`."""

from datetime import UTC, datetime

import typer

from millrace.cli.tables import print_json
from millrace.config import Config
from millrace.pipeline.errors import PipelineError

from . import server


def loads(
    config: Config, release: str | None, discard: str | None, url: str | None, *, json: bool = False
) -> int:
    if release is not None and discard is not None:
        raise PipelineError("Use either --release or --discard.")
    given = server.options(config, url)
    with server.connected(given) as wire:
        # Requires pyspark.
        from pyspark_millrace import writer  # noqa: PLC0415

        if release is not None:
            count = writer.release(wire, release)
            _print("Released", release, count, json=json)
        elif discard is not None:
            count = writer.discard(wire, discard)
            _print("Discarded", discard, count, json=json)
        elif json:
            print_json(wire.ask({"loads": True})["loads"])
        else:
            for load in wire.ask({"loads": True})["loads"]:
                when = datetime.fromtimestamp(load["at"] // 1_000_000, UTC)
                many = f"{load['total']:,} jobs, {load['staged']:,} of them staged"
                typer.echo(f"{load['load']}  {load['state']} since {when:%F %T} UTC  {many}")
    return 0


def _print(action: str, load: str, count: int, *, json: bool) -> None:
    if json:
        print_json({"load": load, action.lower(): count})
    else:
        typer.echo(f"{action} {count:,} jobs of {load}.")

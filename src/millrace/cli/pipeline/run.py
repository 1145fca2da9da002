"""`millrace pipeline run`. Without new events it loads neither Spark nor Arrow."""

import typer

from millrace.cli.options import lake_root
from millrace.config import Config
from millrace.extras import require
from millrace.pipeline.lake import Lake, check_format, open_lake
from millrace.pipeline.remote import shown

#: The JSON of a run without new events.
NO_RUN = '{"run":null,"events":0,"seconds":0,"failed":false,"findings":[]}'


def run(
    config: Config, *, ship: bool = True, fail: bool = True, parent: int = 0, json: bool = False
) -> int:
    """Return the exit code: 1 if a quality check failed. With the process `parent`, a resident
    Spark process is started, which ends together with it.
    """
    require("deltalake", "pyspark")  # before the lake is read, which may not exist yet
    if ship and config.server.data.exists() and _ship(config):
        lake = Lake(lake_root(config))  # a new server may have shipped nothing yet
        check_format(lake.root)
    else:
        lake = open_lake(lake_root(config))
    from millrace.pipeline.backlog import outstanding  # noqa: PLC0415 - loads deltalake

    todo = outstanding(lake.root)
    if not todo:
        typer.echo(NO_RUN if json else no_events(lake))
        return 0
    from millrace.cli.pipeline.refresh import refresh  # noqa: PLC0415 - loads much

    return refresh(config, lake, todo.events, parent=parent, fail=fail, json=json)


def _ship(config: Config) -> bool:
    from millrace.cli.pipeline.refresh import ship_pending  # noqa: PLC0415 - loads the store

    return ship_pending(config)


def no_events(lake: Lake) -> str:
    return f"No new events in {shown(lake.root)}."

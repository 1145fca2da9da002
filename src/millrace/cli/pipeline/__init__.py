"""`millrace pipeline`: what the Spark pipeline does, one module per command.

Only typer and what the flags need is loaded here: `--help` must not wait for Spark.
"""

from collections.abc import Callable
from typing import Annotated

import typer

from millrace.cli.serve import complain, read
from millrace.server.config import Config, ConfigError

app = typer.Typer(
    help="Tables, reports and audits of the whole history, made by Spark.", no_args_is_help=True
)

LakeFolder = Annotated[
    str | None,
    typer.Option("--lake", help="The lake's folder, if not where the configuration says."),
]
Data = Annotated[
    str | None,
    typer.Option("--data", help="The server's data folder, if not where the configuration says."),
]
ConfigFile = Annotated[
    str | None, typer.Option("--config", help="The file that the server was started with.")
]
Master = Annotated[
    str | None,
    typer.Option(
        help="The Spark cluster, as `spark://host:7077`; without it the cores of this machine."
    ),
]
Memory = Annotated[str | None, typer.Option(help="The heap of Spark's driver, as `2GiB`.")]


def settings(
    config: str | None = None,
    data: str | None = None,
    lake: str | None = None,
    master: str | None = None,
    memory: str | None = None,
) -> Config:
    """The configuration with these flags on top; a mistake in it is told, and ends the command."""
    given = {"--config": config, "--data": data, "--lake-path": lake}
    known = {flag: value for flag, value in given.items() if value is not None}
    own = {"pipeline.master": master, "pipeline.memory": memory}
    try:
        return read(
            known, {key: value for key, value in own.items() if value is not None}, listening=False
        ).config
    except ConfigError as error:
        raise typer.Exit(complain(error)) from error


def told(act: Callable[[], int]) -> None:
    """Run a command; what it cannot do is told in one sentence, and makes it end with 1."""
    from millrace.pipeline.errors import PipelineError  # noqa: PLC0415 - see above

    try:
        raise typer.Exit(act())
    except PipelineError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from error


@app.command("doctor")
def _doctor() -> None:
    """Say whether Spark can run here: which Java, which Python, and what is missing.

    For example:

    - `millrace pipeline doctor`
    """
    from millrace.cli.pipeline.doctor import doctor  # noqa: PLC0415

    told(doctor)


Url = Annotated[
    str | None,
    typer.Option(
        help="The server's Faktory port, as `tcp://:password@host:7419`, or `tcp+tls://...`; "
        "without it the one that the configuration says."
    ),
]
Format = Annotated[str, typer.Option("--format", help="`parquet`, `json` (lines) or `csv`.")]


@app.command("enqueue")
def _enqueue(
    files: Annotated[list[str], typer.Option("--from", help="Files or folders; `*` is allowed.")],
    kind: Annotated[
        str | None, typer.Option(help="What to run; without it the column `kind` says.")
    ] = None,
    queue: Annotated[
        str | None, typer.Option(help="The queue; without it the column `queue`, or `default`.")
    ] = None,
    jid: Annotated[
        str | None, typer.Option(help="The column with ids, if it is not called `jid`.")
    ] = None,
    args: Annotated[
        str | None, typer.Option(help="The columns that are the arguments, as `user,amount`.")
    ] = None,
    load: Annotated[
        str | None,
        typer.Option(help="A name for all of it: whoever says it again adds nothing twice."),
    ] = None,
    form: Format = "parquet",
    url: Url = None,
    config: ConfigFile = None,
    master: Master = None,
    memory: Memory = None,
) -> None:
    """Make a job of every row of some files: all of them, or none.

    For example:

    - `millrace pipeline enqueue --from users.parquet --queue mail --kind greet`
    - `millrace pipeline enqueue --from 'day/*.json' --format json --kind bill --args user,amount`
    """
    from millrace.cli.pipeline.enqueue import Rows, enqueue  # noqa: PLC0415

    chosen = settings(config, master=master, memory=memory)
    rows = Rows(files, form, kind, queue, jid, args, load)
    told(lambda: enqueue(chosen, rows, url))


@app.command("drain")
def _drain(
    to: Annotated[str, typer.Option("--to", help="The folder to write; it must not be there.")],
    queue: Annotated[str | None, typer.Option(help="Only jobs of this queue.")] = None,
    state: Annotated[
        str | None,
        typer.Option(help="`scheduled`, `blocked`, `ready`, `leased`, `done` or `dead`."),
    ] = None,
    form: Format = "parquet",
    url: Url = None,
    config: ConfigFile = None,
    master: Master = None,
    memory: Memory = None,
) -> None:
    """Write jobs with their results and failures to files. The jobs stay where they are.

    For example:

    - `millrace pipeline drain --to dead --queue mail --state dead`
    """
    from millrace.cli.pipeline.drain import drain  # noqa: PLC0415

    chosen = settings(config, master=master, memory=memory)
    told(lambda: drain(chosen, to, form, queue, state, url))


@app.command("loads")
def _loads(
    release: Annotated[str | None, typer.Option(help="Let the jobs of this load run.")] = None,
    discard: Annotated[
        str | None, typer.Option(help="Remove the jobs of this load, which is not released.")
    ] = None,
    url: Url = None,
    config: ConfigFile = None,
) -> None:
    """Show the loads that were enqueued, or end one whose `enqueue` did not.

    For example:

    - `millrace pipeline loads`
    - `millrace pipeline loads --discard spark-6f1c`
    """
    from millrace.cli.pipeline.loads import loads  # noqa: PLC0415

    chosen = settings(config)
    told(lambda: loads(chosen, release, discard, url))

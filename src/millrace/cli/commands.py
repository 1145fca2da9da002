"""The commands as typer shows and parses them; what they do is in the modules beside this one."""

import inspect
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from millrace import __version__
from millrace.cli import faktory, pipeline, show
from millrace.cli.serve import complain, flags, read, serve
from millrace.cli.worker import worker_command
from millrace.config import ConfigError

app = typer.Typer(
    name="millrace",
    help="One durable work server for existing job-queue protocols.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    # A traceback that shows local variables would show passwords.
    pretty_exceptions_enable=False,
)
faktory_app = typer.Typer(
    help="Orders to the Faktory workers of a running server.", no_args_is_help=True
)
app.add_typer(faktory_app, name="faktory")
app.add_typer(pipeline.app, name="pipeline")
app.command("worker")(worker_command)

Json = Annotated[bool, typer.Option("--json", help="As JSON, for programs.")]


def with_flags(command: Callable[..., int]) -> Callable[..., None]:
    """Make a command of `command(given, **own)`: `given` are the flags of `serve`, by name."""
    shared = [
        inspect.Parameter(
            flag.parameter,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                str | None,
                typer.Option(
                    flag.name, help=flag.about, metavar=flag.value, show_default=flag.default
                ),
            ],
        )
        for flag in flags()
    ]
    own = list(inspect.signature(command).parameters.values())[1:]

    def run(**values: Any) -> None:
        chosen = {flag.name: values.pop(flag.parameter) for flag in flags()}
        given = {name: value for name, value in chosen.items() if value is not None}
        raise typer.Exit(command(given, **values))

    run.__doc__ = command.__doc__
    run.__signature__ = inspect.Signature([*shared, *own])  # type: ignore[attr-defined]
    return run


@app.command("serve")
@with_flags
def _serve(given: dict[str, str]) -> int:
    """Start the server, and stay until it is told to stop.

    It says `ready` with its ports once they all listen. SIGTERM and SIGINT stop it gracefully,
    the second one at once; SIGHUP has it read its configuration again.

    Everything can be set in `millrace.toml` or as `MILLRACE_<SECTION>_<KEY>` too; `millrace config`
    shows all keys. There is no flag for passwords, as every user of a machine can read the command
    lines of others: use `MILLRACE_FAKTORY_PASSWORD`, or a file that the key `faktory.password`
    names.

    For example:

    - `millrace serve --data /var/lib/millrace`
    - `millrace serve --faktory-port 0 --durability memory`: any free port, nothing kept
    - `millrace serve --workq-port off --masenko-port off --goqueue-port off`: Faktory alone
    """
    return serve(given)


@app.command("config")
@with_flags
def _config(given: dict[str, str], *, json: Json = False) -> int:
    """Show the effective configuration, and where each value came from.

    Takes the flags of `serve` and shows what it would use. Passwords are hidden. The output is a
    valid `millrace.toml`.

    For example:

    - `millrace config > example.toml`: a file with every key, to start from
    - `millrace config --json | jq .faktory.port`
    """
    try:
        loaded = read(given)
    except ConfigError as error:
        return complain(error)
    typer.echo(show.as_json(loaded) if json else show.as_toml(loaded))
    return 0


Wid = Annotated[
    str, typer.Argument(metavar="WID", help="The worker's id, or `all`.", show_default=False)
]
ConfigFile = Annotated[
    str | None, typer.Option("--config", help="The file that the server was started with.")
]
Host = Annotated[
    str | None, typer.Option(help="Where the server is, if not where the configuration says.")
]
Port = Annotated[int | None, typer.Option(help="Its Faktory port.", min=1, max=65535)]
Tls = Annotated[bool, typer.Option("--tls", help="Use TLS even if the configuration has none.")]


@faktory_app.command("quiet")
def _quiet(
    wid: Wid, config: ConfigFile = None, host: Host = None, port: Port = None, *, tls: Tls = False
) -> None:
    """Have a worker fetch no more jobs, and finish those it has.

    Where the server is and its password come from the same configuration that it was started with.

    For example:

    - `millrace faktory quiet 4qpc2443vpvai`
    - `millrace faktory quiet all`: before a deployment
    """
    _order("QUIET", wid, config, host, port, tls=tls)
    typer.echo(f"{_told(wid)}, to fetch no more jobs.")


@faktory_app.command("terminate")
def _terminate(
    wid: Wid, config: ConfigFile = None, host: Host = None, port: Port = None, *, tls: Tls = False
) -> None:
    """Have a worker stop within 30 s of hearing of it.

    A job that it cannot finish in that time it fails, and the job is retried later.

    For example:

    - `millrace faktory terminate 4qpc2443vpvai`
    - `millrace faktory terminate all --host queue.example.com --tls`
    """
    _order("TERMINATE", wid, config, host, port, tls=tls)
    typer.echo(f"{_told(wid)}, to stop. Jobs not finished 30 s later are failed, to be retried.")


def _told(wid: str) -> str:
    who = "Every worker" if wid == "all" else f"Worker {wid}"
    return f"{who} is told on its next BEAT, usually within 15 s"


def _order(
    order: faktory.Order,
    wid: str,
    config: str | None,
    host: str | None,
    port: int | None,
    *,
    tls: bool,
) -> None:
    try:
        loaded = read({} if config is None else {"--config": config}, listening=False)
        server = faktory.target(loaded.config, host=host, port=port, tls=tls)
        faktory.give_order(server, order, "*" if wid == "all" else wid)
    except ConfigError as error:
        raise typer.Exit(complain(error)) from error
    except faktory.OrderFailedError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from error


Data = Annotated[
    str | None,
    typer.Option("--data", help="The server's data folder, if not where the configuration says."),
]


@app.command("why")
def _why(
    jid: Annotated[
        str, typer.Argument(metavar="JID", help="The job's id, or its number.", show_default=False)
    ],
    data: Data = None,
    config: ConfigFile = None,
    *,
    json: Json = False,
) -> None:
    """Say why a job is not running: what it waits for, who has it, or how it ended.

    Asks the server that runs on the data folder. Several jobs may have the same id; the oldest 20
    are told.

    For example:

    - `millrace why 6ba7b810-9dad-11d1-80b4-00c04fd430c4`
    - `millrace why 17 --data /var/lib/millrace`: a job of Masenko or Go Job Queue
    - `millrace why -- -17a`: an id that begins as flags do
    """
    from millrace.cli.control import why  # noqa: PLC0415 - only here the engine's words are needed

    raise typer.Exit(_on_folder(config, data, lambda folder: why(folder, jid, json=json)))


@app.command("check")
def _check(data: Data = None, config: ConfigFile = None, *, json: Json = False) -> None:
    """Verify a data folder, and show what is in it. Nothing in it is changed.

    Reads everything: the sums of all rows, the structure of the database, whether turns or events
    are missing, and whether the indexes made of the jobs agree. While a server runs on the folder,
    what is verified is one moment of its work. Exits with 1 if anything is wrong, and says what to
    do.

    For example:

    - `millrace check --data /var/lib/millrace`
    - `millrace check --data /backups/monday --json | jq .jobs`
    """
    from millrace.cli.check import check  # noqa: PLC0415 - only here the store is needed

    raise typer.Exit(_on_folder(config, data, lambda folder: check(folder, json=json)))


@app.command("backup")
def _backup(
    dest: Annotated[
        str,
        typer.Argument(metavar="DEST", help="A new folder, or an empty one.", show_default=False),
    ],
    data: Data = None,
    config: ConfigFile = None,
) -> None:
    """Copy a data folder while its server runs.

    The copy is of one moment between two commits. It is made beside DEST, verified as `millrace
    check` does it, and only then gets that name: what is called DEST is whole. To restore it, start
    a server on it, or on a copy of it.

    For example:

    - `millrace backup /backups/monday --data /var/lib/millrace`
    - `millrace serve --data /backups/monday`
    """
    from millrace.cli.backup import backup  # noqa: PLC0415 - as above

    raise typer.Exit(_on_folder(config, data, lambda folder: backup(folder, Path(dest))))


@app.command("ship")
def _ship(
    data: Data = None,
    lake: Annotated[
        str | None,
        typer.Option("--lake", help="The lake's folder, if no server runs that knows it."),
    ] = None,
    config: ConfigFile = None,
    *,
    status: Annotated[
        bool, typer.Option("--status", help="Ship nothing, only say how far it is.")
    ] = False,
    json: Json = False,
) -> None:
    """Ship the journal to the lake now, and say how far it is.

    A running server ships by itself, every `[lake] ship_every`; this is for who cannot wait. It is
    done when all events are in the lake that were committed when it began. Without a server it
    ships by itself, and none can start meanwhile.

    For example:

    - `millrace ship --data /var/lib/millrace && millrace pipeline run --data /var/lib/millrace`
    - `millrace ship --status --json | jq .seconds`: how far behind the lake is
    """
    from millrace.cli.ship import ship  # noqa: PLC0415 - only here the store is needed

    given = {"--config": config, "--data": data, "--lake-path": lake}
    known = {flag: value for flag, value in given.items() if value is not None}
    try:
        loaded = read(known, listening=False)
    except ConfigError as error:
        raise typer.Exit(complain(error)) from error
    raise typer.Exit(ship(loaded.config, status=status, json=json))


def _on_folder(config: str | None, data: str | None, act: Callable[[Path], int]) -> int:
    given = {"--config": config, "--data": data}
    known = {flag: value for flag, value in given.items() if value is not None}
    try:
        loaded = read(known, listening=False)
    except ConfigError as error:
        return complain(error)
    return act(loaded.config.server.data)


@app.command("version")
def _version() -> None:
    """Show the version of Millrace, and of the Python it runs on."""
    typer.echo(f"millrace {__version__} (Python {platform.python_version()}, {sys.platform})")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"millrace {__version__}")
        raise typer.Exit


@app.callback()
def _millrace(
    _: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version, and exit."
        ),
    ] = False,
) -> None:
    pass

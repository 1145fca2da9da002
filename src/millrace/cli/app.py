"""The `millrace` application: every command with its name; each has a module."""

import platform
import sys
from typing import Annotated

import typer

from millrace import __version__
from millrace.cli import backup, check, config, pipeline, ship, why, worker, workers
from millrace.cli.options import with_flags
from millrace.cli.serve import serve

app = typer.Typer(
    name="millrace",
    help="A durable job queue server that speaks Faktory, Workq, Masenko, Go Job Queue and Qless.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    # A traceback with local variables would show passwords.
    pretty_exceptions_enable=False,
)


# Defined here, because serve.py must not import typer.
@app.command("serve")
@with_flags
def serve_command(given: dict[str, str]) -> int:
    """Start the server.

    Prints `ready` and the ports once every port accepts connections. SIGTERM and SIGINT stop the
    server gracefully; a second signal stops it immediately. SIGHUP reloads the configuration.

    Every setting can also be given in `millrace.toml` or as `MILLRACE_<SECTION>_<KEY>`. Run
    `millrace config` to list all keys. Passwords have no flag, because every user of a machine can
    read the command lines of other users. Use `MILLRACE_FAKTORY_PASSWORD`, or a file that the key
    `faktory.password` names.

    Examples:
    - `millrace serve --data /var/lib/millrace`
    - `millrace serve --faktory-port 0 --durability memory`: a free port, nothing on disk
    - `millrace serve --workq-port off --masenko-port off --goqueue-port off`: disable protocols

    """
    return serve(given)


app.command("config")(config.config_command)
app.command("why")(why.why_command)
app.command("check")(check.check_command)
app.command("backup")(backup.backup_command)
app.command("ship")(ship.ship_command)
app.command("worker")(worker.worker_command)
app.add_typer(workers.app, name="faktory")
app.add_typer(pipeline.app, name="pipeline")


@app.command("version")
def version_command() -> None:
    """Show the versions of Millrace and Python."""
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
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    pass

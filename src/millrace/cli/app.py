"""The `millrace` application: every command with its name; each has a module."""

import json as jsonlib
import platform
import sys
from collections.abc import Callable
from typing import Annotated, Final

import typer

from millrace import __version__, compiled
from millrace.cli import (
    backup,
    check,
    config,
    demo,
    imports,
    listings,
    pipeline,
    ship,
    top,
    verbs,
    why,
    worker,
    workers,
)
from millrace.cli.options import TYPER_SETTINGS, CommandGroup, Json, with_flags
from millrace.cli.serve import JSON_FLAG, serve

app = CommandGroup(
    name="millrace",
    help="A durable job queue server that speaks Faktory, Workq, Masenko, Go Job Queue and Qless.",
    **TYPER_SETTINGS,
)


# Defined here, because serve.py must not import typer.
@app.command("serve", rich_help_panel="Server")
@with_flags
def serve_command(given: dict[str, str], *, json: Json = False) -> int:
    """Start the server.

    Prints `ready` and the ports once every port accepts connections. With `--json`, or if the
    output is not a terminal, this line and the log are JSON. SIGTERM and SIGINT stop the server
    gracefully; a second signal stops it immediately. SIGHUP reloads the configuration.

    Every setting can also be given in `millrace.toml` or as `MILLRACE_<SECTION>_<KEY>`. Run
    `millrace config` to list all keys. Passwords have no flag, because every user of a machine can
    read the command lines of other users. Set `MILLRACE_FAKTORY_PASSWORD` or the key
    `faktory.password`; a value that starts with `/` is the path of a file with the password.

    Examples:
    - `millrace serve --data /var/lib/millrace`
    - `millrace serve --faktory-port 0 --durability memory`: a free port, nothing on disk
    - `millrace serve --workq-port off --masenko-port off --goqueue-port off`: disable protocols

    """
    return serve(given | {JSON_FLAG: "yes"} if json else given)


SERVER, SHOW, CHANGE, QUEUE, PYTHON = (
    "Server",
    "Show jobs and queues",
    "Change jobs",
    "Change queues",
    "Applications and history",
)
_COMMANDS: Final[dict[str, dict[str, Callable[..., None]]]] = {
    SERVER: {
        "config": config.config_command,
        "check": check.check_command,
        "backup": backup.backup_command,
        "import": imports.import_command,
        "ship": ship.ship_command,
        "demo": demo.demo_command,
    },
    SHOW: {
        "top": top.top_command,
        "stats": listings.stats_command,
        "queues": listings.queues_command,
        "jobs": listings.jobs_command,
        "job": listings.job_command,
        "why": why.why_command,
        "result": listings.result_command,
        "workers": listings.workers_command,
        "limits": listings.limits_command,
        "recurring": listings.recurring_command,
        "events": listings.events_command,
    },
    CHANGE: {"push": verbs.push_command, **verbs.VERBS},
    QUEUE: verbs.QUEUE_VERBS,
    PYTHON: {"worker": worker.worker_command},
}
for _panel, _commands in _COMMANDS.items():
    for _name, _command in _commands.items():
        app.command(_name, rich_help_panel=_panel)(_command)
app.add_typer(pipeline.app, name="pipeline", rich_help_panel=PYTHON)
app.add_typer(workers.app, name="faktory", rich_help_panel=PYTHON)


@app.command("version", rich_help_panel=SERVER)
def version_command(*, json: Json = False) -> None:
    """Show the versions of Millrace and Python, and whether the compiled modules are used.

    Examples:
    - `millrace version`
    - `millrace version --json | jq .version`

    """
    python = platform.python_version()
    build = "compiled" if compiled.is_in_use() else "pure Python"
    if json:
        found = {"version": __version__, "python": python, "platform": sys.platform}
        typer.echo(jsonlib.dumps(found | {"build": build}))
    else:
        typer.echo(f"millrace {__version__} (Python {python}, {sys.platform}, {build})")


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

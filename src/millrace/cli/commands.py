"""Every command of `millrace` with its name; each has a module.

A call of a command imports only the module of that command: all of them take as long as the rest of
a short command. The help, an unknown command and the completion need all commands.
"""

import json as jsonlib
import platform
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Final

import typer

from millrace import __version__, compiled
from millrace.cli.options import TYPER_SETTINGS, CommandGroup, Json, with_flags
from millrace.cli.serve import JSON_FLAG, serve

_ABOUT: Final = (
    "A durable job queue server that speaks Faktory, Workq, Masenko, Go Job Queue and Qless."
)


# Defined here, because serve.py must not import typer.
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
#: The module of each command. The function of a command is called NAME_command.
_MODULES: Final = {
    SERVER: {
        "config": "config",
        "check": "check",
        "backup": "backup",
        "import": "imports",
        "ship": "ship",
        "demo": "demo",
    },
    SHOW: {
        "top": "top",
        "stats": "listings",
        "queues": "listings",
        "jobs": "listings",
        "job": "listings",
        "why": "why",
        "result": "listings",
        "workers": "listings",
        "limits": "listings",
        "recurring": "listings",
        "events": "listings",
    },
    CHANGE: {"push": "verbs"},
    PYTHON: {"worker": "worker"},
}
#: The module of each group of commands.
_GROUPS: Final = {"pipeline": "pipeline", "faktory": "workers"}


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


def _millrace(
    _: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    pass


def application(name: str = "") -> CommandGroup:
    """The application with the command or group `name`; with all of them if there is none."""
    app = CommandGroup(
        name="millrace",
        help=_ABOUT,
        **TYPER_SETTINGS,
    )
    app.callback()(_millrace)
    if not _add_one(app, "version" if name == "--version" else name):
        _add_all(app)
    return app


def _add_one(app: CommandGroup, name: str) -> bool:
    """Add the command or group with this name. Return False if there is none."""
    for panel, modules in _MODULES.items():
        if name in modules:
            _add(app, panel, name, _function(name, modules[name]))
            return True
    if name == "version":
        _add(app, SERVER, name, version_command)
        return True
    if name in _GROUPS:
        _add_group(app, name)
        return True
    for panel, verbs in _verbs().items():
        if name in verbs:
            _add(app, panel, name, verbs[name])
            return True
    return False


def _add_all(app: CommandGroup) -> None:
    """Add all commands and groups, in the order of the help."""
    _add(app, SERVER, "serve", with_flags(serve_command))
    verbs = _verbs()
    for panel in (SERVER, SHOW, CHANGE, QUEUE, PYTHON):
        for name, module in _MODULES.get(panel, {}).items():
            _add(app, panel, name, _function(name, module))
        for name, verb in verbs.get(panel, {}).items():
            _add(app, panel, name, verb)
    for name in _GROUPS:
        _add_group(app, name)
    _add(app, SERVER, "version", version_command)


def _verbs() -> dict[str, dict[str, Callable[..., None]]]:
    """The actions on jobs and queues, which are a table, by panel."""
    from millrace.cli.verbs import QUEUE_VERBS, VERBS  # noqa: PLC0415 - not for other commands

    return {CHANGE: VERBS, QUEUE: QUEUE_VERBS}


def _function(name: str, module: str) -> Callable[..., None]:
    function: Callable[..., None] = getattr(
        import_module(f"millrace.cli.{module}"), f"{name}_command"
    )
    return function


def _add(app: CommandGroup, panel: str, name: str, function: Callable[..., None]) -> None:
    app.command(name, rich_help_panel=panel)(function)


def _add_group(app: CommandGroup, name: str) -> None:
    group = import_module(f"millrace.cli.{_GROUPS[name]}").app
    app.add_typer(group, name=name, rich_help_panel=PYTHON)

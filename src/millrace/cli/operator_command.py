"""Options and errors that all operator commands share."""

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Annotated, Any, Final

import typer

from millrace.cli.options import ConfigFile, Data, Json, load_config

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
#: Some jobs were not changed.
EXIT_SKIPPED: Final = 3
EXIT_NOT_FOUND: Final = 4
EXIT_INTERRUPTED: Final = 130

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="Address of a server's web interface, instead of --data: http://[:PASSWORD@]HOST:PORT."
        " A token can be given in MILLRACE_TOKEN.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]

_SHARED: Final[dict[str, tuple[Any, Any]]] = {
    "data": (Data, None),
    "config": (ConfigFile, None),
    "url": (Url, None),
    "json": (Json, False),
}


def operator_command(function: Callable[..., int | None]) -> Callable[..., None]:
    """Make a command of `function(remote, *, json, **own)`: `remote` is the selected server."""
    own = [
        each
        for each in inspect.signature(function).parameters.values()
        if each.name not in {"remote", "json"}
    ]
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in _SHARED.items()
    ]
    options = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own]

    @functools.wraps(function)
    def run(**values: Any) -> None:
        data, config, url = (values.pop(name) for name in ("data", "config", "url"))
        raise typer.Exit(_run(function, data, config, url, values))

    run.__signature__ = inspect.Signature([*options, *shared])  # type: ignore[attr-defined]
    run.__annotations__ = {}
    return run


def _run(
    function: Callable[..., int | None],
    data: str | None,
    config: str | None,
    url: str | None,
    values: dict[str, Any],
) -> int:
    from millrace.admin.query_language import QueryError  # noqa: PLC0415 - loads the records
    from millrace.cli.control import NotAnswered  # noqa: PLC0415
    from millrace.cli.remote import NotFoundError, connect  # noqa: PLC0415

    try:
        remote = connect(url, lambda: load_config(config, data).server.data)
        return function(remote, **values) or 0
    except QueryError as error:
        return fail(f"Invalid search: {error}", EXIT_USAGE)
    except NotFoundError as error:
        return fail(str(error), EXIT_NOT_FOUND)
    except NotAnswered as error:
        return fail(str(error), EXIT_FAILED)
    except KeyboardInterrupt:
        return fail("Interrupted.", EXIT_INTERRUPTED)


def fail(message: str, code: int = EXIT_FAILED) -> int:
    sys.stderr.write(f"{message}\n")
    return code


def confirm(question: str, *, yes: bool) -> bool:
    """Ask the user. Without a terminal, only `--yes` confirms."""
    if yes:
        return True
    if not sys.stdin.isatty():
        fail(f"{question} Pass --yes to confirm.", EXIT_USAGE)
        return False
    return typer.confirm(question, err=True)

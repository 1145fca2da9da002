"""Options that several commands share, and the configuration that results from them."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from millrace.cli.serve import flags, print_errors, read
from millrace.config import Config, ConfigError

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ConfigFile = Annotated[
    str | None, typer.Option("--config", help="Configuration file of the server.")
]
Data = Annotated[
    str | None,
    typer.Option("--data", help="Data folder of the server. Default: from the configuration."),
]
Lake = Annotated[
    str | None, typer.Option("--lake", help="Lake folder. Default: from the configuration.")
]


def load_config(
    config: str | None = None,
    data: str | None = None,
    lake: str | None = None,
    own: dict[str, str | None] | None = None,
) -> Config:
    """The configuration with these flags on top. Prints its errors and exits if it is invalid.

    `own` are values of flags that only this command has, by dotted key.
    """
    given = {"--config": config, "--data": data, "--lake-path": lake}
    known = {flag: value for flag, value in given.items() if value is not None}
    overrides = {key: value for key, value in (own or {}).items() if value is not None}
    try:
        return read(known, overrides, listening=False).config
    except ConfigError as error:
        raise typer.Exit(print_errors(error)) from error


def on_folder(config: str | None, data: str | None, act: Callable[[Path], int]) -> None:
    """Run `act` on the data folder and exit with its code."""
    raise typer.Exit(act(load_config(config, data).server.data))


def with_flags(command: Callable[..., int]) -> Callable[..., None]:
    """Add the flags of `serve` to `command(given, **own)`; `given` has their values by name."""
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

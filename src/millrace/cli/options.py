"""Options that several commands share, and the configuration that results from them."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from millrace.cli.serve import flags, print_errors, read
from millrace.config import Config, ConfigError

F = TypeVar("F", bound=Callable[..., Any])


def _without_flag_types(parameters: list[Any]) -> list[Any]:
    for each in parameters:
        if getattr(each, "is_flag", False) and each.metavar is None:
            each.metavar = ""  # otherwise the help shows `<bool>`, as if the flag took a value
    return parameters


class _PlainCommand(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return _without_flag_types(super().get_params(ctx))


class _PlainGroup(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _without_flag_types(super().get_params(ctx))


class CommandGroup(typer.Typer):
    """Commands whose help shows a type only for options with a value."""

    def command(self, *arguments: Any, **settings: Any) -> Callable[[F], F]:
        return super().command(*arguments, cls=_PlainCommand, **settings)


#: Settings of every group of commands that can be the first one to handle the arguments.
TYPER_SETTINGS: Final[dict[str, Any]] = {
    "cls": _PlainGroup,
    "no_args_is_help": True,
    "rich_markup_mode": "markdown",
    "context_settings": {"help_option_names": ["-h", "--help"]},
    # A traceback with local variables would show passwords.
    "pretty_exceptions_enable": False,
}

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ConfigFile = Annotated[
    str | None, typer.Option("--config", metavar="FILE", help="Configuration file of the server.")
]
Data = Annotated[
    str | None,
    typer.Option(
        "--data", metavar="DIR", help="Data folder of the server. Default: from the configuration."
    ),
]
Lake = Annotated[
    str | None,
    typer.Option("--lake", metavar="DIR", help="Lake folder. Default: from the configuration."),
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


def lake_root(config: Config) -> Path:
    """The local folder of the lake, or of its mirror."""
    from millrace.pipeline.remote import local_root  # noqa: PLC0415 - most commands need no lake

    root = local_root(config.lake_uri)
    # Messages show a path as the user gave it.
    return config.lake_path if root == config.lake_path.absolute() else root


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
                    flag.name,
                    help=flag.about,
                    metavar=flag.value,
                    show_default=flag.default or False,
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

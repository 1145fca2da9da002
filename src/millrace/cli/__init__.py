"""The `millrace` command.

`serve` must start fast, so its plain form (flags with values) is parsed without typer and rich,
which take longer to load than the configuration. Typer handles help, errors and all other commands.
A scheduled `pipeline run` usually finds no new events, so it loads no other command.
"""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typer import Typer


def main() -> int:
    from millrace.cli import serve  # noqa: PLC0415

    arguments = sys.argv[1:]
    if arguments[:1] == ["serve"]:
        given = serve.plain_flags(arguments[1:])
        if given is not None:
            return serve.serve(given)
    app, name = _application(arguments)
    from millrace.extras import EXTRAS, missing_package  # noqa: PLC0415

    try:
        return int(app(arguments, prog_name=name) or 0)  # typer normally exits itself
    except ModuleNotFoundError as missing:
        top = (missing.name or "").partition(".")[0]
        package = next((name for name in EXTRAS if name.partition(".")[0] == top), None)
        if package is None:
            raise
        sys.stderr.write(f"{missing_package(package)}\n")
        return 1


def _application(arguments: list[str]) -> "tuple[Typer, str]":
    """The application that has the command, and its name; its arguments remain."""
    if arguments[:1] == ["pipeline"]:
        from millrace.cli.pipeline import app as pipeline  # noqa: PLC0415

        del arguments[0]
        return pipeline, "millrace pipeline"
    from millrace.cli.commands import application  # noqa: PLC0415 - loads typer

    return application(arguments[0] if arguments else ""), "millrace"

"""The `millrace` command.

`serve` must start fast, so its plain form (flags with values) is parsed without typer and rich,
which take longer to load than the configuration. Typer handles help, errors and all other commands.
"""

import sys


def main() -> int:
    from millrace.cli import serve  # noqa: PLC0415

    arguments = sys.argv[1:]
    if arguments[:1] == ["serve"]:
        given = serve.plain_flags(arguments[1:])
        if given is not None:
            return serve.serve(given)
    from millrace.cli.app import app  # noqa: PLC0415 - see above
    from millrace.extras import EXTRAS, missing_package  # noqa: PLC0415

    try:
        return int(app(prog_name="millrace") or 0)  # typer normally exits itself
    except ModuleNotFoundError as missing:
        package = (missing.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        sys.stderr.write(f"{missing_package(package)}\n")
        return 1

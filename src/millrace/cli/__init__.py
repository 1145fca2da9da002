"""The `millrace` command.

`serve` is the one command whose start is waited for, so its plain form (flags with values, nothing
to explain) does not load typer and rich, which cost more than reading the configuration. Help,
mistakes and every other command are typer's; both read the flags from one table.
"""

import sys


def main() -> int:
    from millrace.cli import serve  # noqa: PLC0415

    arguments = sys.argv[1:]
    if arguments[:1] == ["serve"]:
        given = serve.plain_flags(arguments[1:])
        if given is not None:
            return serve.serve(given)
    from millrace.cli.commands import app  # noqa: PLC0415 - see above
    from millrace.extras import EXTRAS, missing_package  # noqa: PLC0415

    try:
        return int(app(prog_name="millrace") or 0)  # typer exits by itself, in truth
    except ModuleNotFoundError as missing:
        package = (missing.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        sys.stderr.write(f"{missing_package(package)}\n")
        return 1

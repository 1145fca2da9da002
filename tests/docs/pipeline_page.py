"""The reference page of `millrace pipeline`, made from what its commands say of themselves.

Make it anew with `.venv/bin/python tests/docs/pipeline_page.py > docs/reference/pipeline.md`.
"""

import inspect
from collections.abc import Iterator
from typing import Any

import typer

from millrace.cli.pipeline import app

HEAD = """# The pipeline's commands

`millrace pipeline` makes tables, reports and audits of [the lake](lake.md). It needs the extra `spark` of the package,
which `make setup` installs, and finds or brings a Java: `millrace pipeline doctor` says which. This page is what the
commands say with `--help`. All end with 0 if it is done, 1 if something is wrong, which they tell in a sentence, and 2 if
the command line or the configuration is.

Most take these:

| flag | |
|---|---|
"""
SHARED = ("--config", "--data", "--lake", "--master", "--memory")


def page() -> str:
    commands: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    params = {param.opts[0]: param for each in commands.values() for param in each.params}
    lines = [_row(params[flag]) for flag in SHARED]
    for name, command in commands.items():
        lines += ["", f"## millrace pipeline {name}", "", *_about(command)]
    return HEAD + "\n".join(lines) + "\n"


def _about(command: Any) -> Iterator[str]:
    words, _, examples = inspect.cleandoc(command.callback.__doc__).partition("\n\nFor example:")
    for number, paragraph in enumerate(words.split("\n\n")):
        yield from [""] * bool(number)
        yield paragraph
    own = [param for param in command.params if param.name != "help"]
    if own:
        yield from ("", "| flag | |", "|---|---|")
        yield from (_row(param) for param in own if param.opts[0] not in SHARED)
        shared = [f"`{flag}`" for flag in SHARED if any(flag in param.opts for param in own)]
        if shared:
            yield f"| {', '.join(shared)} | as above |"
    if examples:
        yield from ("", "For example:", "", examples.strip())


def _row(param: Any) -> str:
    if param.param_type_name == "argument":
        return f"| `{param.metavar or param.name.upper()}` | {param.help or ''} |"
    name = "/".join([*param.opts, *param.secondary_opts])
    value = "" if param.is_flag else f" {param.metavar or param.opts[0].strip('-').upper()}"
    return f"| `{name}{value}` | {param.help} |"


if __name__ == "__main__":
    print(page(), end="")

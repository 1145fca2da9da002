"""`millrace serve`: its flags and its configuration. Imports nothing slow."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from millrace.config import (
    ConfigError,
    ConfigKey,
    LoadedConfig,
    keys,
    load,
    use_protocol_sections,
)
from millrace.protocols.registry import protocol_sections

use_protocol_sections(protocol_sections)


class Flag(NamedTuple):
    """A flag of `serve` and `config`, with a value."""

    name: str
    value: str  # placeholder in the help text
    about: str
    default: str
    key: str | None  # the dotted key that it overrides; None for --config

    @property
    def parameter(self) -> str:
        return self.name.removeprefix("--").replace("-", "_")


CONFIG_FLAG = Flag(
    name="--config",
    value="FILE",
    about="Configuration file. Overrides MILLRACE_CONFIG.",
    default="./millrace.toml if it exists",
    key=None,
)

#: Print the log and the ready line as JSON in a terminal too.
JSON_FLAG = "--json"


def flags() -> list[Flag]:
    """The table of flags, used by the parser below and by the typer commands."""
    return [CONFIG_FLAG] + [
        Flag(key.flag, key.name.upper(), key.doc.text, _bare(key), key.dotted_name)
        for key in keys().values()
        if key.doc.flag
    ]


def _bare(key: ConfigKey) -> str:
    """The default as it is typed after the flag."""
    return key.value_type.write(key.default).strip('"')


def plain_flags(arguments: Sequence[str]) -> dict[str, str] | None:
    """The values of `--flag value` and `--flag=value`, and of `--json`; None for anything else,
    such as --help.
    """
    names = {flag.name for flag in flags()}
    given: dict[str, str] = {}
    rest = iter(arguments)
    for argument in rest:
        if argument == JSON_FLAG:
            given[JSON_FLAG] = "yes"
            continue
        name, is_joined, value = argument.partition("=")
        if name not in names:
            return None
        if not is_joined:
            value = next(rest, "-")
            if value.startswith("-"):
                return None
        given[name] = value
    return given


def read(
    given: Mapping[str, str], own: Mapping[str, str] | None = None, *, listening: bool = True
) -> LoadedConfig:
    """The configuration with the `given` flags on top, and `own` values by dotted key."""
    overrides = {flag.key: given[flag.name] for flag in flags() if flag.key and flag.name in given}
    overrides |= own or {}
    path = given.get(CONFIG_FLAG.name)
    return load(overrides, os.environ, None if path is None else Path(path), listening=listening)


def print_errors(error: ConfigError) -> int:
    for problem in error.problems:
        sys.stderr.write(f"{problem}\n")
    return 2


def serve(given: Mapping[str, str]) -> int:
    try:
        loaded = read(given)
    except ConfigError as error:
        return print_errors(error)
    from millrace.server.start import run  # noqa: PLC0415 - after configuration errors

    return run(loaded, reload=lambda: read(given), json=JSON_FLAG in given)

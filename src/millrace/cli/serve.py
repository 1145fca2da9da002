"""`millrace serve`, its flags, and how they become a configuration. Kept free of slow imports."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from millrace.config import ConfigError, ConfigKey, LoadedConfig, keys, load


class Flag(NamedTuple):
    """A flag with a value, as `serve` and `config` take it."""

    name: str
    value: str  # what stands for its value in a help text
    about: str
    default: str
    key: str | None  # the dotted key it overrides; None for the path of the file

    @property
    def parameter(self) -> str:
        return self.name.removeprefix("--").replace("-", "_")


CONFIG_FLAG = Flag(
    name="--config",
    value="FILE",
    about="The file to read, instead of the one that MILLRACE_CONFIG names.",
    default="./millrace.toml, if there is one",
    key=None,
)


def flags() -> list[Flag]:
    """The one table of flags; the tiny parser below and typer's commands are made from it."""
    return [CONFIG_FLAG] + [
        Flag(key.flag, key.name.upper(), key.doc.text, _bare(key), key.dotted)
        for key in keys().values()
        if key.doc.flag
    ]


def _bare(key: ConfigKey) -> str:
    """The default as one would type it after the flag."""
    return key.kind.write(key.default).strip('"')


def plain_flags(arguments: Sequence[str]) -> dict[str, str] | None:
    """The values of `--flag value` and `--flag=value`; None where there is something to explain."""
    names = {flag.name for flag in flags()}
    given: dict[str, str] = {}
    rest = iter(arguments)
    for argument in rest:
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
    """The configuration, with `given` flags on top of everything else, and values that a command
    has flags of its `own` for, by dotted key.
    """
    overrides = {flag.key: given[flag.name] for flag in flags() if flag.key and flag.name in given}
    overrides |= own or {}
    path = given.get(CONFIG_FLAG.name)
    return load(overrides, os.environ, None if path is None else Path(path), listening=listening)


def complain(error: ConfigError) -> int:
    for problem in error.problems:
        sys.stderr.write(f"{problem}\n")
    return 2


def serve(given: Mapping[str, str]) -> int:
    try:
        loaded = read(given)
    except ConfigError as error:
        return complain(error)
    from millrace.server.start import run  # noqa: PLC0415 - a mistake is told before the server loads

    return run(loaded, reload=lambda: read(given))

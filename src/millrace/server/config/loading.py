"""Putting the sources together: the defaults, the file, the environment, the flags."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

from millrace.server.config.checks import check
from millrace.server.config.sections import Config, keys
from millrace.server.config.sources import (
    FILE_VARIABLE,
    Given,
    from_environ,
    from_file,
    from_flags,
)

DEFAULT = "default"
FILE_NAME = "millrace.toml"


class ConfigError(Exception):
    """The configuration cannot be used; each problem names its source and key."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class Loaded(NamedTuple):
    """A configuration, and for each dotted key where its value came from."""

    config: Config
    sources: dict[str, str]


def load(
    overrides: Mapping[str, str],
    environ: Mapping[str, str],
    config_path: Path | None = None,
    *,
    listening: bool = True,
) -> Loaded:
    """Read all sources, or raise ConfigError with everything that is wrong with them.

    `overrides` are the flags, by dotted key. `listening=False` is for the server's clients: it
    leaves out what only someone who opens the ports must fulfil.
    """
    problems: list[str] = []
    values = {dotted: key.default for dotted, key in keys().items()}
    sources = dict.fromkeys(values, DEFAULT)
    broken: set[str] = set()

    from_the_file = _read_file(config_path, environ, problems)
    given = [*(from_the_file or ()), *from_environ(environ, problems), *from_flags(overrides)]
    # A value is checked even where a higher source overrides it: a file should not become wrong
    # on the day a variable goes away.
    for dotted, raw, source in given:
        try:
            values[dotted] = keys()[dotted].kind.read(raw)
            sources[dotted] = source
        except ValueError as error:
            problems.append(f"{source}: {dotted}: {error}")
            broken.add(dotted)

    for dotted, key in keys().items():
        if key.kind.secret and values[dotted].startswith("/"):
            try:
                path = values[dotted]
                values[dotted] = key.kind.read(_read_secret_file(path))
                sources[dotted] += f" (the file {path})"
            except ValueError as error:
                problems.append(f"{sources[dotted]}: {dotted}: {error}")
                broken.add(dotted)

    config = _assemble(values)
    # Where the file cannot be read, nobody knows what it would have said.
    if listening and from_the_file is not None:
        for dotted, problem in check(config, broken):
            problems.append(f"{sources[dotted]}: {dotted}: {problem}")
    if problems:
        raise ConfigError(problems)
    return Loaded(config, sources)


def _read_file(
    config_path: Path | None, environ: Mapping[str, str], problems: list[str]
) -> list[Given] | None:
    """What --config's, MILLRACE_CONFIG's or else ./millrace.toml says; None if it is unreadable."""
    path, named_by = Path(FILE_NAME), ""
    if config_path is not None:
        path, named_by = config_path, "--config: "
    elif named := environ.get(FILE_VARIABLE):
        path, named_by = Path(named), f"{FILE_VARIABLE}: "
    elif not path.exists():
        return []
    # Together with the parser it costs 10 ms, which a server without a file need not wait for.
    from millrace.server.config.document import UnreadableFileError, read_document  # noqa: PLC0415

    try:
        return list(from_file(read_document(path), problems))
    except UnreadableFileError as error:
        problems.append(f"{named_by}{error}")
        return None


def _assemble(values: Mapping[str, Any]) -> Config:
    sections = {}
    for name, section in get_type_hints(Config).items():
        fields = {field: values[f"{name}.{field}"] for field in section.__struct_fields__}
        sections[name] = section(**fields)
    return Config(**sections)


def _read_secret_file(path: str) -> str:
    try:
        secret = Path(path).read_text("utf-8").strip()
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read the password file {path}: {_reason(error)}") from None
    if not secret:
        raise ValueError(f"the password file {path} is empty")
    return secret


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8 text"
    return getattr(error, "strerror", None) or str(error)

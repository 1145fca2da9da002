"""Assemble the configuration from its sources: defaults, file, environment, flags."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from millrace.config.checks import check
from millrace.config.sections import Config, keys, section_types, value_of
from millrace.config.sources import FILE_VARIABLE, SourceValue, from_environ, from_file, from_flags

DEFAULT = "default"
FILE_NAME = "millrace.toml"


class ConfigError(Exception):
    """The configuration is invalid; each problem names its source and key."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class LoadedConfig(NamedTuple):
    """A configuration, and the source of each value by dotted key."""

    config: Config
    sources: dict[str, str]


def load(
    overrides: Mapping[str, str],
    environ: Mapping[str, str],
    config_path: Path | None = None,
    *,
    listening: bool = True,
) -> LoadedConfig:
    """Read all sources, or raise ConfigError with every problem in them.

    `overrides` are the flags, by dotted key. `listening=False` is for clients of the server: it
    skips the rules that apply only to a process that opens the ports.
    """
    problems: list[str] = []
    values = {dotted_name: key.default for dotted_name, key in keys().items()}
    sources = dict.fromkeys(values, DEFAULT)
    invalid_keys: set[str] = set()

    file_values = _read_file(config_path, environ, problems)
    given = [*(file_values or ()), *from_environ(environ, problems), *from_flags(overrides)]
    # A value is checked even if a higher source overrides it, so that a file does not become
    # invalid when a variable is removed.
    for dotted_name, raw, source in given:
        try:
            values[dotted_name] = keys()[dotted_name].value_type.read(raw)
            sources[dotted_name] = source
        except ValueError as error:
            problems.append(f"{source}: {dotted_name}: {error}")
            invalid_keys.add(dotted_name)

    for dotted_name, key in keys().items():
        if key.value_type.secret and values[dotted_name].startswith("/"):
            try:
                path = values[dotted_name]
                values[dotted_name] = key.value_type.read(_read_secret_file(path))
                sources[dotted_name] += f" (file {path})"
            except ValueError as error:
                problems.append(f"{sources[dotted_name]}: {dotted_name}: {error}")
                invalid_keys.add(dotted_name)

    config = _assemble(values)
    # Without the file, the cross-key rules would report false problems.
    if listening and file_values is not None:
        for dotted_name, problem in check(config, invalid_keys):
            problems.append(f"{sources[dotted_name]}: {dotted_name}: {problem}")
    if problems:
        raise ConfigError(problems)
    return LoadedConfig(config, sources)


def apply_reload(old: LoadedConfig, new: LoadedConfig) -> LoadedConfig:
    """The effective configuration after a reload: `old` with the reloadable keys of `new`."""
    values = {dotted_name: value_of(old.config, dotted_name) for dotted_name in keys()}
    sources = dict(old.sources)
    for dotted_name, key in keys().items():
        unchanged = values[dotted_name] == value_of(new.config, dotted_name)
        if key.doc.reload or unchanged:
            values[dotted_name] = value_of(new.config, dotted_name)
            sources[dotted_name] = new.sources[dotted_name]
    return LoadedConfig(_assemble(values), sources)


def _read_file(
    config_path: Path | None, environ: Mapping[str, str], problems: list[str]
) -> list[SourceValue] | None:
    """Values of the file (--config, MILLRACE_CONFIG or ./millrace.toml), or None on an error."""
    path, named_by = Path(FILE_NAME), ""
    if config_path is not None:
        path, named_by = config_path, "--config: "
    elif named := environ.get(FILE_VARIABLE):
        path, named_by = Path(named), f"{FILE_VARIABLE}: "
    elif not path.exists():
        return []
    # The import takes 10 ms and is needed only with a file.
    from millrace.config.document import UnreadableFileError, read_document  # noqa: PLC0415

    try:
        return list(from_file(read_document(path), problems))
    except UnreadableFileError as error:
        problems.append(f"{named_by}{error}")
        return None


def _assemble(values: Mapping[str, Any]) -> Config:
    sections = {}
    for name, section in section_types().items():
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

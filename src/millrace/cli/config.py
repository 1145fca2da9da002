"""`millrace config`."""

from typing import Any

import msgspec
import typer

from millrace.cli.options import Json, with_flags
from millrace.cli.serve import print_errors, read
from millrace.config import (
    HIDDEN,
    ConfigError,
    ConfigKey,
    LoadedConfig,
    keys,
    quoted,
    section_types,
    value_of,
)


@with_flags
def config_command(given: dict[str, str], *, json: Json = False) -> int:
    """Show the effective configuration and the source of each value.

    Accepts the flags of `serve` and shows the values that `serve` would use. Passwords are hidden.
    The output is a valid `millrace.toml`.

    Examples:
    - `millrace config > example.toml`: a file with every key, to start from
    - `millrace config --json | jq .faktory.port.value`

    """
    try:
        loaded = read(given)
    except ConfigError as error:
        return print_errors(error)
    typer.echo(as_json(loaded) if json else as_toml(loaded))
    return 0


def as_toml(loaded: LoadedConfig) -> str:
    """A configuration file with these values. Passwords are hidden and commented out."""
    lines = []
    for section in section_types():
        lines.append(f"[{section}]")
        for key in keys().values():
            if key.section == section:
                setting = _setting(key, value_of(loaded.config, key.dotted_name))
                lines.append(f"{setting:<32}  # {_source(loaded, key)}")
        lines.append("")
    return "\n".join(lines[:-1])


def _setting(key: ConfigKey, value: Any) -> str:
    if key.value_type.secret and value:
        return f"# {key.name} = {quoted(HIDDEN)}"
    return f"{key.name} = {key.value_type.write(value)}"


def _source(loaded: LoadedConfig, key: ConfigKey) -> str:
    source = loaded.sources[key.dotted_name]
    return source if source.isprintable() else ascii(source)  # a comment is one line


def as_json(loaded: LoadedConfig) -> str:
    """JSON with sizes in bytes, durations in seconds and null for a disabled port."""
    document: dict[str, dict[str, Any]] = {}
    for key in keys().values():
        value = value_of(loaded.config, key.dotted_name)
        if key.value_type.secret and value:
            value = HIDDEN
        entry = {"value": value, "source": loaded.sources[key.dotted_name]}
        document.setdefault(key.section, {})[key.name] = entry
    return msgspec.json.format(msgspec.json.encode(document, enc_hook=str), indent=2).decode()

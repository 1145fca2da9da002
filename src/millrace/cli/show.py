"""The effective configuration as people and programs read it, with the source of every value."""

from typing import Any

import msgspec

from millrace.config import HIDDEN, Config, ConfigKey, LoadedConfig, keys, quoted, value_of


def as_toml(loaded: LoadedConfig) -> str:
    """A file that says the same again. A password is commented out, so that it says nothing."""
    lines = []
    for section in Config.__struct_fields__:
        lines.append(f"[{section}]")
        for key in keys().values():
            if key.section == section:
                setting = _setting(key, value_of(loaded.config, key.dotted))
                lines.append(f"{setting:<32}  # {_source(loaded, key)}")
        lines.append("")
    return "\n".join(lines[:-1])


def _setting(key: ConfigKey, value: Any) -> str:
    if key.kind.secret and value:
        return f"# {key.name} = {quoted(HIDDEN)}"
    return f"{key.name} = {key.kind.write(value)}"


def _source(loaded: LoadedConfig, key: ConfigKey) -> str:
    source = loaded.sources[key.dotted]
    return source if source.isprintable() else ascii(source)  # a comment is one line


def as_json(loaded: LoadedConfig) -> str:
    """Sizes in bytes, durations in seconds, a port that is off as null."""
    document: dict[str, dict[str, Any]] = {}
    for key in keys().values():
        value = value_of(loaded.config, key.dotted)
        if key.kind.secret and value:
            value = HIDDEN
        entry = {"value": value, "source": loaded.sources[key.dotted]}
        document.setdefault(key.section, {})[key.name] = entry
    return msgspec.json.format(msgspec.json.encode(document, enc_hook=str), indent=2).decode()

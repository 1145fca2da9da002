"""The configuration: its keys, the source of each value, and the errors in it.

Sources in increasing order of precedence: defaults, `millrace.toml`, environment variables, flags.
"""

from millrace.config.checks import is_loopback
from millrace.config.keys import HIDDEN, ConfigKey
from millrace.config.loader import DEFAULT, ConfigError, LoadedConfig, apply_reload, load
from millrace.config.sections import (
    Config,
    JournalConfig,
    ServerConfig,
    TlsConfig,
    changed_keys,
    keys,
    section_types,
    use_protocol_sections,
    value_of,
)
from millrace.config.sources import secret_variables
from millrace.config.values import (
    Durability,
    LogLevel,
    parse_duration,
    parse_size,
    quoted,
    toml_duration,
    toml_size,
)

__all__ = [
    "DEFAULT",
    "HIDDEN",
    "Config",
    "ConfigError",
    "ConfigKey",
    "Durability",
    "JournalConfig",
    "LoadedConfig",
    "LogLevel",
    "ServerConfig",
    "TlsConfig",
    "apply_reload",
    "changed_keys",
    "is_loopback",
    "keys",
    "load",
    "parse_duration",
    "parse_size",
    "quoted",
    "secret_variables",
    "section_types",
    "toml_duration",
    "toml_size",
    "use_protocol_sections",
    "value_of",
]

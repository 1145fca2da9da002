"""The configuration: what can be set, where each value came from, and what is wrong with it.

Sources in rising order: the defaults, `millrace.toml`, the environment, flags.
"""

from millrace.server.config.checks import is_loopback
from millrace.server.config.loading import DEFAULT, ConfigError, Loaded, load
from millrace.server.config.sections import (
    HIDDEN,
    RELOADABLE,
    Config,
    FaktoryConfig,
    JournalConfig,
    Key,
    ServerConfig,
    TlsConfig,
    WorkqConfig,
    changes,
    keys,
    value_of,
)
from millrace.server.config.sources import secret_variables
from millrace.server.config.values import (
    Durability,
    LogLevel,
    parse_duration,
    parse_size,
    quoted,
    write_duration,
    write_size,
)

__all__ = [
    "DEFAULT",
    "HIDDEN",
    "RELOADABLE",
    "Config",
    "ConfigError",
    "Durability",
    "FaktoryConfig",
    "JournalConfig",
    "Key",
    "Loaded",
    "LogLevel",
    "ServerConfig",
    "TlsConfig",
    "WorkqConfig",
    "changes",
    "is_loopback",
    "keys",
    "load",
    "parse_duration",
    "parse_size",
    "quoted",
    "secret_variables",
    "value_of",
    "write_duration",
    "write_size",
]

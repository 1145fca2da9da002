"""Commands that return server information: INFO, COMMAND, CONFIG, SLOWLOG, TIME."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from millrace import __version__
from millrace.engine.job import DAY, SECOND
from millrace.protocols.errors import ClientError

from .commands import (
    ANY,
    NEVER_WAITS,
    Answer,
    Command,
    check_argument_count,
    clip_argument,
    parse_integer,
    unknown_subcommand,
)
from .resp import OK, Map, Reply, Verbatim

if TYPE_CHECKING:
    from .connection import QlessConnection
    from .hub import QlessHub

#: The version in HELLO and INFO. Clients use it to determine the features of a server.
REDIS_VERSION: Final = "7.2.0"


def greeting(connection: "QlessConnection") -> Map:
    """Return the reply to HELLO."""
    return Map(
        [
            ("server", "redis"),
            ("version", REDIS_VERSION),
            ("proto", connection.resp_version),
            ("id", connection.number),
            ("mode", "standalone"),
            ("role", "master"),
            ("modules", []),
        ]
    )


# INFO


def _server(hub: "QlessHub", now: int) -> str:
    uptime = max(0, now - hub.started_at)
    return (
        f"redis_version:{REDIS_VERSION}\r\n"
        "redis_mode:standalone\r\n"
        f"millrace_version:{__version__}\r\n"
        f"server_time_usec:{now}\r\n"
        f"uptime_in_seconds:{uptime // SECOND}\r\n"
        f"uptime_in_days:{uptime // DAY}\r\n"
    )


def _clients(hub: "QlessHub", _now: int) -> str:
    blocked = sum(connection.waiter is not None for connection in hub.connections)
    return (
        f"connected_clients:{len(hub.connections)}\r\n"
        f"maxclients:{hub.max_connections}\r\n"
        f"blocked_clients:{blocked}\r\n"
    )


def _persistence(hub: "QlessHub", _now: int) -> str:
    """Return `loading`, which some clients wait for, and whether changes are refused."""
    return f"loading:0\r\nchanges_refused:{hub.engine.unavailable_reason}\r\n"


def _stats(hub: "QlessHub", _now: int) -> str:
    return (
        f"total_connections_received:{hub.connection_count}\r\n"
        f"total_commands_processed:{hub.commands}\r\n"
        f"pubsub_channels:{len(hub.pubsub.channels)}\r\n"
        f"pubsub_patterns:{len(hub.pubsub.patterns)}\r\n"
        f"cached_scripts:{len(hub.scripts)}\r\n"
    )


def _replication(_hub: "QlessHub", _now: int) -> str:
    return "role:master\r\nconnected_slaves:0\r\n"


def _cluster(_hub: "QlessHub", _now: int) -> str:
    return "cluster_enabled:0\r\n"


def _keyspace(hub: "QlessHub", now: int) -> str:
    count = hub.key_count(now)
    return f"db0:keys={count},expires=0,avg_ttl=0\r\n" if count else ""


_SECTIONS: Final[dict[str, Callable[["QlessHub", int], str]]] = {
    "server": _server,
    "clients": _clients,
    "persistence": _persistence,
    "stats": _stats,
    "replication": _replication,
    "cluster": _cluster,
    "keyspace": _keyspace,
}
_ALL: Final = frozenset({"all", "default", "everything"})


def _info(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    wanted = {clip_argument(word).lower() for word in args}
    everything = not wanted or wanted & _ALL
    return Verbatim(
        "\r\n".join(
            f"# {name.capitalize()}\r\n{write_section(connection.hub, now)}"
            for name, write_section in _SECTIONS.items()
            if everything or name in wanted
        )
    )


# Other commands


def _time(_connection: "QlessConnection", _args: list[bytes], now: int) -> Answer:
    return [str(now // SECOND), str(now % SECOND)]


def _command(connection: "QlessConnection", args: list[bytes], _now: int) -> Answer:
    """Return no command details. Clients request them, but do not need them for these commands."""
    if not args:
        return []
    what = args[0].upper()
    if what == b"COUNT":
        check_argument_count(args, 1, 1, "command|count")
        return len(connection.commands)
    if what == b"DOCS":
        return Map()
    if what == b"INFO":
        nothing: list[Reply] = [None for _ in args[1:]]
        return nothing
    if what == b"LIST":
        check_argument_count(args, 1, 1, "command|list")
        return [name.lower() for name in connection.commands]
    raise unknown_subcommand("COMMAND", args[0])


def _config(_connection: "QlessConnection", args: list[bytes], _now: int) -> Answer:
    """Accept CONFIG without effect. Profilers enable the slow log, which is always empty."""
    what = args[0].upper()
    if what == b"GET":
        check_argument_count(args, 2, ANY, "config|get")
        return Map()
    if what == b"SET":
        check_argument_count(args, 3, ANY, "config|set")
        if len(args) % 2 == 0:
            raise ClientError("ERR wrong number of arguments for 'config|set' command")
        for option in args[1::2]:
            if not option.lower().startswith(b"slow"):
                raise ClientError(
                    "ERR Unknown option or number of arguments for CONFIG SET - "
                    f"'{clip_argument(option)}'"
                )
        return OK
    if what == b"RESETSTAT":
        check_argument_count(args, 1, 1, "config|resetstat")
        return OK
    raise unknown_subcommand("CONFIG", args[0])


def _slowlog(_connection: "QlessConnection", args: list[bytes], _now: int) -> Answer:
    what = args[0].upper()
    if what == b"GET":
        check_argument_count(args, 1, 2, "slowlog|get")
        if len(args) == 2:
            parse_integer(args[1], "ERR count should be greater than or equal to -1")
        return []
    if what == b"LEN":
        check_argument_count(args, 1, 1, "slowlog|len")
        return 0
    if what == b"RESET":
        check_argument_count(args, 1, 1, "slowlog|reset")
        return OK
    raise unknown_subcommand("SLOWLOG", args[0])


COMMANDS: Final = {
    b"INFO": Command(_info, 0, ANY, NEVER_WAITS),
    b"TIME": Command(_time, flags=NEVER_WAITS),
    b"COMMAND": Command(_command, 0, ANY, NEVER_WAITS),
    b"CONFIG": Command(_config, 1, ANY, NEVER_WAITS),
    b"SLOWLOG": Command(_slowlog, 1, ANY, NEVER_WAITS),
}

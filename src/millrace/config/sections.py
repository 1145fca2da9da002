"""Every key of the configuration, declared once as a field of its section.

The type of a field defines how a value is read and written; `Doc` describes it. The loader,
`millrace config`, the flags of `millrace serve` and the reference page follow these declarations. A
new protocol needs one class here and one field of `Config`.
"""

import functools
from pathlib import Path
from typing import Annotated, Any

import msgspec

from millrace.config.keys import ConfigKey, Doc, Section, declared_keys
from millrace.config.values import (
    KIB,
    MIB,
    Dialect,
    Durability,
    Duration,
    FileMode,
    Folder,
    Host,
    LogLevel,
    MemorySize,
    OptionalPath,
    Password,
    Period,
    Port,
    Switch,
    Text,
    Tokens,
    choice,
    min_count,
    min_duration,
    min_size,
)


def _port(clients: str) -> Doc:
    return Doc(
        f'TCP port for {clients}. 0 selects a free port; "off" disables the listener.', flag=True
    )


_SOCKET = Doc(
    "Path of a Unix domain socket for the same clients, beside the port or, with "
    '`port = "off"`, in place of it. The permissions of the file decide who can connect.'
)
_SOCKET_MODE = Doc("Permissions of the Unix domain socket, in octal.")
_NO_PASSWORD = Doc(
    "Allow the port to listen beyond loopback. The protocol has no authentication of its own."
)
_OPTIONAL_PASSWORD = Doc("Allow the port to listen beyond loopback without a password.")


class ServerConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[server]: settings that all protocols share."""

    host: Annotated[
        Host,
        Doc(
            "Address or host name on which all ports listen. Beyond loopback, every protocol "
            "requires a password or `allow_unauthenticated`.",
            flag=True,
        ),
    ] = "127.0.0.1"
    data: Annotated[
        Folder,
        Doc("Data folder of the server. Only one server can use it at a time.", flag=True),
    ] = Path("data")
    durability: Annotated[
        Durability,
        choice(Durability),
        Doc(
            'Failure that an acknowledged command survives: "fsync" power loss, "os" a crash of '
            'the server, "memory" none.',
            flag=True,
        ),
    ] = "fsync"
    log_level: Annotated[
        LogLevel,
        choice(LogLevel),
        Doc('Minimum log level: "debug", "info", "warning" or "error".', flag=True, reload=True),
    ] = "info"
    max_connections: Annotated[
        int, min_count(1), Doc("Maximum number of open connections over all ports.", reload=True)
    ] = 10_000
    max_line: Annotated[
        int, min_size(4 * KIB), Doc("Maximum size of one command, including its payload.")
    ] = 64 * MIB
    max_output: Annotated[
        int,
        min_size(4 * KIB),
        Doc(
            "Maximum size of the unread replies of one connection. Above it, the server closes "
            "the connection. Must be at least `max_line`, because a reply can contain the largest "
            "job."
        ),
    ] = 64 * MIB
    max_buffered: Annotated[
        int,
        min_size(64 * KIB),
        Doc(
            "Maximum size of unfinished commands and unread replies over all connections. Above "
            "it, the server closes the connection with the largest share. Must be at least "
            "`max_output`.",
            reload=True,
        ),
    ] = 256 * MIB
    max_memory: Annotated[
        MemorySize,
        Doc(
            "Maximum memory of the server process. Above it, new jobs are refused and all other "
            'commands continue. "auto" is 75 % of the memory of the machine or of the limit of '
            "the control group.",
            reload=True,
        ),
    ] = 0
    stop_grace: Annotated[
        Duration,
        Doc("Time that a stopping server waits for its clients before it closes connections."),
    ] = 30.0


class FaktoryConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[faktory]: the Faktory Work Protocol."""

    port: Annotated[Port, _port("Faktory clients")] = 7419
    socket: Annotated[OptionalPath, _SOCKET] = ""
    socket_mode: Annotated[FileMode, _SOCKET_MODE] = 0o600
    password: Annotated[
        Password,
        Doc(
            "Password of the Faktory clients. If empty, no password is required. A value that "
            "starts with `/` is the path of a file that contains the password.",
            reload=True,
        ),
    ] = ""
    dead_max: Annotated[
        int,
        min_count(0),
        Doc(
            "Maximum number of jobs in the dead set. Above it, the oldest are deleted.", reload=True
        ),
    ] = 100_000
    recover_lost_workers: Annotated[
        Switch,
        Doc(
            "Fail the jobs of a worker that has no connection and has sent no BEAT for 60 s, "
            "instead of waiting for their `reserve_for`.",
            reload=True,
        ),
    ] = False
    allow_unauthenticated: Annotated[Switch, _OPTIONAL_PASSWORD] = False


class WorkqConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[workq]: the Workq protocol."""

    port: Annotated[Port, _port("Workq clients")] = 9922
    socket: Annotated[OptionalPath, _SOCKET] = ""
    socket_mode: Annotated[FileMode, _SOCKET_MODE] = 0o600
    dialect: Annotated[
        Dialect,
        choice(Dialect),
        Doc(
            'Form of a lease reply: "spec" is `<id> <name> <size>`, "original" is '
            "`<id> <name> <ttr> <size>`, as sent by the original server 0.2.0 and expected by the "
            "current go-workq."
        ),
    ] = "spec"
    allow_unauthenticated: Annotated[Switch, _NO_PASSWORD] = False


class MasenkoConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[masenko]: the Masenko protocol."""

    port: Annotated[Port, _port("Masenko clients")] = 12345
    socket: Annotated[OptionalPath, _SOCKET] = ""
    socket_mode: Annotated[FileMode, _SOCKET_MODE] = 0o600
    heartbeat: Annotated[
        float,
        min_duration(0.1),
        Doc(
            "Time without a command after which the server closes a connection and fails its "
            "tasks. A FETCH without a timeout waits half of this time."
        ),
    ] = 45.0
    dialect: Annotated[
        Dialect,
        choice(Dialect),
        Doc('"original" omits `metrics` from INFO, as the original server does.'),
    ] = "spec"
    max_line: Annotated[
        int,
        min_size(4 * KIB),
        Doc("Maximum size of one line. `server.max_line` applies as well."),
    ] = 8 * MIB
    allow_unauthenticated: Annotated[Switch, _NO_PASSWORD] = False


class GoqueueConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[goqueue]: the Go Job Queue protocol."""

    port: Annotated[Port, _port("Go Job Queue clients")] = 11223
    socket: Annotated[OptionalPath, _SOCKET] = ""
    socket_mode: Annotated[FileMode, _SOCKET_MODE] = 0o600
    max_data: Annotated[
        int,
        min_size(4 * KIB),
        Doc("Maximum size of the data of a job. `server.max_line` applies as well."),
    ] = 16 * MIB
    max_deliveries: Annotated[
        int,
        min_count(0),
        Doc(
            "Maximum number of deliveries of a job before it moves to the dead set. 0 means "
            "unlimited, as in the protocol."
        ),
    ] = 0
    allow_unauthenticated: Annotated[Switch, _NO_PASSWORD] = False


class QlessConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[qless]: the Qless API over the Redis protocol."""

    port: Annotated[Port, _port("Qless clients")] = 6380
    socket: Annotated[OptionalPath, _SOCKET] = ""
    socket_mode: Annotated[FileMode, _SOCKET_MODE] = 0o600
    password: Annotated[
        Password,
        Doc(
            "Password that clients send with AUTH. If empty, no password is required. A value "
            "that starts with `/` is the path of a file that contains the password.",
            reload=True,
        ),
    ] = ""
    dialect: Annotated[
        Dialect,
        choice(Dialect),
        Doc(
            "Order of priorities in calls of the first dialect and in `QLESS.*`: "
            '"spec" serves the lowest number first, "original" the highest, as all later dialects '
            "do."
        ),
    ] = "spec"
    allow_unauthenticated: Annotated[Switch, _OPTIONAL_PASSWORD] = False


class WebConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[web]: the web interface, the HTTP API and the metrics."""

    port: Annotated[Port, _port("browsers and HTTP clients")] = 7420
    password: Annotated[
        Password,
        Doc(
            "Administrator password. If empty, the Faktory password is used; if that is empty "
            "too, no sign-in is required. A value that starts with `/` is the path of a file that "
            "contains the password.",
            reload=True,
        ),
    ] = ""
    tokens: Annotated[
        Tokens,
        Doc(
            "Access tokens, separated by commas or line breaks. A token is a role (`read`, "
            "`operate` or `admin`), a name for the audit log and a secret of at least 16 "
            "characters, for example `read grafana 4b1d...`. A value that starts with `/` is the "
            "path of a file that contains the tokens.",
            reload=True,
        ),
    ] = ""
    read_only: Annotated[Switch, Doc("Refuse all changes, for every role.", reload=True)] = False
    hosts: Annotated[
        Text,
        Doc(
            "Host names, separated by spaces, under which browsers can open the pages if no "
            "password is set. `localhost` and IP addresses are always accepted. The check "
            "protects against DNS rebinding.",
            reload=True,
        ),
    ] = ""
    session: Annotated[
        float, min_duration(60), Doc("Lifetime of a browser session.", reload=True)
    ] = 12 * 3600.0
    allow_unauthenticated: Annotated[
        Switch, Doc("Allow the port to listen beyond loopback without a password or token.")
    ] = False


class TlsConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[tls]: if both files are set, every port requires TLS."""

    cert: Annotated[
        OptionalPath,
        Doc(
            "Certificate chain, a PEM file that starts with the server certificate. The server "
            "loads changed files within seconds, and on SIGHUP."
        ),
    ] = ""
    key: Annotated[OptionalPath, Doc("Private key of the certificate, a PEM file.")] = ""
    client_ca: Annotated[
        OptionalPath,
        Doc(
            "Certificate authorities of the clients, a PEM file. If set, every port requires a "
            "client certificate signed by one of them, which counts as authentication beyond "
            "loopback."
        ),
    ] = ""


class JournalConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[journal]: the history of every job."""

    outbox_max: Annotated[
        int,
        min_size(0),
        Doc(
            "Maximum size of the events that are not yet shipped. Above it, the oldest are "
            "deleted.",
            reload=True,
        ),
    ] = 256 * MIB


class LakeConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[lake]: where and how often the journal is written as Parquet."""

    path: Annotated[
        OptionalPath, Doc("Folder of the lake. If empty, `lake` in the data folder.", flag=True)
    ] = ""
    ship_every: Annotated[
        Period,
        Doc('Maximum time before an event is shipped to the lake. "off" disables shipping.'),
    ] = 30.0
    ship_events: Annotated[
        int, min_count(1), Doc("Number of pending events that triggers shipping early.")
    ] = 100_000


class PipelineConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[pipeline]: the Spark pipeline that processes the lake."""

    every: Annotated[
        Period,
        Doc('Interval of pipeline runs, for example "15m". "off" disables scheduled runs.'),
    ] = 0.0
    memory: Annotated[int, min_size(512 * MIB), Doc("Maximum heap size of the Spark driver.")] = (
        1024 * MIB
    )
    master: Annotated[
        Text,
        Doc(
            "URL of the Spark cluster, for example `spark://host:7077`. If empty, Spark runs on "
            "the cores of this machine."
        ),
    ] = ""


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The complete configuration."""

    server: ServerConfig = ServerConfig()
    faktory: FaktoryConfig = FaktoryConfig()
    workq: WorkqConfig = WorkqConfig()
    masenko: MasenkoConfig = MasenkoConfig()
    goqueue: GoqueueConfig = GoqueueConfig()
    qless: QlessConfig = QlessConfig()
    web: WebConfig = WebConfig()
    tls: TlsConfig = TlsConfig()
    journal: JournalConfig = JournalConfig()
    lake: LakeConfig = LakeConfig()
    pipeline: PipelineConfig = PipelineConfig()

    @property
    def lake_path(self) -> Path:
        return Path(self.lake.path) if self.lake.path else self.server.data / "lake"


@functools.cache
def keys() -> dict[str, ConfigKey]:
    """Every key by its dotted name, in the order of the sections above."""
    defaults = Config()
    return {
        key.dotted: key
        for section in Config.__struct_fields__
        for key in declared_keys(section, getattr(defaults, section))
    }


def value_of(config: Config, dotted: str) -> Any:
    section, name = dotted.split(".")
    return getattr(getattr(config, section), name)


def changed_keys(old: Config, new: Config) -> list[str]:
    """The dotted keys in which two configurations differ."""
    return [dotted for dotted in keys() if value_of(old, dotted) != value_of(new, dotted)]

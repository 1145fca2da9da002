"""Every key of the configuration, declared once as a field of its section.

The type of a field defines how a value is read and written; `Doc` describes it. The loader,
`millrace config`, the flags of `millrace serve` and the reference page follow these declarations.
This package does not know the protocols: a program that uses the configuration first passes their
sections to `use_protocol_sections`. They are in the `settings.py` of each protocol.
"""

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from millrace.config.keys import ConfigKey, Doc, Section, declared_keys, port_doc
from millrace.config.values import (
    KIB,
    MIB,
    Durability,
    Duration,
    Folder,
    Host,
    Location,
    LogLevel,
    MemorySize,
    OptionalPath,
    Password,
    Patterns,
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

#: Returns the sections of the protocols by name.
_protocol_sections: Callable[[], Mapping[str, type[Section]]] | None = None


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
        Folder, Doc("Data folder of the server. Only one server can use it at a time.", flag=True)
    ] = Path("data")
    durability: Annotated[
        Durability,
        choice(Durability),
        Doc(
            'Failures that acknowledged commands survive. "fsync": power loss. "os": a '
            'crash of the server, but not of the machine. "memory": none.',
            flag=True,
        ),
    ] = "fsync"
    log_level: Annotated[
        LogLevel,
        choice(LogLevel),
        Doc('Minimum log level: "debug", "info", "warning" or "error".', flag=True, reload=True),
    ] = "info"
    max_connections: Annotated[
        int, min_count(1), Doc("Maximum number of open connections across all ports.", reload=True)
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
            "Maximum size of unfinished commands and unread replies across all connections. Above "
            "it, the server closes the connection with the largest share. Must be at least "
            "`max_output`.",
            reload=True,
        ),
    ] = 256 * MIB
    max_memory: Annotated[
        MemorySize,
        Doc(
            "Maximum memory of the server process. Above it, new jobs are refused and all other "
            "commands continue. \"auto\" is 75 % of the machine's memory or of the control group's "
            "limit.",
            reload=True,
        ),
    ] = 0
    max_inline_payload: Annotated[
        int,
        min_size(0),
        Doc(
            "Maximum size of a payload that stays in memory while its job waits. Larger payloads "
            "live in the data folder, and the server reads them when a worker takes the job. "
            'With `durability = "memory"`, all payloads stay in memory.'
        ),
    ] = 4 * KIB
    forget_queues: Annotated[
        Period,
        Doc(
            "Time after which the server removes an idle queue: one that is not paused and has no "
            "jobs, waiting clients or settings. The next push creates it again. "
            '"off" keeps all queues.',
            reload=True,
        ),
    ] = 7 * 86_400.0
    stop_grace: Annotated[
        Duration,
        Doc(
            "Time that a stopping server waits for its clients before it closes their connections."
        ),
    ] = 30.0


class WebConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[web]: the web interface, the HTTP API and the metrics."""

    port: Annotated[Port, port_doc("browsers and HTTP clients")] = 7420
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
    queues: Annotated[
        Patterns,
        Doc(
            "Queues that the pages and the HTTP API may use, as glob patterns, for example "
            '`["mail", "signup*"]`. Requests for another queue are refused, and jobs of other '
            "queues are not visible. Pages and routes for the whole server return status 403. The "
            "command line is not limited. If empty, all queues are allowed.",
        ),
    ] = ()
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
            "Certificate chain: a PEM file that starts with the server certificate. The server "
            "loads changed files within seconds, and on SIGHUP."
        ),
    ] = ""
    key: Annotated[OptionalPath, Doc("Private key of the certificate: a PEM file.")] = ""
    client_ca: Annotated[
        OptionalPath,
        Doc(
            "Certificate authorities of the clients: a PEM file. If set, every port requires a "
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
        Location,
        Doc(
            "Folder of the lake, or its URI in an object store, such as `s3://bucket/lake`. If "
            "empty, `lake` in the data folder.",
            flag=True,
        ),
    ] = ""
    ship_every: Annotated[
        Period, Doc('Maximum time before an event is shipped to the lake. "off" disables shipping.')
    ] = 30.0
    ship_events: Annotated[
        int, min_count(1), Doc("Number of pending events that triggers shipping early.")
    ] = 100_000


class PipelineConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[pipeline]: the Spark pipeline that processes the lake."""

    every: Annotated[
        Period,
        Doc('Interval between pipeline runs, for example "15m". "off" disables scheduled runs.'),
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


class SloConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[slo]: objectives for the wait time of jobs; see `millrace pipeline slo`."""

    objectives: Annotated[
        Text,
        Doc(
            "Objectives of queues, separated by commas or line breaks, for example `mail: 95% "
            "within 30s, reports: 99% within 10m`."
        ),
    ] = ""


class Config:
    """The complete configuration, with one attribute per section."""

    __slots__ = ("sections",)

    if TYPE_CHECKING:
        server: ServerConfig
        web: WebConfig
        tls: TlsConfig
        journal: JournalConfig
        lake: LakeConfig
        pipeline: PipelineConfig
        slo: SloConfig

    def __init__(self, **sections: Section) -> None:
        """Sections that are not given have their default values."""
        types = section_types()
        if unknown := sections.keys() - types.keys():
            raise TypeError(f"unknown sections: {', '.join(sorted(unknown))}")
        #: The sections by name, in the order of the file.
        self.sections: Mapping[str, Any] = {
            name: sections[name] if name in sections else default()
            for name, default in types.items()
        }

    def __getattr__(self, name: str) -> Any:
        """A section. The type of the section of a protocol is in its `settings.py`."""
        if name in type(self).__slots__ or name not in self.sections:
            raise AttributeError(name)
        return self.sections[name]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and self.sections == other.sections

    def __hash__(self) -> int:
        return hash(tuple(self.sections.values()))

    def __repr__(self) -> str:
        return f"Config({', '.join(f'{name}={each!r}' for name, each in self.sections.items())})"

    @property
    def lake_uri(self) -> str:
        """The URI of a lake in an object store; otherwise the absolute path of its folder."""
        path = self.lake.path
        return path if "://" in path else str(self.lake_path.absolute())

    @property
    def lake_path(self) -> Path:
        return Path(self.lake.path) if self.lake.path else self.server.data / "lake"


def use_protocol_sections(sections: Callable[[], Mapping[str, type[Section]]]) -> None:
    """Use the sections that the function returns as the sections of the protocols. The function is
    called when the configuration is first used.
    """
    global _protocol_sections
    _protocol_sections = sections


@functools.cache
def section_types() -> dict[str, type[Section]]:
    """The types of all sections by name, in the order of the file."""
    if _protocol_sections is None:
        raise RuntimeError("use_protocol_sections must be called first")
    return {
        "server": ServerConfig,
        **_protocol_sections(),
        "web": WebConfig,
        "tls": TlsConfig,
        "journal": JournalConfig,
        "lake": LakeConfig,
        "pipeline": PipelineConfig,
        "slo": SloConfig,
    }


@functools.cache
def keys() -> dict[str, ConfigKey]:
    """Every key by its dotted name, in the order of the sections above."""
    return {
        key.dotted_name: key
        for section, declared in section_types().items()
        for key in declared_keys(section, declared())
    }


def value_of(config: Config, dotted_name: str) -> Any:
    section, name = dotted_name.split(".")
    return getattr(config.sections[section], name)


def changed_keys(old: Config, new: Config) -> list[str]:
    """The dotted keys in which two configurations differ."""
    return [
        dotted_name
        for dotted_name in keys()
        if value_of(old, dotted_name) != value_of(new, dotted_name)
    ]

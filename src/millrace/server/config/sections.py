"""Every key that can be set, declared once, as a field of its section.

The type of a field says how it is read and written, `About` what it is for. The loader, `millrace
config`, the flags of `millrace serve` and the reference page are made from these declarations or
checked against them, so a new protocol needs a class here and a field of `Config`, nothing else.
"""

import functools
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_type_hints

import msgspec

from millrace.server.config.values import (
    KIB,
    MIB,
    About,
    Dialect,
    Durability,
    Duration,
    Folder,
    Host,
    Kind,
    LogLevel,
    OptionalPath,
    Password,
    Period,
    Port,
    Switch,
    Text,
    Tokens,
    choice,
    count_from,
    duration_from,
    size_from,
)

HIDDEN = "********"


class Section(msgspec.Struct, frozen=True):
    """One table of the file. However it is shown, passwords are not."""

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        values = [(name, kind, getattr(self, name)) for name, kind in _kinds(type(self)).items()]
        return [(name, HIDDEN if kind.secret and value else value) for name, kind, value in values]

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"{type(self).__name__}({shown})"


class ServerConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[server]: what all protocols share."""

    host: Annotated[
        Host,
        About(
            "Where all ports listen: an address or a host name. Beyond loopback every protocol "
            "needs its password, or its `allow_unauthenticated`.",
            flag=True,
        ),
    ] = "127.0.0.1"
    data: Annotated[
        Folder,
        About(
            "The folder with everything the server keeps. One server at a time uses it.", flag=True
        ),
    ] = Path("data")
    durability: Annotated[
        Durability,
        choice(Durability),
        About(
            'What an acknowledged command survives: "fsync" a power cut, "os" a crash of the '
            'server, "memory" nothing.',
            flag=True,
        ),
    ] = "fsync"
    log_level: Annotated[
        LogLevel,
        choice(LogLevel),
        About(
            'The least important lines that are logged: "debug", "info", "warning" or "error".',
            flag=True,
        ),
    ] = "info"
    max_connections: Annotated[
        int, count_from(1), About("Connections served at the same time, over all ports.")
    ] = 10_000
    max_line: Annotated[
        int, size_from(4 * KIB), About("The bytes that one command may take, payload included.")
    ] = 64 * MIB
    max_output: Annotated[
        int,
        size_from(4 * KIB),
        About(
            "The bytes of unread replies after which a client that does not read is cut. At "
            "least `max_line`, as a reply may hold the largest job."
        ),
    ] = 64 * MIB
    max_buffered: Annotated[
        int,
        size_from(64 * KIB),
        About(
            "The bytes of unfinished commands and unread replies over all connections; beyond it "
            "the connection that has the most is cut. At least `max_output`."
        ),
    ] = 256 * MIB
    stop_grace: Annotated[
        Duration,
        About(
            "How long a stopping server waits for its clients before it closes their connections."
        ),
    ] = 30.0


class FaktoryConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[faktory]: the Faktory Work Protocol."""

    port: Annotated[
        Port,
        About('The port for Faktory clients; 0 takes any free one, "off" serves none.', flag=True),
    ] = 7419
    password: Annotated[
        Password,
        About(
            "The password clients must prove to know; empty asks for none. A value that starts "
            "with `/` is the path of a file that holds it."
        ),
    ] = ""
    dead_max: Annotated[
        int, count_from(0), About("Jobs kept in the dead set; beyond it the oldest are dropped.")
    ] = 100_000
    recover_lost_workers: Annotated[
        Switch,
        About(
            "Whether the jobs of a worker that lost all its connections fail after 60 s without a "
            "BEAT, instead of after their `reserve_for`."
        ),
    ] = False
    allow_unauthenticated: Annotated[
        Switch, About("Whether the port may listen beyond loopback without a password.")
    ] = False


class WorkqConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[workq]: the Workq protocol."""

    port: Annotated[
        Port,
        About('The port for Workq clients; 0 takes any free one, "off" serves none.', flag=True),
    ] = 9922
    dialect: Annotated[
        Dialect,
        choice(Dialect),
        About(
            'How a lease is answered: "spec" with `<id> <name> <size>`, "original" with '
            "`<id> <name> <ttr> <size>`, as the original server 0.2.0 does and go-workq's newest "
            "version expects."
        ),
    ] = "spec"
    allow_unauthenticated: Annotated[
        Switch,
        About("Whether the port may listen beyond loopback: the protocol has no password."),
    ] = False


class MasenkoConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[masenko]: the Masenko protocol."""

    port: Annotated[
        Port,
        About('The port for Masenko clients; 0 takes any free one, "off" serves none.', flag=True),
    ] = 12345
    heartbeat: Annotated[
        float,
        duration_from(0.1),
        About(
            "How long a client may be silent before it is cut and its tasks fail. A FETCH waits "
            "half as long unless it says otherwise."
        ),
    ] = 45.0
    dialect: Annotated[
        Dialect,
        choice(Dialect),
        About('"original" leaves `metrics` out of INFO, as the original server does.'),
    ] = "spec"
    max_line: Annotated[
        int,
        size_from(4 * KIB),
        About("The bytes that one line may take, as far as `server.max_line` allows."),
    ] = 8 * MIB
    allow_unauthenticated: Annotated[
        Switch,
        About("Whether the port may listen beyond loopback: the protocol has no password."),
    ] = False


class GoqueueConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[goqueue]: the Go Job Queue protocol."""

    port: Annotated[
        Port,
        About(
            'The port for Go Job Queue clients; 0 takes any free one, "off" serves none.', flag=True
        ),
    ] = 11223
    max_data: Annotated[
        int,
        size_from(4 * KIB),
        About("The bytes that a job's data may have, as far as `server.max_line` allows."),
    ] = 16 * MIB
    max_deliveries: Annotated[
        int,
        count_from(0),
        About(
            "How often a job is handed out before it goes to the dead set; 0 is without end. The "
            "protocol itself has no limit."
        ),
    ] = 0
    allow_unauthenticated: Annotated[
        Switch,
        About("Whether the port may listen beyond loopback: the protocol has no password."),
    ] = False


class QlessConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[qless]: the Qless API over the Redis protocol."""

    port: Annotated[
        Port,
        About('The port for Qless clients; 0 takes any free one, "off" serves none.', flag=True),
    ] = 6380
    password: Annotated[
        Password,
        About(
            "The password that clients give with AUTH; empty asks for none. A value that starts "
            "with `/` is the path of a file that holds it."
        ),
    ] = ""
    dialect: Annotated[
        Dialect,
        choice(Dialect),
        About(
            "Which priority comes first in calls of the first dialect and in `QLESS.*`: "
            '"spec" the lower one, "original" the higher one, as in all later dialects.'
        ),
    ] = "spec"
    allow_unauthenticated: Annotated[
        Switch, About("Whether the port may listen beyond loopback without a password.")
    ] = False


class WebConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[web]: the pages, the HTTP API and the metrics."""

    port: Annotated[
        Port,
        About(
            'The port for browsers and HTTP; 0 takes any free one, "off" serves none.', flag=True
        ),
    ] = 7420
    password: Annotated[
        Password,
        About(
            "Whoever knows it may do everything; empty: Faktory's password, and if that is empty "
            "too, none is asked for. A value that starts with `/` is the path of a file that holds "
            "it."
        ),
    ] = ""
    tokens: Annotated[
        Tokens,
        About(
            "Who else may do what, separated by commas or new lines: a role (`read`, `operate` or "
            "`admin`), a name for the audit log, and a secret of at least 16 characters, as "
            "`read grafana 4b1d...`. A value that starts with `/` is the path of a file."
        ),
    ] = ""
    read_only: Annotated[Switch, About("Whether nothing can be changed here, whoever asks.")] = (
        False
    )
    hosts: Annotated[
        Text,
        About(
            "The names under which browsers may reach the pages where no password is asked for, "
            "separated by spaces, beside `localhost` and addresses: pages of strangers must not "
            "get in by a name of theirs."
        ),
    ] = ""
    session: Annotated[float, duration_from(60), About("How long a login in a browser lasts.")] = (
        12 * 3600.0
    )
    allow_unauthenticated: Annotated[
        Switch, About("Whether the port may listen beyond loopback without a password or token.")
    ] = False


class TlsConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[tls]: with both files given, every port speaks TLS and nothing else."""

    cert: Annotated[
        OptionalPath, About("The certificate chain, a PEM file, the server's own first.")
    ] = ""
    key: Annotated[OptionalPath, About("The certificate's private key, a PEM file.")] = ""


class JournalConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[journal]: the history of every job."""

    outbox_max: Annotated[
        int,
        size_from(0),
        About(
            "The bytes of events not yet shipped that the store keeps; beyond it the oldest are "
            "dropped."
        ),
    ] = 256 * MIB


class LakeConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[lake]: where the journal goes as Parquet, and how often."""

    path: Annotated[
        OptionalPath, About("The lake's folder; empty: `lake` in the data folder.", flag=True)
    ] = ""
    ship_every: Annotated[
        Period,
        About('How long an event waits before it is shipped to the lake; "off" ships nothing.'),
    ] = 30.0
    ship_events: Annotated[
        int, count_from(1), About("So many events are shipped even before that.")
    ] = 100_000


class PipelineConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[pipeline]: what Spark makes of the lake."""

    every: Annotated[
        Period,
        About('How often the server runs the pipeline, as "15m"; "off": only when it is called.'),
    ] = 0.0
    memory: Annotated[
        int, size_from(512 * MIB), About("The memory that Spark's driver may use for its heap.")
    ] = 1024 * MIB
    master: Annotated[
        Text,
        About("The Spark cluster, as `spark://host:7077`; empty: the cores of this machine."),
    ] = ""


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that can be set."""

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


# What SIGHUP changes in a running server; the rest needs a restart.
RELOADABLE = frozenset({
    "server.log_level",
    "server.max_connections",
    "server.max_buffered",
    "faktory.password",
    "faktory.dead_max",
    "faktory.recover_lost_workers",
    "qless.password",
    "web.password",
    "web.tokens",
    "web.read_only",
    "web.hosts",
    "web.session",
    "journal.outbox_max",
})  # fmt: skip


class Key(NamedTuple):
    """One key as declared above."""

    section: str
    name: str
    kind: Kind
    default: Any
    about: About

    @property
    def dotted(self) -> str:
        return f"{self.section}.{self.name}"

    @property
    def variable(self) -> str:
        return f"MILLRACE_{self.section}_{self.name}".upper()

    @property
    def flag(self) -> str:
        """The name its flag has (where `about.flag` says there is one)."""
        words = self.name if self.section == "server" else f"{self.section}-{self.name}"
        return "--" + words.replace("_", "-")


def _metadata(section: type[Section]) -> dict[str, tuple[Kind, About]]:
    hints = get_type_hints(section, include_extras=True)
    return {
        name: (
            next(item for item in hints[name].__metadata__ if isinstance(item, Kind)),
            next(item for item in hints[name].__metadata__ if isinstance(item, About)),
        )
        for name in section.__struct_fields__
    }


@functools.cache
def _kinds(section: type[Section]) -> dict[str, Kind]:
    return {name: kind for name, (kind, _) in _metadata(section).items()}


@functools.cache
def keys() -> dict[str, Key]:
    """Every key there is, by its dotted name, in the order of the sections above."""
    defaults = Config()
    found = {}
    for section in Config.__struct_fields__:
        values = getattr(defaults, section)
        for name, (kind, about) in _metadata(type(values)).items():
            found[f"{section}.{name}"] = Key(section, name, kind, getattr(values, name), about)
    return found


def value_of(config: Config, dotted: str) -> Any:
    section, name = dotted.split(".")
    return getattr(getattr(config, section), name)


def changes(old: Config, new: Config) -> list[str]:
    """The dotted keys in which two configurations differ."""
    return [dotted for dotted in keys() if value_of(old, dotted) != value_of(new, dotted)]

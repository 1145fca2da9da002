"""How a section declares its keys, and the variable and the flag of each key."""

import functools
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple, get_type_hints

import msgspec

from millrace.config.values import FileMode, OptionalPath, Patterns, Port, ValueType

HIDDEN = "********"


class Doc(NamedTuple):
    """Description of a key. `flag`: it has a command line flag. `reload`: SIGHUP applies it."""

    text: str
    flag: bool = False
    reload: bool = False


def port_doc(clients: str) -> Doc:
    return Doc(
        f'TCP port for {clients}. 0 selects a free port; "off" disables the listener.', flag=True
    )


NO_PASSWORD_DOC = Doc(
    "Allow the port to listen beyond loopback. The protocol has no authentication of its own."
)
OPTIONAL_PASSWORD_DOC = Doc("Allow the port to listen beyond loopback without a password.")


class Section(msgspec.Struct, frozen=True):
    """One table of the file. Its representation hides passwords."""

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [
            (name, HIDDEN if value_type.secret and getattr(self, name) else getattr(self, name))
            for name, value_type in _value_types(type(self)).items()
        ]

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"{type(self).__name__}({fields})"


class ListenerSection(Section, frozen=True, kw_only=True):
    """The keys of every protocol's listener. A section declares its own port."""

    port: Annotated[Port, port_doc("clients of the protocol")] = None
    socket: Annotated[
        OptionalPath,
        Doc(
            "Path of a Unix domain socket for the same clients, in addition to the port or, with "
            '`port = "off"`, instead of it. The permissions of the file control who can connect.'
        ),
    ] = ""
    socket_mode: Annotated[FileMode, Doc("Permissions of the Unix domain socket, in octal.")] = (
        0o600
    )
    queues: Annotated[
        Patterns,
        Doc(
            "Queues that the clients of this protocol may use, as glob patterns, for example "
            '`["mail", "signup*"]`. Commands that name another queue are refused, and jobs of '
            "other queues are not visible. If empty, all queues are allowed."
        ),
    ] = ()


class ConfigKey(NamedTuple):
    """One declared key."""

    section: str
    name: str
    value_type: ValueType
    default: Any
    doc: Doc

    @property
    def dotted_name(self) -> str:
        return f"{self.section}.{self.name}"

    @property
    def variable(self) -> str:
        return f"MILLRACE_{self.section}_{self.name}".upper()

    @property
    def flag(self) -> str:
        """The name of its flag; the flag exists only if `doc.flag` is set."""
        words = self.name if self.section == "server" else f"{self.section}-{self.name}"
        return "--" + words.replace("_", "-")


def declared_keys(section: str, defaults: Section) -> Iterator[ConfigKey]:
    """The keys of one section, in the order of their declaration."""
    for name, (value_type, doc) in _metadata(type(defaults)).items():
        yield ConfigKey(section, name, value_type, getattr(defaults, name), doc)


def _metadata(section: type[Section]) -> dict[str, tuple[ValueType, Doc]]:
    hints = get_type_hints(section, include_extras=True)
    return {
        name: (
            next(item for item in hints[name].__metadata__ if isinstance(item, ValueType)),
            next(item for item in hints[name].__metadata__ if isinstance(item, Doc)),
        )
        for name in section.__struct_fields__
    }


@functools.cache
def _value_types(section: type[Section]) -> dict[str, ValueType]:
    return {name: value_type for name, (value_type, _) in _metadata(section).items()}

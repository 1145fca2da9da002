"""The table of protocols.

A new protocol is one row here and one package with two modules: `settings.py` declares the section
of the configuration as `SECTION`, `spec.py` the rules and factories as `SPEC`. Importing this
module imports neither, so that every package can use the names and labels.
"""

from importlib import import_module
from typing import Any, Final, NamedTuple

#: Codes of the protocols in job records and events. They are on disk: a new one gets the next code.
WORKQ: Final = 1
MASENKO: Final = 2
FAKTORY: Final = 3
QLESS: Final = 4
GOQUEUE: Final = 5
HTTP: Final = 6


class Protocol(NamedTuple):
    """One row of the table."""

    code: int
    #: The name in the configuration, in the journal and in the HTTP API.
    name: str
    #: The display name.
    label: str
    #: The package with `spec.py` and `settings.py`.
    package: str
    #: Whether the protocol has a port and settings. HTTP uses the port of the web interface.
    listens: bool = True


#: In the order in which lists show the protocols.
PROTOCOLS: Final[list[Protocol]] = []
#: Names by code; the server itself has code 0 and no name.
PROTOCOL_NAMES: Final[list[str]] = [""]
#: Labels by name.
PROTOCOL_LABELS: Final[dict[str, str]] = {}


def add_protocol(row: Protocol) -> None:
    """Add a row to the table."""
    PROTOCOLS.append(row)
    PROTOCOL_NAMES.extend("" for _ in range(len(PROTOCOL_NAMES), row.code + 1))
    assert not PROTOCOL_NAMES[row.code], "each protocol has a code of its own"
    PROTOCOL_NAMES[row.code] = row.name
    PROTOCOL_LABELS[row.name] = row.label


for _row in (
    Protocol(FAKTORY, "faktory", "Faktory", "millrace.protocols.faktory"),
    Protocol(WORKQ, "workq", "Workq", "millrace.protocols.workq"),
    Protocol(MASENKO, "masenko", "Masenko", "millrace.protocols.masenko"),
    Protocol(GOQUEUE, "goqueue", "Go Job Queue", "millrace.protocols.goqueue"),
    Protocol(QLESS, "qless", "Qless", "millrace.protocols.qless"),
    Protocol(HTTP, "http", "HTTP", "millrace.protocols.http", listens=False),
):
    add_protocol(_row)


def protocol_sections() -> dict[str, Any]:
    """The section types of the protocols with a port, by name."""
    return {
        row.name: import_module(f"{row.package}.settings").SECTION
        for row in PROTOCOLS
        if row.listens
    }

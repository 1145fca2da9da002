"""The Masenko section of the configuration."""

from typing import Annotated, Final

from millrace.config.keys import (
    NO_PASSWORD_DOC,
    Doc,
    ListenerSection,
    port_doc,
)
from millrace.config.values import (
    KIB,
    MIB,
    Dialect,
    Port,
    Switch,
    choice,
    min_duration,
    min_size,
)


class MasenkoConfig(ListenerSection, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[masenko]: the Masenko protocol."""

    port: Annotated[Port, port_doc("Masenko clients")] = 12345
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
        Doc(
            '"original" omits `metrics` from INFO and limits the sizes of payloads and '
            "transactions, as the original server does."
        ),
    ] = "spec"
    max_line: Annotated[
        int,
        min_size(4 * KIB),
        Doc("Maximum size of one line. `server.max_line` applies as well."),
    ] = 8 * MIB
    allow_unauthenticated: Annotated[Switch, NO_PASSWORD_DOC] = False


SECTION: Final = MasenkoConfig

"""The Go Job Queue section of the configuration."""

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
    Port,
    Switch,
    min_count,
    min_size,
)


class GoqueueConfig(ListenerSection, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[goqueue]: the Go Job Queue protocol."""

    port: Annotated[Port, port_doc("Go Job Queue clients")] = 11223
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
    allow_unauthenticated: Annotated[Switch, NO_PASSWORD_DOC] = False


SECTION: Final = GoqueueConfig

"""The Qless section of the configuration."""

from typing import Annotated, Final

from millrace.config.keys import (
    OPTIONAL_PASSWORD_DOC,
    Doc,
    ListenerSection,
    port_doc,
)
from millrace.config.values import (
    Dialect,
    Password,
    Port,
    Switch,
    choice,
)


class QlessConfig(ListenerSection, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[qless]: the Qless API over the Redis protocol."""

    port: Annotated[Port, port_doc("Qless clients")] = 6380
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
            "Order of priorities for clients with one script per command (qless-core until 2013) "
            'and in `QLESS.*`: "spec" serves the lowest number first, "original" the highest, as '
            "all later dialects do."
        ),
    ] = "spec"
    allow_unauthenticated: Annotated[Switch, OPTIONAL_PASSWORD_DOC] = False


SECTION: Final = QlessConfig

"""The Workq section of the configuration."""

from typing import Annotated, Final

from millrace.config.keys import (
    NO_PASSWORD_DOC,
    Doc,
    ListenerSection,
    port_doc,
)
from millrace.config.values import Dialect, Port, Switch, choice


class WorkqConfig(ListenerSection, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[workq]: the Workq protocol."""

    port: Annotated[Port, port_doc("Workq clients")] = 9922
    dialect: Annotated[
        Dialect,
        choice(Dialect),
        Doc(
            'Form of a lease reply: "spec" is `<id> <name> <size>`, "original" is '
            "`<id> <name> <ttr> <size>`, as sent by the original server 0.2.0 and expected by the "
            "current go-workq."
        ),
    ] = "spec"
    allow_unauthenticated: Annotated[Switch, NO_PASSWORD_DOC] = False


SECTION: Final = WorkqConfig

"""The Faktory section of the configuration."""

from typing import Annotated, Final

from millrace.config.keys import (
    OPTIONAL_PASSWORD_DOC,
    Doc,
    ListenerSection,
    port_doc,
)
from millrace.config.values import (
    Password,
    Port,
    Switch,
    min_count,
)


class FaktoryConfig(ListenerSection, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[faktory]: the Faktory Work Protocol."""

    port: Annotated[Port, port_doc("Faktory clients")] = 7419
    password: Annotated[
        Password,
        Doc(
            "Password for Faktory clients. If empty, no password is required. A value that "
            "starts with `/` is the path of a file that contains the password.",
            reload=True,
        ),
    ] = ""
    dead_max: Annotated[
        int,
        min_count(0),
        Doc(
            "Maximum number of jobs in the dead set. If there are more, the oldest are deleted.",
            reload=True,
        ),
    ] = 100_000
    recover_lost_workers: Annotated[
        Switch,
        Doc(
            "Fail the jobs of a worker that has no connection and has sent no BEAT for 60 s, "
            "instead of waiting for their `reserve_for` to expire.",
            reload=True,
        ),
    ] = False
    allow_unauthenticated: Annotated[Switch, OPTIONAL_PASSWORD_DOC] = False


SECTION: Final = FaktoryConfig

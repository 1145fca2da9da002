"""The section of Tiny in the configuration."""

from typing import Annotated, Final

from millrace.config.keys import (
    NO_PASSWORD_DOC,
    Doc,
    ListenerSection,
    port_doc,
)
from millrace.config.values import Port, Switch, min_count


class TinyConfig(ListenerSection, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[tiny]: the Tiny protocol."""

    port: Annotated[Port, port_doc("Tiny clients")] = 7000
    retries: Annotated[int, min_count(0), Doc("Number of retries of a job.")] = 1
    allow_unauthenticated: Annotated[Switch, NO_PASSWORD_DOC] = False


SECTION: Final = TinyConfig

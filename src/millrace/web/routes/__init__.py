"""The routes of the pages. Each module defines its routes in ROUTES."""

from typing import Final

from millrace.web.routing import PageRoute

from . import (
    analytics,
    failures,
    job,
    job_sets,
    jobs,
    login,
    long_actions,
    overview,
    queues,
    recurring,
    redirects,
    server,
    workers,
)

#: In the order of the menu.
_MODULES: Final = (
    overview,
    queues,
    jobs,
    job,
    workers,
    job_sets,
    failures,
    recurring,
    analytics,
    server,
    long_actions,
    login,
    redirects,
)
ROUTES: Final[list[PageRoute]] = [route for module in _MODULES for route in module.ROUTES]

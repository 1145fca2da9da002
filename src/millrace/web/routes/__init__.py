"""The routes of the pages. Each module defines its routes in DOORS."""

from typing import Final

from millrace.web.doors import Door

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

_MODULES: Final = (
    login,
    overview,
    queues,
    jobs,
    job,
    job_sets,
    failures,
    long_actions,
    workers,
    recurring,
    server,
    analytics,
    redirects,
)
DOORS: Final[list[Door]] = [door for module in _MODULES for door in module.DOORS]

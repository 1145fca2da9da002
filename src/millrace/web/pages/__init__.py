"""The pages. Each module has its own DOORS."""

from typing import Final

from millrace.web.doors import Door

from . import (
    analytics,
    failures,
    job,
    jobs,
    keeping,
    login,
    older,
    overview,
    queues,
    sets,
    standing,
    tasks,
    workers,
)

_MODULES: Final = (
    login,
    overview,
    queues,
    jobs,
    job,
    sets,
    failures,
    tasks,
    workers,
    keeping,
    standing,
    analytics,
    older,
)
DOORS: Final[list[Door]] = [door for module in _MODULES for door in module.DOORS]

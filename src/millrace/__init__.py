"""Millrace: a durable job queue server that speaks five existing protocols, and its Python SDK."""

from typing import TYPE_CHECKING

from . import compiled

__version__ = "0.1.0"

compiled.install()

if TYPE_CHECKING:
    from .client import JobHandle as JobHandle
    from .client import Millrace as Millrace
    from .client import Task as Task
    from .client import current_job as current_job
else:
    _EXPORTED = frozenset({"JobHandle", "Millrace", "Task", "current_job"})

    def __getattr__(name: str) -> object:
        """Import the SDK on first use: the server does not need it."""
        if name in _EXPORTED:
            from . import client  # noqa: PLC0415

            return getattr(client, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

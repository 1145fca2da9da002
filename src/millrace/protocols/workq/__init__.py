"""The Workq protocol."""

from .connection import WorkqConnection
from .hub import WorkqHub

__all__ = ["WorkqConnection", "WorkqHub"]

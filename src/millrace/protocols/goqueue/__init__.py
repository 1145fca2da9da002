"""The Go Job Queue protocol."""

from .connection import GoqueueConnection
from .hub import GoqueueHub

__all__ = ["GoqueueConnection", "GoqueueHub"]

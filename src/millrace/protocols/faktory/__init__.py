"""The Faktory Work Protocol."""

from .connection import FaktoryConnection
from .hub import FaktoryHub

__all__ = ["FaktoryConnection", "FaktoryHub"]

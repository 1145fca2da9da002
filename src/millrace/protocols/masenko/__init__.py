"""The Masenko protocol."""

from .connection import MasenkoConnection
from .hub import MasenkoHub

__all__ = ["MasenkoConnection", "MasenkoHub"]

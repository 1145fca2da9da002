"""The Qless API, served over RESP."""

from .connection import QlessConnection
from .hub import QlessHub

__all__ = ["QlessConnection", "QlessHub"]

"""The Qless API, served over RESP."""

from .api import QlessApi
from .connection import QlessConnection
from .hub import QlessHub

__all__ = ["QlessApi", "QlessConnection", "QlessHub"]

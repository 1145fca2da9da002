"""The Qless API, served over RESP."""

from .calls import QlessApi
from .connection import QlessConnection
from .hub import QlessHub

__all__ = ["QlessApi", "QlessConnection", "QlessHub"]

"""Millrace: a durable job queue server that speaks five existing protocols, and its Python SDK."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .client import Millrace as Millrace

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Import the SDK on first use: the server does not need it."""
    if name == "Millrace":
        from .client import Millrace  # noqa: PLC0415

        return Millrace
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

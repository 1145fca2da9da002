"""The control socket: what `millrace` and the web room ask of a running server.

What they need of it is messages.py, which is why nothing else is imported here.
"""

from .messages import Answer, Counters, Journal

__all__ = ["Answer", "Counters", "Journal"]

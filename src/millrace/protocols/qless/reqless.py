"""Dialect D, reqless."""

from typing import Any

COMMANDS: dict[str, Any] = {}


def translate(command: str, now: int, args: list[bytes]) -> Any:
    raise NotImplementedError

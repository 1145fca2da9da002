"""Options of the data source, read once on the driver."""

import os
import uuid
from collections.abc import Mapping
from typing import Final

from .connection import ServerAddress, parse

#: Environment variables with the URL of the server, as in the Faktory clients.
_URLS: Final = ("MILLRACE_URL", "FAKTORY_URL")
DEFAULT_URL: Final = "tcp://localhost:7419"


class Options:
    """Options by name, case-insensitive, as in Spark."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = {key.lower(): value for key, value in given.items()}

    def get(self, name: str, default: str = "") -> str:
        return self._given.get(name.lower()) or default

    def flag(self, name: str) -> bool:
        text = self.get(name, "false").lower()
        if text not in {"true", "false"}:
            raise ValueError(f"option {name!r} must be true or false, not {text!r}")
        return text == "true"

    def count(self, name: str, default: int, maximum: int) -> int:
        """Return an integer from 1 to `maximum`."""
        text = self.get(name, str(default))
        if not text.isdecimal() or not 1 <= int(text) <= maximum:
            raise ValueError(f"option {name!r} must be from 1 to {maximum}, not {text!r}")
        return int(text)

    def __getstate__(self) -> dict[str, str]:
        """Omit the URL and the password from the state for tasks; ServerAddress contains them."""
        return {key: value for key, value in self._given.items() if key not in {"url", "password"}}

    def __setstate__(self, state: dict[str, str]) -> None:
        self._given = state


def address(given: Options) -> ServerAddress:
    """Return the address of the server from the option `url` or from the environment."""
    named = (os.environ.get(name, "") for name in _URLS)
    url = given.get("url") or next(filter(None, named), DEFAULT_URL)
    seconds = given.count("timeout", 60, 3600)
    return parse(url, given.get("password"), given.get("ca"), seconds)


def load_name(given: Options) -> str:
    """Return the name of the load. A load with an explicit name can be resumed after a crash."""
    return given.get("load") or f"spark-{uuid.uuid4()}"

"""The options of the data source, read once on the driver."""

import os
import uuid
from collections.abc import Mapping
from typing import Final

from .wire import Address, parse

#: Whoever is not told where the server is looks here, as Faktory's own clients do.
_URLS: Final = ("MILLRACE_URL", "FAKTORY_URL")
DEFAULT_URL: Final = "tcp://localhost:7419"


class Options:
    """Options by name, in any case, as Spark gives them."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = {key.lower(): value for key, value in given.items()}

    def get(self, name: str, default: str = "") -> str:
        return self._given.get(name.lower()) or default

    def count(self, name: str, default: int, most: int) -> int:
        """A number from 1 to `most`."""
        text = self.get(name, str(default))
        if not text.isdecimal() or not 1 <= int(text) <= most:
            raise ValueError(f"option {name!r} must be from 1 to {most}, not {text!r}")
        return int(text)

    def __getstate__(self) -> dict[str, str]:
        """What goes to tasks: not the password, which the address has."""
        return {key: value for key, value in self._given.items() if key not in {"url", "password"}}

    def __setstate__(self, state: dict[str, str]) -> None:
        self._given = state


def address(given: Options) -> Address:
    """Where the server is: the option `url`, or the environment's."""
    named = (os.environ.get(name, "") for name in _URLS)
    url = given.get("url") or next(filter(None, named), DEFAULT_URL)
    seconds = given.count("timeout", 60, 3600)
    return parse(url, given.get("password"), given.get("ca"), seconds)


def load_name(given: Options) -> str:
    """The load's name: whoever gives one can go on with it after a crash."""
    return given.get("load") or f"spark-{uuid.uuid4()}"

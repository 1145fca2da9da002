"""Start of the server: open the ports, then import and recover.

On a small server, the imports take longer than the rest of startup, and recovery can take seconds.
Clients that connect in the meantime wait in the backlog of the kernel instead of being refused.
Keep this module and its imports small.
"""

import logging
import socket
from collections.abc import Callable
from pathlib import Path

from millrace.config import Config, LoadedConfig

from . import logs
from .sockets import PortUnavailable, open_port, open_unix

log = logging.getLogger(__name__)


def run(loaded: LoadedConfig, reload: Callable[[], LoadedConfig], *, json: bool) -> int:
    """Serve until a signal stops the server; return the exit status of the process. With `json`,
    the log and the ready line are JSON on a terminal too.
    """
    config = loaded.config
    logs.use_json(always=json)
    logs.setup(config.server.log_level)
    try:
        sockets = open_ports(config)
    except PortUnavailable as error:
        log.critical("%s", error)
        return 1
    from . import app  # noqa: PLC0415 - the ports are open before this

    return app.run(loaded, reload, sockets)


def open_ports(config: Config) -> dict[str, list[socket.socket]]:
    """The listening sockets of every enabled section."""
    opened: dict[str, list[socket.socket]] = {}
    for name, section in config.sections.items():
        if (port := getattr(section, "port", None)) is not None:
            opened[name] = open_port(
                config.server.host, port, name, lambda: _check_unused(config.server.data)
            )
        if path := getattr(section, "socket", ""):
            unix = open_unix(Path(path), section.socket_mode, name)
            opened.setdefault(name, []).append(unix)
    return opened


def _check_unused(folder: Path) -> None:
    """A port is in use: if another server runs on the same data folder, report that instead."""
    from millrace.store.errors import DataFolderInUse, StoreError  # noqa: PLC0415 - rarely needed
    from millrace.store.folders import check_unused  # noqa: PLC0415

    try:
        check_unused(folder)
    except DataFolderInUse as error:
        raise PortUnavailable(str(error)) from error
    except StoreError:
        return  # reported when the folder is opened

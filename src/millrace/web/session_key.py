"""The key that signs login cookies."""

import contextlib
import logging
import os
import secrets
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

KEY_FILE: Final = "web.key"
LENGTH: Final = 32


def sealing_key(folder: Path | None) -> bytes:
    """Return the key, stored in the data folder if possible, so that logins survive a restart."""
    if folder is None:
        return secrets.token_bytes(LENGTH)
    try:
        return _kept(folder / KEY_FILE)
    except OSError as error:
        log.warning(
            "Sessions will not survive a restart: cannot use %s: %s.",
            folder / KEY_FILE,
            error.strerror,
        )
        return secrets.token_bytes(LENGTH)


def _kept(path: Path) -> bytes:
    with contextlib.suppress(FileNotFoundError):
        key = path.read_bytes()
        if len(key) == LENGTH:
            path.chmod(0o600)
            return key
    key = secrets.token_bytes(LENGTH)
    aside = path.with_name(path.name + ".new")
    aside.unlink(missing_ok=True)
    with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(key)
    aside.rename(path)
    return key

"""TLS for all ports: the context, and its reload when the files change.

A connection uses the certificates that were current at its handshake.
"""

import logging
import ssl
from pathlib import Path

from millrace.config import TlsConfig

log = logging.getLogger(__name__)

#: Modification time, size and inode of each file.
Stamps = tuple[tuple[int, int, int] | None, ...]


class TlsFiles:
    """The context of all ports. Raises an OSError if the files cannot be used."""

    def __init__(self, config: TlsConfig) -> None:
        self._config = config
        self._stamps = self._read_stamps()
        self.context = _new_context(config)

    def reload_if_changed(self) -> bool:
        """Load changed files, and return whether new certificates are in use. If the files are
        invalid, the previous ones stay in use.
        """
        stamps = self._read_stamps()
        if stamps == self._stamps:
            return False
        self._stamps = stamps
        config = self._config
        try:
            _new_context(config)  # an error must not leave the live context with half of the files
            _load(self.context, config)
        except OSError as error:
            log.error(  # noqa: TRY400 - no trace
                "Cannot reload the TLS files: %s. The previous certificate stays in use.", error
            )
            return False
        log.info("Reloaded the TLS certificate %s.", config.cert)
        return True

    def _read_stamps(self) -> Stamps:
        config = self._config
        return tuple(_stamp(path) for path in (config.cert, config.key, config.client_ca))


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _new_context(config: TlsConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load(context, config)
    return context


def _load(context: ssl.SSLContext, config: TlsConfig) -> None:
    context.load_cert_chain(config.cert, config.key)
    if config.client_ca:
        context.load_verify_locations(config.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED

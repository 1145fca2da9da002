"""The thread that reads large payloads from the store."""

import asyncio
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread

from millrace.engine.errors import PayloadDamaged
from millrace.engine.payloads import PayloadRead, PayloadReader

#: Called on the thread of the loop after a read.
AfterRead = Callable[[PayloadRead], None]


class PayloadThread:
    """Handles one request at a time. The thread starts with the first request."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, reader: PayloadReader, after: AfterRead
    ) -> None:
        self._loop = loop
        self._reader = reader
        self._after = after
        self._requests: SimpleQueue[PayloadRead | None] = SimpleQueue()
        self._thread: Thread | None = None

    def fetch(self, read: PayloadRead) -> None:
        """Read the payloads; `after` is called at the end."""
        if self._thread is None:
            self._thread = Thread(target=self._read_all, name="payloads", daemon=True)
            self._thread.start()
        self._requests.put(read)

    def close(self) -> None:
        if self._thread is not None:
            self._requests.put(None)
            self._thread.join()
            self._thread = None

    def _read_all(self) -> None:
        reader = self._reader.open_another()
        try:
            while (read := self._requests.get()) is not None:
                payloads: dict[int, bytes] = {}
                try:
                    for seq in read.seqs:
                        try:
                            payloads[seq] = reader.read_large(seq)
                        except PayloadDamaged as damage:
                            read.damaged[seq] = damage
                except Exception as error:
                    read.error = error
                try:
                    self._loop.call_soon_threadsafe(self._finish, read, payloads)
                except RuntimeError:
                    return  # the loop is closed
        finally:
            reader.close()

    def _finish(self, read: PayloadRead, payloads: dict[int, bytes]) -> None:
        read.payloads = payloads
        self._after(read)

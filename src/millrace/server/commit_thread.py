"""The thread that runs `Store.commit`: COMMIT, large payloads, and the deletions of a flush."""

import asyncio
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread

from millrace.store import Store

#: Called on the thread of the loop after a commit, with its error or None.
CommitCallback = Callable[[Exception | None], None]


class CommitThread:
    def __init__(self, loop: asyncio.AbstractEventLoop, after: CommitCallback) -> None:
        self._loop = loop
        self._after = after
        self._prepared: SimpleQueue[Store | None] = SimpleQueue()
        self._thread = Thread(target=self._commit_all, name="commit", daemon=True)
        self._thread.start()

    def commit(self, store: Store) -> None:
        """Commit the transaction that the store has begun; `after` is called at its end."""
        self._prepared.put(store)

    def close(self) -> None:
        self._prepared.put(None)
        self._thread.join()

    def _commit_all(self) -> None:
        while (store := self._prepared.get()) is not None:
            outcome: Exception | None = None
            try:
                store.commit()
            except Exception as error:
                outcome = error
            try:
                self._loop.call_soon_threadsafe(self._after, outcome)
            except RuntimeError:
                return  # the loop is closed

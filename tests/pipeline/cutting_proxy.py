"""A proxy in front of a server's port that cuts connections in the middle of a load."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Self


class CuttingProxy:
    """Forwards all data. It cuts a connection after `answers` answers, at most `most` times."""

    def __init__(self, port: int, answers: int, of: bytes = b'"known":', most: int = 1) -> None:
        self._to = port
        self._answers = answers
        self._of = of
        self._most = most
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.cuts = 0
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # on some systems close alone does not wake the thread
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._to))
                for step, ends in ((self._up, (client, server)), (self._down, (server, client))):
                    thread = threading.Thread(target=step, args=ends, daemon=True)
                    self._threads.append(thread)
                    thread.start()

    def _up(self, client: socket.socket, server: socket.socket) -> None:
        with _ended(client, server):
            while data := client.recv(65_536):
                server.sendall(data)

    def _down(self, server: socket.socket, client: socket.socket) -> None:
        heard = 0
        with _ended(client, server):
            while data := server.recv(65_536):
                client.sendall(data)
                heard += data.count(self._of)
                if self.cuts < self._most and heard >= self._answers:
                    self.cuts += 1
                    return


@contextlib.contextmanager
def _ended(*ends: socket.socket) -> Iterator[None]:
    """Close both ends when one is closed, which also wakes a thread that waits for the other
    end.
    """
    try:
        with contextlib.suppress(OSError):
            yield
    finally:
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

"""A proxy between a client and a server that refuses, delays and cuts connections.

The faults follow a seed. A cut loses the bytes that the proxy has not forwarded: a command that the
server never sees, or a reply to a command that the server has executed. Replies to a fetch are not
lost: the server returns such a job only at the end of its reservation. The virtual soak covers it.
"""

import contextlib
import socket
import threading
import time
from random import Random

#: Probability of each fault, for a new connection or for a piece of data.
REFUSED = 0.15
CUT = 0.08
DELAYED = 0.2
MAX_DELAY = 0.02
PIECE = 4096


class FaultProxy:
    """Listens on `port` and forwards to the server's port, which may change after a restart."""

    def __init__(self, server_port: int, seed: int) -> None:
        self.server_port = server_port
        self.faulty = True
        #: The number of faults so far, by kind.
        self.faults = {"refused": 0, "cut": 0, "delayed": 0}
        self._random = Random(seed)
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open = True
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._open = False
        self._listener.close()

    def _chance(self, kind: str, probability: float) -> bool:
        with self._lock:
            if not self.faulty or self._random.random() >= probability:
                return False
            self.faults[kind] += 1
            return True

    def _accept(self) -> None:
        while self._open:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        server = None if self._chance("refused", REFUSED) else self._connect()
        if server is None:
            client.close()
            return
        link = Link(client, server)
        back = threading.Thread(target=self._forward, args=(link, server, client), daemon=True)
        back.start()
        self._forward(link, client, server)

    def _connect(self) -> socket.socket | None:
        try:
            server = socket.create_connection(("127.0.0.1", self.server_port), timeout=10)
        except OSError:
            return None
        server.settimeout(None)
        return server

    def _forward(self, link: "Link", source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(PIECE):
                if source is link.client:
                    link.fetches = b"fetch" in data or b"FETCH" in data
                if self._chance("delayed", DELAYED):
                    time.sleep(self._random.uniform(0, MAX_DELAY))
                is_fetched = source is link.server and link.fetches
                if not is_fetched and self._chance("cut", CUT):
                    break
                target.sendall(data)
        link.close()


class Link:
    """The two ends of one connection."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client, self.server = client, server
        #: Whether the last command fetches jobs.
        self.fetches = False

    def close(self) -> None:
        for end in (self.client, self.server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

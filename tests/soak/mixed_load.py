"""Mixed load on all five ports: producers and workers of every protocol, and short-lived clients.

Each is a thread with its own connection that repeats its role until the load stops. Any worker can
get any job; some attempts fail, some are abandoned, and some leases expire.
"""

import contextlib
import json
import random
import socket
import struct
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable

from hiredis import Reader, ReplyError

from speakers import SPEAKERS, Accepted, Answer, Held, Leased, Refused, Speaker, Work

HOST = "127.0.0.1"
SECOND = 1_000_000
QUEUES = ("mail", "video", "reports")


def now() -> int:
    return time.time_ns() // 1000


class Session:
    """A connection and its protocol encoder."""

    def __init__(self, port: int, speaker: Speaker) -> None:
        self.speaker = speaker
        self.socket = socket.create_connection((HOST, port), 60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answers: list[Answer] = []
        hello = speaker.hello()
        if hello:
            assert isinstance(self.ask(hello), Accepted)

    def ask(self, data: bytes) -> Answer:
        self.socket.sendall(data)
        while not self._answers:
            piece = self.socket.recv(1 << 16)
            if not piece:
                raise ConnectionError("the server closed the connection")
            self._answers += self.speaker.receive(piece)
        return self._answers.pop(0)

    def close(self) -> None:
        self.socket.close()

    def reset(self) -> None:
        """Close with a reset. After a plain close the server sees a half-close and continues to
        wait.
        """
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()


class Load:
    """All clients. `done` counts the actions, `errors` lists unexpected replies."""

    def __init__(self, ports: dict[str, int], seed: int, pause: float) -> None:
        self._ports = ports
        self._pause = pause
        self._over = threading.Event()
        self.done: Counter[str] = Counter()
        self.errors: list[str] = []
        roles: list[tuple[Callable[..., None], str]] = []
        for protocol in SPEAKERS:
            roles += [(self._produce, protocol), (self._work, protocol), (self._visit, protocol)]
        roles.append((self._tidy, "qless"))
        self._threads = [
            threading.Thread(target=self._play, args=(role, protocol, seed + number), daemon=True)
            for number, (role, protocol) in enumerate(roles)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(70)

    def _play(self, role: Callable[..., None], protocol: str, seed: int) -> None:
        dice = random.Random(seed)
        number = 0
        while not self._over.is_set():
            number += 1
            name = f"{role.__name__}-{seed}-{number}"
            try:
                with contextlib.closing(self._connect(protocol, name)) as session:
                    role(session, dice)
            except Exception as mistake:
                self.errors.append(f"{protocol} {role.__name__}: {mistake!r}")
                self._over.wait(0.1)
            self.done["connections"] += 1

    def _connect(self, protocol: str, name: str) -> Session:
        return Session(self._ports[protocol], SPEAKERS[protocol](name))

    # The roles. Each client disconnects after a while and connects again under another name.

    def _produce(self, session: Session, dice: random.Random) -> None:
        can = session.speaker.can
        for _ in range(dice.randrange(20, 60)):
            if self._over.wait(self._pause):
                return
            later = "schedule" in can and dice.random() < 0.1
            pushed = self._ask(
                session,
                "push",
                Work(
                    id=str(uuid.UUID(int=dice.getrandbits(128), version=4)),
                    queue=dice.choice(QUEUES),
                    payload=json.dumps(["x" * dice.choice((5, 50, 500))]).encode(),
                    rank=dice.choice((0, 0, 0, -2)),
                    due=now() + dice.randrange(3 * SECOND) if later else 0,
                    ttr=2,
                    ttl=5,
                    retries=dice.choice((0, 0, 1)),
                ),
            )
            if "cancel" in can and dice.random() < 0.05:
                self._ask(session, "cancel", pushed.id, may_be_late=True)

    def _work(self, session: Session, dice: random.Random) -> None:
        can = session.speaker.can
        for _ in range(dice.randrange(50, 150)):
            if self._over.is_set():
                return
            queue = dice.choice(QUEUES)
            answer = session.ask(session.speaker.lease(queue, now(), 0.2 if "wait" in can else 0))
            if isinstance(answer, Leased):
                self._end(session, answer.held, dice.random())
                self._over.wait(self._pause / 4)
            else:
                self._over.wait(self._pause / 2)

    def _end(self, session: Session, held: Held, what: float) -> None:
        can = session.speaker.can
        if what < 0.9 or "fail" not in can:
            self._ask(session, "complete", held, may_be_late=True)
        elif what < 0.98:
            self._ask(session, "fail", held, may_be_late=True)
        elif "renew" in can:
            self._ask(session, "renew", held, may_be_late=True)
        # or it disconnects for good, and the lease expires

    def _visit(self, session: Session, dice: random.Random) -> None:
        """Connect, wait on an empty queue, and disconnect during the wait or in the middle of a
        command.
        """
        can = session.speaker.can
        if "wait" in can and dice.random() < 0.5:
            name = "nobody" if session.speaker.protocol == "workq" else f"nobody-{dice.random()}"
            session.socket.sendall(session.speaker.lease(name, now(), 5))
        else:
            session.socket.sendall(session.speaker.lease("mail", now())[:-3])
        self.done["visits"] += 1
        self._over.wait(self._pause)
        session.reset()

    def _tidy(self, session: Session, _: random.Random) -> None:
        """Delete failed Qless jobs, which the server keeps until a client deletes them."""
        reader = Reader()

        def call(*words: object) -> bytes:
            session.socket.sendall(b" ".join(str(word).encode() for word in words) + b"\r\n")
            while (reply := reader.gets()) is False:
                reader.feed(session.socket.recv(1 << 16))
            assert not isinstance(reply, ReplyError), reply
            return reply

        for group in json.loads(call("QLESS.FAILED", 0)):
            failed = json.loads(call("QLESS.FAILED", 0, f'"{group}"', 0, 100))["jobs"]
            if failed:
                call("QLESS.CANCEL", 0, *(job["jid"] for job in failed))
                self.done["tidied"] += len(failed)
        self._over.wait(0.5)

    def _ask(
        self, session: Session, command: str, *args: object, may_be_late: bool = False
    ) -> Answer:
        answer = session.ask(getattr(session.speaker, command)(args[0], now(), *args[1:]))
        if isinstance(answer, Refused) and not may_be_late:
            raise AssertionError(f"{command}: {answer.text}")
        self.done[command] += 1
        return answer

"""One class per protocol: the requests of a connection and the end of a cycle.

A cycle takes one job from push to completion with three commands: store it, take any job from the
shared queue, finish that job. Each command is sent after the reply to the previous one. A mode does
no I/O in the loop: `first()` returns the first request of a cycle; `next(received)` returns the
request after a complete reply, or None while the reply is incomplete. `step` is the number of the
current command; it is 0 again at the end of a cycle.

All requests are encoded before the run as far as possible: the loop only splices and searches
bytes, without JSON.
"""

import abc
import socket
import time
from functools import cache
from hashlib import blake2s, sha1
from importlib.util import find_spec
from pathlib import Path
from struct import pack
from typing import ClassVar, NoReturn

PAYLOAD_SIZE = 200
TIMEOUT = 30.0  # for steps that are not measured: connect, greet, fill the queue

OK = b"+OK\r\n"
CRLF = b"\r\n"


class RefusedError(Exception):
    """The server sent a reply that ends the run."""


class Mode(abc.ABC):
    """The requests of one connection; `worker` is a unique name."""

    commands: ClassVar[tuple[str, str, str]]
    #: The end of a one-line reply.
    line_end: ClassVar[bytes] = CRLF

    def __init__(self, worker: str) -> None:
        self.worker = worker
        self.step = 0

    def greet(self, sock: socket.socket) -> None:  # noqa: B027, most protocols have no greeting
        """Send the greeting before the first cycle; the socket is still blocking."""

    @abc.abstractmethod
    def first(self) -> bytes:
        """The request that stores a job."""

    @abc.abstractmethod
    def next(self, received: bytes) -> bytes | None:
        """The request that follows this reply, or None if the reply is not complete."""

    def incomplete(self, received: bytes) -> bytes | None:
        """The reply is not the expected one: either incomplete (None), or an error."""
        if received.endswith(self.line_end) or len(received) > PAYLOAD_SIZE:
            self.refused(received)
        return None

    def refused(self, received: bytes) -> NoReturn:
        command = self.commands[self.step]
        raise RefusedError(f"{command} was answered with {received[:200]!r}")


class Faktory(Mode):
    commands = ("PUSH", "FETCH", "ACK")

    # The arguments are the payload: with brackets and quotes they make PAYLOAD_SIZE bytes.
    ARGS = b'["' + b"x" * (PAYLOAD_SIZE - 4) + b'"]'
    JOB_HEAD = b'","queue":"default","jobtype":"bench","args":'
    PUSH_TAIL = JOB_HEAD + ARGS + b"}" + CRLF
    FETCH = b"FETCH default\r\n"
    JID = b'"jid":"'

    def __init__(self, worker: str) -> None:
        super().__init__(worker)
        self.serial = 0
        self.push_head = b'PUSH {"jid":"' + worker.encode() + b"-"

    def greet(self, sock: socket.socket) -> None:
        # One worker process with several connections, as client libraries do it.
        send_hello(sock, self.worker.partition("-")[0])

    def first(self) -> bytes:
        self.step = 0
        self.serial += 1
        return self.push_head + b"%08d" % self.serial + self.PUSH_TAIL

    def next(self, received: bytes) -> bytes | None:
        step = self.step
        if step == 1:
            return self.fetched(received)
        if received != OK:
            return self.incomplete(received)
        if step == 0:
            self.step = 1
            return self.FETCH
        return self.first()

    def fetched(self, received: bytes) -> bytes | None:
        head = received.find(CRLF)
        if head < 0:
            return None
        if received[:1] != b"$" or received[:3] == b"$-1":
            # The queue always has more jobs than workers, so an empty reply is a defect, too.
            return self.incomplete(received)
        if len(received) < head + int(received[1:head]) + 4:
            return None
        start = received.find(self.JID, head)
        if start < 0:
            raise RefusedError(f"no compact jid in the fetched job {received[:200]!r}")
        start += len(self.JID)
        self.step = 2
        return b'ACK {"jid":"' + received[start : received.index(b'"', start)] + b'"}\r\n'


class Workq(Mode):
    """The server keeps a completed job and its result until its TTL expires, here after the run."""

    commands = ("add", "lease", "complete")

    ADD_TAIL = b" bench 60000 600000 %d\r\n" % PAYLOAD_SIZE + b"x" * PAYLOAD_SIZE + CRLF
    LEASE = b"lease bench 60000\r\n"
    LEASED = b"+OK 1\r\n"
    ID_SIZE = 36

    def __init__(self, worker: str) -> None:
        super().__init__(worker)
        self.serial = 0
        digits = blake2s(worker.encode(), digest_size=10).hexdigest()
        parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], "")
        self.add_head = b"add " + "-".join(parts).encode()

    def first(self) -> bytes:
        self.step = 0
        self.serial += 1
        return self.add_head + b"%012x" % self.serial + self.ADD_TAIL

    def next(self, received: bytes) -> bytes | None:
        step = self.step
        if step == 1:
            return self.leased(received)
        if received != OK:
            return self.incomplete(received)
        if step == 0:
            self.step = 1
            return self.LEASE
        return self.first()

    def leased(self, received: bytes) -> bytes | None:
        start = len(self.LEASED)
        head = received.find(CRLF, start)
        if not received.startswith(self.LEASED) or head < 0:
            return None if self.LEASED.startswith(received[:start]) else self.incomplete(received)
        size = int(received[received.rindex(b" ", start, head) + 1 : head])
        if len(received) < head + size + 4:
            return None
        self.step = 2
        return b"complete " + received[start : start + self.ID_SIZE] + b" 0\r\n\r\n"


class Masenko(Mode):
    commands = ("PUSH", "FETCH", "ACK")
    line_end = b"\n"

    # With its quotes the payload has PAYLOAD_SIZE bytes.
    PUSH = b'PUSH {"name":"bench","payload":"' + b"x" * (PAYLOAD_SIZE - 2) + b'"}\n'
    FETCH = b'FETCH {"queues":["default"]}\n'
    ID = b'OK {"id":'
    DONE = b"OK {}\n"

    def first(self) -> bytes:
        self.step = 0
        return self.PUSH

    def next(self, received: bytes) -> bytes | None:
        if not received.endswith(b"\n"):
            return None
        if self.step == 2:
            return self.first() if received == self.DONE else self.incomplete(received)
        if not received.startswith(self.ID):
            return self.incomplete(received)
        self.step += 1
        if self.step == 1:
            return self.FETCH
        start = len(self.ID)
        return b'ACK {"id":' + received[start : received.index(b",", start)] + b"}\n"


class Goqueue(Mode):
    commands = ("ADD", "RESERVE", "DELETE")

    # Priority 0, a ttp of 120 s, the length of the data.
    ADD = b"ADD\0bench\0" + pack("<III", 0, 120, PAYLOAD_SIZE) + b"x" * PAYLOAD_SIZE
    RESERVE = b"RESERVE\0bench\0" + pack("<I", 60)
    REPLIES = (b"ADDED\0", b"RESERVED\0", b"OK\0")
    #: Of these bytes the last four are the length of the data that follows them.
    RESERVED_SIZE = 38
    ERROR = b"ERROR\0"

    def first(self) -> bytes:
        self.step = 0
        return self.ADD

    def next(self, received: bytes) -> bytes | None:
        step = self.step
        if not received.startswith(self.REPLIES[step]):
            return self.incomplete(received)
        if step == 0:
            if len(received) < 14:
                return None
            self.step = 1
            return self.RESERVE
        if step == 1:
            return self.reserved(received)
        return self.first()

    def reserved(self, received: bytes) -> bytes | None:
        head = self.RESERVED_SIZE
        size = int.from_bytes(received[head - 4 : head], "little")
        if len(received) < head or len(received) < head + size:
            return None
        self.step = 2
        return b"DELETE\0" + received[9:17]

    def incomplete(self, received: bytes) -> bytes | None:
        if self.ERROR.startswith(received[:6]):
            if received.find(0, 6) < 0:
                return None
        elif self.REPLIES[self.step].startswith(received):
            return None
        self.refused(received)


class Beanstalkd(Mode):
    commands = ("put", "reserve", "delete")

    PUT = b"put 1024 0 120 %d\r\n" % PAYLOAD_SIZE + b"x" * PAYLOAD_SIZE + CRLF
    RESERVE = b"reserve\r\n"

    def first(self) -> bytes:
        self.step = 0
        return self.PUT

    def next(self, received: bytes) -> bytes | None:
        step = self.step
        if step == 0:
            if not (received.startswith(b"INSERTED ") and received.endswith(CRLF)):
                return self.incomplete(received)
            self.step = 1
            return self.RESERVE
        if step == 1:
            return self.reserved(received)
        if received != b"DELETED\r\n":
            return self.incomplete(received)
        return self.first()

    def reserved(self, received: bytes) -> bytes | None:
        head = received.find(CRLF)
        if head < 0:
            return None
        if not received.startswith(b"RESERVED "):
            return self.incomplete(received)
        _, job, size = received[:head].split(b" ")
        if len(received) < head + int(size) + 4:
            return None
        self.step = 2
        return b"delete " + job + CRLF


class Redis(Mode):
    """The reliable queue from the Redis documentation: jobs wait in one list, and each worker keeps
    its current job in its own list until the job is done.
    """

    commands = ("LPUSH", "BRPOPLPUSH", "LREM")

    QUEUE = b"jobs"

    def __init__(self, worker: str) -> None:
        super().__init__(worker)
        working = b"working:" + worker.encode()
        self.serial = 0
        # LREM finds a job by its text, so each one is different.
        self.filler = b"x" * (PAYLOAD_SIZE - len(self.job_id()))
        self.push_head = b"*3\r\n$5\r\nLPUSH\r\n" + bulk(self.QUEUE) + b"$%d\r\n" % PAYLOAD_SIZE
        self.take = b"*4\r\n$10\r\nBRPOPLPUSH\r\n" + bulk(self.QUEUE) + bulk(working) + bulk(b"0")
        self.remove_head = b"*4\r\n$4\r\nLREM\r\n" + bulk(working) + bulk(b"1")

    def job_id(self) -> bytes:
        return self.worker.encode() + b"-%08d " % self.serial

    def first(self) -> bytes:
        self.step = 0
        self.serial += 1
        return self.push_head + self.job_id() + self.filler + CRLF

    def next(self, received: bytes) -> bytes | None:
        step = self.step
        if step == 0:
            if not (received.startswith(b":") and received.endswith(CRLF)):
                return self.incomplete(received)
            self.step = 1
            return self.take
        if step == 1:
            return self.taken(received)
        if received != b":1\r\n":
            return self.incomplete(received)
        return self.first()

    def taken(self, received: bytes) -> bytes | None:
        head = received.find(CRLF)
        if head < 0:
            return None
        if received[:1] != b"$":
            return self.incomplete(received)
        if len(received) < head + int(received[1:head]) + 4:
            return None
        self.step = 2
        return self.remove_head + received


def bulk(text: bytes) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(text), text)


class Qless(Mode):
    """Dialect C, which most Qless clients use: one script, loaded once, and a time in each call.
    Millrace runs no script, so one line of it is enough to identify the dialect.
    """

    commands = ("put", "pop", "complete")

    QUEUE = bulk(b"bench")
    DATA = b'["' + b"x" * (PAYLOAD_SIZE - 4) + b'"]'
    PUT_TAIL = bulk(b"bench.Job") + bulk(DATA) + bulk(b"0")
    JID = b'"jid":"'
    COMPLETED = b"$8\r\ncomplete\r\n"

    def __init__(self, worker: str) -> None:
        super().__init__(worker)
        self.serial = 0
        sha = sha1(self.script(), usedforsecurity=False).hexdigest()
        call = bulk(b"EVALSHA") + bulk(sha.encode()) + bulk(b"0")
        me = bulk(worker.encode())
        self.put_head = b"*11\r\n" + call + bulk(b"put")
        self.put_for = me + self.QUEUE
        self.pop_head = b"*8\r\n" + call + bulk(b"pop")
        self.pop_tail = self.QUEUE + me + bulk(b"1")
        self.complete_head = b"*9\r\n" + call + bulk(b"complete")
        self.complete_tail = me + self.QUEUE + bulk(self.DATA)

    @staticmethod
    def script() -> bytes:
        return b"QlessAPI.put = function(now, me, queue, jid, klass, raw_data, delay, ...)"

    def greet(self, sock: socket.socket) -> None:
        sock.sendall(b"*3\r\n" + bulk(b"SCRIPT") + bulk(b"LOAD") + bulk(self.script()))
        answer = read_line(sock)
        while not self.is_whole(answer):
            answer += read_line(sock)

    def first(self) -> bytes:
        self.step = 0
        self.serial += 1
        jid = bulk(self.worker.encode() + b"-%08d" % self.serial)
        return self.put_head + self.now() + self.put_for + jid + self.PUT_TAIL

    @staticmethod
    def now() -> bytes:
        return bulk(b"%.6f" % time.time())

    def next(self, received: bytes) -> bytes | None:
        step = self.step
        if step == 1:
            return self.popped(received)
        if not self.is_whole(received):
            return None
        if step == 0:
            self.step = 1
            return self.pop_head + self.now() + self.pop_tail
        if received != self.COMPLETED:
            self.refused(received)
        return self.first()

    def is_whole(self, received: bytes) -> bool:
        """Whether a bulk reply is complete. Any other reply is an error."""
        head = received.find(CRLF)
        if head < 0:
            return False
        if received[:1] != b"$" or received[:3] == b"$-1":
            self.refused(received)
        return len(received) >= head + int(received[1:head]) + 4

    def popped(self, received: bytes) -> bytes | None:
        if not self.is_whole(received):
            return None
        start = received.find(self.JID)
        if start < 0:  # the queue always has more jobs than workers
            raise RefusedError(f"no jid in the popped job: {received[:200]!r}")
        start += len(self.JID)
        self.step = 2
        jid = bulk(received[start : received.index(b'"', start)])
        return self.complete_head + self.now() + jid + self.complete_tail


class QlessScript(Qless):
    """The same calls with a complete script, for redis-server. The script of qless-py does not run
    on today's redis-server, so this is the script of the reqless package.
    """

    @staticmethod
    @cache
    def script() -> bytes:
        package = find_spec("reqless")
        if package is None or package.origin is None:
            raise RefusedError("the package reqless, which contains the script, is not installed")
        return Path(package.origin).with_name("lua").joinpath("qless.lua").read_bytes()


def connect(port: int) -> socket.socket:
    """A blocking connection to this machine that sends small requests immediately."""
    sock = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def read_line(sock: socket.socket) -> bytes:
    line = b""
    while not line.endswith(CRLF):
        line = receive(sock, line)
    return line


def receive(sock: socket.socket, received: bytes) -> bytes:
    """The received bytes plus the next chunk."""
    piece = sock.recv(4096)
    if not piece:
        raise RefusedError(f"the server closed the connection after {received!r}")
    return received + piece


def send_hello(sock: socket.socket, wid: str) -> None:
    """Faktory's HI and HELLO: as a worker if there is a wid, else as a producer."""
    greeting = read_line(sock)
    if not greeting.startswith(b"+HI "):
        raise RefusedError(f"the greeting was {greeting!r}")
    worker = b'"hostname":"bench","wid":"%s","pid":1,"labels":["bench"],' % wid.encode()
    sock.sendall(b"HELLO {" + (worker if wid else b"") + b'"v":2}\r\n')
    answer = read_line(sock)
    if answer != OK:
        raise RefusedError(f"HELLO was answered with {answer!r}")


def fill(mode: Mode, port: int, jobs: int) -> None:
    """Store jobs before the run, so that no worker finds the queue empty."""
    with connect(port) as sock:
        mode.greet(sock)
        for _ in range(jobs):
            sock.sendall(mode.first())
            received = receive(sock, b"")
            while mode.next(received) is None:
                received = receive(sock, received)

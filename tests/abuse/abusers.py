"""Hostile clients, each in its own process with a lower priority than all other processes:

    python abusers.py NAME SIZE PORTS

PORTS is JSON. The process prints `ready` when its clients are connected, continues until its
standard input ends, and then prints its counts as JSON. `SIZE` is the number of clients, commands
or bytes.
"""

import contextlib
import http.client
import json
import os
import resource
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import commands
from crowd import (
    HOST,
    PROTOCOLS,
    connect,
    crowd,
    in_rounds,
    input_closed,
    is_open,
    read_until_closed,
    reset,
)

Ports = dict[str, int]
#: An abuser connects, yields, runs until its input ends, and yields its counts.
Abuser = Callable[[Ports, int], Iterator[dict[str, int] | None]]
#: The first bytes of a TLS connection, and a request of a browser.
CLIENT_HELLO = bytes.fromhex("16030100a5010000a10303") + bytes(range(256))[:155]
HTTP = b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: Mozilla/5.0\r\n\r\n"
#: The most expensive requests.
PAGES = ("/", "/queues", "/jobs?q=nothing+has+these+words", "/retries", "/failures", "/busy")
POST = (
    b'POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20\r\n\r\nPUSH {"jid":"from-a-page"}\n'
)


def slow_senders(ports: Ports, size: int) -> Iterator[dict[str, int] | None]:
    """Start a command, and send one further byte now and then."""
    clients = crowd(ports, size)
    for protocol, connection in clients:
        connection.sendall(commands.BEGUN[protocol])
    yield None
    cut = 0
    for number in in_rounds(0.002):
        # Each client sends a byte about every four seconds, for any number of clients.
        for at in range(number * size // 2000, (number + 1) * size // 2000):
            try:
                clients[at % size][1].send(b"x")
            except OSError:
                cut += 1
    yield {"open": sum(is_open(connection) for _, connection in clients), "cut": cut}


def never_readers(ports: Ports, size: int) -> Iterator[dict[str, int] | None]:
    """Send requests with large replies, and never read."""
    clients = crowd(ports, size, receive_buffer=4096)
    for _, connection in clients:
        connection.setblocking(False)
    yield None
    asked = 0
    for _ in in_rounds(0.05):
        for protocol, connection in clients:
            with contextlib.suppress(OSError):
                asked += connection.send(commands.MUCH[protocol] * 200)
    yield {"bytes_asked": asked}


def connects(ports: Ports, size: int) -> Iterator[dict[str, int] | None]:
    """Connect and disconnect `size` times, in different ways."""
    yield None
    made: Counter[str] = Counter()
    for number in range(size):
        if number % 100 == 0 and input_closed():
            break
        connection = socket.create_connection((HOST, ports[PROTOCOLS[number % 5]]), 30)
        if number % 3 == 0:
            connection.close()
        elif number % 3 == 1:
            reset(connection)
        else:
            connection.sendall(b"x")
            connection.close()
        made["connected"] += 1
    while not input_closed(0.1):
        pass
    yield dict(made)


def stampede(ports: Ports, size: int) -> Iterator[dict[str, int] | None]:
    """Open more connections at once than permitted, and keep all of them."""
    clients = []
    for number in range(size):
        connection = socket.socket()
        connection.setblocking(False)
        connection.connect_ex((HOST, ports[PROTOCOLS[1 + number % 4]]))
        clients.append(connection)
        if number % 500 == 499:
            time.sleep(0.02)  # otherwise the test measures the kernel's queue of new connections
    yield None
    while not input_closed(0.1):
        pass
    opened = [connection for connection in clients if is_open(connection)]
    yield {"open": len(opened), "refused": size - len(opened)}


def pipeliners(ports: Ports, size: int) -> Iterator[dict[str, int] | None]:
    """Send `size` commands in one packet, over each protocol, repeatedly."""
    clients = [(protocol, connect(ports, protocol)) for protocol in PROTOCOLS]
    yield None
    answered: Counter[str] = Counter()
    for number in in_rounds(0.05):
        protocol, connection = clients[number % len(clients)]
        first = number // len(clients) * size
        packet = b"".join(commands.push(protocol, first + n) for n in range(size))
        connection.setblocking(False)
        answered[protocol] += _exchange(protocol, connection, packet, size)
    yield dict(answered)


def _exchange(protocol: str, connection: socket.socket, packet: bytes, count: int) -> int:
    """Send the packet and read the replies, both at full speed."""
    unsent, received = memoryview(packet), 0.0
    deadline = time.monotonic() + 60
    while received + 0.001 < count:
        assert time.monotonic() < deadline, f"{protocol}: only {received} replies"
        with contextlib.suppress(BlockingIOError):
            if unsent:
                unsent = unsent[connection.send(unsent) :]
        try:
            piece = connection.recv(1 << 16)
        except BlockingIOError:
            time.sleep(0.001)
            continue
        if not piece:
            raise ConnectionError(f"{protocol}: closed after {received} replies")
        received += commands.replies(protocol, piece)
    return round(received)


def large_payloads(ports: Ports, size: int) -> Iterator[dict[str, int] | None]:
    """Pushes of the maximum size (`size` is max_line), and one byte larger."""
    yield None
    met: Counter[str] = Counter()
    for number in in_rounds(0.2):
        protocol = PROTOCOLS[number % len(PROTOCOLS)]
        more = number // len(PROTOCOLS) % 2
        payload = b"x" * (commands.largest(protocol, size) + more)
        connection = connect(ports, protocol)
        received = b""
        with contextlib.suppress(ConnectionError):
            connection.sendall(commands.push(protocol, 10_000_000 + number, payload))
            received = connection.recv(1000)
        refused = not received.startswith((b"+OK", b"OK ", b"ADDED", b"$14"))
        assert refused == bool(more), f"{protocol}, {more} more: {received!r}"
        met[f"{protocol} {'refused' if refused else 'taken'}"] += 1
        connection.close()
    yield dict(met)


def unfinished(ports: Ports, size: int) -> Iterator[dict[str, int] | None]:
    """Each client starts a command of 16 MiB and sends all of it except the end."""
    clients = [connect(ports, "goqueue") for _ in range(size)]
    yield None
    payload = b"x" * ((16 << 20) - 1)
    received: Counter[str] = Counter()
    for connection in clients:
        try:
            connection.sendall(commands.BEGUN["goqueue"] + payload)
        except OSError:
            received["cut while sending"] += 1
    while not input_closed(0.1):
        pass
    for connection in clients:
        if is_open(connection):
            received["open"] += 1
        else:
            received["cut"] += 1
    yield dict(received)


def noise(ports: Ports, size: int) -> Iterator[dict[str, int] | None]:
    """TLS, HTTP, random bytes, half-closed connections and resets, on every port."""
    yield None
    closed = 0
    for number in in_rounds(0.001):
        connection = socket.create_connection((HOST, ports[PROTOCOLS[number % 5]]), 30)
        with contextlib.suppress(OSError):
            connection.sendall((CLIENT_HELLO, HTTP, POST, os.urandom(300))[number // 5 % 4])
            if number % 3 == 0:
                connection.shutdown(socket.SHUT_WR)
                closed += read_until_closed(connection, 0.5) is not None
            elif number % 3 == 1:
                reset(connection)
        connection.close()
        if number >= size:
            break
    while not input_closed(0.1):
        pass
    yield {"closed": closed}


def waiters(ports: Ports, size: int) -> Iterator[dict[str, int] | None]:
    """`size` clients wait for the same queue, and jobs are pushed to it one by one."""
    clients = [connect(ports, "goqueue") for _ in range(size)]
    for connection in clients:
        connection.sendall(b"RESERVE\0wanted\0" + bytes(4))
    producer = connect(ports, "goqueue")
    yield None
    pushed = 0
    for number in in_rounds(0.01):
        if number >= size:
            break
        producer.sendall(commands.push("goqueue", 0, b"x", "wanted"))
        producer.recv(100)
        pushed += 1
    while not input_closed(0.1):
        pass
    served = 0
    for connection in clients:
        connection.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            served += connection.recv(1000).count(b"RESERVED\0")
    yield {"pushed": pushed, "served": served}


def many_queues(ports: Ports, size: int) -> Iterator[dict[str, int] | None]:
    """Each push uses a new queue, and each lease requests an unknown one."""
    producer, worker = connect(ports, "faktory"), connect(ports, "masenko")
    yield None
    made = asked = 0
    for number in in_rounds(0.002):
        if number * 10 >= size:
            break
        names = [f"abuse-{number * 10 + n}" for n in range(10)]
        packet = b"".join(
            commands.push("faktory", number * 10 + n, b"", names[n]) for n in range(10)
        )
        producer.sendall(packet)
        made += producer.recv(1000).count(b"+OK")
        wanted = json.dumps({"queues": [f"no-{name}" for name in names], "timeout": "1ms"})
        worker.sendall(f"FETCH {wanted}\n".encode())
        asked += worker.recv(100).count(b"EMPTY") * 10
    while not input_closed(0.1):
        pass
    yield {"made": made, "asked": asked}


def tags(ports: Ports, size: int) -> Iterator[dict[str, int] | None]:
    """Jobs with `size` different tags each."""
    connection = connect(ports, "qless")
    yield None
    put = 0
    for number in in_rounds(0.01):
        words = json.dumps([f"tag-{number}-{n}" for n in range(size)])
        connection.sendall(
            commands.qless(
                "QLESS.PUT", 1, "abuse", f"tagged-{number}", "x", "{}", 1352375200, 0, "tags", words
            )
        )
        put += connection.recv(1000).startswith(b"$")
    yield {"put": put}


def slow_browsers(ports: Ports, size: int) -> Iterator[dict[str, int] | None]:
    """Requests that send a byte now and then, and between them one normal request."""
    assert (
        _page(ports, "/static/base.css") == 200
    )  # the first request waits for the start of the web process
    clients = [socket.create_connection((HOST, ports["web"]), 30) for _ in range(size)]
    for connection in clients:
        with contextlib.suppress(OSError):
            connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ")
    yield None
    for number in in_rounds(0.002):
        for at in range(number * size // 2000, (number + 1) * size // 2000):
            with contextlib.suppress(OSError):
                clients[at % size].send(b"x")
    status = _page(ports, "/static/base.css")
    yield {"open": sum(is_open(each) for each in clients), "served": int(status == 200)}


def browsers(ports: Ports, size: int) -> Iterator[dict[str, int] | None]:
    """Request `size` pages concurrently without a pause."""
    _page(ports, "/")
    yield None
    met: Counter[str] = Counter()
    with ThreadPoolExecutor(size) as pool:
        while not input_closed():
            for status in pool.map(lambda path: _page(ports, path), PAGES * size):
                met[str(status)] += 1
    yield dict(met)


def _page(ports: Ports, path: str) -> int:
    """The status of the response."""
    caller = http.client.HTTPConnection(HOST, ports["web"], timeout=30)
    with contextlib.closing(caller):
        caller.request("GET", path)
        answer = caller.getresponse()
        answer.read()
        return answer.status


ABUSERS: dict[str, Abuser] = {
    abuser.__name__: abuser
    for abuser in (
        slow_senders,
        never_readers,
        connects,
        stampede,
        pipeliners,
        large_payloads,
        unfinished,
        noise,
        waiters,
        many_queues,
        slow_browsers,
        browsers,
        tags,
    )
}


def main() -> None:
    name, size, ports = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
    os.nice(15)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    play = ABUSERS[name](ports, size)
    next(play)
    print("ready", flush=True)
    print(json.dumps(next(play)), flush=True)


if __name__ == "__main__":
    main()

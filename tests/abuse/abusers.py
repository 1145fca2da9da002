"""Those who do the server harm, each in a process of its own that is nicer than all others:

    python abusers.py NAME SIZE PORTS

PORTS is JSON. It says `ready` when its crowd is there, goes on until its standard input ends, and
then tells in JSON what it met with. `SIZE` is how many of whatever it is.
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
    heard_until_end,
    in_rounds,
    is_open,
    reset,
    told_to_stop,
)

Ports = dict[str, int]
#: An abuser sets itself up, yields, does harm until it is told to stop, and yields what it met.
Abuser = Callable[[Ports, int], Iterator[dict[str, int] | None]]
#: The first bytes of a TLS connection, and what browsers say.
CLIENT_HELLO = bytes.fromhex("16030100a5010000a10303") + bytes(range(256))[:155]
HTTP = b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: Mozilla/5.0\r\n\r\n"
#: What costs the most.
PAGES = ("/", "/queues", "/jobs?q=nothing+has+these+words", "/retries", "/failures", "/busy")
POST = (
    b'POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20\r\n\r\nPUSH {"jid":"from-a-page"}\n'
)


def slow_senders(ports: Ports, size: int) -> Iterator[dict[str, int] | None]:
    """A command is begun, and goes on by a byte now and then."""
    people = crowd(ports, size)
    for protocol, connection in people:
        connection.sendall(commands.BEGUN[protocol])
    yield None
    cut = 0
    for number in in_rounds(0.002):
        # Each sends a byte about every four seconds, whatever the size of the crowd.
        for at in range(number * size // 2000, (number + 1) * size // 2000):
            try:
                people[at % size][1].send(b"x")
            except OSError:
                cut += 1
    yield {"open": sum(is_open(connection) for _, connection in people), "cut": cut}


def never_readers(ports: Ports, size: int) -> Iterator[dict[str, int] | None]:
    """Ask for much, and read nothing."""
    people = crowd(ports, size, receive_buffer=4096)
    for _, connection in people:
        connection.setblocking(False)
    yield None
    asked = 0
    for _ in in_rounds(0.05):
        for protocol, connection in people:
            with contextlib.suppress(OSError):
                asked += connection.send(commands.MUCH[protocol] * 200)
    yield {"bytes_asked": asked}


def connects(ports: Ports, size: int) -> Iterator[dict[str, int] | None]:
    """Connect and go, one after the other, in different ways; so many in all."""
    yield None
    made: Counter[str] = Counter()
    for number in range(size):
        if number % 100 == 0 and told_to_stop():
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
    while not told_to_stop(0.1):
        pass
    yield dict(made)


def stampede(ports: Ports, size: int) -> Iterator[dict[str, int] | None]:
    """All at once, and all stay: more than there may be."""
    people = []
    for number in range(size):
        connection = socket.socket()
        connection.setblocking(False)
        connection.connect_ex((HOST, ports[PROTOCOLS[1 + number % 4]]))
        people.append(connection)
        if number % 500 == 499:
            time.sleep(0.02)  # or the kernel's queue of new connections is what is tested
    yield None
    while not told_to_stop(0.1):
        pass
    opened = [connection for connection in people if is_open(connection)]
    yield {"open": len(opened), "refused": size - len(opened)}


def pipeliners(ports: Ports, size: int) -> Iterator[dict[str, int] | None]:
    """So many commands in one packet, over each protocol, again and again."""
    people = [(protocol, connect(ports, protocol)) for protocol in PROTOCOLS]
    yield None
    answered: Counter[str] = Counter()
    for number in in_rounds(0.05):
        protocol, connection = people[number % len(people)]
        first = number // len(people) * size
        packet = b"".join(commands.push(protocol, first + n) for n in range(size))
        connection.setblocking(False)
        answered[protocol] += _exchange(protocol, connection, packet, size)
    yield dict(answered)


def _exchange(protocol: str, connection: socket.socket, packet: bytes, count: int) -> int:
    """Send all of it and read as many replies, both as fast as it goes."""
    unsent, heard = memoryview(packet), 0.0
    deadline = time.monotonic() + 60
    while heard + 0.001 < count:
        assert time.monotonic() < deadline, f"{protocol}: only {heard} replies"
        with contextlib.suppress(BlockingIOError):
            if unsent:
                unsent = unsent[connection.send(unsent) :]
        try:
            piece = connection.recv(1 << 16)
        except BlockingIOError:
            time.sleep(0.001)
            continue
        if not piece:
            raise ConnectionError(f"{protocol}: closed after {heard} replies")
        heard += commands.replies(protocol, piece)
    return round(heard)


def large_payloads(ports: Ports, size: int) -> Iterator[dict[str, int] | None]:
    """Pushes as large as they may be (`size` is max_line), and one byte larger."""
    yield None
    met: Counter[str] = Counter()
    for number in in_rounds(0.2):
        protocol = PROTOCOLS[number % len(PROTOCOLS)]
        more = number // len(PROTOCOLS) % 2
        payload = b"x" * (commands.largest(protocol, size) + more)
        connection = connect(ports, protocol)
        heard = b""
        with contextlib.suppress(ConnectionError):
            connection.sendall(commands.push(protocol, 10_000_000 + number, payload))
            heard = connection.recv(1000)
        refused = not heard.startswith((b"+OK", b"OK ", b"ADDED", b"$14"))
        assert refused == bool(more), f"{protocol}, {more} more: {heard!r}"
        met[f"{protocol} {'refused' if refused else 'taken'}"] += 1
        connection.close()
    yield dict(met)


def unfinished(ports: Ports, size: int) -> Iterator[dict[str, int] | None]:
    """Each begins a command of 16 MiB and sends all of it but the end."""
    people = [connect(ports, "goqueue") for _ in range(size)]
    yield None
    payload = b"x" * ((16 << 20) - 1)
    heard: Counter[str] = Counter()
    for connection in people:
        try:
            connection.sendall(commands.BEGUN["goqueue"] + payload)
        except OSError:
            heard["cut while sending"] += 1
    while not told_to_stop(0.1):
        pass
    for connection in people:
        if is_open(connection):
            heard["open"] += 1
        else:
            heard["cut"] += 1
    yield dict(heard)


def noise(ports: Ports, size: int) -> Iterator[dict[str, int] | None]:
    """TLS, HTTP, rubbish, half-closed connections and resets, on every port."""
    yield None
    closed = 0
    for number in in_rounds(0.001):
        connection = socket.create_connection((HOST, ports[PROTOCOLS[number % 5]]), 30)
        with contextlib.suppress(OSError):
            connection.sendall((CLIENT_HELLO, HTTP, POST, os.urandom(300))[number // 5 % 4])
            if number % 3 == 0:
                connection.shutdown(socket.SHUT_WR)
                closed += heard_until_end(connection, 0.5) is not None
            elif number % 3 == 1:
                reset(connection)
        connection.close()
        if number >= size:
            break
    while not told_to_stop(0.1):
        pass
    yield {"closed": closed}


def waiters(ports: Ports, size: int) -> Iterator[dict[str, int] | None]:
    """So many wait for the same queue, and jobs come to it one by one."""
    people = [connect(ports, "goqueue") for _ in range(size)]
    for connection in people:
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
    while not told_to_stop(0.1):
        pass
    served = 0
    for connection in people:
        connection.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            served += connection.recv(1000).count(b"RESERVED\0")
    yield {"pushed": pushed, "served": served}


def many_queues(ports: Ports, size: int) -> Iterator[dict[str, int] | None]:
    """Each push goes to a queue of its own, and each lease asks for one that nobody knows."""
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
    while not told_to_stop(0.1):
        pass
    yield {"made": made, "asked": asked}


def tags(ports: Ports, size: int) -> Iterator[dict[str, int] | None]:
    """Jobs with so many tags each, all different."""
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
    """Requests that go on by a byte now and then; among them one that is sent as it should be."""
    assert _page(ports, "/static/base.css") == 200  # the first caller waits for the pages to begin
    people = [socket.create_connection((HOST, ports["web"]), 30) for _ in range(size)]
    for connection in people:
        with contextlib.suppress(OSError):
            connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ")
    yield None
    for number in in_rounds(0.002):
        for at in range(number * size // 2000, (number + 1) * size // 2000):
            with contextlib.suppress(OSError):
                people[at % size].send(b"x")
    status = _page(ports, "/static/base.css")
    yield {"open": sum(is_open(each) for each in people), "served": int(status == 200)}


def browsers(ports: Ports, size: int) -> Iterator[dict[str, int] | None]:
    """So many pages at a time, without a pause."""
    _page(ports, "/")
    yield None
    met: Counter[str] = Counter()
    with ThreadPoolExecutor(size) as pool:
        while not told_to_stop():
            for status in pool.map(lambda path: _page(ports, path), PAGES * size):
                met[str(status)] += 1
    yield dict(met)


def _page(ports: Ports, path: str) -> int:
    """How it is answered."""
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

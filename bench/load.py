"""The load generator: several processes, each with its share of the connections, sockets and epoll.

Every connection sends a request, waits for the reply and sends the next request; requests are not
pipelined. The run has three phases: warm-up (not counted), the measured window, and a drain in
which each connection finishes its current cycle. Every started cycle is finished and counted in
`total`; otherwise the run fails.
"""

import gc
import multiprocessing
import multiprocessing.connection
import resource
import select
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from modes import Mode, RefusedError, connect, fill

SAMPLE_EVERY = 17  # prime, so that the sample walks through all commands and connections
DRAIN_SECONDS = 15.0
START_DELAY = 0.2  # time to send the start time to every process after all have connected
MAX_REPLY = 65536


class LoadError(Exception):
    """The run was aborted; its figures are invalid."""


@dataclass(frozen=True)
class Load:
    mode: type[Mode]
    port: int
    connections: int = 64
    processes: int = 2
    seconds: float = 8.0
    warmup: float = 1.0
    preload: int = 200


@dataclass(frozen=True)
class Window:
    """The times of a run, on the monotonic clock that all processes share."""

    start: float
    begin: float
    end: float


@dataclass
class Share:
    """The counts and samples of one generator process."""

    cycles: int = 0
    total: int = 0
    span: float = 0.0
    cpu: float = 0.0
    commands: list[list[float]] = field(default_factory=lambda: [[], [], []])
    whole: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Latency:
    """Milliseconds, of a sample of the window."""

    p50: float
    p99: float
    samples: int


@dataclass(frozen=True)
class Outcome:
    """`rate` is cycles a second; `server_cpu` and `generator_cpu` are CPU seconds per second."""

    rate: float
    cycles: int
    total: int
    seconds: float
    server_cpu: float
    generator_cpu: float
    commands: dict[str, Latency]
    cycle: Latency

    @property
    def cpu_per_cycle(self) -> float:
        return self.server_cpu / self.rate if self.rate else 0.0

    @property
    def cycles_per_cpu_second(self) -> float:
        return self.rate / self.server_cpu if self.server_cpu else 0.0


class Connection:
    """One socket and its conversation."""

    __slots__ = ("began", "mode", "received", "recv", "send", "sent", "sock")

    def __init__(self, sock: socket.socket, mode: Mode) -> None:
        self.sock = sock
        self.mode = mode
        self.recv = sock.recv
        self.send = sock.send
        self.received = b""  # a reply that is not complete yet
        self.sent = 0.0  # send time of the command, if it is in the sample
        self.began = 0.0  # start of the cycle, if it is in the sample


def run(
    load: Load,
    server_cpu: Callable[[], float],
    watch: Callable[[float], None] = lambda _elapsed: None,
) -> Outcome:
    """Put the load on a server that already listens.

    `server_cpu` returns the CPU seconds used by the server so far; `watch` is called a few times
    per second with the elapsed seconds.
    """
    fill(load.mode("fill-0"), load.port, load.preload)
    context = multiprocessing.get_context("fork")
    pipes: list[multiprocessing.connection.Connection] = []
    workers = []
    try:
        for number in range(load.processes):
            ours, theirs = context.Pipe()
            worker = context.Process(target=generate, args=(load, number, theirs), daemon=True)
            worker.start()
            theirs.close()
            pipes.append(ours)
            workers.append(worker)
        for pipe in pipes:
            receive(pipe, 60.0)  # all its connections are open
        start = time.monotonic() + START_DELAY
        window = Window(start, start + load.warmup, start + load.warmup + load.seconds)
        for pipe in pipes:
            pipe.send(window)
        wait_until(window.begin, window.start, watch)
        cpu_begin, clock_begin = server_cpu(), time.monotonic()
        wait_until(window.end, window.start, watch)
        cpu_end, clock_end = server_cpu(), time.monotonic()
        shares = [receive(pipe, DRAIN_SECONDS + 10) for pipe in pipes]
    finally:
        for worker in workers:
            worker.kill()
            worker.join()
    return outcome(load, shares, (cpu_end - cpu_begin) / (clock_end - clock_begin))


def receive(pipe: multiprocessing.connection.Connection, timeout: float) -> Share:
    if not pipe.poll(timeout):
        raise LoadError(f"a generator process sent no message for {timeout:.0f} s")
    try:
        answer = pipe.recv()
    except EOFError:
        raise LoadError("a generator process died") from None
    if isinstance(answer, str):
        raise LoadError(answer)
    assert isinstance(answer, Share)
    return answer


def wait_until(moment: float, start: float, watch: Callable[[float], None]) -> None:
    while (left := moment - time.monotonic()) > 0:
        time.sleep(min(left, 0.25))
        watch(max(0.0, time.monotonic() - start))


def outcome(load: Load, shares: list[Share], server_cpu: float) -> Outcome:
    commands = {
        name: latency([share.commands[step] for share in shares])
        for step, name in enumerate(load.mode.commands)
    }
    return Outcome(
        rate=sum(share.cycles / share.span for share in shares),
        cycles=sum(share.cycles for share in shares),
        total=sum(share.total for share in shares),
        seconds=load.seconds,
        server_cpu=server_cpu,
        generator_cpu=sum(share.cpu / share.span for share in shares),
        commands=commands,
        cycle=latency([share.whole for share in shares]),
    )


def latency(samples: list[list[float]]) -> Latency:
    ordered = sorted(value for sample in samples for value in sample)
    if not ordered:
        return Latency(0.0, 0.0, 0)
    count = len(ordered)
    return Latency(
        p50=ordered[count // 2] * 1000,
        p99=ordered[min(count - 1, count * 99 // 100)] * 1000,
        samples=count,
    )


def generate(load: Load, number: int, pipe: multiprocessing.connection.Connection) -> None:
    """One generator process: connect, wait for the start time, load, report."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and ends this process
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    gc.disable()  # the loop creates no reference cycles, and a collection would add latency
    try:
        connections = open_connections(load, number)
        pipe.send(Share())
        if not pipe.poll(120.0):
            return
        pipe.send(run_cycles(connections, pipe.recv()))
    except (LoadError, RefusedError, OSError) as error:
        pipe.send(f"{type(error).__name__}: {error}")


def open_connections(load: Load, number: int) -> dict[int, Connection]:
    connections = {}
    for index in range(number, load.connections, load.processes):
        sock = connect(load.port)
        mode = load.mode(f"process{number}-{index:05d}")
        mode.greet(sock)
        sock.setblocking(False)
        connections[sock.fileno()] = Connection(sock, mode)
    return connections


def run_cycles(connections: dict[int, Connection], window: Window) -> Share:
    """The main loop. It uses locals instead of attributes and samples the clock, because its CPU
    time reduces the server's share of the cores.
    """
    clock = time.monotonic
    share = Share()
    samples, whole = share.commands, share.whole
    finished = 0  # cycles, since the start
    countdown = SAMPLE_EVERY
    draining = False
    busy = len(connections)  # connections with an unfinished cycle
    window_began = cpu_began = 0.0
    boundary = window.begin

    poll_all = select.epoll()
    poll = poll_all.poll
    for descriptor in connections:
        poll_all.register(descriptor, select.EPOLLIN)
    limit = max(1, len(connections))

    time.sleep(max(0.0, window.start - clock()))
    for connection in connections.values():
        connection.sock.send(connection.mode.first())

    while busy:
        events = poll(max(0.0, boundary - clock()), limit)
        now = clock()
        if now >= boundary:
            if not window_began:
                window_began, cpu_began, boundary = now, own_cpu(), window.end
                share.cycles = -finished
                samples[:] = [[], [], []]
                whole = share.whole = []
            elif not draining:
                draining, boundary = True, window.end + DRAIN_SECONDS
                share.cycles += finished
                share.span, share.cpu = now - window_began, own_cpu() - cpu_began
                samples = [[], [], []]  # later commands are not measured
                whole = []
            else:
                raise LoadError(f"{busy} commands had no reply {DRAIN_SECONDS:.0f} s after the end")
        for descriptor, _ in events:
            connection = connections[descriptor]
            received = connection.recv(MAX_REPLY)
            if not received:
                raise LoadError("the server closed a connection")
            if connection.received:
                received = connection.received + received
                connection.received = b""
            mode = connection.mode
            step = mode.step
            request = mode.next(received)
            if request is None:
                connection.received = received
                continue
            if connection.sent:
                samples[step].append(clock() - connection.sent)
                connection.sent = 0.0
            if mode.step == 0:
                finished += 1
                if connection.began:
                    whole.append(clock() - connection.began)
                    connection.began = 0.0
                if draining:
                    busy -= 1
                    continue
            countdown -= 1
            if not countdown:
                countdown = SAMPLE_EVERY
                connection.sent = clock()
                if mode.step == 0:
                    connection.began = connection.sent
            if connection.send(request) != len(request):
                raise LoadError("a request did not fit into an empty socket buffer")

    share.total = finished
    for connection in connections.values():
        connection.sock.close()
    return share


def own_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime

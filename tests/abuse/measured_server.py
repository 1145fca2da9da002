"""An in-process server with a large number of jobs that measures the longest callback of its loop.

`LargeWorld` fills an engine once. `measure` forks: the child serves one request from a copy of that
engine, on the server's own sessions, turns and store, and reports its longest callback, so rows do
not affect each other. A callback is measured in work units (executed lines of Python, which do not
depend on the machine) or in seconds of CPU.
"""

import asyncio
import ctypes
import gc
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from random import Random
from time import thread_time
from typing import Any, NamedTuple

from command_rows import Request, Stage
from held_server import MAX_CONNECTIONS, HeldCommits, HeldServer, _fail, _Transport
from line_counter import counted, in_c
from raw_conversation import is_complete, reply_content

from millrace.admin.connection import AdminConnection
from millrace.admin.service import AdminService
from millrace.config import Config
from millrace.engine.engine import Engine
from millrace.engine.job import NewJob
from millrace.engine.limits import QUEUE_KEY_PREFIX
from millrace.protocols.registry import FAKTORY, MASENKO, QLESS, WORKQ
from millrace.protocols.spec import protocol_rules
from millrace.server import run_queue
from millrace.server.app import GC_THRESHOLDS, clock, listeners
from millrace.server.commit_thread import CommitThread
from millrace.server.server import Server
from millrace.server.session import Session
from millrace.store import SqliteStore

SECOND = 1_000_000
#: The size of one read from a socket.
READ_BYTES = 256 << 10
MAX_PASSES = 2_000_000
#: madvise: make all pages of a range present and writable.
MADV_POPULATE_WRITE = 23
#: The code of the tests does not count.
TESTS = str(Path(__file__).parent.parent)
MEMORY_DISK = Path("/dev/shm")


class Sizes(NamedTuple):
    jobs: int
    queues: int
    dependents: int


class Slice(NamedTuple):
    """The longest callback of a request: its cost, and the functions that cost most."""

    cost: float
    slices: int
    reply: str
    where: str


class LargeWorld:
    """An engine with jobs in every state, and the hubs of all protocols."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.engine = Engine(Random(1), protocol_rules(), dead_max=sizes.jobs)
        self.now = clock()
        self._fill()
        self.listeners = listeners(Config(), self.engine, self.now, MAX_CONNECTIONS)
        self.admin = AdminService(self.engine, MAX_CONNECTIONS)
        hubs = [*(each.hub for each in self.listeners), self.admin]
        for hub in hubs:
            hub.hubs = hubs
        self.admin.begin(self.now)
        while self.engine.failure_groups.index_batch():
            pass
        self.engine.take_changes()

    def _push(self, jid: str, queue: str, **fields: Any) -> Any:
        origin = fields.pop("origin", FAKTORY)
        if origin == FAKTORY:
            fields["wire_fields"] = b"\n\n\n"
        payload = fields.pop("payload", b'["someone@example.com"]')
        push = NewJob(jid, "Mail", payload, origin, queue, 25, 1800 * SECOND, **fields)
        return self.engine.push(push, self.now)

    def _fill(self) -> None:
        jobs, queues, dependents = self.sizes
        engine, now = self.engine, self.now
        for number in range(queues):
            self._push(f"one-{number}", f"queue-{number:06}")
        blockers = {
            "masenko-root": MASENKO,
            "qless-root": QLESS,
        }
        for name, origin in blockers.items():
            root = self._push(name, name, origin=origin)
            for number in range(dependents // 2):
                blocked = {"origin": origin, "blockers": [root.seq]}
                self._push(f"{name}-{number}", "waiting", **blocked)
        for number in range(jobs // 20):
            self._push(f"held-{number}", "held")
            engine.lease(("held",), f"worker-{number % 500}", FAKTORY, now)
            job = self._push(f"dead-{number}", "dead")
            engine.lease(("dead",), "w", FAKTORY, now)
            engine.fail(job, now, FAKTORY, f"Error{number % 1000}", "it broke", ["line"])
            engine.kill(job, now)
            self._push(f"qless-{number}", "qless", origin=QLESS, tags=["all", f"tag-{number}"])
            self._push(f"later-{number}", "later", due_at=now + (3600 + number) * SECOND)
            done = self._push(f"done-{number}", "done", retention=3600 * SECOND)
            engine.lease(("done",), "w", FAKTORY, now)
            engine.complete(done, now, FAKTORY, result=b"[1]")
            wait = {"origin": WORKQ, "due_at": now + (3600 + number) * SECOND}
            self._push(_uuid(number), "workq-later", **wait)
            self._push(_uuid(number + jobs), "workq-ready", origin=WORKQ)
        for number in range(jobs // 200):
            engine.track(f"tracked-{number}", now)
            engine.set_limit(f"limit-{number}", 5, 0, now)
        engine.set_limit(QUEUE_KEY_PREFIX + "limited", 1, 0, now)
        for number in range(max(0, jobs - len(engine.jobs))):
            self._push(f"job-{number}", "big")

    def measure(self, prepare: Callable[[Stage], Request], *, units: bool) -> Slice:
        """The longest callback while the server executes a request."""
        in_c()  # it is compiled once, not in every child
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.close(reading)
            status = 1
            try:
                with tempfile.TemporaryDirectory(prefix="millrace-slices-", dir=_disk()) as folder:
                    result = _serve(self, Path(folder), prepare, units)
                os.write(writing, json.dumps(result).encode())
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            data = pipe.read()
        os.waitpid(child, 0)
        assert data, "the child failed"
        return Slice(*json.loads(data))


def _disk() -> Path | None:
    return MEMORY_DISK if MEMORY_DISK.is_dir() else None


def _uuid(number: int) -> str:
    return f"61a444a0-6128-41c0-8078-{number:012x}"


def _serve(
    world: LargeWorld, folder: Path, prepare: Callable[[Stage], Request], units: bool
) -> Slice:
    gc.set_threshold(*GC_THRESHOLDS)
    gc.freeze()
    server = MeasuredServer(world, folder, HeldCommits if units else CommitThread)
    protocol, data, client = prepare(Stage(server, "expensive"))
    if not units:
        _copy_pages()
    return server.measure(protocol, data, client, units=units)


def _copy_pages() -> None:
    """Copy the memory that this process shares with its parent. Otherwise the kernel copies a page
    at the first access to any of its objects, and these copies would count for the request.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, rights, _, _, inode, *name = line.split()
        if rights == "rw-p" and inode == "0" and (not name or name[0] == "[heap]"):
            start, end = (int(word, 16) for word in span.split("-"))
            if libc.madvise(start, end - start, MADV_POPULATE_WRITE):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


class MeasuredServer(HeldServer):
    """The server of held_server.py on the engine of a large world."""

    def __init__(self, world: LargeWorld, folder: Path, commits: type[CommitThread]) -> None:
        self._world = world
        #: CommitThread as in a server: a commit takes no time of the loop.
        self._commits = commits
        self._cost = self._slices = 0.0
        super().__init__(folder)

    async def _open(self, folder: Path) -> None:
        world = self._world
        self.engine = world.engine
        self.store = SqliteStore(folder / "data", sync=False)
        self.store.load()
        self.server = Server(
            self.engine,
            self.store,
            clock,
            max_connections=MAX_CONNECTIONS,
            max_output=1 << 30,
            on_fatal_error=_fail,
            commits=self._commits,
        )
        self._connect = {each.name: each.connect for each in world.listeners}
        self._connect["control"] = lambda: AdminConnection(world.admin)
        for hub in (*(each.hub for each in world.listeners), world.admin):
            self.server.hubs.append(hub)
            hub.hubs, hub.connections_with_messages = (
                self.server.hubs,
                self.server.connections_with_messages,
            )

    def send(self, protocol: str, request: bytes, client: str = "main") -> bytes:
        """Send a request that prepares the measured one, and wait for its reply."""
        session, transport = self._session(protocol, client)
        transport.written = b""
        session.data_received(request)
        self._loop.run_until_complete(self._answered(session, transport, protocol))
        return reply_content(protocol, transport.written)

    async def _answered(self, session: Session, transport: _Transport, protocol: str) -> None:
        for _ in range(MAX_PASSES):
            await asyncio.sleep(0)
            has_reply = transport.closed or is_complete(protocol, transport.written)
            if not session._continuing and (has_reply or session.connection.waiter is not None):
                return
        raise AssertionError(f"no reply: {transport.written[:200]!r}")

    def measure(self, protocol: str, data: bytes, client: str, *, units: bool) -> Slice:
        session, transport = self._session(protocol, client)
        transport.written = b""
        run = asyncio.Handle._run
        count = _counted if units else _timed
        if units:
            # A slice ends after one step, so that its cost does not depend on the machine.
            run_queue.SLICE_MICROSECONDS = 0  # type: ignore[misc]
        longest, where, slices = 0.0, "", 0

        def measured(handle: Any) -> Any:
            nonlocal longest, where, slices
            if isinstance(getattr(handle._callback, "__self__", None), asyncio.Task):
                run(handle)  # a task of the tests: the server executes commands in callbacks
                return
            cost, spent = count(lambda: run(handle))
            slices += 1
            if cost > longest:
                longest, where = cost, spent

        asyncio.Handle._run = measured  # type: ignore[method-assign]
        try:
            self._loop.run_until_complete(self._send(session, transport, protocol, data))
        finally:
            asyncio.Handle._run = run  # type: ignore[method-assign]
        return Slice(longest, slices, repr(transport.written[:200]), where)

    async def _send(
        self, session: Session, transport: _Transport, protocol: str, data: bytes
    ) -> None:
        for start in range(0, len(data), READ_BYTES):
            self._loop.call_soon(session.data_received, data[start : start + READ_BYTES])
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        quiet = 0
        for _ in range(MAX_PASSES):
            await asyncio.sleep(0)
            busy = session._continuing or self.engine.has_uncommitted
            ended = transport.closed or (not busy and is_complete(protocol, transport.written))
            waits = session.connection.waiter is not None
            quiet = quiet + 1 if not busy and (ended or waits) else 0
            if quiet > 20:
                return
        raise AssertionError(f"no reply: {transport.written[:200]!r}")


def _timed(call: Callable[[], None]) -> tuple[float, str]:
    began = thread_time()
    call()
    return thread_time() - began, ""


def _counted(call: Callable[[], None]) -> tuple[int, str]:
    """The number of lines of Python that a call executes."""
    lines = counted(call, TESTS)
    most = (f"{code.co_qualname} {count}" for code, count in lines.most_common(6))
    return lines.total(), ", ".join(most)

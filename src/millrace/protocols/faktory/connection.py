"""One Faktory client's connection: framing, then the commands in the spec's order."""

from collections.abc import Iterator
from functools import partial
from typing import Final, NamedTuple

import msgspec

from millrace.engine.job import FAKTORY, Job, Push
from millrace.engine.policy import SECOND
from millrace.engine.states import BLOCKED, READY, SCHEDULED
from millrace.engine.waiters import Waiter
from millrace.engine.workers import QUIET, TERMINATE, WORKER_STATES, Worker
from millrace.protocols import go_json
from millrace.protocols.buffers import LineBuffer
from millrace.protocols.connection import Connection
from millrace.protocols.errors import BadJson, ClientError
from millrace.protocols.logins import TooManyGuesses
from millrace.protocols.web_clients import is_web_request

from . import bulk as many
from . import extensions, info, mutate, work_unit
from .hub import FaktoryHub, admits

OK: Final = b"+OK\r\n"
NOTHING: Final = b"$-1\r\n"
#: The wait of a FETCH without a ready job.
FETCH_WAIT: Final = 2 * SECOND
MAX_BACKTRACE: Final = 50
#: How much of a client's own text goes into an error.
MAX_ECHO: Final = 200
#: How long an error may be.
MAX_ERROR: Final = 1000
#: The size of a HELLO. Its content is kept while the client is connected, and a client without the
#: password can send it.
MAX_HELLO: Final = 1 << 18
#: Jobs of a PUSHB, and queues of a QUEUE command, in one slice.
SLICE: Final = 100
#: After a reply of this size the next command waits for the next turn, and the reply can go out.
LARGE_REPLY: Final = 65_536
#: A push is compared with this number of the newest jobs with its jid.
MAX_DUPLICATES: Final = 16
#: An identical push within this time is taken for the same one, sent again.
RESEND_PERIOD: Final = 60 * SECOND
#: Queues in one FETCH or QUEUE: each is looked at before other clients are served.
MAX_QUEUES: Final = 10_000
#: And so much all their names may take.
MAX_QUEUES_BYTES: Final = 1 << 20
#: Commands whose replies depend on no durable state; a lease decides by its job.
NEVER_WAIT: Final = frozenset({b"FETCH", b"BEAT", b"INFO", b"END", b"BATCH", b"TRACK", b"WORKER"})
PUSHING: Final = frozenset({b"PUSH", b"PUSHB"})
#: Commands that are refused while the store cannot be written, besides some of QUEUE.
CHANGING: Final = frozenset({b"PUSH", b"PUSHB", b"ACK", b"FAIL", b"FLUSH", b"MUTATE"})

_decode_ack = msgspec.json.Decoder(dict[str, str | None]).decode
_decode_list = msgspec.json.Decoder(list[msgspec.Raw] | None).decode


class _Hello(NamedTuple):
    """The content of a HELLO."""

    wid: str
    hostname: str
    pid: int
    labels: list[str]
    rss_kb: int


def bulk(body: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(body), body)


def error(text: str) -> bytes:
    """An error reply in one line."""
    flat = " ".join(text[:MAX_ERROR].splitlines())
    return b"-ERR %b\r\n" % flat.encode("utf-8", "replace")


def shown(data: bytes) -> str:
    """A client's bytes for an error text."""
    return data[:MAX_ECHO].decode("utf-8", "replace")


class FaktoryConnection(Connection):
    def __init__(self, hub: FaktoryHub) -> None:
        super().__init__()
        self.hub = hub
        self.engine = hub.engine
        self.identified = False
        self.worker: Worker | None = None
        self._lines = LineBuffer(hub.max_line)
        self._idle = True  # no input, wait or long command: input can be executed directly
        self._fetch_names: bytes | None = None
        self._fetch_queues: tuple[str, ...] = ()
        #: The password at the time of the greeting; the hub's password can change later.
        self._password = hub.password
        self._iterations, self._salt = 0, ""
        if self._password:
            self._iterations, self._salt = hub.challenge()
            self._say(b'+HI {"v":2,"i":%d,"s":"%b"}\r\n' % (self._iterations, self._salt.encode()))
        else:
            self._say(b'+HI {"v":2}\r\n')

    # Framing

    @property
    def backlog(self) -> int:
        return self._lines.size

    @property
    def held(self) -> int:
        return self._lines.held + (0 if self.work is None else self.work_size)

    def discard(self) -> None:
        self._lines = LineBuffer(0)
        self.work = None

    def feed(self, data: bytes) -> None:
        self._idle = False
        self._lines.feed(data)

    def receive(self, data: bytes, now: int, most: int) -> bool:
        # The usual case: one complete command, and the connection is idle.
        end = len(data) - 1
        if self._idle and 0 <= end <= self._lines.limit and data.find(b"\n") == end:
            self._execute(data[:-1], now)
            self._idle = self.waiter is None and self.work is None and not self.closing
            return self.work is not None and self.run(now, most)
        self._lines.feed(data)
        more = self.run(now, most)
        self._idle = (
            self._lines.empty and self.waiter is None and self.work is None and not self.closing
        )
        return more

    def run(self, now: int, most: int) -> bool:
        pending = self._lines.pending
        while most > 0 and self.waiter is None and not self.closing:
            if self.work is not None:
                most -= self.work_slice()
            elif pending:
                most -= 1
                self._execute(self._lines.take(), now)
                if self.replies and len(self.replies[-1]) > LARGE_REPLY:
                    most = 0
            else:
                if not self.identified and is_web_request(self._lines.partial):
                    self.reject_web_client(self.hub)
                elif self._lines.too_long:
                    self._end(error(f"command too long: the limit is {self._lines.limit} bytes"))
                    self.drains_input = True
                return False
        return self.waiter is None and not self.closing and bool(pending or self.work)

    def _execute(self, line: bytes, now: int) -> None:
        verb, space, argument = line.removesuffix(b"\r").partition(b" ")
        if not self.identified:
            if is_web_request(line):
                self.reject_web_client(self.hub)
            else:
                self._hello(verb, argument, now)
            return
        command = self._commands.get(verb)
        if command is None and is_web_request(line):
            self.reject_web_client(self.hub)
            return
        if command is None:
            self._say_error(error(f"unknown command {shown(verb)}"))
            return
        engine = self.engine
        self.hub.commands += 1
        if engine.halted and verb in CHANGING:
            self._say_error(self.refusal(engine.halted))
            return
        if engine.pushes_refused and verb in PUSHING:
            self._say_error(self.refusal(engine.pushes_refused))
            return
        before, said = engine.changes, len(self.replies)
        try:
            command(self, argument if space else None, now)
        except ClientError as problem:
            self._say_error(error(str(problem)))
        if len(self.replies) > said and (
            engine.changes != before or (verb not in NEVER_WAIT and engine.has_uncommitted)
        ):
            self.marks.append(len(self.replies) - 1)

    def _say(self, reply: bytes) -> None:
        self.replies.append(reply)

    def _say_error(self, reply: bytes) -> None:
        self.hub.errors += 1
        self.replies.append(reply)

    def _end(self, reply: bytes) -> None:
        self.hub.errors += reply[:1] == b"-"
        self.replies.append(reply)
        self.closing = True

    def refusal(self, reason: str) -> bytes:
        return error(_refused(reason))

    def overdue(self) -> bool:
        return not self.identified and self.work is None

    def lost(self, now: int) -> None:
        self.closing = True
        self.work = None  # it refers to this connection
        self.hub.readings.end(self)
        if self.waiter is not None:
            self.engine.unwait(self.waiter)
            self.waiter = None
        if self.identified:
            self.hub.connections.discard(self)
        if self.worker is not None:
            self.hub.leave(self, self.worker, now)
            self.worker = None

    # HELLO

    def _hello(self, verb: bytes, argument: bytes, now: int) -> None:
        if verb != b"HELLO" or not argument.startswith(b"{"):
            self._end(error(f"expected HELLO {{...}} first, got {shown(verb) or 'an empty line'}"))
            return
        if len(argument) > MAX_HELLO:
            self._end(error(f"invalid HELLO: longer than {MAX_HELLO} bytes"))
            return
        try:
            known = frozenset({"hostname", "wid", "pid", "labels", "v", "pwdhash", "rss_kb"})
            mine, _ = go_json.folded(go_json.repair_text(argument), known)
            hostname = go_json.string(mine.get("hostname"), "hostname")
            wid = go_json.string(mine.get("wid"), "wid")
            pid = go_json.integer(mine.get("pid"), "pid") or 0
            labels = go_json.strings(mine.get("labels"), "labels")
            version = go_json.integer(mine.get("v"), "v", 0, 255) or 0
            pwdhash = go_json.string(mine.get("pwdhash"), "pwdhash")
            rss_kb = go_json.integer(mine.get("rss_kb"), "rss_kb") or 0
        except BadJson as problem:
            self._end(error(f"invalid HELLO: {problem}"))
            return
        hello = _Hello(wid, hostname, pid, labels, rss_kb)
        if self._password:
            rounds = self._iterations if version >= 2 else 1  # clients of old hash once
            self.begin_work(self._check(hello, pwdhash, rounds, now))
        else:
            self._welcome(hello, now)

    def _check(self, hello: _Hello, pwdhash: str, rounds: int, now: int) -> Iterator[None]:
        """Check the password in slices: a client without it can cause thousands of hash rounds."""
        logins, seconds = self.hub.logins, now / SECOND
        try:
            logins.check(self.address, seconds)
            admitted = yield from admits(self._password, pwdhash, rounds, self._salt)
            logins.check(self.address, seconds)  # again, because many clients can guess at once
        except TooManyGuesses as problem:
            self._end(error(str(problem)))
            return
        if admitted:
            self._welcome(hello, now)
        else:
            if pwdhash:  # a client without a password does not guess
                logins.add(self.address, pwdhash, seconds)
            self._end(error("Invalid password"))

    def _welcome(self, hello: _Hello, now: int) -> None:
        hub = self.hub
        self._say(OK)
        if hub.full:
            self._end(error(f"too many connections: {hub.max_connections + 1}"))
            return
        self.identified = True
        hub.connections.add(self)
        if hello.wid:
            self.worker = worker = hub.join(self, hello.wid, now)
            worker.hostname, worker.pid, worker.labels = hello.hostname, hello.pid, hello.labels
            worker.rss_kb = hello.rss_kb
            if hub.stopping:
                hub.advance(worker, TERMINATE)

    # Commands for every client

    def _flush(self, _: bytes | None, now: int) -> None:
        self.engine.flush(now)
        self._say(OK)

    def _info(self, _: bytes | None, now: int) -> None:
        self._say(bulk(info.write(self.hub, now)))

    def _finish(self, _: bytes | None, now: int) -> None:
        self._end(OK)

    # Producers

    def _push(self, argument: bytes | None, now: int) -> None:
        try:
            push = work_unit.read(_need(argument) if argument is None else argument, now)
        except BadJson as problem:
            raise ClientError(f"invalid JSON: {problem}") from None
        if push.jid in self.engine.by_jid or extensions.MARK in push.spec:
            self._take(push, now)
        else:
            self.engine.push(push, now)
        self.replies.append(OK)

    def _take(self, push: Push, now: int) -> None:
        """Push, unless a client has sent the same work unit again after a read timeout.

        A job that a worker has fetched, or that is older, was not sent again: its client may push
        the same work a second time on purpose.
        """
        engine = self.engine
        if engine.find(push.jid) is not None:
            for job in engine.find_newest(push.jid, MAX_DUPLICATES):
                if (
                    job.state in {READY, SCHEDULED, BLOCKED}
                    and not job.attempt
                    and now - job.created < RESEND_PERIOD
                    and work_unit.same(job, push)
                ):
                    engine.depend()
                    return
        if extensions.MARK in push.spec:
            extensions.apply_extensions(push, engine)
        job = engine.push(push, now)
        if push.tags:
            for hub in self.hub.hubs:
                hub.job_tagged(job, now)

    def _push_bulk(self, argument: bytes | None, now: int) -> None:
        line = go_json.repair_text(_need(argument))
        try:
            units = _decode_list(line) or []
        except msgspec.MsgspecError as problem:
            mended = go_json.mend(line)
            if mended != line:
                self._push_bulk(mended, now)
                return
            raise ClientError(f"invalid JSON: {go_json.plain(problem)}") from None
        except RecursionError:
            try:
                units = [msgspec.Raw(unit) for unit in go_json.deep_elements(line)]
            except BadJson as problem:
                raise ClientError(f"invalid JSON: {problem}") from None
        self.begin_work(self._pushing(units, now), len(line))

    def _pushing(self, units: list[msgspec.Raw], now: int) -> Iterator[None]:
        """Read all jobs, then push the valid ones, in slices."""
        failed: dict[str, str] = {}
        pushes: list[Push] = []
        undone = self.engine.reverts
        try:
            for number, unit in enumerate(units, 1):
                try:
                    pushes.append(work_unit.read(bytes(unit), now))
                except BadJson as problem:  # one job of a wrong type refuses them all
                    self._say_error(error(f"invalid JSON: {problem}"))
                    return
                except ClientError as problem:
                    failed[work_unit.jid_of(bytes(unit))] = str(problem)[:MAX_ERROR]
                if number % SLICE == 0:
                    yield
            for number, push in enumerate(pushes, 1):
                self._take(push, now)
                if number % SLICE == 0:
                    yield
                    self._go_on(undone)
        except ClientError as problem:
            self.wait_for_commit(self.engine)
            self._say_error(error(str(problem)))
            return
        self.marks.append(len(self.replies))
        self._say(bulk(msgspec.json.encode(failed)))

    def _go_on(self, undone: int) -> None:
        """Stop a long command if the changes of an earlier slice were reverted."""
        engine = self.engine
        if engine.reverts != undone or engine.halted:
            reason = engine.halted or "the store failed"
            raise ClientError(f"{reason}: only a part was done, try again later")

    # Consumers

    def _fetch(self, argument: bytes | None, now: int) -> None:
        if argument != self._fetch_names or argument is None:
            names = _queue_names(argument or b"")
            self._fetch_names = argument
            self._fetch_queues = tuple(names) or ("default",)
        worker = self.worker
        holder = "" if worker is None else worker.wid
        queues = self._fetch_queues
        if (worker is not None and worker.state) or self.hub.stopping:
            queues = ()  # the worker or the server stops: no job is leased
        job = self.engine.lease(queues, holder, FAKTORY, now)
        if job is not None:
            self._hand(job)
            return
        self.waiter = Waiter(queues, holder, FAKTORY, self)
        self.engine.wait(self.waiter, now + FETCH_WAIT)

    def deliver(self, job: Job, now: int) -> None:
        self.waiter = None
        self._hand(job)

    def _hand(self, job: Job) -> None:
        self.hand(job, bulk(work_unit.write(job)), self.engine)

    def timed_out(self, now: int) -> None:
        self.waiter = None
        self._say(NOTHING)

    def _ack(self, argument: bytes | None, now: int) -> None:
        try:
            line = _need(argument) if argument is None else argument
            jid = _decode_ack(line if line.isascii() else go_json.repair_text(line))["jid"]
        except (msgspec.MsgspecError, KeyError, RecursionError):
            raise ClientError(f"invalid ACK {shown(argument or b'')}") from None
        job = self._held(jid or "", now)
        if job is not None:
            self.engine.complete(job, now, FAKTORY)
        else:
            self.engine.depend()  # another client's ACK can be uncommitted
        self.replies.append(OK)

    def _held(self, jid: str, now: int) -> Job | None:
        """The leased job with this jid. Every client may end it, unless it was leased over a
        protocol that reserves this right to the holder.
        """
        holder = "" if self.worker is None else self.worker.wid
        engine = self.engine
        held = engine.find_leased(jid, FAKTORY, holder)
        return held or engine.regain(jid, holder, FAKTORY, now)

    def _fail(self, argument: bytes | None, now: int) -> None:
        line = go_json.repair_text(_need(argument))
        try:
            mine, _ = go_json.folded(line, frozenset({"jid", "errtype", "message", "backtrace"}))
            jid = go_json.string(mine.get("jid"), "jid")
            group = cut(go_json.string(mine.get("errtype"), "errtype"), 100)
            message = cut(go_json.string(mine.get("message"), "message"), 1000)
            backtrace = go_json.strings(mine.get("backtrace"), "backtrace")[:MAX_BACKTRACE]
        except BadJson:
            raise ClientError(f"invalid FAIL {shown(line)}") from None
        if not jid:
            raise ClientError("missing JID")
        job = self._held(jid, now)
        if job is None:
            raise ClientError(f"Job not found {shown(jid.encode())}")
        self.engine.fail(job, now, FAKTORY, group, message, backtrace)
        self._say(OK)

    def _beat(self, argument: bytes | None, now: int) -> None:
        line = go_json.repair_text(_need(argument))
        try:
            mine, _ = go_json.folded(line, frozenset({"wid", "current_state", "rss_kb"}))
            wid = go_json.string(mine.get("wid"), "wid")
            state = go_json.string(mine.get("current_state"), "current_state")
            rss_kb = go_json.integer(mine.get("rss_kb"), "rss_kb") or 0
        except BadJson:
            raise ClientError(f"invalid BEAT {shown(line)}") from None
        worker = self.hub.workers.known.get(wid)
        if worker is None:
            raise ClientError(f"unknown worker {shown(wid.encode())}")
        worker.beat_at = now
        worker.rss_kb = rss_kb
        if state in {"quiet", "terminate"}:
            self.hub.advance(worker, WORKER_STATES.index(state))
        if worker.state:
            self._say(bulk(b'{"state":"%b"}' % WORKER_STATES[worker.state].encode()))
        else:
            self._say(OK)

    # Beyond the spec

    def _queue(self, argument: bytes | None, now: int) -> None:
        sub, space, rest = _need(argument).strip().partition(b" ")
        what = sub.upper()
        names = _queue_names(rest)
        if what in {b"PAUSE", b"RESUME", b"REMOVE"}:
            if not space:
                raise ClientError("internal error")
            if self.engine.halted:
                raise ClientError(_refused(self.engine.halted))
            self.begin_work(self._change_queues(what, names, now))
        elif what == b"LATENCY":
            if names == ["*"]:
                raise ClientError("QUEUE LATENCY does not support wildcards")
            self._say(bulk(info.latency(self.engine, names, now)))
        else:
            raise ClientError(f"no such QUEUE subcommand: {shown(sub)}")

    def _change_queues(self, what: bytes, names: list[str], now: int) -> Iterator[None]:
        engine = self.engine
        if names == ["*"]:
            names = list(engine.queues)
        undone = engine.reverts
        try:
            for number, name in enumerate(names, 1):
                if what == b"REMOVE":
                    for _ in engine.remove_queue_in_slices(name, now):
                        yield
                        self._go_on(undone)
                else:
                    engine.pause(name, paused=what == b"PAUSE", now=now)
                if number % SLICE == 0:
                    yield
                    self._go_on(undone)
        except ClientError as problem:
            self._say_error(error(str(problem)))
            return
        self.marks.append(len(self.replies))
        self._say(OK)

    def _mutate(self, argument: bytes | None, now: int) -> None:
        operation = mutate.read(argument or b"")
        self.begin_work(self._mutating(operation, now), len(argument or b""))

    def _mutating(self, operation: "mutate.Operation", now: int) -> Iterator[None]:
        engine = self.engine
        undone = engine.reverts
        try:
            for _ in mutate.carry_out(engine, operation, now):
                yield
                self._go_on(undone)
        except ClientError as problem:
            self.wait_for_commit(self.engine)
            self._say_error(error(str(problem)))
            return
        self.marks.append(len(self.replies))
        self._say(OK)

    def _batch(self, _: bytes | None, now: int) -> None:
        raise ClientError("batch subsystem is only available in Faktory Enterprise")

    def _track(self, _: bytes | None, now: int) -> None:
        raise ClientError("tracking subsystem is only available in Faktory Enterprise")

    def _worker(self, argument: bytes | None, now: int) -> None:
        """WORKER QUIET|TERMINATE wid|*: an extension, as on the original's web page."""
        words = shown_all(argument or b"").split()
        states = {"QUIET": QUIET, "TERMINATE": TERMINATE}
        if len(words) != 2 or words[0].upper() not in states:
            raise ClientError("expected WORKER QUIET|TERMINATE <wid>|*")
        known = self.hub.workers.known
        if words[1] == "*":
            chosen = self.hub.workers.connected()
        elif words[1] in known:
            chosen = [known[words[1]]]
        else:
            raise ClientError(f"unknown worker {words[1][:MAX_ECHO]}")
        if not all(worker.connections for worker in chosen):
            raise ClientError(f"worker {words[1][:MAX_ECHO]} is not connected")
        for worker in chosen:
            self.hub.advance(worker, states[words[0].upper()])
        self._say(OK)

    def _millrace(self, argument: bytes | None, now: int) -> None:
        """MILLRACE: an extension for bulk loads and bulk reads."""
        line = _need(argument)
        request = many.parse(line)
        if self.engine.halted and request.changes:
            raise ClientError(_refused(self.engine.halted))
        if self.engine.pushes_refused and request.stage is not None:
            raise ClientError(_refused(self.engine.pushes_refused))
        self.begin_work(self._answering(request, now), len(line))

    def _answering(self, request: "many.Request", now: int) -> Iterator[None]:
        engine = self.engine
        before, go_on = engine.changes, partial(self._go_on, engine.reverts)
        try:
            body = yield from many.answer(engine, request, self.hub.readings, self, go_on, now)
        except ClientError as problem:
            self.wait_for_commit(engine)
            self._say_error(error(str(problem)))
            return
        if engine.changes != before or engine.has_uncommitted:
            self.marks.append(len(self.replies))
        self._say(bulk(body))

    _commands: Final = {
        b"FLUSH": _flush,
        b"INFO": _info,
        b"END": _finish,
        b"PUSH": _push,
        b"PUSHB": _push_bulk,
        b"FETCH": _fetch,
        b"ACK": _ack,
        b"FAIL": _fail,
        b"BEAT": _beat,
        b"QUEUE": _queue,
        b"MUTATE": _mutate,
        b"BATCH": _batch,
        b"TRACK": _track,
        b"WORKER": _worker,
        b"MILLRACE": _millrace,
    }


def _refused(reason: str) -> str:
    return f"{reason}: nothing was changed, try again later"


def _need(argument: bytes | None) -> bytes:
    """A required argument. The error is that of the original, which panics."""
    if argument is None:
        raise ClientError("internal error")
    return argument


def _queue_names(data: bytes) -> list[str]:
    """The distinct queue names of a command in their order."""
    if len(data) > MAX_QUEUES_BYTES:
        raise ClientError(f"names of queues too long: at most {MAX_QUEUES_BYTES} bytes")
    names = list(dict.fromkeys(shown_all(data).split()))
    if len(names) > MAX_QUEUES:
        raise ClientError(f"too many queues: at most {MAX_QUEUES}, not {len(names)}")
    return names


def shown_all(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def cut(text: str, most: int) -> str:
    """The trimmed text, cut to `most` bytes; "unknown" if it is empty."""
    text = text.strip()
    if len(text) * 4 > most:
        text = text.encode()[:most].decode("utf-8", "ignore")
    return text or "unknown"

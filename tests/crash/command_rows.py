"""One row per command of every protocol, HTTP route and admin action.

A row is a function that prepares the state for its command and returns the command. `EFFECT`
describes the effect of the command:

    changes     durable state; the reply is a promise
    reads       the reply shows durable state, and the command does not change it
    leases      takes or waits for a job; a crash may undo a lease that is not committed
    memory      changes state that is documented to end with the process
    nothing     neither: the handshake, the connection, statistics since the start

The tables of commands are from the code (command_tables.py). A command without a row fails
test_restart_table.py::test_every_command_has_a_row.
"""

import base64
import json
import struct
import time
import uuid
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from raw_conversation import Conversation

from millrace.protocols.qless import dialect_d

Effect = Literal["changes", "reads", "leases", "memory", "nothing"]

#: One line of each script is enough for the server to recognise its dialect.
SCRIPTS = {
    "B": b"QlessAPI.put = function(now, queue, jid, klass, data, delay, ...) end",
    "C": b"QlessAPI.put = function(now, me, queue, jid, klass, data, delay, ...) end",
    "T": b"QlessThrottle = {} QlessAPI.put = function(now, me, queue, jid, klass, data) end",
    "D": b"ReqlessAPI = {}",
}
CLIENT = "main"


class Request(NamedTuple):
    protocol: str
    data: bytes
    client: str = CLIENT


class Row(NamedTuple):
    protocol: str
    command: str
    effect: Effect
    prepare: Callable[["Stage"], Request | bytes]

    @property
    def name(self) -> str:
        return f"{self.protocol} {self.command}"


ROWS: list[Row] = []
Prepare = Callable[["Stage"], Request | bytes]


def row(protocol: str, command: str, effect: Effect = "changes") -> Callable[[Prepare], Prepare]:
    def add(prepare: Prepare) -> Prepare:
        ROWS.append(Row(protocol, command, effect, prepare))
        return prepare

    return add


def plain(protocol: str, effect: Effect, **commands: Prepare) -> None:
    for command, prepare in commands.items():
        row(protocol, command, effect)(prepare)


def request_of(made: Row, stage: "Stage") -> Request:
    """Prepare a row, and return its request."""
    request = made.prepare(stage)
    if isinstance(request, Request):
        return request
    wire = {
        "spec": "qless",
        "B": "qless",
        "C": "qless",
        "D": "qless",
        "T": "qless",
        "redis": "qless",
    }
    return Request(wire.get(made.protocol, made.protocol), request)


# Requests


def words(*parts: object) -> bytes:
    """A RESP request."""
    data = [part if isinstance(part, bytes) else str(part).encode() for part in parts]
    return b"*%d\r\n" % len(data) + b"".join(b"$%d\r\n%b\r\n" % (len(d), d) for d in data)


def faktory(verb: str, argument: object = None) -> bytes:
    if argument is None:
        return verb.encode() + b"\r\n"
    text = argument if isinstance(argument, str) else json.dumps(argument)
    return f"{verb} {text}\r\n".encode()


def masenko(verb: str, argument: object = None) -> bytes:
    return f"{verb} {json.dumps(argument)}\n".encode() if argument else verb.encode() + b"\n"


def workq(*parts: object, block: bytes | None = None) -> bytes:
    line = " ".join(map(str, parts)).encode()
    return line + b"\r\n" if block is None else line + b" %d\r\n%b\r\n" % (len(block), block)


def goqueue(word: bytes, *fields: bytes) -> bytes:
    return word + b"\0" + b"".join(fields)


def control(**request: Any) -> bytes:
    return json.dumps(request).encode() + b"\n"


def http(method: str, path: str, body: Any = None) -> bytes:
    return json.dumps([method, "/api/v1" + path, body]).encode()


def now() -> int:
    return int(time.time())


class Stage:
    """Prepares jobs with unique names, so that rows do not affect each other."""

    def __init__(self, conversation: Conversation, name: str) -> None:
        self._conversation = conversation
        self.name = name
        self.queue = f"{name}-queue"
        self.job = f"{name}-job"
        self.uuid = str(uuid.uuid5(uuid.NAMESPACE_OID, name))

    def send(self, protocol: str, data: bytes, client: str = CLIENT) -> bytes:
        return self._conversation.send(protocol, data, client)

    def need(self, protocol: str, data: bytes, client: str = CLIENT) -> bytes:
        """Send a request that must succeed."""
        reply = self.send(protocol, data, client)
        refused = (b"-", b'{"error"', b"ERR", b"ERROR", b"4", b"5")
        assert not reply.startswith(refused), (data, reply)
        return reply

    # Faktory

    def push(self, job: str = "", **fields: object) -> str:
        unit = {"jid": job or self.job, "jobtype": "t", "args": [1], "queue": self.queue, **fields}
        self.need("faktory", faktory("PUSH", unit))
        return job or self.job

    def fetch(self, client: str = CLIENT) -> None:
        self.need("faktory", faktory("FETCH", self.queue), client)

    def dead(self, job: str = "") -> None:
        self.push(job, retry=-1)
        self.fetch()
        error = {"jid": job or self.job, "errtype": "Oops", "message": "broken"}
        self.need("faktory", faktory("FAIL", error))

    def later(self, job: str = "") -> None:
        self.push(job, at="2100-01-01T00:00:00Z")

    def load(self) -> None:
        unit = {"jid": self.job, "jobtype": "t", "args": [1], "queue": self.queue}
        self.need("faktory", faktory("MILLRACE", {"open": self.name}))
        self.need("faktory", faktory("MILLRACE", {"stage": self.name, "jobs": [unit]}))

    # Qless

    def load_script(self, dialect: str) -> bytes:
        reply = self.need("qless", words("SCRIPT", "LOAD", SCRIPTS[dialect]))
        return reply.split(b"\r\n")[1]

    def qless(self, dialect: str, command: str, *arguments: object) -> bytes:
        """A command of one of the dialects that name their command."""
        return words("EVALSHA", self.load_script(dialect), 0, command, now(), *arguments)

    def queued(self, command: bytes) -> bytes:
        """Queue a command in a transaction."""
        self.need("qless", words("MULTI"))
        return self.need("qless", command)

    def put(self, job: str = "", *options: object, delay: int = 0) -> str:
        job = job or self.job
        arguments = (CLIENT, self.queue, job, "klass", '{"a":1}', delay, *options)
        self.need("qless", self.qless("C", "put", *arguments))
        return job

    def pop(self, job: str = "", *options: object) -> str:
        job = self.put(job, *options)
        self.need("qless", self.qless("C", "pop", self.queue, CLIENT, 10))
        return job

    def failed(self) -> str:
        job = self.pop()
        self.need("qless", self.qless("C", "fail", job, CLIENT, self.name, "broken", "{}"))
        return job

    def blocked(self) -> str:
        self.put(self.name + "-first")
        self.put(self.name + "-second")
        return self.put("", "depends", json.dumps([self.name + "-first"]))

    def recurring(self) -> str:
        options = (self.queue, self.job, "klass", "{}", "interval", 3600, 3600, "tags", '["red"]')
        self.need("qless", self.qless("C", "recur", *options))
        return self.job

    def throttled(self, *, parked: bool = False) -> str:
        """A limit of one job, a job that holds it, and one that waits for it."""
        self.need("qless", self.qless("D", "throttle.set", self.name, 1, 0))
        self.pop(self.name + "-holder", "throttles", json.dumps([self.name]))
        self.put("", "throttles", json.dumps([self.name]))
        if parked:
            self.need("qless", self.qless("C", "pop", self.queue, CLIENT, 1))
        return self.name + "-holder"

    # Other protocols

    def workq_job(self) -> str:
        self.need("workq", workq("add", self.uuid, self.queue, 60_000, 600_000, block=b"payload"))
        return self.uuid

    def masenko_task(self, *, fetched: bool = False) -> int:
        task = {"name": "t", "queue": self.queue, "payload": [1]}
        reply = self.need("masenko", masenko("PUSH", task))
        if fetched:
            self.need("masenko", masenko("FETCH", {"queues": [self.queue]}))
        seq: int = json.loads(reply[3:])["id"]
        return seq

    def goqueue_job(self) -> bytes:
        return self.need("goqueue", goqueue_add(self))[6:14]

    def http_lease(self) -> str:
        self.push()
        asked = {"queues": [self.queue], "worker": "w"}
        reply = self.need("control", control(lease=asked))
        token: str = json.loads(reply)["jobs"][0]["token"]
        return token


def goqueue_add(s: Stage) -> bytes:
    return goqueue(b"ADD", s.queue.encode(), b"\0", struct.pack("<III", 3, 60, 4), b"data")


# Faktory


@row("faktory", "PUSH")
def _(s: Stage) -> bytes:
    unit = {"jid": s.job, "jobtype": "t", "args": [1], "queue": s.queue, "custom": {"a": "b"}}
    return faktory("PUSH", unit)


@row("faktory", "PUSHB")
def _(s: Stage) -> bytes:
    units = [{"jid": f"{s.job}-{n}", "jobtype": "t", "args": [n]} for n in range(3)]
    return faktory("PUSHB", units)


@row("faktory", "FETCH", "leases")
def _(s: Stage) -> bytes:
    s.push()
    return faktory("FETCH", s.queue)


@row("faktory", "ACK")
def _(s: Stage) -> bytes:
    s.push()
    s.fetch()
    return faktory("ACK", {"jid": s.job})


@row("faktory", "FAIL")
def _(s: Stage) -> bytes:
    s.push()
    s.fetch()
    return faktory("FAIL", {"jid": s.job, "errtype": "Oops", "message": "m", "backtrace": ["b"]})


@row("faktory", "QUEUE PAUSE")
def _(s: Stage) -> bytes:
    s.push()
    return faktory("QUEUE", "PAUSE " + s.queue)


@row("faktory", "QUEUE RESUME")
def _(s: Stage) -> bytes:
    s.push()
    s.need("faktory", faktory("QUEUE", "PAUSE " + s.queue))
    return faktory("QUEUE", "RESUME " + s.queue)


@row("faktory", "QUEUE REMOVE")
def _(s: Stage) -> bytes:
    s.push()
    return faktory("QUEUE", "REMOVE " + s.queue)


@row("faktory", "QUEUE LATENCY", "reads")
def _(s: Stage) -> bytes:
    s.push()
    return faktory("QUEUE", "LATENCY " + s.queue)


@row("faktory", "MUTATE clear")
def _(s: Stage) -> bytes:
    s.later()
    return faktory("MUTATE", {"cmd": "clear", "target": "scheduled"})


@row("faktory", "MUTATE kill")
def _(s: Stage) -> bytes:
    s.later()
    return faktory("MUTATE", {"cmd": "kill", "target": "scheduled", "filter": {"jids": [s.job]}})


@row("faktory", "MUTATE discard")
def _(s: Stage) -> bytes:
    s.dead()
    return faktory("MUTATE", {"cmd": "discard", "target": "dead", "filter": {"jids": [s.job]}})


@row("faktory", "MUTATE requeue")
def _(s: Stage) -> bytes:
    s.dead()
    return faktory("MUTATE", {"cmd": "requeue", "target": "dead", "filter": {"jids": [s.job]}})


@row("faktory", "MILLRACE open")
def _(s: Stage) -> bytes:
    return faktory("MILLRACE", {"open": s.name})


@row("faktory", "MILLRACE stage")
def _(s: Stage) -> bytes:
    s.need("faktory", faktory("MILLRACE", {"open": s.name}))
    unit = {"jid": s.job, "jobtype": "t", "args": [1], "queue": s.queue}
    return faktory("MILLRACE", {"stage": s.name, "jobs": [unit]})


@row("faktory", "MILLRACE release")
def _(s: Stage) -> bytes:
    s.load()
    return faktory("MILLRACE", {"release": s.name})


@row("faktory", "MILLRACE discard")
def _(s: Stage) -> bytes:
    s.load()
    return faktory("MILLRACE", {"discard": s.name})


@row("faktory", "MILLRACE fetch", "leases")
def _(s: Stage) -> bytes:
    s.push()
    return faktory("MILLRACE", {"fetch": {"queues": [s.queue], "count": 2}})


@row("faktory", "MILLRACE ack")
def _(s: Stage) -> bytes:
    s.push()
    s.fetch()
    return faktory("MILLRACE", {"ack": [{"jid": s.job, "result": "[1]"}]})


@row("faktory", "MILLRACE cancel")
def _(s: Stage) -> bytes:
    s.push()
    s.fetch()
    return faktory("MILLRACE", {"cancel": [s.job]})


@row("faktory", "MILLRACE limit")
def _(s: Stage) -> bytes:
    return faktory("MILLRACE", {"limit": {"queue": s.queue, "maximum": 2}})


def recur(s: Stage) -> dict[str, Any]:
    return {"id": s.name, "jobtype": "t", "args": [1], "queue": s.queue, "every": 60, "delay": 60}


@row("faktory", "MILLRACE recur")
def _(s: Stage) -> bytes:
    return faktory("MILLRACE", {"recur": recur(s)})


@row("faktory", "MILLRACE unrecur")
def _(s: Stage) -> bytes:
    s.need("faktory", faktory("MILLRACE", {"recur": recur(s)}))
    return faktory("MILLRACE", {"unrecur": s.name})


@row("faktory", "MILLRACE track")
def _(s: Stage) -> bytes:
    return faktory("MILLRACE", {"track": [s.push()]})


@row("faktory", "MILLRACE untrack")
def _(s: Stage) -> bytes:
    s.need("faktory", faktory("MILLRACE", {"track": [s.push()]}))
    return faktory("MILLRACE", {"untrack": [s.job]})


@row("faktory", "MILLRACE result", "reads")
def _(s: Stage) -> bytes:
    s.push()
    s.fetch()
    s.need("faktory", faktory("ACK", {"jid": s.job, "result": "[1]"}))
    return faktory("MILLRACE", {"result": {"jid": s.job}})


@row("faktory", "MILLRACE loads", "reads")
def _(s: Stage) -> bytes:
    s.load()
    return faktory("MILLRACE", {"loads": True})


@row("faktory", "MILLRACE read", "reads")
def _(s: Stage) -> bytes:
    s.push()
    return faktory("MILLRACE", {"read": {"queue": s.queue}})


@row("faktory", "WORKER QUIET", "memory")
def _(s: Stage) -> bytes:
    s.need("faktory", faktory("INFO"), s.name)
    return faktory("WORKER", "QUIET " + s.name)


@row("faktory", "WORKER TERMINATE", "memory")
def _(s: Stage) -> bytes:
    s.need("faktory", faktory("INFO"), s.name)
    return faktory("WORKER", "TERMINATE " + s.name)


@row("faktory", "FLUSH")
def _(s: Stage) -> bytes:
    s.push()
    return faktory("FLUSH")


plain(
    "faktory",
    "nothing",
    INFO=lambda _: faktory("INFO"),
    BEAT=lambda _: faktory("BEAT", {"wid": CLIENT}),
    BATCH=lambda _: faktory("BATCH", "NEW {}"),
    TRACK=lambda _: faktory("TRACK", "GET x"),
    END=lambda _: faktory("END"),
)


# Workq


@row("workq", "add")
def _(s: Stage) -> bytes:
    flags = ("-priority=5", "-max-attempts=3", "-max-fails=2")
    line = " ".join(("add", s.uuid, s.queue, "60000", "600000", "7", *flags))
    return line.encode() + b"\r\npayload\r\n"


@row("workq", "schedule")
def _(s: Stage) -> bytes:
    when = "2100-01-01T00:00:00Z"
    return workq("schedule", s.uuid, s.queue, 60_000, 600_000, when, block=b"payload")


@row("workq", "run", "memory")
def _(s: Stage) -> bytes:
    return workq("run", s.uuid, s.queue, 60_000, 1, block=b"payload")


@row("workq", "result", "reads")
def _(s: Stage) -> bytes:
    s.need("workq", workq("complete", s.workq_job(), block=b"result"))
    return workq("result", s.uuid, 0)


@row("workq", "lease", "leases")
def _(s: Stage) -> bytes:
    s.workq_job()
    return workq("lease", s.queue, 0)


@row("workq", "complete")
def _(s: Stage) -> bytes:
    s.workq_job()
    s.need("workq", workq("lease", s.queue, 0))
    return workq("complete", s.uuid, block=b"result")


@row("workq", "fail")
def _(s: Stage) -> bytes:
    s.workq_job()
    s.need("workq", workq("lease", s.queue, 0))
    return workq("fail", s.uuid, block=b"result")


@row("workq", "delete")
def _(s: Stage) -> bytes:
    return workq("delete", s.workq_job())


@row("workq", "inspect job", "reads")
def _(s: Stage) -> bytes:
    return workq("inspect", "job", s.workq_job())


@row("workq", "inspect jobs", "reads")
def _(s: Stage) -> bytes:
    s.workq_job()
    return workq("inspect", "jobs", s.queue, 0, 10)


@row("workq", "inspect scheduled-jobs", "reads")
def _(s: Stage) -> bytes:
    s.workq_job()
    return workq("inspect", "scheduled-jobs", s.queue, 0, 10)


@row("workq", "inspect queue", "reads")
def _(s: Stage) -> bytes:
    s.workq_job()
    return workq("inspect", "queue", s.queue)


plain(
    "workq",
    "reads",
    **{
        "inspect queues": lambda _: workq("inspect", "queues", 0, 10),
        "inspect server": lambda _: workq("inspect", "server"),
    },
)


# Masenko


@row("masenko", "PUSH")
def _(s: Stage) -> bytes:
    task = {"name": "t", "queue": s.queue, "payload": {"a": 1}, "deadqueue": "dead"}
    return masenko("PUSH", task)


@row("masenko", "FETCH", "leases")
def _(s: Stage) -> bytes:
    s.masenko_task()
    return masenko("FETCH", {"queues": [s.queue]})


@row("masenko", "ACK")
def _(s: Stage) -> bytes:
    return masenko("ACK", {"id": s.masenko_task(fetched=True)})


@row("masenko", "NACK")
def _(s: Stage) -> bytes:
    # After a second failure the task waits for 16 seconds: it stays scheduled for the test.
    seq = s.masenko_task(fetched=True)
    s.need("masenko", masenko("NACK", {"id": seq}))
    s.need("control", control(act={"action": "retry", "seqs": [seq]}))
    s.need("masenko", masenko("FETCH", {"queues": [s.queue]}))
    return masenko("NACK", {"id": seq})


@row("masenko", "ATOMIC")
def _(s: Stage) -> bytes:
    task = masenko("PUSH", {"name": "t", "queue": s.queue})
    ack = masenko("ACK", {"id": s.masenko_task(fetched=True)})
    return masenko("ATOMIC") + task + ack + masenko("DONE")


plain(
    "masenko",
    "nothing",
    PING=lambda _: masenko("PING"),
    INFO=lambda _: masenko("INFO"),
    QUIT=lambda _: masenko("QUIT"),
)


# Go Job Queue


@row("goqueue", "ADD")
def _(s: Stage) -> bytes:
    return goqueue_add(s)


@row("goqueue", "DELETE")
def _(s: Stage) -> bytes:
    seq = s.goqueue_job()
    s.need("goqueue", goqueue(b"RESERVE", s.queue.encode(), b"\0", struct.pack("<I", 1)))
    return goqueue(b"DELETE", seq)


@row("goqueue", "RESERVE", "leases")
def _(s: Stage) -> bytes:
    s.goqueue_job()
    return goqueue(b"RESERVE", s.queue.encode(), b"\0", struct.pack("<I", 1))


plain("goqueue", "nothing", CONNECT=lambda _: goqueue(b"CONNECT"))


# Redis

plain(
    "redis",
    "nothing",
    HELLO=lambda _: words("HELLO", 2),
    AUTH=lambda _: words("AUTH", "default", "x"),
    PING=lambda _: words("PING"),
    ECHO=lambda _: words("ECHO", "x"),
    SELECT=lambda _: words("SELECT", 0),
    QUIT=lambda _: words("QUIT"),
    RESET=lambda _: words("RESET"),
    CLIENT=lambda _: words("CLIENT", "ID"),
    MULTI=lambda s: Request("qless", words("MULTI"), s.name),
    DISCARD=lambda s: s.queued(words("PING")) and words("DISCARD"),
    UNWATCH=lambda _: words("UNWATCH"),
    WATCH=lambda _: words("WATCH", "scratch"),
    SUBSCRIBE=lambda s: Request("qless", words("SUBSCRIBE", "channel"), s.name),
    UNSUBSCRIBE=lambda _: words("UNSUBSCRIBE", "channel"),
    PSUBSCRIBE=lambda s: Request("qless", words("PSUBSCRIBE", "channel*"), s.name),
    PUNSUBSCRIBE=lambda _: words("PUNSUBSCRIBE", "channel*"),
    PUBLISH=lambda _: words("PUBLISH", "channel", "x"),
    PUBSUB=lambda _: words("PUBSUB", "CHANNELS"),
    INFO=lambda _: words("INFO"),
    TIME=lambda _: words("TIME"),
    COMMAND=lambda _: words("COMMAND"),
    CONFIG=lambda _: words("CONFIG", "GET", "save"),
    SLOWLOG=lambda _: words("SLOWLOG", "LEN"),
)
plain(
    "redis",
    "reads",
    KEYS=lambda _: words("KEYS", "ql:*"),
    DBSIZE=lambda _: words("DBSIZE"),
    EXISTS=lambda _: words("EXISTS", "ql:queues"),
    TYPE=lambda _: words("TYPE", "ql:queues"),
    TTL=lambda _: words("TTL", "ql:queues"),
    LLEN=lambda _: words("LLEN", "ql:qp:priorities"),
    LRANGE=lambda _: words("LRANGE", "ql:qp:priorities", 0, -1),
    HGETALL=lambda _: words("HGETALL", "ql:qp:identifiers"),
    HMGET=lambda _: words("HMGET", "ql:qp:identifiers", "a"),
    SCAN=lambda _: words("SCAN", 0),
    GET=lambda _: words("GET", "scratch"),
    HGET=lambda _: words("HGET", "ql:qp:identifiers", "a"),
    SISMEMBER=lambda _: words("SISMEMBER", "ql:paused_queues", "a"),
    SMEMBERS=lambda _: words("SMEMBERS", "ql:paused_queues"),
    ZSCORE=lambda _: words("ZSCORE", "ql:queues", "a"),
    ZCARD=lambda _: words("ZCARD", "ql:queues"),
    ZRANGE=lambda _: words("ZRANGE", "ql:queues", 0, -1),
    **{
        "SCRIPT EXISTS": lambda _: words("SCRIPT", "EXISTS", "0" * 40),
        "SCRIPT KILL": lambda _: words("SCRIPT", "KILL"),
    },
)
plain(
    "redis",
    "memory",
    EXPIRE=lambda _: words("EXPIRE", "scratch", 10),
    SET=lambda s: words("SET", s.name, "x"),
    SETEX=lambda s: words("SETEX", s.name, 10, "x"),
    INCR=lambda s: words("INCR", s.name),
    DECR=lambda s: words("DECR", s.name),
    INCRBY=lambda s: words("INCRBY", s.name, 2),
    DECRBY=lambda s: words("DECRBY", s.name, 2),
    LPOP=lambda s: words("LPOP", s.name),
    RPOP=lambda s: words("RPOP", s.name),
    SADD=lambda s: words("SADD", s.name, "x"),
    SREM=lambda s: words("SREM", s.name, "x"),
    ZADD=lambda s: words("ZADD", s.name, 1, "x"),
    ZREM=lambda s: words("ZREM", s.name, "x"),
    BRPOP=lambda s: s.need("qless", words("RPUSH", s.name, "x")) and words("BRPOP", s.name, 1),
    **{
        "RPUSH scratch": lambda s: words("RPUSH", s.name, "x"),
        "LPUSH scratch": lambda s: words("LPUSH", s.name, "x"),
        "HSET scratch": lambda s: words("HSET", s.name, "x", "y"),
        "DEL scratch": lambda s: (
            s.need("qless", words("RPUSH", s.name, "x")) and words("DEL", s.name)
        ),
    },
)
plain(
    "redis",
    "changes",
    RPUSH=lambda s: words("RPUSH", "ql:qp:priorities", json.dumps({"pattern": [s.name]})),
    LPUSH=lambda s: words("LPUSH", "ql:qp:priorities", json.dumps({"pattern": [s.name]})),
    HSET=lambda s: words("HSET", "ql:qp:identifiers", s.name, '["a"]'),
    DEL=lambda s: (
        s.need("qless", words("HSET", "ql:qp:identifiers", s.name, "[]"))
        and words("DEL", "ql:qp:identifiers")
    ),
    EVAL=lambda s: words("EVAL", SCRIPTS["B"] + s.name.encode(), 0, "config.get", now()),
    EXEC=lambda s: s.queued(words(*_spec("setconfig", s.name, 7))) and words("EXEC"),
    EVALSHA=lambda s: s.qless("B", "put", s.queue, s.job, "klass", "{}", 0),
    **{
        "SCRIPT LOAD": lambda s: words("SCRIPT", "LOAD", SCRIPTS["C"] + s.name.encode()),
        "SCRIPT FLUSH": lambda s: s.load_script("C") and words("SCRIPT", "FLUSH"),
    },
    FLUSHDB=lambda s: s.put() and words("FLUSHDB"),
    FLUSHALL=lambda s: s.put() and words("FLUSHALL"),
)


# QLESS.*, the commands of the specification, which are also the scripts of dialect A


def _spec(command: str, *arguments: object) -> list[object]:
    return [f"QLESS.{command.upper()}", 0, *arguments]


def spec(command: str, effect: Effect, arguments: Callable[[Stage], Any]) -> None:
    def prepare(s: Stage) -> bytes:
        given = arguments(s)
        if command in {"put", "pop", "peek"}:
            return words(f"QLESS.{command.upper()}", 1, s.queue, *given)
        return words(*_spec(command, *given))

    row("spec", command, effect)(prepare)


spec("put", "changes", lambda s: (s.job, "klass", "{}", now(), 0, "tags", '["red"]'))
spec("pop", "leases", lambda s: (s.put() and CLIENT, 1, now()))
spec("peek", "reads", lambda s: (s.put() and 1, now()))
spec("cancel", "changes", lambda s: (s.put(),))
spec("complete", "changes", lambda s: (s.pop(), CLIENT, s.queue, now(), "{}"))
spec("depends", "changes", lambda s: (s.blocked(), "on", s.name + "-second"))
spec("deregister_workers", "memory", lambda s: (s.pop() and CLIENT,))
spec("fail", "changes", lambda s: (s.pop(), CLIENT, "group", "message", now(), "{}"))
spec("heartbeat", "changes", lambda s: (s.pop(), CLIENT, now() + 100, '{"b":2}'))
spec("pause", "changes", lambda s: (s.put() and s.queue,))
spec("unpause", "changes", lambda s: (_paused(s) and s.queue,))
spec("priority", "changes", lambda s: (s.put(), 7))
spec("retry", "changes", lambda s: (s.pop(), s.queue, CLIENT, now(), 10_000))
spec("unfail", "changes", lambda s: (now(), s.failed() and s.name, s.queue, 10))
spec("setconfig", "changes", lambda s: (s.name, 7))
spec("config", "changes", lambda s: ("set", s.name, 7))
spec("track", "changes", lambda s: ("track", s.put(), now()))
spec("tag", "changes", lambda s: ("add", s.put(), now(), "red"))
spec(
    "recur",
    "changes",
    lambda s: ("on", s.queue, s.job, "klass", "{}", now(), "interval", 60, 3600),
)
spec("consistencycheck", "reads", lambda _: ())
spec("failed", "reads", lambda s: (s.failed() and s.name,))
spec("get", "reads", lambda s: (s.put(),))
spec("getconfig", "reads", lambda _: ())
spec("jobs", "reads", lambda _: ("complete",))
spec("queues", "reads", lambda _: (now(),))
spec("stats", "reads", lambda s: (s.put() and s.queue, now()))
spec("workers", "reads", lambda _: (now(),))


def _paused(s: Stage) -> bool:
    s.put()
    return bool(s.need("qless", s.qless("C", "pause", s.queue)))


# Dialect C, to which every other dialect is translated


_ARGUMENTS: dict[tuple[str, str], tuple[Effect, Callable[[Stage], Any]]] = {}


def unified(dialect: str, command: str, effect: Effect, arguments: Callable[[Stage], Any]) -> None:
    _ARGUMENTS[dialect, command] = effect, arguments
    row(dialect, command, effect)(lambda s: s.qless(dialect, command, *arguments(s)))


def c(command: str, effect: Effect, arguments: Callable[[Stage], Any]) -> None:
    unified("C", command, effect, arguments)


_OPTIONS = ("priority", 5, "tags", '["red"]', "retries", 3)
c("put", "changes", lambda s: (CLIENT, s.queue, s.job, "klass", '{"a":1}', 0, *_OPTIONS))
c("requeue", "changes", lambda s: (CLIENT, s.queue + "2", s.put(), "klass", "{}", 0))
c("pop", "leases", lambda s: (s.put() and s.queue, CLIENT, 1))
c("peek", "reads", lambda s: (s.put() and s.queue, 1))
c("heartbeat", "changes", lambda s: (s.pop(), CLIENT, '{"b":2}'))
c("timeout", "changes", lambda s: (s.pop(),))
c("complete", "changes", lambda s: (s.pop(), CLIENT, s.queue, "{}", "next", s.queue + "2"))
c("fail", "changes", lambda s: (s.pop(), CLIENT, "group", "message", "{}"))
c("retry", "changes", lambda s: (s.pop(), s.queue, CLIENT, 10_000, "group", "message"))
c("cancel", "changes", lambda s: (s.put(),))
c("depends", "changes", lambda s: (s.blocked(), "off", "all"))
c("priority", "changes", lambda s: (s.put(), 7))
c("tag", "changes", lambda s: ("add", s.put(), "red"))
c("track", "changes", lambda s: ("track", s.put()))
c("log", "changes", lambda s: (s.put(), "message", '{"a":1}'))
c("unfail", "changes", lambda s: (s.queue, s.failed() and s.name, 10))
c("pause", "changes", lambda s: (s.put() and s.queue,))
c("unpause", "changes", lambda s: (_paused(s) and s.queue,))
c("queue.forget", "changes", lambda s: (s.put() and s.queue,))
c("worker.deregister", "memory", lambda s: (s.pop() and CLIENT,))
c("config.set", "changes", lambda s: (s.name, 7))
c("config.unset", "changes", lambda s: (_configured(s),))
c("recur", "changes", lambda s: (s.queue, s.job, "klass", "{}", "interval", 60, 3600))
c("unrecur", "changes", lambda s: (s.recurring(),))
c("recur.update", "changes", lambda s: (s.recurring(), "interval", 120, "klass", "other"))
c("recur.tag", "changes", lambda s: (s.recurring(), "blue"))
c("recur.untag", "changes", lambda s: (s.recurring(), "red"))
c("recur.get", "reads", lambda s: (s.recurring(),))
c("get", "reads", lambda s: (s.put(),))
c("multiget", "reads", lambda s: (s.put(),))
c("jobs", "reads", lambda _: ("complete", 0, 10))
c("length", "reads", lambda s: (s.put() and s.queue,))
c("queues", "reads", lambda _: ())
c("workers", "reads", lambda _: ())
c("failed", "reads", lambda _: ())
c("stats", "reads", lambda s: (s.put() and s.queue, now()))
c("config.get", "reads", lambda _: ())


def _configured(s: Stage) -> str:
    s.need("qless", s.qless("C", "config.set", s.name, 7))
    return s.name


# Dialect D (reqless), and the commands that only dialect T has


def d(command: str, effect: Effect, arguments: Callable[[Stage], Any]) -> None:
    unified("D", command, effect, arguments)


d(
    "queue.put",
    "changes",
    lambda s: (CLIENT, s.queue, s.job, "klass", "{}", 0, "throttles", '["x"]'),
)
d("job.requeue", "changes", lambda s: (CLIENT, s.queue + "2", s.put(), "klass", "{}", 0))
d("queue.pop", "leases", lambda s: (s.put() and s.queue, CLIENT, 1))
d("queue.peek", "reads", lambda s: (s.put() and s.queue, 0, 1))
d("job.heartbeat", "changes", lambda s: (s.pop(), CLIENT, '{"b":2}'))
d("job.timeout", "changes", lambda s: (s.pop(),))
d("job.complete", "changes", lambda s: (s.pop(), CLIENT, s.queue, "{}"))
d(
    "job.completeAndRequeue",
    "changes",
    lambda s: (s.pop(), CLIENT, s.queue, "{}", s.queue + "2", "delay", 10_000),
)
d("job.fail", "changes", lambda s: (s.pop(), CLIENT, "group", "message", "{}"))
d("job.retry", "changes", lambda s: (s.pop(), s.queue, CLIENT, 10_000, "group", "message"))
d("job.cancel", "changes", lambda s: (s.put(),))
d("job.addDependency", "changes", lambda s: (s.blocked(), s.name + "-second"))
d("job.removeDependency", "changes", lambda s: (s.blocked(), s.name + "-first"))
d("job.depends", "changes", lambda s: (s.blocked(), "on", s.name + "-second"))
d("job.setPriority", "changes", lambda s: (s.put(), 7))
d("job.addTag", "changes", lambda s: (s.put(), "red"))
d("job.removeTag", "changes", lambda s: (s.put("", "tags", '["red"]'), "red"))
d("tag", "changes", lambda s: ("add", s.put(), "red"))
d("job.track", "changes", lambda s: (s.put(),))
d("job.untrack", "changes", lambda s: (_tracked(s),))
d("job.log", "changes", lambda s: (s.put(), "message", '{"a":1}'))
d("queue.unfail", "changes", lambda s: (s.queue, s.failed() and s.name, 10))
d("queue.pause", "changes", lambda s: (s.put() and s.queue,))
d("queue.unpause", "changes", lambda s: (_paused(s) and s.queue,))
d("queue.forget", "changes", lambda s: (s.put() and s.queue,))
d("worker.forget", "memory", lambda s: (s.pop() and CLIENT,))
d("config.set", "changes", lambda s: (s.name, 7))
d("config.unset", "changes", lambda s: (_configured(s),))
d("queue.recurAtInterval", "changes", lambda s: (s.queue, s.job, "klass", "{}", 60, 3600))
d("queue.recur", "changes", lambda s: (s.queue, s.job, "klass", "{}", "interval", 60, 3600))
d("recurringJob.cancel", "changes", lambda s: (s.recurring(),))
d("recurringJob.update", "changes", lambda s: (s.recurring(), "backlog", 3))
d("recurringJob.addTag", "changes", lambda s: (s.recurring(), "blue"))
d("recurringJob.removeTag", "changes", lambda s: (s.recurring(), "red"))
d("throttle.set", "changes", lambda s: (s.name, 3, 0))
d("throttle.delete", "changes", lambda s: (s.throttled() and s.name,))
d("throttle.release", "changes", lambda s: (s.name, s.throttled()))
d("queue.throttle.set", "changes", lambda s: (s.put() and s.queue, 3))
d("queueIdentifierPatterns.setAll", "changes", lambda s: (s.name, '["a"]'))
d("queuePriorityPatterns.setAll", "changes", lambda s: (json.dumps({"pattern": [s.name]}),))
d("throttle.get", "reads", lambda s: (s.throttled() and s.name,))
d("throttle.ttl", "reads", lambda s: (s.throttled() and s.name,))
d("throttle.locks", "reads", lambda s: (s.throttled() and s.name,))
d("throttle.pending", "reads", lambda s: (s.throttled(parked=True) and s.name,))
d("queue.throttle.get", "reads", lambda s: (s.put() and s.queue,))
d("queueIdentifierPatterns.getAll", "reads", lambda _: ())
d("queuePriorityPatterns.getAll", "reads", lambda _: ())
d("config.get", "reads", lambda _: ("heartbeat",))
d("config.getAll", "reads", lambda _: ())
d("failureGroups.counts", "reads", lambda _: ())
d("job.get", "reads", lambda s: (s.put(),))
d("job.getMulti", "reads", lambda s: (s.put(),))
d("jobs.completed", "reads", lambda _: (0, 10))
d("jobs.failedByGroup", "reads", lambda s: (s.failed() and s.name, 0, 10))
d("jobs.tagged", "reads", lambda _: ("red", 0, 10))
d("jobs.tracked", "reads", lambda _: ())
d("queue.counts", "reads", lambda s: (s.put() and s.queue,))
d("queue.jobsByState", "reads", lambda s: ("running", s.put() and s.queue, 0, 10))
d("queue.length", "reads", lambda s: (s.put() and s.queue,))
d("queue.stats", "reads", lambda s: (s.put() and s.queue, now()))
d("queues.counts", "reads", lambda _: ())
d("queues.names", "reads", lambda _: ())
d("recurringJob.get", "reads", lambda s: (s.recurring(),))
d("tags.top", "reads", lambda _: (0, 10))
d("worker.jobs", "reads", lambda _: (CLIENT,))
d("workers.counts", "reads", lambda _: ())


def _tracked(s: Stage) -> str:
    s.put()
    s.need("qless", s.qless("C", "track", "track", s.job))
    return s.job


# Dialect B has the commands of C; its put names no worker

for _dialect, _command in list(_ARGUMENTS):
    if _dialect == "C" and _command != "put":
        unified("B", _command, *_ARGUMENTS["C", _command])
unified("B", "put", "changes", lambda s: (s.queue, s.job, "klass", '{"a":1}', 0, *_OPTIONS))


# Dialect T has the commands of C, and the limits of D

for _command in dialect_d._T_COMMANDS:
    _known = "C" if ("C", _command) in _ARGUMENTS else "D"
    unified("T", _command, *_ARGUMENTS[_known, _command])


# Actions of the control socket


def act(action: str, prepare: Callable[[Stage], Any], **more: Any) -> None:
    def made(s: Stage) -> bytes:
        prepare(s)
        request = {"action": action, "jobs": [s.job], "by": "me", **more}
        return control(act=request)

    row("control", f"act {action}")(made)


act("retry", lambda s: s.dead())
act("kill", lambda s: s.push())
act("cancel", lambda s: s.push())
act("delete", lambda s: s.push())
act("move", lambda s: s.push(), queue="elsewhere")
act("priority", lambda s: s.push(), priority=7)
act("tag", lambda s: s.push(), tags=["red"])
act("untag", lambda s: s.put("", "tags", '["red"]'), tags=["red"])
act("track", lambda s: s.push())
act("untrack", _tracked)
act("undepend", lambda s: s.blocked())
act("timeout", lambda s: s.pop())


def act_on_queue(action: str, prepare: Callable[[Stage], Any], **more: Any) -> None:
    def made(s: Stage) -> bytes:
        prepare(s)
        return control(act_on_queue={"name": s.queue, "action": action, "by": "me", **more})

    row("control", f"act_on_queue {action}")(made)


act_on_queue("pause", lambda s: s.push())
act_on_queue("resume", _paused)
act_on_queue("clear", lambda s: s.push())
act_on_queue("remove", lambda s: s.push())
act_on_queue("retain", lambda s: s.push(), retention=60_000_000)
act_on_queue("limit", lambda s: s.push(), limit=3)


def act_on_recurring(action: str, **more: Any) -> None:
    row("control", f"act_on_recurring {action}")(
        lambda s: control(act_on_recurring={"jid": s.recurring(), "action": action, **more})
    )


act_on_recurring("cancel")
act_on_recurring("move", queue="elsewhere")
act_on_recurring("priority", priority=7)
act_on_recurring("tag", tags=["blue"])
act_on_recurring("untag", tags=["red"])


def end_lease(action: str, **more: Any) -> None:
    row("control", f"end {action}")(
        lambda s: control(end={"token": s.http_lease(), "action": action, "by": "me", **more})
    )


end_lease("complete", result=base64.b64encode(b"[1]").decode())
end_lease("fail", group="Oops", message="broken", backtrace=["line"])
end_lease("release")
end_lease("renew", lease_for=3_600_000_000)


def import_step(s: Stage, step: str, run: int = 0, **more: Any) -> bytes:
    return control(import_jobs={"source": s.name, "step": step, "run": run, "by": "me", **more})


def imported_jobs(s: Stage) -> list[dict[str, Any]]:
    base = {"protocol": "faktory", "queue": s.queue, "kind": "k", "payload": "WzFd", "spec": "CgoK"}
    return [base | {"jid": s.job}, base | {"jid": f"{s.job}-dead", "dead": True}]


@row("control", "import_jobs check", "reads")
def _(s: Stage) -> bytes:
    return import_step(s, "check", jobs=imported_jobs(s))


@row("control", "import_jobs begin")
def _(s: Stage) -> bytes:
    return import_step(s, "begin")


@row("control", "import_jobs stage")
def _(s: Stage) -> bytes:
    s.need("control", import_step(s, "begin"))
    return import_step(s, "stage", 1, jobs=imported_jobs(s))


for _step in ("finish", "discard"):

    @row("control", f"import_jobs {_step}")
    def _(s: Stage, step: str = _step) -> bytes:
        s.need("control", import_step(s, "begin"))
        s.need("control", import_step(s, "stage", 1, jobs=imported_jobs(s)))
        return import_step(s, step, 1)


@row("control", "push")
def _(s: Stage) -> bytes:
    job = {"queue": s.queue, "jid": s.job, "payload": "WzFd", "kind": "k", "tags": ["red"]}
    return control(push={"jobs": [job], "by": "me"})


@row("control", "lease", "leases")
def _(s: Stage) -> bytes:
    s.push()
    return control(lease={"queues": [s.queue], "worker": "w"})


for _action in ("quiet", "terminate"):
    # The state of a worker ends with its connection; the entry of the audit log stays.
    row("control", f"act_on_worker {_action}")(
        lambda s, action=_action: (
            s.need("faktory", faktory("INFO"), s.name)  # type: ignore[misc]
            and control(act_on_worker={"wid": s.name, "action": action, "by": "me"})
        )
    )
plain(
    "control",
    "changes",
    set_qless=lambda s: control(set_qless={"option": s.name, "value": "7", "by": "me"}),
    note=lambda s: control(note={"action": "login", "target": s.name, "by": "me"}),
    flush=lambda s: s.push() and control(flush={"by": "me"}),
)
plain(
    "control",
    "reads",
    why=lambda s: control(why=s.push()),
    queues=lambda _: control(queues={}),
    queue=lambda s: s.push() and control(queue={"name": s.queue}),
    search=lambda _: control(search={"query": {}}),
    job=lambda s: control(job={"id": s.push()}),
    failures=lambda _: control(failures={}),
    workers=lambda _: control(workers={}),
    recurring=lambda _: control(recurring={}),
    tracked=lambda _: control(tracked={}),
    tags=lambda _: control(tags={}),
    limits=lambda _: control(limits=True),
    audit=lambda _: control(audit={}),
    counters=lambda _: control(counters=True),
)
plain(
    "control",
    "nothing",
    sizes=lambda _: control(sizes=True),
    overview=lambda _: control(overview=True),
    health=lambda _: control(health=True),
    server=lambda _: control(server=True),
    metrics=lambda _: control(metrics={}),
    faktory=lambda _: control(faktory=True),
    pipeline=lambda _: control(pipeline=True),
    journal=lambda _: control(journal=True),
    # Both start another process, and report on it.
    ship=lambda _: control(ship=True),
    run_pipeline=lambda _: control(run_pipeline={"by": "me"}),
)


# HTTP routes that change state


def post(route: str, prepare: Callable[[Stage], Any], body: Any = None) -> None:
    """`prepare` returns the arguments of the path; `body` may be a function of the stage."""

    def made(s: Stage) -> bytes:
        named = prepare(s)
        content = body(s) if callable(body) else body
        head, _, tail = route.partition("{}")
        path = f"{head}{named}{tail}" if "{}" in route else route
        return http("POST", path, content)

    row("http", route)(made)


def _queue(s: Stage) -> str:
    s.push()
    return s.queue


def _fingerprint(s: Stage) -> str:
    s.dead()
    reply = json.loads(s.need("control", control(failures={})))
    found: str = reply["groups"][0]["fingerprint"]
    return found


post("/queues/{}/pause", _queue)
post("/queues/{}/resume", lambda s: _paused(s) and s.queue)
post("/queues/{}/retain", _queue, {"keep_results": 60})
post("/queues/{}/limit", _queue, {"limit": 3})
post("/queues/{}/clear", _queue)
post("/queues/{}/remove", _queue)
post("/jobs", lambda _: "", lambda s: {"queue": s.queue, "id": s.job, "payload": [1]})
post("/jobs/{}/retry", lambda s: s.dead() or s.job)
post("/jobs/{}/kill", lambda s: s.push())
post("/jobs/{}/cancel", lambda s: s.push())
post("/jobs/{}/delete", lambda s: s.push())
post("/jobs/{}/move", lambda s: s.push(), {"queue": "elsewhere"})
post("/jobs/{}/priority", lambda s: s.push(), {"priority": 7})
post("/jobs/{}/tag", lambda s: s.push(), {"tags": ["red"]})
post("/jobs/{}/untag", lambda s: s.put("", "tags", '["red"]'), {"tags": ["red"]})
post("/jobs/{}/track", lambda s: s.push())
post("/jobs/{}/untrack", _tracked)
post("/jobs/{}/undepend", lambda s: s.blocked())
post("/jobs/{}/timeout", lambda s: s.pop())
post("/actions", lambda s: s.push(), lambda s: {"action": "kill", "jobs": [s.job]})
post("/failures/{}/retry", _fingerprint)
post("/failures/{}/delete", _fingerprint)
post("/recurring/{}/cancel", lambda s: s.recurring())
post("/recurring/{}/move", lambda s: s.recurring(), {"queue": "elsewhere"})
post("/recurring/{}/priority", lambda s: s.recurring(), {"priority": 7})
post("/recurring/{}/tag", lambda s: s.recurring(), {"tags": ["blue"]})
post("/recurring/{}/untag", lambda s: s.recurring(), {"tags": ["red"]})
post("/leases/{}/complete", lambda s: s.http_lease(), {"result": [1]})
post("/leases/{}/fail", lambda s: s.http_lease(), {"group": "Oops", "message": "broken"})
post("/leases/{}/release", lambda s: s.http_lease())
post("/leases/{}/renew", lambda s: s.http_lease(), {"lease_for": 3600})
for _action in ("quiet", "terminate"):
    post(
        "/workers/faktory/{}/" + _action,
        lambda s: s.need("faktory", faktory("INFO"), s.name) and s.name,
    )
post("/configuration/qless", lambda _: "", lambda s: {"option": s.name, "value": "7"})
post("/flush", lambda s: s.push(), {"confirm": "flush"})
row("http", "/leases", "leases")(
    lambda s: s.push() and http("POST", "/leases", {"queues": [s.queue], "worker": "w"})
)
plain(
    "http",
    "memory",
    **{
        # The web process keeps its running actions in memory.
        "/actions/{}/stop": lambda _: http("POST", "/actions/1/stop"),
        # Both start another process, and report on it.
        "/ship": lambda _: http("POST", "/ship"),
        "/pipeline/run": lambda _: http("POST", "/pipeline/run"),
    },
)

"""The most expensive form of each command, against the large world of measured_server.py.

`FORMS` has a form for each command whose cost can depend on the number of jobs, queues or
dependents, or on the size of the request. Every other command is sent in the form of
command_rows.py. Routes of the HTTP API and pages are requests to the admin socket: web_rows.py has
a row for each.
"""

import json
import struct
from collections.abc import Callable, Iterable
from typing import Any

import web_rows
from command_rows import (
    CLIENT,
    ROWS,
    Prepare,
    Request,
    Row,
    Stage,
    control,
    faktory,
    goqueue,
    masenko,
    now,
    request_of,
    words,
    workq,
)
from measured_server import Sizes

#: The sizes of the requests of this run; `use` sets them.
sizes = Sizes(0, 0, 0)
FORMS: dict[tuple[str, str], list[Prepare]] = {}
ALL = {"regexp": "*"}


def use(chosen: Sizes) -> None:
    global sizes
    sizes = chosen


def rows() -> Iterable[tuple[str, Callable[[Stage], Request]]]:
    """A name and a request for each form of each command."""
    yield from web_rows.rows()
    for row in ROWS:
        if row.protocol == "http":  # a web process sends the admin requests of these routes
            continue
        forms = FORMS.get((row.protocol, row.command), [row.prepare])
        for number, form in enumerate(forms):
            made = Row(row.protocol, row.command, row.effect, form)
            name = row.name if len(forms) == 1 else f"{row.name} ({number + 1})"
            yield name, lambda stage, made=made: request_of(made, stage)


def form(protocol: str, command: str) -> Callable[[Prepare], Prepare]:
    def add(prepare: Prepare) -> Prepare:
        FORMS.setdefault((protocol, command), []).append(prepare)
        return prepare

    return add


def forms(protocol: str, **commands: Prepare | list[Prepare]) -> None:
    for command, prepare in commands.items():
        several = prepare if isinstance(prepare, list) else [prepare]
        FORMS.setdefault((protocol, command), []).extend(several)


def queue_names() -> list[str]:
    return [f"queue-{number:06}" for number in range(sizes.queues)]


# Faktory


def units(count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"jid": f"new-{n:06}", "jobtype": "t", "args": [n], **more} for n in range(count)]


def _large(s: Stage) -> bytes:
    unit = {"jid": s.job, "jobtype": "t", "args": ["x" * (sizes.jobs * 60)]}
    return faktory("PUSH", unit)


def _hold_root(s: Stage, name: str) -> None:
    s.need("faktory", faktory("FETCH", name))


def _load(s: Stage) -> str:
    s.need("faktory", faktory("MILLRACE", {"open": s.name}))
    for start in range(0, sizes.jobs // 10, 500):
        jobs = [{**unit, "jid": f"load-{start + n:06}"} for n, unit in enumerate(units(500))]
        s.need("faktory", faktory("MILLRACE", {"stage": s.name, "jobs": jobs}))
    return s.name


forms(
    "faktory",
    PUSH=_large,
    PUSHB=lambda s: faktory("PUSHB", units(sizes.jobs // 10)),
    FETCH=lambda s: faktory("FETCH", " ".join(["nothing-" + name for name in queue_names()[:900]])),
    ACK=lambda s: _hold_root(s, "masenko-root") or faktory("ACK", {"jid": "masenko-root"}),
    FAIL=lambda s: _hold_root(s, "qless-root") or faktory("FAIL", {"jid": "qless-root"}),
    **{
        "QUEUE PAUSE": lambda s: faktory("QUEUE", "PAUSE *"),
        "QUEUE RESUME": lambda s: (
            s.need("faktory", faktory("QUEUE", "PAUSE *")) and faktory("QUEUE", "RESUME *")
        ),
        "QUEUE REMOVE": [
            lambda s: faktory("QUEUE", "REMOVE big"),
            lambda s: faktory("QUEUE", "REMOVE *"),
        ],
        "QUEUE LATENCY": lambda s: faktory("QUEUE", "LATENCY big"),
        "MUTATE clear": lambda s: faktory("MUTATE", {"cmd": "clear", "target": "scheduled"}),
        "MUTATE kill": lambda s: faktory(
            "MUTATE", {"cmd": "kill", "target": "scheduled", "filter": ALL}
        ),
        "MUTATE discard": lambda s: faktory(
            "MUTATE", {"cmd": "discard", "target": "dead", "filter": ALL}
        ),
        "MUTATE requeue": lambda s: faktory(
            "MUTATE", {"cmd": "requeue", "target": "dead", "filter": ALL}
        ),
        "MILLRACE stage": lambda s: (
            s.need("faktory", faktory("MILLRACE", {"open": s.name}))
            and faktory("MILLRACE", {"stage": s.name, "jobs": units(sizes.jobs // 10)})
        ),
        "MILLRACE release": lambda s: faktory("MILLRACE", {"release": _load(s)}),
        "MILLRACE discard": lambda s: faktory("MILLRACE", {"discard": _load(s)}),
        "MILLRACE fetch": lambda s: faktory(
            "MILLRACE", {"fetch": {"queues": ["big"], "count": 100}}
        ),
        "MILLRACE cancel": lambda s: faktory(
            "MILLRACE", {"cancel": [f"job-{n}" for n in range(1000)]}
        ),
        "MILLRACE read": [
            lambda s: faktory("MILLRACE", {"read": {"queue": "qless"}}),
            lambda s: faktory("MILLRACE", {"read": {"queue": "none"}}),
            lambda s: faktory("MILLRACE", {"read": {"queue": "big"}, "most": 1000}),
        ],
    },
)


# Workq

#: The maximum number of items of one reply.
_MAX_ITEMS = 100
forms(
    "workq",
    lease=lambda s: workq("lease", *["nothing-" + name for name in queue_names()[:5000]], 1),
    **{
        "inspect jobs": [
            lambda s: workq("inspect", "jobs", "workq-ready", 0, _MAX_ITEMS),
            lambda s: workq("inspect", "jobs", "workq-ready", sizes.jobs // 25, _MAX_ITEMS),
        ],
        "inspect scheduled-jobs": [
            lambda s: workq("inspect", "scheduled-jobs", "workq-later", 0, _MAX_ITEMS),
            lambda s: workq("inspect", "scheduled-jobs", "workq-later", sizes.jobs // 30, 10),
        ],
        "inspect queues": [
            lambda s: workq("inspect", "queues", 0, _MAX_ITEMS),
            lambda s: workq("inspect", "queues", sizes.queues - 5, 10),
        ],
    },
)


# Masenko


def _atomic(s: Stage) -> bytes:
    task = masenko("PUSH", {"name": "t", "queue": s.queue, "payload": [1]})
    return masenko("ATOMIC") + task * (sizes.jobs // 10) + masenko("DONE")


def _atomic_acks(s: Stage) -> bytes:
    acks = []
    for _ in range(sizes.jobs // 20):
        reply = s.need("masenko", masenko("FETCH", {"queues": ["big"]}))
        acks.append(masenko("ACK", {"id": json.loads(reply[3:])["id"]}))
    return masenko("ATOMIC") + b"".join(acks) + masenko("DONE")


def _masenko_root(s: Stage) -> dict[str, int]:
    reply = s.need("masenko", masenko("FETCH", {"queues": ["masenko-root"]}))
    return {"id": json.loads(reply[3:])["id"]}


forms(
    "masenko",
    FETCH=lambda s: masenko(
        "FETCH", {"queues": ["nothing-" + name for name in queue_names()], "timeout": "1ms"}
    ),
    ATOMIC=[_atomic, _atomic_acks],
    ACK=lambda s: masenko("ACK", _masenko_root(s)),
    NACK=lambda s: masenko("NACK", _masenko_root(s)),
)


# Go Job Queue

forms(
    "goqueue",
    ADD=lambda s: goqueue(
        b"ADD", s.queue.encode(), b"\0", struct.pack("<III", 3, 60, 1 << 20), b"x" * (1 << 20)
    ),
)


# Redis


def _many(count: int) -> list[str]:
    return [f"ql:j:job-{n}" for n in range(count)]


def _members() -> list[str]:
    return [f"member-{n}" for n in range(5000)]


def _scratch(s: Stage, command: str, *between: object) -> list[object]:
    """Fill a scratch key of the largest permitted size."""
    members = _members()
    if command == "HSET":
        s.need("qless", words("HSET", s.name, *(w for m in members for w in (m, m))))
    elif command == "ZADD":
        s.need("qless", words("ZADD", s.name, *(w for m in members for w in (1, m))))
    else:
        s.need("qless", words(command, s.name, *members))
    return [s.name, *between]


def _exec(command: bytes, count: int) -> Prepare:
    def prepare(s: Stage) -> bytes:
        s.need("qless", words("MULTI"))
        for _ in range(count):
            s.need("qless", command)
        return words("EXEC")

    return prepare


def _put(n: int) -> bytes:
    return words("QLESS.PUT", 1, "new", f"put-{n}", "klass", "{}", now(), 0)


def _exec_puts(s: Stage) -> bytes:
    s.need("qless", words("MULTI"))
    for n in range(min(sizes.jobs // 20, 10_000)):
        s.need("qless", _put(n))
    return words("EXEC")


ZSETS = ["ql:queues", "ql:q:big-work", "ql:q:later-scheduled", "ql:q:waiting-depends", "ql:tracked"]
SETS = ["ql:failures", "ql:j:qless-root-dependents", "ql:paused_queues"]


def _each(keys: list[str], *command: object) -> list[Prepare]:
    return [lambda s, key=key: words(command[0], key, *command[1:]) for key in keys]  # type: ignore[misc]


def _paused_queues(s: Stage) -> bool:
    return bool(s.need("faktory", faktory("QUEUE", "PAUSE *")))


forms(
    "redis",
    KEYS=[lambda s: words("KEYS", "*a*a*a*a*b"), lambda s: words("KEYS", "ql:*")],
    SCAN=[
        lambda s: words("SCAN", 0, "COUNT", 1_000_000),
        lambda s: words("SCAN", 10, "COUNT", 1_000_000),
    ],
    EXISTS=[lambda s: words("EXISTS", *_many(5000)), *_each([*ZSETS, *SETS], "EXISTS")],
    TYPE=_each([*ZSETS, *SETS, "ql:tags", "ql:t:all", "ql:completed", "ql:f:Error1"], "TYPE"),
    TTL=_each(ZSETS, "TTL"),
    ZRANGE=_each(
        [*ZSETS, "ql:tags", "ql:t:all", "ql:q:held-locks", "ql:completed"], "ZRANGE", 0, -1
    ),
    ZCARD=_each([*ZSETS, "ql:tags", "ql:t:all", "ql:q:held-locks", "ql:completed"], "ZCARD"),
    ZSCORE=_each([*ZSETS, "ql:tags", "ql:t:all", "ql:q:held-locks", "ql:completed"], "ZSCORE", "x"),
    SMEMBERS=[*_each(SETS, "SMEMBERS"), lambda s: _paused_queues(s) and words("SMEMBERS", SETS[2])],
    SISMEMBER=_each(SETS, "SISMEMBER", "x"),
    LRANGE=_each(["ql:f:Error1"], "LRANGE", 0, -1),
    LLEN=_each(["ql:f:Error1"], "LLEN"),
    WATCH=_each([*ZSETS, *SETS, "ql:t:all"], "WATCH"),
    EXEC=[
        _exec(words("KEYS", "*a*a*a*b"), 3),
        _exec(words("DBSIZE"), 3),
        _exec(words("QLESS.QUEUES", 0, now()), 3),
        _exec_puts,
    ],
    DEL=lambda s: words("DEL", *[f"scratch-{n}" for n in range(5000)]),
    **{
        "DEL scratch": lambda s: words("DEL", *_scratch(s, "RPUSH")),
        "RPUSH scratch": lambda s: words("RPUSH", s.name, *_members()),
        "LPUSH scratch": lambda s: words("LPUSH", s.name, *_members()),
        "HSET scratch": lambda s: words("HSET", s.name, *_members(), *_members()),
    },
    SADD=lambda s: words("SADD", s.name, *_members()),
    SREM=lambda s: words("SREM", *_scratch(s, "SADD"), *_members()),
    ZADD=lambda s: words("ZADD", s.name, *(word for m in _members() for word in (1, m))),
    ZREM=lambda s: words("ZREM", *_scratch(s, "ZADD"), *_members()),
    LPOP=lambda s: words("LPOP", *_scratch(s, "RPUSH"), 5000),
    RPOP=lambda s: words("RPOP", *_scratch(s, "RPUSH"), 5000),
    HGETALL=lambda s: words("HGETALL", *_scratch(s, "HSET")),
    HGET=lambda s: words("HGET", *_scratch(s, "HSET"), "member-7"),
    HMGET=lambda s: words("HMGET", *_scratch(s, "HSET"), *_members()),
)


# Qless


def _jids(count: int) -> list[str]:
    return [f"job-{n}" for n in range(count)]


def _tree() -> list[str]:
    """A job and all its dependents."""
    return ["qless-root", *(f"qless-root-{n}" for n in range(sizes.dependents // 2))]


def both(command: str, *arguments: Callable[[Stage], Any], also: str = "") -> None:
    """Forms of a command of dialect C, and of a command of dialect D with the same arguments."""
    for dialect, name in (("C", command), ("T", command), ("D", also)):
        if name:
            for made in arguments:
                form(dialect, name)(
                    lambda s, d=dialect, n=name, m=made: s.qless(d, n, *m(s))  # type: ignore[misc]
                )


both("pop", lambda s: ("big", CLIENT, 100_000), also="queue.pop")
both("peek", lambda s: ("big", 100_000))
form("D", "queue.peek")(lambda s: s.qless("D", "queue.peek", "big", sizes.jobs // 3, 1000))
both("cancel", lambda s: _jids(2000), lambda s: _tree(), also="job.cancel")
both("multiget", lambda s: _jids(2000), also="job.getMulti")
both("get", lambda s: ["qless-root"], also="job.get")
both("failed", lambda s: (), lambda s: ("Error1", 0, 100_000))
form("D", "jobs.failedByGroup")(lambda s: s.qless("D", "jobs.failedByGroup", "Error1", 0, 100_000))
both("unfail", lambda s: ("other", "Error1", 100_000), also="queue.unfail")
_STATES = ("scheduled", "depends", "running", "stalled")
_QUEUES = {"scheduled": "later", "depends": "waiting", "running": "held", "stalled": "held"}
both(
    "jobs",
    *[lambda s, state=state: (state, _QUEUES[state], 0, 100_000) for state in _STATES],  # type: ignore[misc]
    lambda s: ("complete", 0, 100_000),
)
for _state in _STATES:
    form("D", "queue.jobsByState")(
        lambda s, state=_state: s.qless(  # type: ignore[misc]
            "D", "queue.jobsByState", state, _QUEUES[state], 0, 100_000
        )
    )
form("D", "jobs.completed")(lambda s: s.qless("D", "jobs.completed", 0, 100_000))
form("D", "jobs.tagged")(lambda s: s.qless("D", "jobs.tagged", "all", 0, 100_000))
form("D", "tags.top")(lambda s: s.qless("D", "tags.top", 0, 100_000))
both("tag", lambda s: ("top", 0, 100_000), lambda s: ("get", "all", 0, 100_000), also="tag")
both("length", lambda s: ("big",), also="queue.length")
both("complete", lambda s: (_popped_root(s), CLIENT, "qless-root", "{}"), also="job.complete")
both("fail", lambda s: (_popped_root(s), CLIENT, "group", "message", "{}"), also="job.fail")
both("depends", lambda s: (s.blocked(), "on", *_jids(2000)), also="job.depends")
both("pause", lambda s: queue_names()[:2000], also="queue.pause")
both("unpause", lambda s: queue_names()[:2000], also="queue.unpause")
both("queue.forget", lambda s: queue_names()[:2000], also="queue.forget")
both("priority", lambda s: ("job-5", 7), also="job.setPriority")
both("queues", lambda s: (), lambda s: ("held",), also="queues.counts")
form("D", "queue.counts")(lambda s: s.qless("D", "queue.counts", "held"))


def _popped_root(s: Stage) -> str:
    s.need("qless", s.qless("C", "pop", "qless-root", CLIENT, 1))
    return "qless-root"


def spec(command: str, *arguments: Callable[[Stage], Any], queue: str = "") -> None:
    for made in arguments:
        form("spec", command)(
            lambda s, m=made: (  # type: ignore[misc]
                words(f"QLESS.{command.upper()}", 1, queue, *m(s))
                if queue
                else words(f"QLESS.{command.upper()}", 0, *m(s))
            )
        )


spec("pop", lambda s: (CLIENT, 100_000, now()), queue="big")
spec("peek", lambda s: (100_000, now()), queue="big")
spec("cancel", lambda s: _jids(2000), lambda s: _tree())
spec("failed", lambda s: (), lambda s: ("Error1", 0, 100_000))
spec("unfail", lambda s: (now(), "Error1", "other", 100_000))
spec(
    "jobs", lambda s: ("scheduled", now(), "later", 0, 100_000), lambda s: ("complete", 0, 100_000)
)
spec("tag", lambda s: ("top", 0, 100_000), lambda s: ("get", "all", 0, 100_000))


# Requests of the admin socket: the pages and the HTTP API

_NO_MATCH = {"text": ["nobody"]}
_QUERIES: list[dict[str, Any]] = [
    {},
    _NO_MATCH,
    {"text": ["n\u00f6"]},
    {"kind": "Nothing"},
    {"queue": "big"},
    {"queue": "nothing"},
    {"state": "dead"},
    {"state": "dead", "error": "nothing"},
    {"state": "scheduled"},
    {"tag": "all"},
    {"worker": "nobody"},
    {"group": "Error1"},
    {"tracked": True},
    {"failing": True},
    {"retrying": True},
    {"protocol": "qless"},
]
_ORDERS = ("newest", "queue", "due", "ended")
_TAGS = [f"tag-{number}" for number in range(100)]


def _pushes(**fields: Any) -> list[dict[str, Any]]:
    """The jobs of the largest push over HTTP."""
    return [{"queue": "new", "payload": "WzFd", **fields} for _ in range(200)]


def _first_jids(count: int) -> list[str]:
    return [f"one-{number}" for number in range(count)]


def _act(action: str, **more: Any) -> None:
    form("control", f"act {action}")(
        lambda _: control(act={"action": action, "query": {"queue": "big"}, "by": "me", **more})
    )


for _action, _more in (
    ("retry", {}),
    ("kill", {}),
    ("cancel", {}),
    ("delete", {}),
    ("move", {"queue": "elsewhere"}),
    ("priority", {"priority": 7}),
    ("tag", {"tags": ["red"]}),
    ("untag", {"tags": ["red"]}),
    ("track", {}),
    ("untrack", {}),
    ("undepend", {}),
    ("timeout", {}),
):
    _act(_action, **_more)
form("control", "act delete")(
    lambda _: control(act={"action": "delete", "jobs": ["qless-root"], "by": "me"})
)
forms(
    "control",
    search=[
        lambda _, query=query: control(search={"query": query, "max_examined": 1_000_000})  # type: ignore[misc]
        for query in _QUERIES
    ]
    + [
        lambda _, order=order: control(search={"query": {}, "order": order, "limit": 1000})  # type: ignore[misc]
        for order in _ORDERS
    ],
    queues=[
        lambda _: control(queues={"limit": 500}),
        lambda _: control(queues={"text": "nothing"}),
        lambda _: control(queues={"paused": True}),
    ],
    queue=lambda _: control(queue={"name": "big"}),
    job=[
        lambda _: control(job={"id": "qless-root"}),
        lambda _: control(job={"id": "masenko-root"}),
    ],
    why=[lambda _: control(why="job-1"), lambda _: control(why="qless-root-1")],
    failures=lambda _: control(failures={"limit": 500}),
    workers=lambda _: control(workers={"limit": 1000}),
    tracked=lambda _: control(tracked={"limit": 1000}),
    tags=lambda _: control(tags={"limit": 1000}),
    push=[
        lambda _: control(push={"jobs": _pushes(), "by": "me", "key": "key", "digest": "digest"}),
        lambda _: control(
            push={"jobs": _pushes(waits_for=_first_jids(1000), tags=_TAGS), "by": "me"}
        ),
    ],
    **{
        "act_on_queue clear": lambda _: control(
            act_on_queue={"name": "big", "action": "clear", "by": "me"}
        ),
        "act_on_queue remove": lambda _: control(
            act_on_queue={"name": "big", "action": "remove", "by": "me"}
        ),
    },
)

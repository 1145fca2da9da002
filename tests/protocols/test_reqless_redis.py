"""Reqless compared with the original: the script of the package, in a real redis-server.
Every call goes to both, with the same `now`, and the replies must be equal. The package has the
command names before reqless renamed them (dialect T), so dialect D is compared with the same
script: under its old names, and except for the formats that changed with them.
`alike` handles or removes intended differences: ties are FIFO here, so jids that tie are in
descending order; data is stored byte for byte, so it is compact JSON.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from redis_reference import SERVER, Call, Ours, Reference, alike, reqless_original

pytestmark = pytest.mark.skipif(SERVER is None, reason="redis-server is not installed")


@pytest.fixture(scope="module")
def server() -> Iterator[Reference]:
    with reqless_original() as reference:
        yield reference


@pytest.fixture
def original(server: Reference) -> Reference:
    server.flush()
    return server


#: The old names of renamed commands.
RENAMED = {
    "failureGroups.counts": "failed",
    "job.cancel": "cancel",
    "job.complete": "complete",
    "job.fail": "fail",
    "job.get": "get",
    "job.getMulti": "multiget",
    "job.heartbeat": "heartbeat",
    "job.log": "log",
    "job.requeue": "requeue",
    "job.retry": "retry",
    "job.setPriority": "priority",
    "job.timeout": "timeout",
    "jobs.failedByGroup": "failed",
    "jobs.tracked": "track",
    "queue.counts": "queues",
    "queue.jobsByState": "jobs",
    "queue.length": "length",
    "queue.pause": "pause",
    "queue.peek": "peek",
    "queue.pop": "pop",
    "queue.put": "put",
    "queue.stats": "stats",
    "queue.unfail": "unfail",
    "queue.unpause": "unpause",
    "queues.counts": "queues",
    "recurringJob.addTag": "recur.tag",
    "recurringJob.cancel": "unrecur",
    "recurringJob.get": "recur.get",
    "recurringJob.removeTag": "recur.untag",
    "recurringJob.update": "recur.update",
    "worker.forget": "worker.deregister",
    "worker.jobs": "workers",
    "workers.counts": "workers",
}
#: The old names of commands that were split.
FACES = {
    "job.addTag": ("tag", "add"),
    "job.removeTag": ("tag", "remove"),
    "jobs.tagged": ("tag", "get"),
    "tags.top": ("tag", "top"),
    "job.track": ("track", "track"),
    "job.untrack": ("track", "untrack"),
    "jobs.completed": ("jobs", "complete"),
}


def early(call: Call) -> Call:
    """The call under its old name."""
    command, now, *args = call
    if command in FACES:
        old, face = FACES[command]
        return (old, now, face, *args)
    if command == "job.addDependency":
        return ("depends", now, args[0], "on", *args[1:])
    if command == "job.removeDependency":
        return ("depends", now, args[0], "off", *args[1:])
    if command == "job.completeAndRequeue":
        return ("complete", now, *args[:4], "next", *args[4:])
    if command == "queue.recurAtInterval":
        return ("recur", now, *args[:4], "interval", *args[4:])
    return (RENAMED.get(command, command), now, *args)


def modern(reply: Any) -> Any:
    """As `alike`, with an old reply converted to the new format: empty lists, words."""
    if isinstance(reply, dict):
        if "error" in reply:
            words = reply["error"].replace("RecurringJob On()", "Recur()")
            return {"error": words.replace('Arg "count"', 'Arg "limit"')}
        if reply.get("what") == "failed-retries":
            reply = {**reply, "what": "failed"}
        renamed = {"queue" if name == "q" else name: value for name, value in reply.items()}
        return {name: modern(value) for name, value in renamed.items()} or []
    if isinstance(reply, list):
        return [modern(each) for each in reply]
    return reply


LIFE: list[Call] = [
    ("queues.counts", 1),
    ("workers.counts", 1),
    ("job.get", 1, "x"),
    ("job.getMulti", 1, "x"),
    ("queue.peek", 1, "q", 0, 5),
    ("queue.pop", 1, "q", "w", 5),
    ("jobs.completed", 1),
    ("jobs.tracked", 1),
    ("tags.top", 1),
    ("failureGroups.counts", 1),
    ("jobs.failedByGroup", 1, "g"),
    ("jobs.tagged", 1, "t"),
    ("queue.put", 2, "me", "q", "a", "klass", '{"x":1}', 0),
    ("queue.put", 3, "me", "q", "b", "klass", "[]", 0, "priority", 5, "tags", ["t"], "retries", 3),
    ("queue.put", 4, "me", "q", "c", "klass", "{}", 100),
    ("queue.put", 5, "me", "q", "d", "klass", "{}", 0, "depends", ["a", "b"]),
    ("job.get", 6, "a"),
    ("job.getMulti", 6, "a", "zz", "b", "c", "d"),
    ("queues.counts", 6),
    ("queue.counts", 6, "q"),
    ("queue.counts", 6, "none"),
    ("queue.length", 6, "q"),
    ("queue.peek", 7, "q", 0, 5),
    ("queue.peek", 7, "q", 1, 5),
    ("queue.peek", 7, "q", 5, 5),
    ("queue.peek", 7, "q", 0, 0),
    ("queue.pop", 8, "q", "w", 1),
    ("job.heartbeat", 9, "b", "w"),
    ("job.heartbeat", 9, "b", "w2"),
    ("job.heartbeat", 9, "nope", "w"),
    ("job.heartbeat", 9, "a", "w"),
    ("job.complete", 10, "b", "w2", "q", "{}"),
    ("job.complete", 10, "b", "w", "q2", "{}"),
    ("job.complete", 10, "nope", "w", "q", "{}"),
    ("job.complete", 10, "a", "w", "q", "{}"),
    ("job.complete", 11, "b", "w", "q", '{"y":2}'),
    ("job.get", 12, "b"),
    ("jobs.completed", 12),
    ("worker.jobs", 12, "w"),
    ("workers.counts", 12),
    ("queue.pop", 13, "q", "w", 5),
    ("job.fail", 14, "a", "w2", "g", "m"),
    ("job.fail", 14, "nope", "w", "g", "m"),
    ("job.fail", 14, "c", "w", "g", "m"),
    ("job.fail", 15, "a", "w", "g", "m", '{"z":1}'),
    ("job.get", 16, "a"),
    ("failureGroups.counts", 16),
    ("jobs.failedByGroup", 16, "g"),
    ("jobs.failedByGroup", 16, "g", 0, 10),
    ("job.get", 16, "d"),
    ("queue.unfail", 17, "q", "g", 5),
    ("job.get", 18, "a"),
    ("queue.pop", 18, "q", "w", 1),
    ("job.retry", 19, "a", "q", "w", 0),
    ("job.get", 20, "a"),
    ("queue.pop", 21, "q", "w", 1),
    ("job.retry", 22, "a", "q", "w", 50, "grp", "msg"),
    ("job.get", 23, "a"),
    ("job.retry", 23, "a", "q", "w"),
    ("queue.pop", 80, "q", "w", 1),
    ("job.completeAndRequeue", 81, "a", "w", "q", "{}", "q"),
    ("job.get", 82, "a"),
    ("queue.pop", 83, "q", "w", 1),
    ("job.completeAndRequeue", 84, "a", "w", "q", "{}", "q", "delay", 3, "depends", "[]"),
    ("queue.pop", 90, "q", "w", 9),
    ("job.cancel", 91, "c"),
    ("job.complete", 92, "a", "w", "q", "{}"),
    ("job.get", 93, "d"),
    ("job.log", 94, "d", "hello", '{"k":1}'),
    ("job.get", 94, "d"),
    ("job.log", 94, "nope", "x"),
    ("queues.counts", 95),
    ("job.addTag", 96, "d", "x", "y"),
    ("job.removeTag", 96, "d", "x"),
    ("job.removeTag", 96, "d", "y"),
    ("job.addTag", 97, "nope", "x"),
    ("jobs.tagged", 97, "t"),
    ("job.track", 98, "d"),
    ("jobs.tracked", 98),
    ("job.untrack", 99, "d"),
    ("job.track", 99, "nope"),
    ("job.setPriority", 100, "d", 7),
    ("job.get", 100, "d"),
    ("job.cancel", 101, "d", "nope"),
    ("queue.put", 102, "me", "p", "e", "klass", "{}", 0),
    ("queue.forget", 103, "p"),
    ("queues.counts", 103),
    ("queue.pause", 104, "p"),
    ("queue.pop", 104, "p", "w", 1),
    ("queue.counts", 104, "p"),
    ("queue.unpause", 105, "p"),
    ("queue.stats", 105, "p", 105),
    ("worker.forget", 106, "w"),
    ("workers.counts", 107),
]

EXPIRY: list[Call] = [
    ("queue.put", 0, "me", "q", "a", "k", "{}", 0, "retries", 1),
    ("queue.pop", 1, "q", "w", 1),
    ("queue.pop", 100, "q", "w2", 1),
    ("job.get", 100, "a"),
    ("queue.peek", 111, "q", 0, 5),
    ("worker.jobs", 100, "w"),
    ("queue.jobsByState", 100, "running", "q"),
    ("queue.jobsByState", 111, "stalled", "q"),
    ("queue.pop", 120, "q", "w2", 1),
    ("queue.pop", 300, "q", "w3", 1),
    ("queue.pop", 320, "q", "w3", 1),
    ("job.get", 321, "a"),
    ("failureGroups.counts", 321),
    ("queue.stats", 321, "q", 0),
    ("queue.put", 400, "me", "q", "b", "k", "{}", 0, "retries", 0),
    ("queue.pop", 401, "q", "w", 1),
    ("job.retry", 402, "b", "q", "w"),
    ("job.get", 403, "b"),
    ("queue.put", 404, "me", "q", "c", "k", "{}", 0, "retries", 0),
    ("queue.pop", 405, "q", "w", 1),
    ("job.retry", 406, "c", "q", "w", 0, "gg", "mm"),
    ("job.get", 407, "c"),
]

DEPENDENCIES: list[Call] = [
    ("queue.put", 0, "w", "q", "a", "k", "{}", 0),
    ("queue.put", 1, "w", "q", "b", "k", "{}", 0),
    ("queue.put", 2, "w", "q", "c", "k", "{}", 0, "depends", ["a"]),
    ("job.addDependency", 3, "c", "b"),
    ("job.get", 3, "c"),
    ("job.removeDependency", 4, "c", "a"),
    ("job.get", 4, "c"),
    ("job.cancel", 4, "b"),
    ("job.removeDependency", 5, "c", "all"),
    ("job.get", 5, "c"),
    ("job.addDependency", 6, "c", "b"),
    ("job.addDependency", 6, "zz", "b"),
    ("queue.jobsByState", 6, "depends", "q"),
    ("queue.jobsByState", 6, "foo", "q"),
    ("queue.jobsByState", 6, "running"),
    ("job.cancel", 7, "a", "b", "c"),
    ("queue.put", 8, "w", "q", "e", "k", "{}", 0),
    ("queue.put", 8, "w", "q", "f", "k", "{}", 10, "depends", ["e"]),
    ("queue.pop", 9, "q", "w", 1),
    ("job.complete", 10, "e", "w", "q", "{}"),
    ("job.get", 10, "f"),
    ("queue.jobsByState", 10, "scheduled", "q"),
]

RECURRING: list[Call] = [
    ("queue.recurAtInterval", 0, "q", "r", "k", '{"d":1}', 60, 10, "priority", 3, "tags", ["x"],
     "retries", 2, "backlog", 0, "throttles", ["t"]),
    ("recurringJob.get", 1, "r"),
    ("queue.counts", 1, "q"),
    ("queue.jobsByState", 1, "recurring", "q"),
    ("queue.pop", 5, "q", "w", 5),
    ("queue.pop", 135, "q", "w", 5),
    ("recurringJob.addTag", 136, "r", "y"),
    ("recurringJob.removeTag", 136, "r", "x"),
    ("recurringJob.removeTag", 136, "r", "y"),
    ("recurringJob.addTag", 136, "zz", "y"),
    ("recurringJob.update", 137, "r", "interval", 30, "klass", "k2", "queue", "p"),
    ("recurringJob.get", 138, "r"),
    ("recurringJob.update", 138, "zz", "interval", 30),
    ("recurringJob.update", 138, "r", "foo", 30),
    ("queue.peek", 200, "p", 0, 5),
    ("recurringJob.cancel", 201, "r"),
    ("recurringJob.get", 202, "r"),
    ("queue.recurAtInterval", 0, "q", "r2", "k", "{}", 0, 10),
    ("queue.recurAtInterval", 0, "q", "r2", "k", "{}", "x", 10),
    ("queue.recurAtInterval", 0, "q", "r2", "k", "{}", 5, "y"),
    ("queue.recurAtInterval", 300, "q", "r3", "k", "{}", 60, 0, "backlog", 1),
    ("queue.pop", 900, "q", "w", 50),
]  # fmt: skip

THROTTLES: list[Call] = [
    ("throttle.get", 0, "t"),
    ("throttle.set", 0, "t", 1),
    ("throttle.get", 0, "t"),
    ("throttle.set", 0, "u", 3, 1000),
    ("queue.throttle.get", 0, "q"),
    ("queue.throttle.set", 0, "q", 2),
    ("queue.throttle.get", 0, "q"),
    ("queue.put", 1, "me", "q", "z", "k", "{}", 0, "throttles", ["t"]),
    ("queue.put", 2, "me", "q", "y", "k", "{}", 0, "throttles", ["t", "u"]),
    ("queue.put", 3, "me", "q", "x", "k", "{}", 0),
    ("queue.put", 4, "me", "q", "w", "k", "{}", 0),
    ("queue.pop", 5, "q", "me", 2),
    ("queue.counts", 5, "q"),
    ("job.get", 5, "y"),
    ("queue.jobsByState", 5, "throttled", "q"),
    ("throttle.locks", 5, "t"),
    ("throttle.pending", 5, "t"),
    ("throttle.locks", 5, "ql:q:q"),
    ("queue.pop", 6, "q", "me", 2),
    ("queue.counts", 6, "q"),
    ("queue.peek", 6, "q", 0, 9),
    ("queue.length", 6, "q"),
    ("queue.pop", 7, "q", "me", 2),
    ("queue.put", 8, "me", "q", "yy", "k", "{}", 0, "throttles", ["t"]),
    ("job.get", 8, "yy"),
    ("job.complete", 8, "yy", "me", "q", "{}"),
    ("queue.jobsByState", 8, "throttled", "q"),
    ("queue.jobsByState", 8, "throttled", "q", 1, 1),
    ("throttle.pending", 8, "t"),
    ("job.complete", 9, "z", "me", "q", "{}"),
    ("throttle.locks", 9, "t"),
    ("throttle.pending", 9, "t"),
    ("queue.counts", 9, "q"),
    ("queue.pop", 10, "q", "me", 5),
    ("queue.counts", 10, "q"),
    ("throttle.locks", 10, "ql:q:q"),
    ("throttle.pending", 10, "ql:q:q"),
    ("job.fail", 11, "x", "me", "g", "m"),
    ("queue.counts", 11, "q"),
    ("queue.pop", 12, "q", "me", 5),
    ("queue.counts", 12, "q"),
    ("job.retry", 13, "y", "q", "me"),
    ("queue.counts", 13, "q"),
    ("queue.pop", 14, "q", "me", 5),
    ("queue.counts", 14, "q"),
    ("throttle.locks", 14, "t"),
    ("throttle.pending", 14, "t"),
    ("job.timeout", 15, "w"),
    ("queue.counts", 15, "q"),
    ("queue.pop", 16, "q", "me", 5),
    ("queue.counts", 16, "q"),
    ("job.cancel", 17, "y"),
    ("throttle.locks", 17, "t"),
    ("throttle.pending", 17, "t"),
    ("queue.pop", 18, "q", "me", 5),
    ("queue.counts", 18, "q"),
    ("throttle.delete", 19, "t"),
    ("throttle.get", 19, "t"),
    ("throttle.locks", 19, "t"),
]

RELEASE: list[Call] = [
    ("throttle.set", 0, "t", 1),
    ("queue.put", 0, "w", "q", "a", "k", "{}", 0, "throttles", ["t"]),
    ("queue.put", 1, "w", "q", "b", "k", "{}", 0, "throttles", ["t"]),
    ("queue.pop", 2, "q", "w", 2),
    ("throttle.release", 3, "t", "a"),
    ("throttle.locks", 3, "t"),
    ("throttle.pending", 3, "t"),
    ("queue.pop", 4, "q", "w", 2),
    ("throttle.locks", 4, "t"),
    ("queue.put", 5, "w", "q", "c", "k", "{}", 0, "throttles", ["t"]),
    ("job.get", 5, "c"),
    ("throttle.release", 6, "t", "c"),
    ("throttle.pending", 6, "t"),
    ("queue.peek", 6, "q", 0, 4),
    ("throttle.release", 7, "t", "b"),
    ("queue.peek", 7, "q", 0, 4),
]

MAX_POP_RETRY: list[Call] = [
    ("throttle.set", 0, "t", 1),
    ("config.set", 0, "max-pop-retry", 5),
    *[("queue.put", n, "w", "q", f"a{n}", "k", "{}", 0, "throttles", ["t"]) for n in range(1, 5)],
    *[("queue.put", n, "w", "q", f"b{n}", "k", "{}", 0) for n in range(5, 9)],
    ("queue.pop", 10, "q", "w", 3),
    ("queue.counts", 10, "q"),
    ("throttle.pending", 10, "t"),
    ("config.set", 11, "q-max-pop-retry", 1),
    ("queue.pop", 12, "q", "w", 3),
    ("queue.counts", 12, "q"),
]

MOVING: list[Call] = [
    ("queue.put", 0, "w", "q", "a", "k", "{}", 0, "throttles", ["t"], "tags", ["x"], "priority", 3),
    ("job.get", 0, "a"),
    ("queue.put", 1, "w", "p", "a", "k2", '{"n":1}', 0, "throttles", ["t", "ql:q:q"]),
    ("job.get", 1, "a"),
    ("queue.pop", 2, "p", "w", 1),
    ("job.requeue", 3, "w2", "q", "a", "k", "{}", 0),
    ("job.get", 3, "a"),
    ("queue.pop", 4, "q", "w", 1),
    ("queue.put", 5, "w", "q", "a", "k", "{}", 20),
    ("job.get", 5, "a"),
    ("jobs.tagged", 5, "x"),
]

COMPLAINTS: list[Call] = [
    ("foo", 0),
    ("queue.pop", 0),
    ("queue.pop", 0, "q"),
    ("queue.pop", 0, "q", "w"),
    ("queue.pop", 0, "q", "w", "x"),
    ("queue.put", 0, "w", "q"),
    ("queue.put", 0, "w", "q", "j"),
    ("queue.put", 0, "w", "q", "j", "k", "{}"),
    ("queue.put", 0, "w", "q", "j", "k", "{}", 0, "retries", "x"),
    ("queue.put", 0, "w", "q", "j", "k", "{}", 0, "priority", "x"),
    ("queue.peek", 0, "q"),
    ("queue.peek", 0, "q", "x"),
    ("queue.peek", 0, "q", 0),
    ("queue.peek", 0, "q", 0, "x"),
    ("job.complete", 0),
    ("job.complete", 0, "j"),
    ("job.complete", 0, "j", "w"),
    ("job.fail", 0, "j"),
    ("job.fail", 0, "j", "w", "g"),
    ("job.retry", 0, "j"),
    ("job.retry", 0, "j", "q"),
    ("job.retry", 0, "j", "q", "w", "x"),
    ("job.heartbeat", 0, "j"),
    ("job.setPriority", 0, "j", "x"),
    ("job.requeue", 0, "w", "q", "zz", "k", "{}", 0),
    ("queue.unfail", 0, "q"),
    ("queue.unfail", 0, "q", "g", "x"),
    ("queue.jobsByState", 0),
    ("queue.jobsByState", 0, "throttled"),
    ("queue.jobsByState", 0, "throttled", "q", "x"),
    ("jobs.completed", 0, "x"),
    ("jobs.completed", 0, 0, "x"),
    ("queue.jobsByState", 0, "running", "q", 0, "x"),
    ("tags.top", 0, "x"),
    ("jobs.tagged", 0),
    ("jobs.tagged", 0, "t", 0, "x"),
    ("job.track", 0),
    ("job.log", 0),
    ("job.log", 0, "j"),
    ("recurringJob.get", 0),
    ("throttle.get", 0),
    ("queue.stats", 0, "q"),
    ("queue.stats", 0, "q", "x"),
    ("job.get", 0),
    ("config.unset", 0),
    ("config.set", 0, "option"),
    ("jobs.failedByGroup", 0, "g", "x"),
    ("jobs.failedByGroup", 0, "g", 0, "x"),
]

SCENES = {
    "life": LIFE,
    "expiry": EXPIRY,
    "dependencies": DEPENDENCIES,
    "recurring": RECURRING,
    "throttles": THROTTLES,
    "release": RELEASE,
    "max-pop-retry": MAX_POP_RETRY,
    "moving": MOVING,
    "complaints": COMPLAINTS,
}


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES)
def test_dialect_t_equals_the_original(original: Reference, scene: list[Call]) -> None:
    ours = Ours("T")
    for call in map(early, scene):
        assert alike(ours.call(*call)) == alike(original.call(*call)), call


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES)
def test_dialect_d_equals_the_original(original: Reference, scene: list[Call]) -> None:
    ours = Ours("D")
    for call in scene:
        original_reply = modern(alike(original.call(*early(call))))
        assert modern(alike(ours.call(*call))) == original_reply, call


@pytest.mark.parametrize("option", ["heartbeat", "grace-period", "application", "foo"])
def test_options(original: Reference, option: str) -> None:
    ours = Ours("T")
    for call in [
        ("config.get", 0),
        ("config.get", 0, option),
        ("config.set", 0, option, 20),
        ("config.get", 0, option),
        ("config.get", 0),
        ("config.unset", 0, option),
        ("config.get", 0, option),
    ]:
        assert ours.call(*call) == original.call(*call), call

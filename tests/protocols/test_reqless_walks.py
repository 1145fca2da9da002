"""Random calls in random order to the original and to Millrace.
Each call has a later time than the previous one, so that ties are rare; jids descend, so that the
original orders ties like Millrace.
"""

import json
import random
from collections.abc import Callable, Iterator
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


class Walk:
    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.now = 1000
        self.put = 0
        #: The worker and the queue of each job.
        self.held: dict[str, tuple[str, str]] = {}

    def call(self) -> Call:
        self.now += self.dice.choice((1, 2, 7, 30))
        if self.held and self.dice.random() < 0.45:
            jid = self.dice.choice(sorted(self.held))
            return self.ending(jid, *self.held.pop(jid))
        return self.dice.choice((self.putting, self.popping, self.popping, self.arranging))()

    def record(self, call: Call, reply: Any) -> None:
        if call[0] == "pop" and isinstance(reply, list):
            self.held.update((job["jid"], (call[2], call[3])) for job in reply)

    def popping(self) -> Call:
        worker = self.dice.choice(("w1", "w2"))
        return ("pop", self.now, self.queue(), worker, self.dice.choice((1, 2, 3)))

    def queue(self) -> str:
        return self.dice.choice("qp")

    def new_jid(self) -> str:
        self.put += 1
        return f"j{1000 - self.put}"

    def putting(self) -> Call:
        raise NotImplementedError

    def ending(self, jid: str, queue: str, worker: str) -> Call:
        raise NotImplementedError

    def arranging(self) -> Call:
        raise NotImplementedError

    def inspecting(self) -> list[Call]:
        raise NotImplementedError


def compare_walk(walk: Walk, original: Reference, shown: Callable[[Any], Any]) -> None:
    ours = Ours("T")
    for side in (ours, original):
        side.call("config.set", 0, "heartbeat", 100_000)
        for tid, maximum in (("t", 1), ("u", 2), ("v", 3), ("ql:q:q", 4), ("ql:q:p", 2)):
            if isinstance(walk, Throttling):
                side.call("throttle.set", 0, tid, maximum)
    told = []
    for _ in range(100):
        call = walk.call()
        told.append(json.dumps(call))
        reply = ours.call(*call)
        assert shown(reply) == shown(original.call(*call)), "\n".join(told)
        walk.record(call, reply)
        for look in walk.inspecting():
            seen = shown(ours.call(*look))
            assert seen == shown(original.call(*look)), "\n".join([*told, str(look)])


# Throttles


class Throttling(Walk):
    """A retried job returns after the jobs for which it frees capacity; here they are ahead of it."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        #: Once: jobs before all others tie.
        self.timed_out = False
        #: Existing jobs with an intact lock: these keep their position here.
        self.alive: list[str] = []

    def putting(self) -> Call:
        jid = self.new_jid()
        self.alive.append(jid)
        names = self.dice.sample(["t", "u", "v"], self.dice.randrange(3))
        options: list[Any] = ["throttles", names, "priority", self.dice.randrange(3)]
        return ("put", self.now, "me", self.queue(), jid, "klass", "{}", 0, *options)

    def ending(self, jid: str, queue: str, worker: str) -> Call:
        call: Call = self.dice.choice(
            [
                ("complete", self.now, jid, worker, queue, "{}"),
                ("complete", self.now, jid, worker, queue, "{}"),
                ("fail", self.now, jid, worker, f"group-{queue}", "message"),
                ("retry", self.now, jid, queue, worker, 1),
                ("cancel", self.now, jid),
                ("timeout", self.now, jid),
            ]
        )
        if call[0] == "timeout":
            call = ("cancel", self.now, jid) if self.timed_out else call
            self.timed_out = True
        if call[0] in {"cancel", "timeout"}:
            self.alive = [each for each in self.alive if each != jid]
        return call

    def arranging(self) -> Call:
        if not self.alive:
            return self.putting()
        queue = self.queue()
        return self.dice.choice(
            [
                ("config.set", self.now, "max-pop-retry", self.dice.randrange(1, 4)),
                ("priority", self.now, self.dice.choice(self.alive), self.dice.randrange(3)),
                ("unfail", self.now, queue, f"group-{queue}", 1),
            ]
        )

    def inspecting(self) -> list[Call]:
        tids = ("t", "u", "v", "ql:q:q", "ql:q:p")
        return [
            ("queues", self.now),
            *[("throttle.locks", self.now, tid) for tid in tids],
            *[("throttle.pending", self.now, tid) for tid in tids],
            *[("jobs", self.now, "throttled", queue) for queue in "qp"],
            *[("peek", self.now, queue, 0, 50) for queue in "qp"],
        ]


@pytest.mark.parametrize("seed", range(12))
def test_throttles(original: Reference, seed: int) -> None:
    compare_walk(Throttling(seed), original, alike)


# All other commands


class LifecycleWalk(Walk):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.jids = ["none"]

    def jid(self) -> str:
        return self.dice.choice(self.jids)

    def putting(self) -> Call:
        options: list[Any] = []
        for name, values in (
            ("depends", [[self.jid()], [self.jid(), self.jid()]]),
            ("tags", [["a"], ["b", "c"], []]),
            ("retries", [0, 1]),
        ):
            if self.dice.random() < 0.3:
                options += [name, self.dice.choice(values)]
        jid = self.new_jid()
        options += ["priority", int(jid[1:])]  # equal delayed jobs have another order
        self.jids.append(jid)
        delay = self.dice.choice((0, 0, 4))
        return ("put", self.now, "me", self.queue(), jid, "klass", "{}", delay, *options)

    def ending(self, jid: str, queue: str, worker: str) -> Call:
        done = ("complete", self.now, jid, worker, queue, "{}")
        return self.dice.choice(
            [
                done,
                (*done, "next", self.queue()),
                (*done, "next", self.queue(), "delay", 5),
                (*done, "next", self.queue(), "depends", [self.jid()]),
                ("fail", self.now, jid, worker, "g", "m"),
                ("fail", self.now, jid, worker, "h", "m", '{"a":1}'),
                ("retry", self.now, jid, queue, worker, 0),
                ("retry", self.now, jid, queue, worker, 3, "group", "message"),
                ("heartbeat", self.now, jid, worker),
                ("heartbeat", self.now, jid, "somebody"),
            ]
        )

    def arranging(self) -> Call:
        return self.dice.choice(
            [
                ("cancel", self.now, self.jid()),
                ("tag", self.now, "add", self.jid(), self.dice.choice("abc")),
                ("tag", self.now, "remove", self.jid(), self.dice.choice("abc")),
                ("track", self.now, "track", self.jid()),
                ("unfail", self.now, self.queue(), "g", 2),
                ("put", self.now, "me", self.queue(), self.jid(), "other", "{}", 0),
            ]
        )

    def inspecting(self) -> list[Call]:
        return [
            *[("get", self.now, jid) for jid in self.jids],
            ("queues", self.now),
            ("workers", self.now),
            ("failed", self.now),
            ("failed", self.now, "g"),
            ("track", self.now),
            ("tag", self.now, "get", "a"),
            ("jobs", self.now, "complete"),
            *[("jobs", self.now, state, "q") for state in ("depends", "scheduled", "running")],
            *[("peek", self.now, queue, 0, 50) for queue in "qp"],
        ]


def loosely(reply: Any) -> Any:
    """As `alike`, without intended differences: a moved job has the throttles of its queue, a job
    moved with a delay is `scheduled`, and the order of names depends on ties.
    """
    return _loosely(alike(reply))


def _loosely(reply: Any) -> Any:
    if isinstance(reply, list):
        found = [_loosely(each) for each in reply]
        if found and isinstance(found[0], str):
            return sorted(found)
        if found and "name" in found[0]:
            return sorted(found, key=lambda each: each["name"])
        return found
    if not isinstance(reply, dict):
        return reply
    if "is a dependency of" in reply.get("error", ""):
        return "has dependents"
    found = {name: _loosely(value) for name, value in reply.items() if name != "throttles"}
    if "history" in found and found["state"] == "scheduled":
        found["state"] = "waiting"
    if "expired" in found:  # a job that is tracked again goes to the end there
        found["jobs"] = sorted(found["jobs"], key=lambda job: job["jid"])
    return found


@pytest.mark.parametrize("seed", range(12))
def test_random_calls(original: Reference, seed: int) -> None:
    compare_walk(LifecycleWalk(seed), original, loosely)

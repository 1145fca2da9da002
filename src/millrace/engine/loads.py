"""Loads: jobs that come in many commands, and may run only when all of them are there.

A job that is staged waits, blocked, for the release of the load it came with. It is in its own
queue from the beginning, but no protocol can lease a blocked job, whatever is done to the queue; so
a load can be discarded as long as it is not released, and nothing has happened.

A load is opened, jobs are staged in it, each jid once, and then it is released or discarded, so
many jobs at a time. From the moment that its release has begun nothing more can be staged in it:
whoever was late, or does it all again, cannot bring back a job that was worked already. What was
released is remembered for a while, by name; what was discarded can be opened anew. What is known of
a load is a note of the engine, so that it is as durable as the jobs.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Final, Literal

import msgspec

from .engine import LOADS, Engine
from .errors import LoadError
from .job import Job, Push

State = Literal["open", "releasing", "released"]

#: So many loads are known at once, those included that are over; then the oldest of these go.
MOST_LOADS: Final = 1000
#: A jid is looked for among so many jobs that have it.
MOST_TWINS: Final = 1000


class Load(msgspec.Struct, array_like=True):
    state: State
    #: When it got there.
    at: int
    #: How many jobs it had when its release began.
    total: int = 0


class Known(msgspec.Struct):
    """A load, for whoever asks."""

    load: str
    state: State
    at: int
    total: int
    staged: int


_decode = msgspec.msgpack.Decoder(Load).decode
_encode = msgspec.msgpack.Encoder().encode


def find(engine: Engine, name: str) -> Load | None:
    kept = engine.notes.get(LOADS + name)
    return None if kept is None else _decode(kept)


def known(engine: Engine, name: str, load: Load) -> Known:
    staged = len(engine.staged.get(name, ()))
    total = load.total or staged
    return Known(name, load.state, load.at, total, staged)


def listed(engine: Engine) -> list[Known]:
    """All of them, those first that got where they are first."""
    found = [known(engine, name, load) for name, load in _all(engine)]
    return sorted(found, key=lambda each: each.at)


def begin(engine: Engine, name: str, now: int) -> Known:
    """Open a load, unless it is known: then go on with it."""
    load = find(engine, name)
    if load is None:
        _make_room(engine)
        load = Load("open", now)
        _keep(engine, name, load)
    else:
        engine.depend()
    return known(engine, name, load)


def stage(engine: Engine, name: str, push: Push, now: int) -> bool:
    """Stage a job in an open load, unless it has one of that jid: then it is the same again."""
    if push.jid in engine.by_jid:
        twins = engine.find_newest(push.jid, MOST_TWINS)
        if len(twins) > MOST_TWINS:
            raise LoadError(f"more than {MOST_TWINS} jobs have the jid {push.jid[:100]}")
        if any(job.extra is not None and job.extra.load == name for job in twins):
            engine.depend()
            return False
    push.load = name
    engine.push(push, now)
    return True


def need_open(engine: Engine, name: str) -> None:
    """Nothing may be staged in a load that is not open."""
    load = find(engine, name)
    if load is None:
        raise LoadError(f"no such load: {name}")
    if load.state != "open":
        raise LoadError(f"the load {name} is {load.state}: nothing can be added to it")


def seal(engine: Engine, name: str, now: int) -> None:
    """Begin to release a load."""
    load = find(engine, name)
    if load is None:
        raise LoadError(f"no such load: {name}")
    if load.state == "open":
        total = len(engine.staged.get(name, ()))
        _keep(engine, name, Load("releasing" if total else "released", now, total))
    else:
        engine.depend()


def first(engine: Engine, name: str, count: int) -> list[Job]:
    """So many of a load's jobs that are still staged, in the order in which they came."""
    return list(islice(engine.staged.get(name, {}).values(), count))


def release(engine: Engine, name: str, count: int, now: int) -> int:
    """Let so many jobs of a sealed load go where they would have gone at once; how many did?"""
    jobs = first(engine, name, count)
    for job in jobs:
        engine.let_go(job, now)
    load = find(engine, name)
    if load is not None and load.state == "releasing" and name not in engine.staged:
        _keep(engine, name, Load("released", now, load.total))
    return len(jobs)


def discard(engine: Engine, name: str, count: int, actor: int, now: int) -> int:
    """Remove so many staged jobs of a load that is open, and with the last one the load."""
    load = find(engine, name)
    if load is None:
        engine.depend()
        return 0
    if load.state != "open":
        raise LoadError(f"the load {name} is {load.state}: it cannot be discarded any more")
    jobs = first(engine, name, count)
    for job in jobs:
        engine.cancel(job, now, actor)
    if name not in engine.staged:
        engine.note(LOADS + name, None)
    return len(jobs)


def _keep(engine: Engine, name: str, load: Load) -> None:
    engine.note(LOADS + name, _encode(load))


def _all(engine: Engine) -> Iterator[tuple[str, Load]]:
    for key, value in engine.notes.items():
        if key.startswith(LOADS):
            yield key.removeprefix(LOADS), _decode(value)


def _make_room(engine: Engine) -> None:
    """Forget the oldest load that has no jobs, if there are as many as there may be."""
    loads = sorted(_all(engine), key=lambda each: each[1].at)
    if len(loads) < MOST_LOADS:
        return
    for name, _ in loads:
        if name not in engine.staged:
            engine.note(LOADS + name, None)
            return
    raise LoadError(f"too many loads: at most {MOST_LOADS}. Release or discard one")

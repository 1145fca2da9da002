"""Bulk loads: jobs that are pushed by several commands and released together.

A staged job is blocked until the release of its load. It is in its queue from the start, but no
protocol can lease a blocked job. So a load can be discarded before its release without any effect.

A load is opened, jobs are staged in it, each jid once, and then it is released or discarded, some
jobs at a time. As soon as the release has started, no job can be staged, so a repeated load cannot
run jobs twice. The name of a released load is remembered for a while; a discarded load can be
opened again. The state of a load is a setting of the engine, so it is as durable as the jobs.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Final, Literal

import msgspec

from .engine import LOADS, Engine
from .errors import LoadError
from .job import Job, Push

State = Literal["open", "releasing", "released"]

#: Remembered loads, released ones included; above it, the oldest released loads are forgotten.
MAX_LOADS: Final = 1000
#: Jobs with one jid that `stage` examines.
MAX_DUPLICATES: Final = 1000


class Load(msgspec.Struct, array_like=True):
    state: State
    #: The time of the last change of the state.
    at: int
    #: The number of jobs at the start of the release.
    total: int = 0


class Known(msgspec.Struct):
    """The status of a load."""

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
    """All loads, by the time of their last change."""
    found = [known(engine, name, load) for name, load in _all(engine)]
    return sorted(found, key=lambda each: each.at)


def begin(engine: Engine, name: str, now: int) -> Known:
    """Open a load, or continue a known one."""
    load = find(engine, name)
    if load is None:
        _make_room(engine)
        load = Load("open", now)
        _keep(engine, name, load)
    else:
        engine.depend()
    return known(engine, name, load)


def stage(engine: Engine, name: str, push: Push, now: int) -> bool:
    """Stage a job in an open load, unless the load has a job of that jid."""
    if push.jid in engine.by_jid:
        duplicates = engine.find_newest(push.jid, MAX_DUPLICATES)
        if len(duplicates) > MAX_DUPLICATES:
            raise LoadError(f"more than {MAX_DUPLICATES} jobs have the jid {push.jid[:100]}")
        if any(job.extra is not None and job.extra.load == name for job in duplicates):
            engine.depend()
            return False
    push.load = name
    engine.push(push, now)
    return True


def need_open(engine: Engine, name: str) -> None:
    """Raise an error unless the load is open."""
    load = find(engine, name)
    if load is None:
        raise LoadError(f"no such load: {name}")
    if load.state != "open":
        raise LoadError(f"the load {name} is {load.state}: nothing can be added to it")


def seal(engine: Engine, name: str, now: int) -> None:
    """Start the release of a load."""
    load = find(engine, name)
    if load is None:
        raise LoadError(f"no such load: {name}")
    if load.state == "open":
        total = len(engine.staged.get(name, ()))
        _keep(engine, name, Load("releasing" if total else "released", now, total))
    else:
        engine.depend()


def first(engine: Engine, name: str, count: int) -> list[Job]:
    """The first staged jobs of a load, in their order."""
    return list(islice(engine.staged.get(name, {}).values(), count))


def release(engine: Engine, name: str, count: int, now: int) -> int:
    """Release up to `count` jobs of a sealed load, and return their number."""
    jobs = first(engine, name, count)
    for job in jobs:
        engine.let_go(job, now)
    load = find(engine, name)
    if load is not None and load.state == "releasing" and name not in engine.staged:
        _keep(engine, name, Load("released", now, load.total))
    return len(jobs)


def discard(engine: Engine, name: str, count: int, actor: int, now: int) -> int:
    """Remove up to `count` staged jobs of an open load; the load ends with its last job."""
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
    """Forget the oldest load without jobs if the maximum is reached."""
    loads = sorted(_all(engine), key=lambda each: each[1].at)
    if len(loads) < MAX_LOADS:
        return
    for name, _ in loads:
        if name not in engine.staged:
            engine.note(LOADS + name, None)
            return
    raise LoadError(f"too many loads: at most {MAX_LOADS}. Release or discard one")

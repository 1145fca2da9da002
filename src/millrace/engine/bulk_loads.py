"""Bulk loads: jobs that are pushed by several commands and released together.

A staged job is blocked until the release of its load. It is in its queue from the start, but no
protocol can lease a blocked job. A load can therefore be discarded before its release without side
effects.

A client opens a load and stages jobs in it, each jid once. The client then releases or discards the
load in batches. After the release has started, no job can be staged, so a repeated load
cannot run jobs twice. The engine remembers the names of the last released loads; a discarded
load can be opened again. The state of a load is a setting of the engine, as durable as the jobs.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Final, Literal

import msgspec

from .engine import Engine
from .errors import LoadError
from .job import Job, NewJob
from .settings import LOADS_PREFIX

State = Literal["open", "releasing", "released"]

#: Maximum number of loads, including released ones. Above it, a new load replaces the oldest load
#: without staged jobs.
MAX_LOADS: Final = 1000
#: Maximum number of jobs with the same jid that `stage` examines.
MAX_DUPLICATES: Final = 1000


class BulkLoad(msgspec.Struct, array_like=True):
    state: State
    #: The time of the last change to the state.
    at: int
    #: The number of jobs at the start of the release.
    total: int = 0


class LoadStatus(msgspec.Struct):
    """The status of a load."""

    load: str
    state: State
    at: int
    total: int
    staged: int


_decode = msgspec.msgpack.Decoder(BulkLoad).decode
_encode = msgspec.msgpack.Encoder().encode


def find(engine: Engine, name: str) -> BulkLoad | None:
    setting = engine.settings.get(LOADS_PREFIX + name)
    return None if setting is None else _decode(setting)


def load_status(engine: Engine, name: str, load: BulkLoad) -> LoadStatus:
    staged = len(engine.staged.get(name, ()))
    total = load.total or staged
    return LoadStatus(name, load.state, load.at, total, staged)


def list_loads(engine: Engine) -> list[LoadStatus]:
    """All loads, in the order of their last changes."""
    found = [load_status(engine, name, load) for name, load in _all(engine)]
    return sorted(found, key=lambda each: each.at)


def open_load(engine: Engine, name: str, now: int) -> LoadStatus:
    """Open a load, or continue a known one."""
    load = find(engine, name)
    if load is None:
        _make_room(engine)
        load = BulkLoad("open", now)
        _save(engine, name, load)
    else:
        engine.caller.wait()
    return load_status(engine, name, load)


def stage(engine: Engine, name: str, push: NewJob, now: int) -> bool:
    """Stage a job in an open load. Return False if the load already has a job with that jid."""
    if push.jid in engine.by_jid:
        duplicates = engine.table.find_all(push.jid, MAX_DUPLICATES)
        if len(duplicates) > MAX_DUPLICATES:
            raise LoadError(f"more than {MAX_DUPLICATES} jobs have the jid {push.jid[:100]}")
        if any(job.extra is not None and job.extra.load == name for job in duplicates):
            engine.caller.wait()
            return False
    push.load = name
    engine.arrivals.push(push, now)
    return True


def require_open(engine: Engine, name: str) -> None:
    """Raise an error unless the load is open."""
    load = find(engine, name)
    if load is None:
        raise LoadError(f"no such load: {name}")
    if load.state != "open":
        raise LoadError(f"the load {name} is {load.state}: nothing can be added to it")


def start_release(engine: Engine, name: str, now: int) -> None:
    """Start the release of a load."""
    load = find(engine, name)
    if load is None:
        raise LoadError(f"no such load: {name}")
    if load.state == "open":
        total = len(engine.staged.get(name, ()))
        _save(engine, name, BulkLoad("releasing" if total else "released", now, total))
    else:
        engine.caller.wait()


def first_staged(engine: Engine, name: str, count: int) -> list[Job]:
    """The first staged jobs of a load, in their order."""
    return list(islice(engine.staged.get(name, {}).values(), count))


def release(engine: Engine, name: str, count: int, now: int) -> int:
    """Release up to `count` jobs of a load whose release has started. Return their number."""
    jobs = first_staged(engine, name, count)
    with engine.hold_queues(now):
        for job in jobs:
            engine.edits.release_from_load(job, now)
    load = find(engine, name)
    if load is not None and load.state == "releasing" and name not in engine.staged:
        _save(engine, name, BulkLoad("released", now, load.total))
    return len(jobs)


def discard(engine: Engine, name: str, count: int, actor: int, now: int) -> int:
    """Remove up to `count` staged jobs of an open load, and the load with its last job. Return the
    number of removed jobs.
    """
    load = find(engine, name)
    if load is None:
        engine.caller.wait()
        return 0
    if load.state != "open":
        raise LoadError(f"the load {name} is {load.state}: it cannot be discarded any more")
    jobs = first_staged(engine, name, count)
    for job in jobs:
        engine.cancel(job, now, actor)
    if name not in engine.staged:
        engine.set_setting(LOADS_PREFIX + name, None)
    return len(jobs)


def _save(engine: Engine, name: str, load: BulkLoad) -> None:
    engine.set_setting(LOADS_PREFIX + name, _encode(load))


def _all(engine: Engine) -> Iterator[tuple[str, BulkLoad]]:
    for key, value in engine.settings.items():
        if key.startswith(LOADS_PREFIX):
            yield key.removeprefix(LOADS_PREFIX), _decode(value)


def _make_room(engine: Engine) -> None:
    """Remove the oldest load without jobs if the maximum is reached."""
    loads = sorted(_all(engine), key=lambda each: each[1].at)
    if len(loads) < MAX_LOADS:
        return
    for name, _ in loads:
        if name not in engine.staged:
            engine.set_setting(LOADS_PREFIX + name, None)
            return
    raise LoadError(f"too many loads: at most {MAX_LOADS}. Release or discard one")

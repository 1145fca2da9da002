"""Imports: jobs from another server, with their history, that become visible together.

The jobs are staged in two bulk loads (see bulk_loads.py): live jobs and dead jobs. An import has a
run number. `finish` makes the run complete in one change; jobs then become ready, scheduled,
blocked or dead in several steps. If a run does not reach `finish`, the next run discards its jobs.

Each step stores digests of the imported ids in settings. A later run of the same source skips the
ids of complete runs, even after the jobs have ended.
"""

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from itertools import islice
from typing import Final

import msgspec

from . import bulk_loads
from .engine import Engine
from .errors import LoadError
from .job import Failure, Job, LeaseHistory, NewJob, ensure_extra
from .settings import IMPORTS_PREFIX, LOADS_PREFIX
from .states import DONE
from .statistics import QueueDay

#: Size of the digest of an id, in bytes.
DIGEST_SIZE: Final = 12
#: Maximum number of jobs with the same id that are examined.
MAX_SAME_ID: Final = 16
#: Dead jobs have their own load.
DEAD_SUFFIX: Final = ":dead"


class ImportedHistory:
    """The part of an imported job that a new job does not have."""

    __slots__ = (
        "attempts",
        "created",
        "dead",
        "failure",
        "failures",
        "result",
        "waits_for",
    )

    def __init__(
        self,
        created: int,
        attempts: int,
        failures: int,
        failure: Failure | None,
        result: bytes | None,
        waits_for: list[str],
        dead: bool,
    ) -> None:
        self.created = created
        self.attempts = attempts
        self.failures = failures
        self.failure = failure
        self.result = result
        #: Ids of jobs that must complete first.
        self.waits_for = waits_for
        self.dead = dead


class ImportRuns(msgspec.Struct, array_like=True):
    """The runs of one source."""

    #: Numbers of complete runs.
    complete: list[int] = []
    #: The number of the newest run.
    last: int = 0


_decode = msgspec.msgpack.Decoder(ImportRuns).decode
_encode = msgspec.msgpack.Encoder().encode


def runs_of(engine: Engine, source: str) -> ImportRuns:
    setting = engine.settings.get(IMPORTS_PREFIX + source)
    return ImportRuns([], 0) if setting is None else _decode(setting)


def load_names(source: str) -> tuple[str, str]:
    """The load of live jobs, and the load of dead jobs."""
    return f"import:{source}", f"import:{source}{DEAD_SUFFIX}"


def staged_count(engine: Engine, source: str) -> int:
    return sum(len(engine.staged.get(name, ())) for name in load_names(source))


def is_releasing(engine: Engine, source: str) -> bool:
    """Whether a complete run still has jobs to release."""
    found = (bulk_loads.find(engine, name) for name in load_names(source))
    return any(load is not None and load.state == "releasing" for load in found)


def known_digests(engine: Engine, source: str) -> set[bytes]:
    """The digests of all ids of complete runs."""
    found: set[bytes] = set()
    for run in runs_of(engine, source).complete:
        for _, packed in _digest_settings(engine, source, run):
            found.update(packed[at : at + DIGEST_SIZE] for at in range(0, len(packed), DIGEST_SIZE))
    return found


def digest(jid: str) -> bytes:
    return blake2b(jid.encode(), digest_size=DIGEST_SIZE).digest()


def discard(engine: Engine, source: str, count: int, now: int) -> int:
    """Remove up to `count` staged jobs of an incomplete run, and return their number."""
    discarded_count = 0
    for name in load_names(source):
        load = bulk_loads.find(engine, name)
        if discarded_count < count and load is not None and load.state == "open":
            discarded_count += bulk_loads.discard(engine, name, count - discarded_count, 0, now)
    if not discarded_count:
        runs = runs_of(engine, source)
        if runs.last and runs.last not in runs.complete:
            for key, _ in _digest_settings(engine, source, runs.last):
                engine.set_setting(key, None)
    return discarded_count


def begin(engine: Engine, source: str, now: int) -> int:
    """Start a run, and return its number. The last run must be complete or discarded."""
    runs = runs_of(engine, source)
    runs.last += 1
    for name in load_names(source):
        load = bulk_loads.find(engine, name)
        if load is not None and load.state == "released":
            engine.set_setting(LOADS_PREFIX + name, None)
        bulk_loads.open_load(engine, name, now)
    engine.set_setting(IMPORTS_PREFIX + source, _encode(runs))
    return runs.last


def require_open_run(engine: Engine, source: str, run: int) -> None:
    """Raise an error unless this run is open."""
    if runs_of(engine, source).last != run:
        raise LoadError("Another import has started. The jobs of this import were discarded.")
    for name in load_names(source):
        bulk_loads.require_open(engine, name)


def stage(
    engine: Engine, source: str, push: NewJob, history: ImportedHistory, now: int
) -> Job | None:
    """Stage a job, or return None if a job with this id exists."""
    if push.jid in engine.by_jid:
        engine.caller.wait()
        return None
    live, dead = load_names(source)
    push.load = dead if history.dead else live
    push.blockers = [
        job.seq
        for jid in dict.fromkeys(history.waits_for)
        for job in engine.table.find_all(jid, MAX_SAME_ID)
        if job.state != DONE
    ]
    job = engine.arrivals.push(push, now)
    job.created = min(now, history.created or now)
    if history.attempts or history.failures or history.failure is not None:
        job.history = LeaseHistory(history.attempts, history.failures, failure=history.failure)
    if history.result is not None:
        ensure_extra(job).result = history.result
    return job


def store_digests(engine: Engine, source: str, run: int, jids: list[str]) -> None:
    """Store digests of the ids of staged jobs. If this run becomes complete, later runs skip these
    ids.
    """
    if jids:
        key = f"{_digest_prefix(source, run)}{engine.next_seq}"
        engine.set_setting(key, b"".join(digest(jid) for jid in jids))


def finish(engine: Engine, source: str, run: int, now: int) -> None:
    """Make the run complete."""
    require_open_run(engine, source, run)
    runs = runs_of(engine, source)
    runs.complete.append(run)
    engine.set_setting(IMPORTS_PREFIX + source, _encode(runs))
    for name in load_names(source):
        bulk_loads.start_release(engine, name, now)


def release(engine: Engine, source: str, count: int, now: int) -> int:
    """Release up to `count` jobs of a complete run, and return their number."""
    live, dead = load_names(source)
    killed = list(islice(engine.staged.get(dead, {}).values(), count))
    for job in killed:
        engine.kill(job, now)
    bulk_loads.release(engine, dead, 0, now)
    if len(killed) == count:
        return count
    return len(killed) + bulk_loads.release(engine, live, count - len(killed), now)


def add_statistics(engine: Engine, processed: int, failures: int, days: Iterable[QueueDay]) -> None:
    """Add totals and statistics of days that another server has recorded."""
    engine.totals.processed += processed
    engine.totals.failures += failures
    statistics = engine.current_statistics()
    for day in days:
        statistics.merge(day)
    engine.edits.record()


def _digest_prefix(source: str, run: int) -> str:
    return f"{IMPORTS_PREFIX}{source}/{run}/"


def _digest_settings(engine: Engine, source: str, run: int) -> Iterator[tuple[str, bytes]]:
    prefix = _digest_prefix(source, run)
    return iter([item for item in engine.settings.items() if item[0].startswith(prefix)])

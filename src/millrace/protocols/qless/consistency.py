"""ConsistencyCheck: compare the indexes of the engine and of Qless with the jobs and settings."""

from collections.abc import Generator, Mapping
from typing import Any, Final

from millrace.engine import consistency
from millrace.engine.annotations import Annotations
from millrace.engine.consistency import ConsistencyReport
from millrace.engine.errors import QueueRefused
from millrace.engine.jobs_by_seq import JobsBySeq
from millrace.engine.limits import LIMIT_PREFIX, Limit, read_limit
from millrace.engine.recurring import RECURRING_PREFIX as RECURRING
from millrace.engine.recurring import RecurringJob, read_recurring

from . import lua_values as lua
from .commands import Slices
from .errors import ScriptError
from .state import QlessState

#: With more jobs, only a restart repairs problems: a repair rebuilds all indexes in one step, which
#: would delay other clients.
MAX_REPAIRED_JOBS: Final = 10_000


def report(q: QlessState, now: int, *, resolve: bool) -> Slices:
    """Return the problems found, and with `resolve` the number of repaired problems."""
    if q.hub.rule is not None:
        raise QueueRefused(
            "a check of all jobs is not allowed on this port: it has a rule for queues"
        )
    found = yield from check_in_slices(q)
    repaired = 0
    if resolve and found.total:
        if len(q.engine.tables.jobs) > MAX_REPAIRED_JOBS:
            raise ScriptError(
                f"ConsistencyCheck(): {found.total} problems found. A running server with more "
                f"than {MAX_REPAIRED_JOBS} jobs cannot repair them; restart it to rebuild all "
                "indexes"
            )
        consistency.repair(q.engine, now)
        _rebuild(q)
        repaired = found.total - check(q).total
    return lua.encode(
        {
            "consistent": not found.total,
            "checked": found.checked,
            "total": found.total,
            "problems": [problem._asdict() for problem in found.problems],
            "repaired": repaired,
            "skipped": found.skipped,
        }
    )


def check(q: QlessState) -> ConsistencyReport:
    """Check everything at once."""
    work = check_in_slices(q)
    while True:
        try:
            next(work)
        except StopIteration as ended:
            found: ConsistencyReport = ended.value
            return found


def check_in_slices(q: QlessState) -> Generator[None, None, ConsistencyReport]:
    """Check the engine, then compare the state of Qless with the state computed from the engine."""
    found = yield from consistency.check_in_slices(q.engine)
    _compare("config", q.options.config, q.options.stored(), found)
    yield
    _compare("tracking", q.tracked, _tracked(q), found)
    yield
    _compare("recurring", _fields(q.recurring), _fields(_recurring(q)), found)
    yield
    _compare("throttle", _fields(q.throttles.limits), _fields(_limits(q)), found)
    return found


def _tracked(q: QlessState) -> dict[str, int]:
    """Return the tracked ids as the store has them."""
    stored = Annotations(JobsBySeq())
    stored.load(q.engine.settings)
    return stored.tracked


def _recurring(q: QlessState) -> dict[str, RecurringJob]:
    """Return the recurring jobs as the store has them."""
    kept = [value for key, value in q.engine.settings.items() if key.startswith(RECURRING)]
    records = [read_recurring(value) for value in kept]
    return {record.jid: record for record in records}


def _limits(q: QlessState) -> dict[str, Limit]:
    """Return the limits as the store has them."""
    settings = q.engine.settings.items()
    return {
        key[len(LIMIT_PREFIX) :]: read_limit(value)
        for key, value in settings
        if key.startswith(LIMIT_PREFIX)
    }


def _fields(
    records: Mapping[str, RecurringJob] | Mapping[str, Limit],
) -> dict[str, tuple[Any, ...]]:
    return {name: record.fields() for name, record in records.items()}


def _rebuild(q: QlessState) -> None:
    q.engine.load_settings()
    q._build()  # noqa: SLF001 - nothing else starts a rebuild here


def _compare(
    what: str, current: dict[str, Any], stored: dict[str, Any], found: ConsistencyReport
) -> None:
    """Compare named items in memory with the durable items."""
    for name in current.keys() | stored.keys():
        if name not in stored:
            found.add(what, f"{name} is in memory, but not stored")
        elif name not in current:
            found.add(what, f"{name} is stored, but not in memory")
        elif current[name] != stored[name]:
            found.add(what, f"{name} in memory differs from the stored value")

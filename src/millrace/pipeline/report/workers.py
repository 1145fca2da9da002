"""Workers: the number of jobs that they held over time, and the outcomes."""

from collections.abc import Iterable
from typing import Any, Final

from millrace.pipeline.tables import KIND_HOUR, WORKER_HOUR

from .model import Mix, Workers, WorkerSummary
from .rows import ReportRows
from .time_axis import HOUR, Axis, axis_of

#: Maximum number of workers listed individually.
ROWS: Final = 30
_KEY: Final = ("server", "worker", "holder")
_MIX: Final = ("events", "pushed", "started", "completed", "failures", "died")
#: The sums of each worker; the workers that held jobs for the longest time are first.
_TOTALS: Final = """
    SELECT server, worker, holder, sum(busy_us) AS busy_us, sum(attempts) AS attempts,
        sum(completed) AS completed, sum(failures) AS failures, count(DISTINCT hour) AS hours,
        count(*) OVER () AS workers
    FROM selected GROUP BY server, worker, holder
    ORDER BY busy_us DESC, server, worker, holder
"""


def workers(selection: ReportRows) -> Workers:
    """Return the workers by the total time that they held jobs, longest first."""
    steps = axis_of(selection, WORKER_HOUR, "hour", narrowest=HOUR)
    step = steps.step_of("hour")
    totals = selection.rows(WORKER_HOUR, f"{_TOTALS} LIMIT {ROWS}")
    held = selection.rows(
        WORKER_HOUR,
        f"""SELECT s.server, s.worker, s.holder, {step} AS step, sum(s.busy_us) AS busy_us
        FROM selected AS s JOIN ({_TOTALS} LIMIT {ROWS}) AS t ON s.server = t.server
            AND s.worker = t.worker AND coalesce(s.holder, '') = coalesce(t.holder, '')
        GROUP BY s.server, s.worker, s.holder, {step}""",
    )
    by_step = selection.rows(
        WORKER_HOUR, f"SELECT {step} AS step, sum(busy_us) AS busy_us FROM selected GROUP BY {step}"
    )
    return Workers(
        step=steps.width,
        at=steps.at,
        held=_held(by_step, steps),
        rows=[
            WorkerSummary(
                server=total["server"],
                worker=total["worker"],
                protocol=total["holder"] or "",
                attempts=total["attempts"],
                completed=total["completed"],
                failures=total["failures"],
                busy=total["busy_us"] / 1e6,
                utilisation=total["busy_us"] / 1e6 / (HOUR * total["hours"]),
                held=_held((row for row in held if _key(row) == _key(total)), steps),
            )
            for total in totals
        ],
        more=max(0, totals[0]["workers"] - ROWS) if totals else 0,
    )


def count(selection: ReportRows) -> int:
    """Count the workers that have a name in their protocol."""
    named = "SELECT DISTINCT server, worker, holder FROM selected WHERE worker <> ''"
    rows = selection.rows(WORKER_HOUR, f"SELECT count(*) AS n FROM ({named}) AS named")
    return sum(row["n"] for row in rows)


def protocols(selection: ReportRows) -> list[Mix]:
    """Return counts by the protocol that pushed the jobs and the protocol that acted on them."""
    rows = selection.sums(KIND_HOUR, _MIX, "origin, actor")
    rows.sort(key=lambda row: (row["origin"], row["actor"] or ""))
    return [Mix(**row) for row in rows]


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in _KEY)


def _held(rows: Iterable[dict[str, Any]], steps: Axis) -> list[float]:
    line = [0.0] * steps.count
    for row in rows:
        line[row["step"]] = row["busy_us"] / 1e6 / steps.width
    return line

"""The audit: checks that all events are present and consistent, and compares them with a server."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from millrace.pipeline import delta, events
from millrace.pipeline.job_states import (
    GONE,
    MAX_BROADCAST,
    event_of,
    name,
    number,
    packed,
    state_of,
)
from millrace.pipeline.lake import Lake, locked, write_json
from millrace.pipeline.progress import Progress, silent
from millrace.pipeline.tables import AUDIT_JOBS

from . import chains
from .results import MAX_RESULTS, RECORD, Compared, Findings, Gap, Live, Numbers, Problem
from .server import Comparison

#: Approximate number of events in each shuffle partition of the job audit, to limit memory use.
_PART: Final = 2_000_000


def run(
    spark: SparkSession,
    lake: Lake,
    live: Live | None = None,
    *,
    thorough: bool = False,
    progress: Progress = silent,
) -> Findings:
    """Audit all shipped events, and compare them with a server; `thorough` checks every job."""
    with locked(lake):
        findings = _Audit(spark, lake, live, progress).run(thorough=thorough)
        write_json(lake.ops / RECORD, findings)
    return findings


class _Audit:
    def __init__(
        self, spark: SparkSession, lake: Lake, live: Live | None, progress: Progress
    ) -> None:
        self._spark = spark
        self._lake = lake
        self._live = live
        self._progress = progress
        self._done = 0
        self._events = events.read(spark, lake.root)
        self._flushes = chains.flush_ids(self._events)

    def run(self, *, thorough: bool) -> Findings:
        numbers = self._audit_seq()
        with _parts(self._spark, sum(each.events for each in numbers) // _PART):
            self._step("events of the jobs")
            judged = chains.judge(self._events, self._flushes, *self._last_known).cache()
            tallies = chains.tally(judged, self._flushes)
            found = chains.problems(self._events, judged, self._flushes, tallies, thorough=thorough)
            compared = None
            if self._live is not None:
                last = next((n.last_event for n in numbers if n.server == self._live.server), 0)
                found, compared = self._compare(self._live, judged, tallies, found, last)
            problems = self._store(found)
            judged.unpersist()
        self._step("")
        older = sum(each.headless for each in tallies.values() if not each.has_first_event)
        return _findings(problems, numbers, older, compared)

    def _audit_seq(self) -> list[Numbers]:
        self._step("event numbers")
        found = []
        for row in chains.audit_seq(self._events).orderBy("server").collect():
            gaps = [Gap(gap["first"], gap["last"]) for gap in row["gaps"]]
            found.append(Numbers(**{**row.asDict(), "gaps": gaps}))
        return found

    def _store(self, found: DataFrame) -> DataFrame:
        """Replace the table audit_jobs, and return its rows."""
        root = self._lake.root
        staged = delta.staging(root, AUDIT_JOBS)
        found.select(*AUDIT_JOBS.columns).repartition(1).write.parquet(events.located(staged))
        table = delta.create(root, AUDIT_JOBS)
        run = (table.transaction_version(delta.REFRESH) or 0) + 1
        delta.commit(root, AUDIT_JOBS, table, delta.Change(staged, [], {}, run))
        return events.load(self._spark, root, AUDIT_JOBS, delta.files(table, root, AUDIT_JOBS.name))

    # Comparison with the server

    @property
    def _last_known(self) -> tuple[str, str]:
        """An aggregate for each job: its state after the last event that the server's job list
        includes; and the condition on it that the server must have the job.
        """
        if self._live is None:
            return "null", ""
        known = f"server = '{self._live.server}' AND event_id <= {self._live.event}"
        last_known = packed("event_id", number("state"))
        flushed = max(self._flushed(self._live, self._live.event), default=0)
        expected = f"{state_of('last_known')} <> {GONE} AND {event_of('last_known')} > {flushed}"
        return f"max(if({known}, {last_known}, null))", expected

    def _compare(
        self,
        live: Live,
        judged: DataFrame,
        tallies: dict[str, chains.Tally],
        found: DataFrame,
        last: int,
    ) -> tuple[DataFrame, Compared]:
        """Add the differences in the server's jobs to `found`, and compare its counters."""
        self._step("jobs of the server")
        tally = tallies.get(live.server, chains.Tally(live.server, False, 0, 0, 0))
        comparison = Comparison(
            self._spark,
            self._lake,
            live,
            events=self._events,
            flushes=self._flushed(live, last),
            last=last,
            complete=tally.has_first_event or not last or bool(self._flushed(live, live.event)),
        )
        few = tally.expected <= MAX_BROADCAST
        found = found.unionByName(
            comparison.jobs(self._expected(judged.where("expected"), few=few))
        )
        self._step("counters of the server")
        return found, comparison.counters()

    def _expected(self, expected: DataFrame, *, few: bool) -> DataFrame:
        """Return the jobs that exist by their events, with the queue of the last event."""
        state = f"{name(state_of('last_known'))} AS state"
        last = expected.selectExpr("server", f"{event_of('last_known')} AS event_id", state)
        where = self._events.select("server", "event_id", "seq", "jid", "queue")
        expected = where.join(last.hint("broadcast") if few else last, ["server", "event_id"])
        return expected.dropDuplicates(["seq"])

    def _flushed(self, live: Live, event: int) -> list[int]:
        """Return the flushes of the server up to the given event."""
        return [each for each in self._flushes.get(live.server, ()) if each <= event]

    def _step(self, what: str) -> None:
        steps = 2 if self._live is None else 4
        self._progress(f"audit: {what}" if what else "audit", self._done, steps)
        self._done += 1


def _findings(
    problems: DataFrame, numbers: list[Numbers], older: int, compared: Compared | None
) -> Findings:
    counts = {row["problem"]: row["count"] for row in problems.groupBy("problem").count().collect()}
    first = [
        Problem(**row.asDict())
        for problem in sorted(counts)
        for row in problems.where(F.col("problem") == problem)
        .orderBy("server", "seq", "event_id")
        .limit(MAX_RESULTS)
        .collect()
    ]
    return Findings(numbers, dict(sorted(counts.items())), first, older, compared)


@contextmanager
def _parts(spark: SparkSession, count: int) -> Iterator[None]:
    """Set the number of shuffle partitions to at least `count`."""
    setting = "spark.sql.shuffle.partitions"
    before = spark.conf.get(setting) or "4"
    spark.conf.set(setting, str(max(int(before), count)))
    try:
        yield
    finally:
        spark.conf.set(setting, before)

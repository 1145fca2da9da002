"""The audit: checks that all events are present and consistent, and compares them with a server."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from . import commit, events
from .commit import locked
from .findings import MOST_TOLD, Compared, Findings, Gap, Live, Numbers, Problem
from .lake import Lake
from .ledger import Ledger
from .live import Comparison
from .progress import Progress, silent
from .tables import AUDIT_JOBS, AUDIT_SEQ, Table
from .transforms import audit
from .transforms.flushes import flushes
from .transforms.state import GONE, event_of, name, number, packed, state_of

#: The file with the findings of the last audit.
RECORD: Final = "audit.json"
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
    """Audit all ingested events, and compare them with the state of a server if `live` is given.
    If `thorough` is set, check the event chain of every job.
    """
    with locked(lake):
        findings = _Audit(spark, lake, live, progress).run(thorough=thorough)
        commit.write_json(lake.ops / RECORD, findings)
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
        self._events = events.read(spark, lake)
        self._flushes = audit.ids(flushes(self._events))

    def run(self, *, thorough: bool) -> Findings:
        numbers = self._audit_seq()
        with _parts(self._spark, sum(each.events for each in numbers) // _PART):
            self._step("the jobs' events")
            judged = audit.judge(self._events, self._flushes, *self._then, there=self._is_there)
            judged = judged.cache()
            tallies = audit.tally(judged, self._flushes)
            found = audit.problems(self._events, judged, self._flushes, tallies, thorough=thorough)
            compared = None
            if self._live is not None:
                last = next((n.last_event for n in numbers if n.server == self._live.server), 0)
                found, compared = self._compare(self._live, judged, tallies, found, last)
            commit.replace(found, self._lake, AUDIT_JOBS)
            judged.unpersist()
        self._step("")
        older = sum(each.headless for each in tallies.values() if not each.begun)
        return self._findings(numbers, older, compared)

    def _audit_seq(self) -> list[Numbers]:
        self._step("the events' numbers")
        commit.replace(audit.audit_seq(self._events), self._lake, AUDIT_SEQ)
        found = []
        for row in self._stored(AUDIT_SEQ).to_pylist():
            gaps = [Gap(gap["first"], gap["last"]) for gap in row["gaps"]]
            found.append(Numbers(**{**row, "gaps": gaps}))
        return found

    def _findings(self, numbers: list[Numbers], older: int, compared: Compared | None) -> Findings:
        problems = self._stored(AUDIT_JOBS)
        kinds = problems.column("problem")
        counts = {each["values"]: each["counts"] for each in pc.value_counts(kinds).to_pylist()}
        told = [
            Problem(**row)
            for problem in sorted(counts)
            for row in problems.filter(pc.equal(kinds, problem)).slice(0, MOST_TOLD).to_pylist()
        ]
        batches = Ledger(self._lake).batches()
        quarantined = sum(batch.quarantined for batch in batches)
        refused = sum(len(batch.refused) for batch in batches)
        sorted_counts = dict(sorted(counts.items()))
        return Findings(numbers, sorted_counts, told, older, quarantined, refused, compared)

    # Comparison with the server

    @property
    def _then(self) -> list[Column]:
        """For each job, its state after the last event that the server's job list includes."""
        if self._live is None:
            return []
        known = (F.col("server") == self._live.server) & (F.col("event_id") <= self._live.event)
        return [
            F.max(F.when(known, packed(F.col("event_id"), number(F.col("state"))))).alias("then")
        ]

    @property
    def _is_there(self) -> Column | None:
        """Whether the server must have the job."""
        if self._live is None:
            return None
        then = F.col("then")
        flushed = max(self._flushed(self._live, self._live.event), default=0)
        return (state_of(then) != GONE) & (event_of(then) > flushed)

    def _compare(
        self,
        live: Live,
        judged: DataFrame,
        tallies: dict[str, audit.Tally],
        found: DataFrame,
        last: int,
    ) -> tuple[DataFrame, Compared]:
        """Add the differences in the server's jobs to `found`, and compare its counters."""
        self._step("the server's jobs")
        tally = tallies.get(live.server, audit.Tally(live.server, False, 0, 0, 0))
        comparison = Comparison(
            self._spark,
            self._lake,
            live,
            events=self._events,
            flushes=self._flushed(live, last),
            last=last,
            complete=tally.begun or not last or bool(self._flushed(live, live.event)),
        )
        few = tally.there <= audit.FEW
        found = found.unionByName(comparison.jobs(self._told(judged.where("there"), few=few)))
        self._step("the server's counters")
        return found, comparison.counters()

    def _told(self, there: DataFrame, *, few: bool) -> DataFrame:
        """Return the jobs that exist by their events, with the queue of the last event."""
        then = F.col("then")
        last = there.select(
            "server", "seq", event_of(then).alias("event_id"), name(state_of(then)).alias("state")
        )
        where = self._events.select("server", "event_id", "jid", "queue")
        told = where.join(F.broadcast(last) if few else last, ["server", "event_id"])
        return told.dropDuplicates(["seq"])

    def _flushed(self, live: Live, event: int) -> list[int]:
        """Return the flushes of the server up to the given event."""
        return [each for each in self._flushes.get(live.server, ()) if each <= event]

    # Internals

    def _stored(self, table: Table) -> pa.Table:
        return pq.read_table(self._lake.table(table.name) / commit.DATA)

    def _step(self, what: str) -> None:
        steps = 2 if self._live is None else 4
        self._progress(f"audit: {what}" if what else "audit", self._done, steps)
        self._done += 1


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

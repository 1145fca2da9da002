"""Check that each event is present exactly once and that the events of each job are consistent.

Event numbers have no gaps, so `audit_seq` counts events instead of comparing them.

The events of a job form a chain. Each event records the state before it and the state after it, and
the state before must equal the state after the previous event. Sorting all events of all jobs is
slow, so `judge` first computes a sum that does not depend on the order, in one pass: except for the
first state before and the last state after, a chain enters each state as often as it leaves it.
`problems` then checks the chains of the following jobs only: jobs with a wrong sum, jobs with an
event that the state machine does not allow, jobs with events on both sides of a flush, and, if the
lake has the first event of the server, jobs without a push. This method misses two faults:
exchanged numbers of events of one job that leave the sum correct, and a missing event that did not
change the state (`renewed`). `audit_seq` detects the second fault. `thorough` checks every chain
and detects the first.
"""

from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from millrace.journal.schema import FLUSHED, LEGAL, STATES
from millrace.pipeline.events import load
from millrace.pipeline.job_states import event_of, number, packed, state_of
from millrace.pipeline.tables import AUDIT_JOBS

#: Number of event numbers per range. Only ranges with wrong sums are examined in detail.
_STRETCH: Final = 1 << 16
#: Maximum number of gaps listed per server.
MAX_GAPS: Final = 100
#: Bits per state in `balance`. An imbalance beyond this width would overflow into the next state.
_WIDTH: Final = 5
_NEW: Final = STATES.index("new")
_ENDED: Final = ("done", "dead", "gone")
#: The most frequent types are compared first, because each name costs a comparison.
_FREQUENT: Final = ("leased", "completed", "pushed")
#: Maximum number of jobs for a broadcast join. With more jobs, Spark sorts the events.
FEW: Final = 1_000_000

#: The event numbers of the flushes of each server.
Flushes = Mapping[str, list[int]]


# Numbers


def audit_seq(events: DataFrame) -> DataFrame:
    """Return one row per server: its first and last event, the number of events, and the gaps."""
    stretches = _stretches(events).cache()
    suspect = stretches.where(~F.col("whole")).select("server", "stretch")
    stretch = F.shiftright("event_id", 16).alias("stretch")
    counted = (
        events.select("server", "event_id", stretch)
        .join(F.broadcast(suspect), ["server", "stretch"], "left_semi")
        .groupBy("server", "event_id")
        .count()
    )
    present = _islands(counted).unionByName(
        stretches.where("whole").select("server", "first", "last", F.col("n").alias("rows"))
    )
    before = Window.partitionBy("server").orderBy("first")
    gap = F.struct((F.col("previous") + 1).alias("first"), (F.col("first") - 1).alias("last"))
    distinct = F.sum(F.col("last") - F.col("first") + 1)
    span = F.max("last") - F.min("first") + 1
    return (
        present.withColumn("previous", F.lag("last").over(before))
        .withColumn("gap", F.when(F.col("first") > F.col("previous") + 1, gap))
        .withColumn("nth", F.count("gap").over(before))
        .groupBy("server")
        .agg(
            F.min("first").alias("first_event"),
            F.max("last").alias("last_event"),
            F.sum("rows").alias("events"),
            (span - distinct).alias("missing"),
            (F.sum("rows") - distinct).alias("duplicates"),
            F.sort_array(F.collect_list(F.when(F.col("nth") <= MAX_GAPS, F.col("gap")))).alias(
                "gaps"
            ),
        )
    )


def _stretches(events: DataFrame) -> DataFrame:
    """Count the events in each range of numbers. `whole` is true if the range contains each number
    from its first to its last exactly once: count, sum and sum of squares all match.
    """
    offset = F.col("event_id").bitwiseAND(F.lit(_STRETCH - 1).cast("long"))
    low, high = F.col("first").bitwiseAND(_STRETCH - 1), F.col("last").bitwiseAND(_STRETCH - 1)
    whole = (
        (F.col("n") == high - low + 1)
        & (F.col("sum") * 2 == (low + high) * F.col("n"))
        & (F.col("squares") * 6 == _squares(high) - _squares(low - 1))
    )
    return (
        events.select("server", "event_id", offset.alias("offset"))
        .groupBy("server", F.shiftright("event_id", 16).alias("stretch"))
        .agg(
            F.count(F.lit(1)).alias("n"),
            F.min("event_id").alias("first"),
            F.max("event_id").alias("last"),
            F.sum("offset").alias("sum"),
            F.sum(F.col("offset") * F.col("offset")).alias("squares"),
        )
        .select("server", "stretch", "n", "first", "last", whole.alias("whole"))
    )


def _squares(last: Column) -> Column:
    """Return six times the sum of the squares from 1 to `last`."""
    return last * (last + 1) * (last * 2 + 1)


def _islands(counted: DataFrame) -> DataFrame:
    """Merge consecutive numbers into one row: they all have the same difference to their rank."""
    order = Window.partitionBy("server").orderBy("event_id")
    return (
        counted.withColumn("shore", F.col("event_id") - F.row_number().over(order))
        .groupBy("server", "shore")
        .agg(
            F.min("event_id").alias("first"),
            F.max("event_id").alias("last"),
            F.sum("count").alias("rows"),
        )
        .select("server", "first", "last", "rows")
    )


# Chains


def audit_jobs(events: DataFrame, *, thorough: bool = False) -> DataFrame:
    """Return AUDIT_JOBS without the problems that require a comparison with the server's jobs."""
    ended = flush_ids(events)
    judged = judge(events, ended).cache()
    tallies = tally(judged, ended)
    return problems(events, judged, ended, tallies, thorough=thorough)


def flush_ids(events: DataFrame) -> Flushes:
    """Collect the event numbers of the flushes by server. Flushes are rare."""
    found: dict[str, list[int]] = {}
    flushes = events.where(F.col("type") == FLUSHED)
    for server, event_id in flushes.select("server", "event_id").collect():
        found.setdefault(server, []).append(event_id)
    return {server: sorted(events) for server, events in found.items()}


class Tally(NamedTuple):
    """Counts of the judged jobs of one server."""

    server: str
    #: Whether the lake has the first event of the server. If not, older jobs may exist.
    begun: bool
    suspect: int
    headless: int
    there: int

    @property
    def doubtful(self) -> int:
        """Upper bound of the number of chains to check."""
        return self.suspect + (self.headless if self.begun else 0)


def judge(
    events: DataFrame, flushes: Flushes, *more: Column, there: Column | None = None
) -> DataFrame:
    """Return the jobs that need attention: `suspect` jobs, `headless` jobs (their push is missing),
    and the job of event 1 of each server. `more` are additional aggregates for each job; the
    condition `there` may use them to select jobs that the server must have.
    """
    judged = _lives(events, *more).select(
        "*",
        _is_suspect(flushes).alias("suspect"),
        (state_of(F.col("first")) != _NEW).alias("headless"),
        (event_of(F.col("first")) == 1).alias("begins"),
        (F.lit(False) if there is None else F.coalesce(there, F.lit(False))).alias("there"),
    )
    return judged.where("suspect OR headless OR begins OR there")


def tally(judged: DataFrame, flushes: Flushes) -> dict[str, Tally]:
    """Count the judged jobs of each server."""
    rows = judged.groupBy("server").agg(
        F.bool_or("begins"), *(F.count_if(F.col(c)) for c in ("suspect", "headless", "there"))
    )
    found = {}
    for server, begins, *counts in rows.collect():
        flushed = flushes.get(server, [])[:1] == [1]
        found[server] = Tally(server, begins or flushed, *counts)
    return found


def _lives(events: DataFrame, *more: Column) -> DataFrame:
    """Aggregate the events of each job: `balance` (for each state, entries minus exits), the
    `first` state before and the `last` state after, each packed with its event number, and whether
    an event is `illegal`.
    """
    told = events.where(F.col("type") != FLUSHED).select(
        "server",
        "seq",
        "event_id",
        "type",
        "state",
        # Events of version 1 may lack the states. -1 marks the job for a check of its chain.
        F.coalesce(number(F.col("before")), F.lit(-1)).alias("was"),
        F.coalesce(number(F.col("state")), F.lit(-1)).alias("is"),
    )
    illegal = (F.col("was") < 0) | (F.col("is") < 0) | ~_is_allowed(F.col("was"), F.col("is"))
    return told.groupBy("server", "seq").agg(
        F.sum(_weight(F.col("is")) - _weight(F.col("was"))).alias("balance"),
        F.min(packed(F.col("event_id"), F.greatest(F.col("was"), F.lit(0)))).alias("first"),
        F.max(packed(F.col("event_id"), F.greatest(F.col("is"), F.lit(0)))).alias("last"),
        F.max(F.when(illegal, 1).otherwise(0)).alias("illegal"),
        *more,
    )


def _weight(state: Column) -> Column:
    return F.call_function("shiftleft", F.lit(1).cast("long"), state.cast("int") * _WIDTH)


def _is_suspect(flushes: Flushes) -> Column:
    """Return whether the aggregates of a job are inconsistent."""
    first, last = state_of(F.col("first")), state_of(F.col("last"))
    wrong = (F.col("illegal") == 1) | (F.col("balance") != _weight(last) - _weight(first))
    if any(flushes.values()):
        wrong |= _flushed_between(flushes, event_of(F.col("first")), event_of(F.col("last")))
    return wrong


def _flushed_between(flushes: Flushes, first: Column, last: Column) -> Column:
    """Return whether a flush occurred between these two events."""
    found = F.lit(False)
    for server, numbers in flushes.items():
        between = F.exists(
            F.array(*(F.lit(n).cast("long") for n in numbers)), lambda n: (n > first) & (n < last)
        )
        found |= (F.col("server") == server) & between
    return found


def _is_allowed(was: Column, now: Column) -> Column:
    """Return whether this type of event may lead from one state to the other. Each type has a mask
    with one bit per pair of states.
    """
    masks: dict[str, int] = {}
    for cause, before, state in LEGAL:
        masks[cause] = masks.get(cause, 0) | 1 << _pair(before, state)
    order = sorted(masks, key=lambda cause: (cause not in _FREQUENT, cause))
    mask = reduce(
        lambda chain, cause: chain.when(F.col("type") == cause, _bits(masks[cause])),
        order[1:],
        F.when(F.col("type") == order[0], _bits(masks[order[0]])),
    ).otherwise(_bits(0))
    bit = F.call_function("shiftright", mask, (was * 8 + now).cast("int"))
    return bit.bitwiseAND(F.lit(1).cast("long")) == 1


def _pair(before: str, state: str) -> int:
    return STATES.index(before) * 8 + STATES.index(state)


def _bits(mask: int) -> Column:
    """Convert the mask to a signed 64-bit integer."""
    return F.lit(mask - (1 << 64) if mask >> 63 else mask).cast("long")


def problems(
    events: DataFrame,
    judged: DataFrame,
    flushes: Flushes,
    tallies: Mapping[str, Tally],
    *,
    thorough: bool = False,
) -> DataFrame:
    """Return the problems in the chains of the doubtful jobs or, with `thorough`, of all jobs."""
    doubtful = sum(each.doubtful for each in tallies.values())
    begun = [each.server for each in tallies.values() if each.begun]
    taken = events.where(F.col("type") != FLUSHED).select(
        "server", "seq", "jid", "event_id", "type", "before", "state"
    )
    if not thorough:
        if not doubtful:
            return load(events.sparkSession, Path(), AUDIT_JOBS, [])
        wanted = F.col("suspect") | (F.col("headless") & F.col("server").isin(begun))
        named = judged.where(wanted).select("server", "seq")
        few = doubtful <= FEW
        taken = taken.join(F.broadcast(named) if few else named, ["server", "seq"], "left_semi")
    # audit_seq reports duplicate events.
    taken = taken.dropDuplicates(["server", "event_id"])
    order = Window.partitionBy("server", "seq").orderBy("event_id")
    previous = F.lag(F.struct("event_id", "type", "state")).over(order)
    linked = taken.withColumn("previous", previous)
    left = F.col("previous.state")
    if any(flushes.values()):
        flushed = _flushed_between(flushes, F.col("previous.event_id"), F.col("event_id"))
        left = F.when(flushed, F.lit("gone")).otherwise(left)
    found = F.array(_illegal(), _broken(), _headless(begun))
    return (
        linked.withColumn("left", left)
        .withColumn("found", F.explode(F.array_compact(found)))
        .select("server", "seq", "jid", "found.problem", "event_id", "found.detail")
        .select(*AUDIT_JOBS.columns)
    )


def _illegal() -> Column:
    """An event that the state machine does not allow. If the event lacks the state before, it is
    illegal only if no state before would be legal.
    """
    was, now = number(F.col("before")), number(F.col("state"))
    ends = sorted({f"{cause} {state}" for cause, _, state in LEGAL})
    possible = F.concat_ws(" ", "type", "state").isin(ends)
    legal = F.when(was.isNull() | now.isNull(), possible).otherwise(_is_allowed(was, now))
    detail = F.format_string(
        "%s cannot lead from %s to %s", "type", F.coalesce("before", F.lit("any state")), "state"
    )
    return F.when(~legal, _problem("illegal", detail))


def _broken() -> Column:
    """The state before an event differs from the state after the previous event."""
    left, before, state = F.col("left"), F.col("before"), F.col("state")
    ends = ~before.isin(*_ENDED) & state.isin(*_ENDED)
    detail = F.format_string(
        "%s found it %s, but event %d, %s, had left it %s",
        "type", "before", "previous.event_id", "previous.type", "left",
    )  # fmt: skip
    problem = (
        F.when(ends & left.isin(*_ENDED), _problem("ended_twice", detail))
        .when(left == "gone", _problem("after_gone", detail))
        .when((left == "leased") & (F.col("type") == "leased"), _problem("leased_twice", detail))
        .otherwise(_problem("broken", detail))
    )
    return F.when(left.isNotNull() & (before != left), problem)


def _headless(begun: list[str]) -> Column:
    """The first event of a job must be its push if the journal is present from its first event."""
    detail = F.format_string("%s found it %s, but no event tells how it came", "type", "before")
    first = F.col("previous").isNull() & F.col("server").isin(begun)
    return F.when(first & (F.col("before") != "new"), _problem("broken", detail))


def _problem(problem: str, detail: Column) -> Column:
    return F.struct(F.lit(problem).alias("problem"), detail.alias("detail"))

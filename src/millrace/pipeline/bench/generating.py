"""Events by the million, made by Spark: what each is follows from its number alone.

Two servers work for eight days. Jobs come in cycles of twenty, of five shapes: most are pushed,
leased and completed; some wait for a moment first, fail and are tried again, lose their lease, or
die. The events of a thousand cycles make a block, in which the first steps of all jobs come before
the second ones, and so on: so the events of a job are as far apart as they are in a busy server's
journal, and yet no sort is needed, neither here nor by whoever checks that they follow from each
other. Waits and runs are spread as they are in life: by their logarithms.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from millrace.journal import schema
from millrace.journal.landing import Landed
from millrace.pipeline.commit import located
from millrace.pipeline.lake import Lake
from millrace.pipeline.progress import Progress

SERVERS: Final = ("be4c000000000001", "be4c000000000002")
#: 2026-01-01, and eight days in microseconds.
START: Final = 1_767_225_600_000_000
SPAN: Final = 8 * 86_400_000_000
#: So many events a file at most: what a busy server ships at once.
MOST: Final = 700_000


class Step(NamedTuple):
    """An event of a shape; how many leases, ends of them and moments the job had by then."""

    type: str
    before: str
    state: str
    leases: int
    ends: int
    dues: int


def _shape(*moves: tuple[str, str]) -> list[Step]:
    """The steps of a job from its types and the states that they lead to."""
    steps: list[Step] = []
    before, leases, ends, dues = "new", 0, 0, 0
    for kind, state in moves:
        leases += kind == "leased"
        ends += before == "leased"
        dues += kind == "due"
        steps.append(Step(kind, before, state, leases, ends, dues))
        before = state
    return steps


_PUSHED, _LEASED, _DONE = ("pushed", "ready"), ("leased", "leased"), ("completed", "gone")
_DUE = ("due", "ready")
_PLAIN: Final = _shape(_PUSHED, _LEASED, _DONE)
_LATER: Final = _shape(("pushed", "scheduled"), _DUE, _LEASED, _DONE)
_RETRIED: Final = _shape(_PUSHED, _LEASED, ("failed", "scheduled"), _DUE, _LEASED, _DONE)
_LOST: Final = _shape(_PUSHED, _LEASED, ("expired", "ready"), _LEASED, _DONE)
_DIES: Final = _shape(_PUSHED, _LEASED, ("failed", "dead"))
#: A cycle of jobs, and all their steps, the first ones of all jobs first.
_CYCLE: Final = [_PLAIN] * 14 + [_LATER] * 2 + [_RETRIED] * 2 + [_LOST, _DIES]
_JOBS: Final = len(_CYCLE)
_SLOTS: Final = sorted(
    ((place, job, step) for job, steps in enumerate(_CYCLE) for place, step in enumerate(steps)),
    key=lambda slot: slot[:2],
)
_STEPS: Final = [step for _, _, step in _SLOTS]

#: Queue, share of a thousand jobs, protocol of its jobs and its workers.
_QUEUES: Final = (
    ("mail", 420, "faktory", "faktory"),
    ("thumbs", 180, "workq", "workq"),
    ("index", 140, "qless", "qless"),
    ("tasks", 110, "goqueue", "goqueue"),
    ("shared", 90, "faktory", "qless"),
    ("webhooks", 48, "masenko", "masenko"),
    ("reports", 10, "masenko", "faktory"),
    ("nightly", 2, "faktory", "faktory"),
)
_ERRORS: Final = (
    ("TimeoutError", "no answer after 3000 ms"),
    ("KeyError", "'user'"),
    ("HTTPError", "503 for url: https://example.org/items"),
    ("OSError", "No space left on device"),
)


class Plan(NamedTuple):
    """How many events there will be, in how many files, in blocks of `wide` cycles."""

    files: int
    per_file: int
    wide: int

    @property
    def events(self) -> int:
        return self.files * self.per_file


def plan(events: int) -> Plan:
    """As many events as wanted, or a few more: in files of whole blocks, which four can share."""
    files = 8 * -(-events // (8 * MOST))
    wide = min(1000, max(1, events // (files * len(_SLOTS) * 4)))
    block = wide * len(_SLOTS)
    return Plan(files, block * -(-events // (files * block)), wide)


def generate(
    spark: SparkSession, lake: Lake, planned: Plan, seed: int, progress: Progress
) -> list[Landed]:
    """Write the files aside, in the lake's staging; their names say what is in them. They are in
    the order of time, and each part of them has as much of both servers.
    """
    made: list[Landed] = []
    at_once = max(2, spark.sparkContext.defaultParallelism)
    for first in range(0, planned.files, at_once):
        last = min(first + at_once, planned.files)
        folder = lake.staging / f"bench-{first:05}"
        frame = events(spark, planned, first, last, seed)
        frame.write.mode("overwrite").parquet(located(folder))
        parts = sorted(folder.glob("part-*.parquet"))
        for number, part in enumerate(parts, first):
            landed = named(planned, number)
            part.replace(lake.staging / landed.name)
            made.append(landed)
        progress("generate", last * planned.per_file, planned.events)
    return made


def named(planned: Plan, file: int) -> Landed:
    """Which events a file has: they alternate between the servers."""
    first = file // 2 * planned.per_file + 1
    return Landed(SERVERS[file % 2], first, first + planned.per_file - 1)


def land(lake: Lake, files: list[Landed]) -> None:
    """Let these files, which were written aside, be shipped."""
    lake.landing.mkdir(parents=True, exist_ok=True)
    for each in files:
        (lake.staging / each.name).rename(lake.landing / each.name)


def events(spark: SparkSession, planned: Plan, first: int, last: int, seed: int) -> DataFrame:
    """The events of some files, a partition each."""
    per_file, wide = planned.per_file, planned.wide
    ids = spark.range(first * per_file, last * per_file, numPartitions=last - first)
    file = F.expr(f"id div {per_file}")
    own = F.expr(f"id div {2 * per_file} * {per_file} + id % {per_file}")
    numbered = ids.select((file % 2).alias("side"), own.alias("own"))
    placed = numbered.select(
        "side",
        "own",
        F.expr(f"int(own div {wide} % {len(_SLOTS)})").alias("slot"),
        F.expr(f"own div {wide * len(_SLOTS)}").alias("block"),
        (F.col("own") % wide).alias("column"),
    )
    job = F.col("block") * (wide * _JOBS) + _of(lambda slot: slot[1]) * wide + F.col("column")
    jobs = placed.select("side", "own", "slot", job.alias("job"))
    chance = F.xxhash64("job", "side", F.lit(seed))
    drawn = jobs.select("*", chance.alias("chance"), F.xxhash64(chance, F.lit(1)).alias("luck"))
    spans = drawn.select(
        "*",
        _part("chance", 0, 1000).alias("queue_luck"),
        (START + F.expr(f"job * {SPAN // (planned.events // 2 * _JOBS // len(_SLOTS) + 1)}")
         + _part("chance", 16, 1000)).alias("created"),
        _spread("luck", 0, 12.5, 1.9).alias("wait1"),
        _spread("luck", 8, 13.2, 1.4).alias("run1"),
        _spread("luck", 16, 12.0, 1.9).alias("wait2"),
        _spread("luck", 24, 13.2, 1.4).alias("run2"),
        (_part("luck", 40, 600) * 1_000_000 + 15_000_000).alias("pause"),
    )  # fmt: skip
    return _columns(spans)


def _columns(spans: DataFrame) -> DataFrame:
    """The columns of the journal, from what was drawn for each job."""
    leases, ends, dues = (
        _of(lambda slot, name=name: getattr(slot[2], name)) for name in ("leases", "ends", "dues")
    )
    lead = F.when(_of(lambda slot: slot[1] in {14, 15}), F.col("pause")).otherwise(0)
    leased_1 = F.col("created") + lead + F.col("wait1")
    ended_1 = leased_1 + F.col("run1")
    again = F.when(_of(lambda slot: slot[1] in {16, 17}), F.col("pause")).otherwise(0)
    leased_2 = ended_1 + again + F.col("wait2")
    timed = spans.select(
        "*",
        leases.alias("leases"),
        F.when(leases == 1, leased_1).when(leases == 2, leased_2).alias("leased"),
        F.when((leases == 2) & (ends == 2), leased_2 + F.col("run2"))
        .when((leases == 2) & (ends == 1), leased_2)
        .when((leases == 1) & (ends == 1) & (dues == 1) & (again > 0), ended_1 + again)
        .when((leases == 1) & (ends == 1), ended_1)
        .when(leases == 1, leased_1)
        .when(dues == 1, F.col("created") + lead)
        .otherwise(F.col("created"))
        .alias("now"),
        _of(lambda slot: slot[2].type).alias("type"),
        _of(lambda slot: slot[2].before).alias("before"),
        _of(lambda slot: slot[2].state).alias("state"),
    )
    fails = F.col("type").isin("failed", "expired")
    ends_one = F.col("before") == "leased"
    wait = F.when(F.col("leases") == 2, F.col("wait2")).otherwise(F.col("wait1"))
    run = F.when(F.col("leases") == 2, F.col("run2")).otherwise(F.col("run1"))
    actor = F.when(
        ~F.col("type").isin("due", "expired"),
        F.when(F.col("type") == "pushed", _queue(2)).otherwise(_queue(3)),
    )
    number = _part("chance", 32, 24)
    kind = F.concat(F.lit("Kind"), _part("chance", 40, 5).cast("string"))
    made: dict[str, Column] = {
        "server": F.when(F.col("side") == 0, SERVERS[0]).otherwise(SERVERS[1]),
        "event_id": F.col("own") + 1,
        "time": F.timestamp_micros("now"),
        "type": F.col("type"),
        "seq": F.col("job") + 1,
        "jid": F.hex("chance"),
        "queue": _queue(0),
        "kind": F.when(_queue(2) == "goqueue", "").otherwise(kind),
        "origin": _queue(2),
        "actor": actor,
        "worker": F.when(
            (F.col("leases") > 0) & ~_queue(3).isin("workq", "goqueue"),
            F.concat(_queue(0), F.lit("-"), number.cast("string")),
        ),
        "attempt": F.col("leases"),
        "before": F.col("before"),
        "state": F.col("state"),
        "priority": F.lit(0.0),
        "created": F.timestamp_micros("created"),
        "ready_at": F.timestamp_micros(
            F.when(F.col("state") == "ready", F.col("now"))
            .when(F.col("leases") > 0, F.col("leased") - wait)
        ),
        "leased_at": F.timestamp_micros("leased"),
        "wait_us": F.when(F.col("type") == "leased", wait),
        "run_us": F.when(ends_one, run),
        "due": F.timestamp_micros(
            F.when(F.col("state") == "scheduled", F.col("now") + F.col("pause"))
        ),
        "payload_bytes": 40 + _part("chance", 8, 4000) % 300,
        "error_group": F.when(fails, _error(0)),
        "error_message": F.when(fails, _error(1)),
        "fingerprint": F.when(fails, F.sha1(_error(0)).substr(1, 16)),
        "source": F.lit(None),
        "tags": F.lit(None),
        "version": F.lit(2),
    }  # fmt: skip
    types = dict(column.split(" ", 1) for column in schema.ddl().split(", "))
    return timed.select(*(made[name].cast(types[name]).alias(name) for name in schema.NAMES))


def _of(choose: Callable[[tuple[int, int, Step]], Any]) -> Column:
    """What a slot of a cycle has, by its number."""
    return F.element_at(F.lit([choose(slot) for slot in _SLOTS]), F.col("slot") + 1)


def _part(hashed: str, shift: int, most: int) -> Column:
    """A number below `most` from some bits of a hash."""
    return F.shiftrightunsigned(hashed, shift).bitwiseAND(0xFFFF) * most / 65_536


def _spread(hashed: str, shift: int, middle: float, wide: float) -> Column:
    """Microseconds whose logarithms are spread about a middle, as three bytes of a hash say."""
    bits = [
        F.shiftrightunsigned(hashed, shift + 8 * k).bitwiseAND(0xFF).cast("double")
        for k in range(3)
    ]
    # Three numbers of 0..255 have a mean of 382.5 and a deviation of 128.
    return F.exp(((bits[0] + bits[1] + bits[2]) - 382.5) / 128 * wide + middle).cast("long")


def _queue(column: int) -> Column:
    """Of the job's queue its name, or a protocol."""
    found: Column | None = None
    so_far = 0
    for queue in _QUEUES[:-1]:
        so_far += queue[1]
        here = F.col("queue_luck") < so_far
        found = F.when(here, queue[column]) if found is None else found.when(here, queue[column])
    assert found is not None
    return found.otherwise(_QUEUES[-1][column])


def _error(column: int) -> Column:
    texts = F.lit([error[column] for error in _ERRORS])
    return F.element_at(texts, _part("chance", 24, len(_ERRORS)).cast("int") + 1)

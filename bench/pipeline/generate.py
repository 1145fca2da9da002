"""Generate millions of events. The number of an event determines its contents.

Two servers work for eight days. Jobs have cycles of twenty in five shapes: most are pushed, leased
and completed; some are scheduled first, fail and are retried, lose their lease, or die. The events
of several cycles form a block, which contains the first steps of all jobs, then the second steps,
and so on. The events of a job are therefore as far apart as in a busy server's journal, and no sort
is necessary. The properties of a job (queue, worker, error, wait and run time) are one of some
thousand profiles, drawn from a seed.

Arrow writes the files as the shipper does, in a tenth of the processor time of an earlier version
with Spark.
"""

import json
import math
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.transaction import AddAction, RemoveAction

from millrace.journal import events_table, schema
from millrace.pipeline.progress import Progress

SERVERS: Final = ("be4c000000000001", "be4c000000000002")
SECOND: Final = 1_000_000
#: 2026-01-01, and eight days in microseconds.
START: Final = 1_767_225_600 * SECOND
SPAN: Final = 8 * 86_400 * SECOND
#: Maximum events per file: the size of a shipment of a busy server.
MAX_FILE_EVENTS: Final = 700_000
ROWS: Final = 65_536

# The shapes of jobs


class Step(NamedTuple):
    """An event of a shape: the lease that it belongs to, and the times before it."""

    type: str
    before: str
    state: str
    #: Number of leases so far, and number of ended leases.
    leases: int
    ends: int
    #: Of a scheduled job: whether the wait precedes its first or its second lease.
    first_pause: bool
    second_pause: bool
    #: The number of failures so far.
    failures: int

    @property
    def ends_job(self) -> bool:
        return self.state in {"dead", "gone"}


def _shape(*moves: tuple[str, str]) -> list[Step]:
    """The steps of a job from its event types and the resulting states."""
    steps: list[Step] = []
    before, leases, ends, failures = "new", 0, 0, 0
    pauses = [False, False]
    for kind, state in moves:
        leases += kind == "leased"
        ends += before == "leased"
        if kind == "due":
            pauses[leases] = True
        failures += kind in {"failed", "expired"}
        steps.append(Step(kind, before, state, leases, ends, pauses[0], pauses[1], failures))
        before = state
    return steps


_PUSHED, _LEASED, _DONE = ("pushed", "ready"), ("leased", "leased"), ("completed", "gone")
_DUE = ("due", "ready")
_PLAIN: Final = _shape(_PUSHED, _LEASED, _DONE)
_LATER: Final = _shape(("pushed", "scheduled"), _DUE, _LEASED, _DONE)
_RETRIED: Final = _shape(_PUSHED, _LEASED, ("failed", "scheduled"), _DUE, _LEASED, _DONE)
_LOST: Final = _shape(_PUSHED, _LEASED, ("expired", "ready"), _LEASED, _DONE)
_DIES: Final = _shape(_PUSHED, _LEASED, ("failed", "dead"))
#: A cycle of jobs, and all their steps with the job's position: the first steps of all jobs first.
_CYCLE: Final = [_PLAIN] * 14 + [_LATER] * 2 + [_RETRIED] * 2 + [_LOST, _DIES]
_SLOTS: Final = [
    (job, steps[place])
    for place in range(max(map(len, _CYCLE)))
    for job, steps in enumerate(_CYCLE)
    if place < len(steps)
]

# Profiles of jobs


class Load(NamedTuple):
    """A queue: its jobs per thousand, the pushing and leasing protocols, and the run time in
    seconds.
    """

    queue: str
    share: int
    origin: str
    workers: str
    run: float


LOADS: Final = (
    Load("mail", 420, "faktory", "faktory", 0.2),
    Load("thumbs", 180, "workq", "workq", 1.5),
    Load("index", 140, "qless", "qless", 0.9),
    Load("tasks", 110, "goqueue", "goqueue", 4.0),
    Load("shared", 90, "faktory", "qless", 2.0),
    Load("webhooks", 48, "masenko", "masenko", 0.5),
    Load("reports", 10, "masenko", "faktory", 240.0),
    Load("nightly", 2, "faktory", "faktory", 9000.0),
)
ERRORS: Final = (
    ("TimeoutError", "no answer after 3000 ms", "0f0a4c1d5b7e9a10"),
    ("KeyError", "'user'", "1c9d2b5e8f704a21"),
    ("HTTPError", "503 for url: https://example.org/items", "2e8b3a6d9c015f32"),
    ("OSError", "No space left on device", "3d7c4b5f0e126a43"),
)
#: A power of two: a job's profile is some bits of its number, mixed.
_PROFILES: Final = 8192
_MIX: Final = 0x9E3779B97F4A7C15 - (1 << 64)


class Profile(NamedTuple):
    queue: str
    kind: str
    origin: str
    workers: str
    worker: str | None
    group: str
    message: str
    fingerprint: str
    size: int
    jid: str
    #: Microseconds.
    wait_1: int
    run_1: int
    wait_2: int
    run_2: int
    pause: int


def _profile(random: Random) -> Profile:
    load = random.choices(LOADS, [load.share for load in LOADS])[0]
    named = load.workers not in {"workq", "goqueue"}

    def span(seconds: float, spread: float) -> int:
        return int(math.exp(random.gauss(0, spread)) * seconds * SECOND)

    return Profile(
        load.queue,
        "" if load.origin == "goqueue" else f"Kind{int(random.random() ** 2 * 5)}",
        load.origin,
        load.workers,
        f"{load.queue}-{random.randrange(16)}" if named else None,
        *ERRORS[int(random.random() ** 2 * len(ERRORS))],
        random.randrange(20, 400),
        f"{random.getrandbits(48):012x}",
        span(0.3, 1.9),
        span(load.run, 1.1),
        span(0.3, 1.9),
        span(load.run, 1.1),
        random.randrange(15, 600) * SECOND,
    )


# Number and position of events


class Plan(NamedTuple):
    """A number of files with `per_file` events each, in blocks of `wide` cycles."""

    files: int
    per_file: int
    wide: int
    #: The number of earlier events of each server.
    before: int = 0
    #: The number of events of eight days; 0: the events of the plan.
    pace: int = 0

    @property
    def events(self) -> int:
        return self.files * self.per_file

    def more(self, events: int) -> "Plan":
        """The events that follow, in one file for each server."""
        wide = -(-events // (2 * len(_SLOTS)))
        before = self.before + self.files // 2 * self.per_file
        return Plan(2, wide * len(_SLOTS), wide, before, self.pace or self.events)


def plan(events: int) -> Plan:
    """At least this number of events: whole blocks, and files that four threads can share."""
    files = 8 * -(-events // (8 * MAX_FILE_EVENTS))
    blocks = max(4, -(-events // files) // (1000 * len(_SLOTS)))
    wide = -(-events // (files * blocks * len(_SLOTS)))
    return Plan(files, blocks * wide * len(_SLOTS), wide)


class Events(NamedTuple):
    """The events of a file."""

    server: str
    first: int
    last: int


def named(planned: Plan, file: int) -> Events:
    """The events of a file; files alternate between the servers."""
    first = planned.before + file // 2 * planned.per_file + 1
    return Events(SERVERS[file % 2], first, first + planned.per_file - 1)


class Generator:
    """Creates the files of a plan in time order: each quarter contains an equal part of both
    servers.
    """

    def __init__(self, planned: Plan, seed: int) -> None:
        self.plan = planned
        random = Random(seed)
        self._profiles = [_profile(random) for _ in range(_PROFILES)]

    def ship(
        self, lake: Path, files: Iterable[int], progress: Progress, *, threads: int = 2
    ) -> None:
        """Write these files and commit them to the table `events`, with the positions."""
        chosen, done = list(files), 0
        actions: list[AddAction | RemoveAction] = []
        last: dict[str, int] = {}
        with ThreadPoolExecutor(threads) as pool:  # Arrow releases the interpreter lock
            for some in pool.map(lambda file: self._write(lake, file), chosen):
                actions += some
                done += self.plan.per_file
                progress("generate", done, len(chosen) * self.plan.per_file)
        for file in chosen:
            events = named(self.plan, file)
            last[events.server] = max(events.last, last.get(events.server, 0))
        table = DeltaTable.create(
            str(lake / "events"),
            events_table.delta_schema(),
            mode="ignore",
            partition_by=["day", "server"],
        )
        table.create_write_transaction(
            actions,
            "append",
            events_table.delta_schema(),
            ["day", "server"],
            commit_properties=CommitProperties(
                app_transactions=[Transaction(server, number) for server, number in last.items()]
            ),
        )

    def _write(self, lake: Path, file: int) -> list[AddAction]:
        """Write the events of each day to a separate file."""
        table, events = self.table(file), named(self.plan, file)
        few = [field.name for field in table.schema if pa.types.is_dictionary(field.type)]
        days = table["time"].cast(pa.date32(), safe=False)
        found = []
        for day in pc.unique(days).to_pylist():
            rows = table.filter(pc.equal(days, pa.scalar(day, pa.date32())))
            partition = {"day": day.isoformat(), "server": events.server}
            name = f"day={day}/server={events.server}/{events.first:012}.parquet"
            path = lake / "events" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(
                rows.drop_columns(["server"]), path, compression="zstd", row_group_size=ROWS,
                use_dictionary=[each for each in few if each != "server"], store_schema=False,
            )  # fmt: skip
            bounds = pc.min_max(rows["event_id"]).as_py()
            leased = pc.min(rows["leased_at"]).as_py()
            lowest = {"event_id": bounds["min"]}
            if leased is not None:
                lowest["leased_at"] = leased.strftime("%Y-%m-%dT%H:%M:%S.000Z")
            statistics = {
                "numRecords": rows.num_rows,
                "minValues": lowest,
                "maxValues": {"event_id": bounds["max"]},
            }
            size = path.stat().st_size
            found.append(AddAction(name, size, partition, 0, True, json.dumps(statistics)))
        return found

    def table(self, file: int) -> pa.Table:
        """The events of one file."""
        landed = named(self.plan, file)
        jobs_before = (landed.first - 1) * len(_CYCLE) // len(_SLOTS)
        job = pc.add(self._job, jobs_before)
        mixed = pc.shift_right(pc.multiply(pc.add(job, file % 2 * 12_345), _MIX), 20)
        profile = pc.bit_wise_and(mixed, _PROFILES - 1)
        columns = {**self._steps, **self._of_jobs(job, profile), **self._times(job, profile, mixed)}
        count = self.plan.per_file
        columns["server"] = _repeated(landed.server, count)
        columns["event_id"] = pa.array(range(landed.first, landed.last + 1), pa.int64())
        columns["version"] = _repeated(schema.EVENT_VERSION, count, pa.int32())
        columns["priority"] = _repeated(0.0, count)
        columns["source"] = pa.nulls(count, pa.string())
        columns["tags"] = pa.nulls(count, pa.list_(pa.string()))
        fields = [
            pa.field(field.name, columns[field.name].type, nullable=field.nullable)
            for field in schema.arrow()
        ]
        return pa.Table.from_arrays([columns[f.name] for f in fields], schema=pa.schema(fields))

    # Equal for all files: the job and the step of each event

    @cached_property
    def _slot(self) -> pa.Array:
        block = [slot for slot in range(len(_SLOTS)) for _ in range(self.plan.wide)]
        return pa.array(block * (self.plan.per_file // len(block)), pa.int32())

    @cached_property
    def _job(self) -> pa.Array:
        """The job of each event, counted from the file's first."""
        wide = self.plan.wide
        block = [job * wide + column for job, _ in _SLOTS for column in range(wide)]
        jobs = wide * len(_CYCLE)
        blocks = self.plan.per_file // len(block)
        return pa.array([n * jobs + job for n in range(blocks) for job in block], pa.int64())

    @cached_property
    def _steps(self) -> dict[str, pa.Array]:
        """The columns that depend only on the step."""
        made = {
            name: _coded(self._slot, [getattr(step, name) for _, step in _SLOTS])
            for name in ("type", "before", "state")
        }
        made["attempt"] = _coded(self._slot, [step.leases for _, step in _SLOTS])
        # The columns of version 3 that follow from the step alone.
        steps = [step for _, step in _SLOTS]
        for name, values in (
            ("renewals", [0 if step.before == "leased" else None for step in steps]),
            ("leases", [step.leases if step.ends_job else None for step in steps]),
            ("failures", [step.failures if step.ends_job else None for step in steps]),
            ("outcome", [step.type if step.ends_job else None for step in steps]),
        ):
            made[name] = _coded(self._slot, values)
        failed = [False if step.type in {"failed", "expired"} else None for step in steps]
        made["repeat"] = pc.take(pa.array(failed, pa.bool_()), self._slot)
        return made

    def _is(self, wanted: Iterable[bool]) -> pa.Array:
        return pc.take(pa.array(list(wanted)), self._slot)

    @cached_property
    def _tests(self) -> dict[str, pa.Array]:
        steps = [step for _, step in _SLOTS]
        return {
            "leased once": self._is(step.leases >= 1 for step in steps),
            "leased twice": self._is(step.leases >= 2 for step in steps),
            "ended once": self._is(step.ends >= 1 for step in steps),
            "ended twice": self._is(step.ends >= 2 for step in steps),
            "paused first": self._is(step.first_pause for step in steps),
            "paused second": self._is(step.second_pause for step in steps),
            "pushed": self._is(step.type == "pushed" for step in steps),
            "alone": self._is(step.type in {"due", "expired"} for step in steps),
            "leases": self._is(step.type == "leased" for step in steps),
            "ends": self._is(step.before == "leased" for step in steps),
            "error": self._is(
                step.type in {"failed", "expired"} or (step.ends_job and step.failures > 0)
                for step in steps
            ),
            "ends job": self._is(step.ends_job for step in steps),
            "ready": self._is(step.state == "ready" for step in steps),
            "scheduled": self._is(step.state == "scheduled" for step in steps),
        }

    # Columns that depend on the job

    def _of_jobs(self, job: pa.Array, profile: pa.Array) -> dict[str, pa.Array]:
        tests = self._tests
        origin = self._take(profile, "origin")
        actor = pc.if_else(tests["pushed"], origin.indices, self._take(profile, "workers").indices)
        seq = pc.add(job, 1)
        made = {
            "seq": seq,
            "jid": pc.binary_join_element_wise(
                pc.take(self._plain("jid"), profile),
                pc.utf8_lpad(pc.cast(seq, pa.string()), 12, "0"),
                "",
            ),
            "queue": self._take(profile, "queue"),
            "kind": self._take(profile, "kind"),
            "origin": origin,
            "actor": pa.DictionaryArray.from_arrays(
                _only(pc.invert(tests["alone"]), actor), origin.dictionary
            ),
            "payload_bytes": self._take(profile, "size"),
            "worker": _where(tests["leased once"], self._take(profile, "worker")),
            "holder": _where(tests["ends"], self._take(profile, "workers")),
            "first_queue": _where(tests["ends job"], self._take(profile, "queue")),
        }
        for name, column in (
            ("error_group", "group"), ("error_message", "message"), ("fingerprint", "fingerprint")
        ):  # fmt: skip
            made[name] = _where(tests["error"], self._take(profile, column))
        return made

    def _times(self, job: pa.Array, profile: pa.Array, mixed: pa.Array) -> dict[str, pa.Array]:
        tests = self._tests
        # Other bits than those of the profile, so that all spans differ.
        stretch = pc.add(pc.bit_wise_and(pc.shift_right(mixed, 13), 1023), 512)

        def span(name: str) -> pa.Array:
            drawn = pc.take(self._plain(name), profile)
            return pc.shift_right(pc.multiply(drawn, stretch), 10)

        pace = self.plan.pace or self.plan.events
        every = SPAN // (pace // 2 * len(_CYCLE) // len(_SLOTS) + 1)
        created = pc.add(pc.multiply(job, every), START)
        pause = pc.take(self._plain("pause"), profile)
        wait_1, run_1 = span("wait_1"), span("run_1")
        wait_2, run_2 = span("wait_2"), span("run_2")
        due_1 = _plus(created, pause, tests["paused first"])
        leased_1 = _plus(due_1, wait_1, tests["leased once"])
        ended_1 = _plus(leased_1, run_1, tests["ended once"])
        due_2 = _plus(ended_1, pause, tests["paused second"])
        leased_2 = _plus(due_2, wait_2, tests["leased twice"])
        now = _plus(leased_2, run_2, tests["ended twice"])
        leased = pc.if_else(tests["leased twice"], leased_2, leased_1)
        wait = pc.if_else(tests["leased twice"], wait_2, wait_1)
        run = pc.if_else(tests["leased twice"], run_2, run_1)
        held = tests["leased once"]
        ready = pc.if_else(tests["ready"], now, _only(held, pc.subtract(leased, wait)))
        ends, twice = tests["ends job"], tests["leased twice"]
        return {
            "time": _stamps(now),
            "created": _stamps(created),
            "ready_at": _stamps(ready),
            "leased_at": _stamps(_only(held, leased)),
            "wait_us": _only(pc.or_(tests["leases"], tests["ends"]), wait),
            "wait_total_us": _only(ends, _plus(wait_1, wait_2, twice)),
            "run_total_us": _only(ends, _plus(run_1, run_2, twice)),
            "first_leased_at": _stamps(_only(ends, leased_1)),
            "ended_at": _stamps(_only(ends, now)),
            "run_us": _only(tests["ends"], run),
            "due": _stamps(_only(tests["scheduled"], pc.add(now, pause))),
        }

    @cached_property
    def _codes(self) -> dict[str, pa.DictionaryArray]:
        """The columns of profiles with few values; one list covers both kinds of protocols."""
        protocols = pa.array(schema.ORIGINS)
        found = {}
        for name in ("queue", "kind", "worker", "group", "message", "fingerprint", "size"):
            found[name] = self._plain(name).dictionary_encode()
        for name in ("origin", "workers"):
            codes = pc.index_in(self._plain(name), protocols)
            found[name] = pa.DictionaryArray.from_arrays(codes, protocols)
        return found

    @cached_property
    def _arrays(self) -> dict[str, pa.Array]:
        return {
            name: pa.array([getattr(profile, name) for profile in self._profiles])
            for name in Profile._fields
        }

    def _plain(self, name: str) -> pa.Array:
        return self._arrays[name]

    def _take(self, profile: pa.Array, name: str) -> pa.DictionaryArray:
        coded = self._codes[name]
        return pa.DictionaryArray.from_arrays(pc.take(coded.indices, profile), coded.dictionary)


def _coded(places: pa.Array, values: list[Any]) -> pa.DictionaryArray:
    """The values at these positions of a short list."""
    coded = pa.array(values).dictionary_encode()
    return pa.DictionaryArray.from_arrays(pc.take(coded.indices, places), coded.dictionary)


def _repeated(value: Any, count: int, kind: pa.DataType | None = None) -> pa.DictionaryArray:
    codes = pc.cast(pa.repeat(0, count), pa.int8())
    return pa.DictionaryArray.from_arrays(codes, pa.array([value], kind))


def _only(test: pa.Array, values: pa.Array) -> pa.Array:
    """Null where the test fails."""
    return pc.if_else(test, values, pa.scalar(None, values.type))


def _where(test: pa.Array, coded: pa.DictionaryArray) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(_only(test, coded.indices), coded.dictionary)


def _plus(times: pa.Array, spans: pa.Array, test: pa.Array) -> pa.Array:
    return pc.add(times, pc.if_else(test, spans, 0))


def _stamps(times: pa.Array) -> pa.Array:
    return times.cast(pa.timestamp("us", tz="UTC"))

"""The data source `millrace`: rows to jobs and back, against real servers."""

import ast
import json
import pickle
import re
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from cutting_proxy import CuttingProxy
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import EqualTo, GreaterThan, In
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import StructType

import pyspark_millrace
from certificates import make_certificates
from event_tables import event_run
from millrace.journal import schema
from millrace.journal.events_table import EventsTable
from pyspark_millrace import DefaultSource
from pyspark_millrace import writer as writing
from pyspark_millrace.connection import Refused, ServerConnection, parse
from pyspark_millrace.job_reader import JOBS, FilteringJobReader
from pyspark_millrace.lake_reader import FileRange, JournalReader, Offset
from pyspark_millrace.options import Options, address
from pyspark_millrace.work_units import Units, shape
from pyspark_millrace.writer import Writer
from raw_faktory import RawFaktory
from raw_masenko import RawMasenko
from server_process import ServerProcess, running_server

PASSWORD = "open sesame/@"
MOMENT = datetime(2026, 11, 16, 9, 30, 0, 250_000, tzinfo=UTC)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    data = tmp_path_factory.mktemp("source") / "data"
    with running_server(
        data, MILLRACE_FAKTORY_PASSWORD=PASSWORD, MILLRACE_LAKE_SHIP_EVERY="0"
    ) as started:
        yield started


@pytest.fixture
def client(server: ServerProcess) -> Iterator[RawFaktory]:
    with RawFaktory(server.port, password=PASSWORD) as connected:
        assert connected.command("FLUSH") == "OK"
        yield connected


def url(server: ServerProcess, port: int = 0) -> str:
    return f"tcp://:open%20sesame%2F%40@127.0.0.1:{port or server.port}"


def loads(client: RawFaktory) -> dict[str, dict[str, Any]]:
    body = client.command("MILLRACE", {"loads": True})
    assert isinstance(body, bytes)
    return {load["load"]: load for load in json.loads(body)["loads"]}


def jobs(client: RawFaktory, **wanted: Any) -> list[dict[str, Any]]:
    """All jobs of the server, read page by page."""
    found, request = [], wanted
    while True:
        body = client.command("MILLRACE", {"read": request})
        assert isinstance(body, bytes)
        page = json.loads(body)
        found += page["jobs"]
        if page["cursor"] is None:
            return found
        request = {"cursor": page["cursor"]}


# The meaning of a row


def made(columns: dict[str, pa.Array], **given: str) -> list[dict[str, Any]]:
    """The work units of some rows."""
    batch = pa.RecordBatch.from_pydict(columns)
    kinds = {
        field.name: "array" if pa.types.is_list(field.type) else str(field.type)
        for field in batch.schema
    }
    return [json.loads(unit) for unit in Units(shape(kinds, Options(given)), "L", 0).of(batch)]


def strings(*values: str | None) -> pa.Array:
    return pa.array(values, pa.string())


def test_job_columns_are_fields_and_other_columns_one_object() -> None:
    columns = {
        "jid": strings("job-0001", "job-0002"),
        "kind": strings("greet", "bill"),
        "queue": strings("mail", None),
        "at": pa.array([MOMENT, None], pa.timestamp("us", "UTC")),
        "priority": pa.array([2.5, None]),
        "retry": pa.array([3, None]),
        "reserve_for": pa.array([90, None]),
        "user": strings('A "b"\n', None),
        "amount": pa.array([2**62, None]),
    }
    assert made(columns) == [
        {
            "jid": "job-0001", "jobtype": "greet", "queue": "mail", "at": "2026-11-16T09:30:00.250000Z",
            "priority": 2.5, "retry": 3, "reserve_for": 90, "args": [{"user": 'A "b"\n', "amount": 2**62}],
        },
        {"jid": "job-0002", "jobtype": "bill", "args": [{"user": None, "amount": None}]},
    ]  # fmt: skip


def test_options_replace_columns() -> None:
    columns = {
        "id": strings("job-0001"),
        "a": pa.array([1]),
        "b": pa.array([True]),
        "queue": strings("x"),
    }
    (unit,) = made(columns, kind="k", queue="q", jid="id", args="b, a")
    assert unit == {"jid": "job-0001", "jobtype": "k", "queue": "q", "args": [True, 1]}


@pytest.mark.parametrize("name", ["args", "payload"])
def test_json_text_is_unchanged(name: str) -> None:
    texts = ["[1, 12345678901234567890123,\n 1.10]", '{"a":[]}', None, '"x"', " [ ] "]
    columns = {"jid": strings(*"abcde"), "kind": strings(*"kkkkk"), name: strings(*texts)}
    batch = pa.RecordBatch.from_pydict(columns)
    kinds = dict.fromkeys(columns, "string")
    units = list(Units(shape(kinds, Options({})), "L", 0).of(batch))
    assert [re.search(rb'"args":(.*)}', unit)[1] for unit in units] == [
        b"[1, 12345678901234567890123,  1.10]", b'[{"a":[]}]', b"[]", b'["x"]', b"[ ]",
    ]  # fmt: skip
    assert not any(b"\n" in unit for unit in units)


def test_values_without_a_json_form_become_text() -> None:
    columns = {
        "kind": strings("k"),
        "m": pa.array([MOMENT], pa.timestamp("us", "Europe/Berlin")),
        "d": pa.array([date(2026, 11, 16)]),
        "n": pa.array([Decimal("1.10")]),
        "b": pa.array([b"\xff"]),
        "map": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
        "struct": pa.array([{"x": [1.5, None]}]),
    }
    (unit,) = made(columns)
    assert unit["args"] == [
        {
            "m": "2026-11-16T09:30:00.250000Z", "d": "2026-11-16", "n": "1.10", "b": "/w==",
            "map": {"a": 1}, "struct": {"x": [1.5, None]},
        }
    ]  # fmt: skip


def test_an_array_column_is_the_arguments() -> None:
    columns = {"kind": strings("k", "k"), "args": pa.array([[1, None], None], pa.list_(pa.int64()))}
    assert [unit["args"] for unit in made(columns)] == [[1, None], []]


@pytest.mark.parametrize(
    ("columns", "given", "error"),
    [
        (
            {"a": "string"},
            {},
            "The jobs have no kind. Add a column `kind`, or set the option `kind`.",
        ),
        ({"a": "string"}, {"kind": "k", "jid": "id"}, "There is no column 'id'. Columns: a."),
        ({"a": "string"}, {"kind": "k", "args": "a,b"}, "There is no column 'b'. Columns: a."),
        (
            {"args": "bigint"},
            {"kind": "k"},
            "Column 'args' must be JSON text or an array, not bigint.",
        ),
    ],
)
def test_invalid_columns_are_reported_before_any_task(columns, given, error) -> None:
    with pytest.raises(ValueError, match=re.escape(error)):
        shape(columns, Options(given))


@pytest.mark.parametrize(
    ("columns", "error"),
    [
        ({"args": strings("[1")}, "args must be JSON: "),
        ({"args": strings("[NaN]")}, "NaN is not valid JSON"),
        ({"args": strings('[1],"queue":"x"')}, "args must be JSON: Extra data"),
        ({"x": pa.array([float("inf")])}, "Out of range float values are not JSON compliant"),
        ({"jid": strings(None)}, "A row has no jid"),
    ],
)
def test_an_invalid_row_is_an_error(columns, error) -> None:
    with pytest.raises(ValueError, match=re.escape(error)):
        made({**columns, "kind": strings("k")})


# Generated ids


def ids(rows: list[str], load: str = "L", partition: int = 0) -> dict[str, list[str]]:
    columns = {"kind": strings(*["k"] * len(rows)), "x": strings(*rows)}
    units = Units(shape(dict.fromkeys(columns, "string"), Options({})), load, partition)
    found: dict[str, list[str]] = {}
    for at in range(0, len(rows), 3):  # in batches
        batch = pa.RecordBatch.from_pydict({name: a[at : at + 3] for name, a in columns.items()})
        for unit in map(json.loads, units.of(batch)):
            found.setdefault(unit["args"][0]["x"], []).append(unit["jid"])
    return found


def test_a_partition_gets_the_same_ids_for_any_row_order() -> None:
    rows = ["a", "b", "a", "c", "a", "d", "b"]
    first, again = ids(rows), ids(sorted(rows, reverse=True))
    assert {row: sorted(jids) for row, jids in first.items()} == {
        row: sorted(jids) for row, jids in again.items()
    }
    every = [jid for jids in first.values() for jid in jids]
    assert len(set(every)) == len(rows), "rows that are the same are different jobs"
    assert all(str(uuid.UUID(jid)) == jid for jid in every)


def test_other_partitions_and_loads_have_other_ids() -> None:
    found = [ids(["a"])["a"], ids(["a"], partition=1)["a"], ids(["a"], load="M")["a"]]
    assert len({jid for (jid,) in found}) == 3


# The address of the server


def test_a_url_is_parsed() -> None:
    assert parse("tcp://:pass%2Fword@host") == ("host", 7419, "pass/word", False, "", 60)
    assert parse("tcp+tls://[::1]:99", "secret", "ca.pem", 5) == (
        "::1",
        99,
        "secret",
        True,
        "ca.pem",
        5,
    )


@pytest.mark.parametrize("text", ["", "host:7419", "http://host", "tcp://", "tcp://host:port"])
def test_an_invalid_url_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="The URL must be tcp://"):
        parse(text)


def test_a_password_is_never_shown() -> None:
    given = Options({"url": "tcp://:hush-hush@host", "password": "hush-hush"})
    assert repr(address(given)) == str(address(given)) == "tcp://host:7419"
    assert b"hush-hush" not in pickle.dumps(given)


def test_the_environment_has_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKTORY_URL", "tcp://elsewhere:1234")
    assert str(address(Options({}))) == "tcp://elsewhere:1234"


def test_a_number_out_of_range_is_an_error() -> None:
    with pytest.raises(ValueError, match="option 'frame' must be from 1 to 10000, not '0'"):
        Options({"FRAME": "0"}).count("frame", 200, 10_000)


def test_a_wrong_password_is_refused(server: ServerProcess) -> None:
    with pytest.raises(Refused, match="Invalid password"):
        ServerConnection(parse(f"tcp://:wrong@127.0.0.1:{server.port}"))
    with pytest.raises(Refused, match="requires a password"):
        ServerConnection(parse(f"tcp://127.0.0.1:{server.port}"))


def test_another_protocol_is_recognised(server: ServerProcess) -> None:
    with pytest.raises((Refused, OSError)):
        ServerConnection(parse(f"tcp://127.0.0.1:{server.ports['masenko']}", timeout=1))


def test_tls(tmp_path: Path) -> None:
    made_here = make_certificates(tmp_path)
    with running_server(tmp_path / "data", **made_here.environment) as secured:
        for ca in (str(made_here.ca), str(made_here.cert), ""):
            with ServerConnection(parse(f"tcp+tls://127.0.0.1:{secured.port}", ca=ca)) as wire:
                assert wire.ask({"loads": True}) == {"loads": []}


def test_tasks_do_not_import_the_server_package() -> None:
    """Only the driver reads the schema and the log of the lake."""
    driver = {"__init__.py": {"millrace"}, "lake_reader.py": {"millrace", "deltalake"}}
    for path in Path(pyspark_millrace.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and not node.level:
                root = (node.module or "").partition(".")[0]
            elif isinstance(node, ast.Import):
                root = node.names[0].name.partition(".")[0]
            else:
                continue
            known = root in sys.stdlib_module_names or root in {"pyspark", "pyarrow"}
            of_driver = node.col_offset > 0 and root in driver.get(path.name, ())
            assert known or of_driver, (path.name, root)


# Staging, without Spark


def batches(count: int, size: int = 500) -> Iterator[pa.RecordBatch]:
    for first in range(0, count, size):
        numbers = list(range(first, min(first + size, count)))
        yield pa.RecordBatch.from_pydict(
            {"jid": [f"job-{n:06}" for n in numbers], "kind": ["k"] * len(numbers), "n": numbers}
        )


def writer(server: ServerProcess, load: str = "L", **given: str) -> Writer:
    options = Options({"url": url(server), **given})
    kinds = {"jid": "string", "kind": "string", "n": "bigint"}
    return Writer.opened(address(options), load, shape(kinds, options), options)


def test_concurrent_attempts_stage_each_job_once(server: ServerProcess, client: RawFaktory) -> None:
    """Like a speculative execution in Spark: the slower attempt is not stopped."""
    mine = writer(server)
    with ThreadPoolExecutor(2) as threads:
        staged = list(threads.map(lambda _: mine.write(batches(3000)), range(2)))
    assert sum(each.new for each in staged) == 3000
    assert sum(each.known for each in staged) == 3000
    assert client.queue_size("default") == 0
    mine.commit(list(staged))
    assert client.queue_size("default") == 3000
    with pytest.raises(Refused, match="the load L is released: nothing can be added to it"):
        mine.write(batches(10))
    assert client.queue_size("default") == 3000


def test_a_release_continues_after_a_restart(
    server: ServerProcess, client: RawFaktory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "PAUSE", 0.0)
    monkeypatch.setattr(writing, "RELEASE_BATCH_SIZE", 100)
    mine = writer(server)
    staged = mine.write(batches(1000))
    with CuttingProxy(server.port, answers=4, of=b'"left":') as proxy:
        mine.address = mine.address._replace(port=proxy.port)
        mine.commit([staged])
        assert proxy.cuts == 1
    assert client.queue_size("default") == 1000
    assert len({job["jid"] for job in jobs(client)}) == 1000


def test_an_unfinished_release_names_the_command_to_finish_it(
    server: ServerProcess, client: RawFaktory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "PAUSE", 0.0)
    monkeypatch.setattr(writing, "RELEASE_BATCH_SIZE", 100)
    mine = writer(server)
    staged = mine.write(batches(1000))
    with CuttingProxy(server.port, answers=1, of=b'"left":', most=99) as proxy:
        monkeypatch.setattr(writing, "ATTEMPTS", 2)
        mine.address = mine.address._replace(port=proxy.port)
        with pytest.raises(ConnectionError, match="`millrace pipeline loads --release L`"):
            mine.commit([staged])
    mine.address = mine.address._replace(port=server.port)
    mine.abort([staged])  # like Spark in this case: released jobs are not taken back
    assert loads(client)["L"]["state"] == "releasing"
    assert 200 <= client.queue_size("default") <= 400, "each cut may hide one more answer"
    mine.commit([staged])
    assert client.queue_size("default") == 1000


def test_frames_are_bounded_in_jobs_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "FRAME_BYTES", 100)
    units = [b"1" * 10] * 7 + [b"2" * 200] + [b"3"] * 4
    sizes = [frame.count(b",") for frame in writing.frames("L", units, 3)]
    assert sizes == [3, 3, 2, 3, 1], "commas between jobs, and the one behind the load's name"


def test_a_load_outlives_the_server_and_is_ended_by_name(tmp_path: Path) -> None:
    with running_server(tmp_path / "data", MILLRACE_LAKE_SHIP_EVERY="0") as server:
        server_url = {"url": f"tcp://127.0.0.1:{server.port}"}
        options = Options(server_url)
        kinds = {"jid": "string", "kind": "string", "n": "bigint"}
        where = shape(kinds, options)
        Writer.opened(address(options), "one", where, options).write(batches(300))
        Writer.opened(address(options), "two", where, options).write(batches(200))
        server.restart()
        with ServerConnection(parse(f"tcp://127.0.0.1:{server.port}")) as wire:
            known = {load["load"]: load["staged"] for load in wire.ask({"loads": True})["loads"]}
            assert known == {"one": 300, "two": 200}
            assert writing.discard(wire, "two") == 200
            assert wire.ask({"release": "one", "most": 100}) == {"done": 100, "left": 200}
        server.restart()  # in the middle of the release
        with ServerConnection(parse(f"tcp://127.0.0.1:{server.port}")) as wire:
            with pytest.raises(Refused, match="the load one is releasing: nothing can be added"):
                wire.ask({"stage": "one", "jobs": []})
            assert writing.release(wire, "one") == 200
        with RawFaktory(server.port) as client:
            assert client.queue_size("default") == 300
            assert [client.fetch()["jid"] for _ in range(3)] == [
                "job-000000",
                "job-000001",
                "job-000002",
            ]


# Through Spark


def numbers(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(count).select(
        F.format_string("job-%06d", "id").alias("jid"),
        F.lit("resize").alias("kind"),
        F.col("id").alias("n"),
    )


def save(rows: DataFrame, where: str, **options: str) -> None:
    rows.write.format("millrace").options(url=where, **options).mode("append").save()


def test_rows_become_jobs_for_workers_of_any_protocol(
    spark: SparkSession, server: ServerProcess, client: RawFaktory
) -> None:
    save(numbers(spark, 2000).repartition(3), url(server), queue="images")
    assert client.queue_size("images") == 2000
    (load,) = loads(client).values()
    assert (load["state"], load["total"], load["staged"]) == ("released", 2000, 0)
    seen: Counter[int] = Counter()
    with RawMasenko(server.ports["masenko"]) as worker:
        for _ in range(50):
            task = worker.fetch("images")
            assert task is not None
            assert task["name"] == "resize"
            seen[task["payload"][0]["n"]] += 1
            assert worker.ack(task["id"]).startswith(b"OK")
    assert len(seen) == 50
    assert client.queue_size("images") == 1950


def test_a_retried_task_neither_duplicates_nor_loses_jobs(
    spark: SparkSession, server: ServerProcess, client: RawFaktory
) -> None:
    """Without client ids, and with equal rows: the generated ids are the same in each attempt."""
    rows = spark.range(1500).select(F.lit("k").alias("kind"), (F.col("id") % 500).alias("n"))
    with CuttingProxy(server.port, answers=5) as proxy:
        save(rows.coalesce(1), url(server, proxy.port), load="L", frame="100")
        assert proxy.cuts == 1
    assert loads(client)["L"]["total"] == 1500
    found = Counter(json.loads(job["payload"])[0]["n"] for job in jobs(client))
    assert found == dict.fromkeys(range(500), 3)


def test_a_named_load_is_added_once(
    spark: SparkSession, server: ServerProcess, client: RawFaktory
) -> None:
    for _ in range(2):
        save(numbers(spark, 300), url(server), load="import-1")
    assert client.queue_size("default") == 300


def test_an_unfinished_load_is_continued(
    spark: SparkSession, server: ServerProcess, client: RawFaktory
) -> None:
    writer(server, "half").write(batches(150))  # and then its driver died
    save(numbers(spark, 300), url(server), load="half")
    assert Counter(job["jid"] for job in jobs(client)) == Counter(f"job-{n:06}" for n in range(300))


def test_errors_are_reported_before_any_task() -> None:
    rows = StructType().add("kind", "string")
    with pytest.raises(ValueError, match=re.escape('Jobs can only be added. Use mode("append").')):
        DefaultSource({}).writer(rows, overwrite=True)
    with pytest.raises(ValueError, match="option 'state' must be one of scheduled, "):
        DefaultSource({"state": "lost"}).reader(StructType())
    with pytest.raises(ValueError, match="Set the option `lake`"):
        DefaultSource({}).streamReader(StructType())
    with pytest.raises(ValueError, match="has no table jobs"):
        DefaultSource({"lake": "nowhere", "table": "jobs"}).reader(StructType())
    with pytest.raises(ValueError, match="Only the table events"):
        DefaultSource({"lake": "nowhere", "table": "jobs"}).streamReader(StructType())


def test_jobs_are_read_with_their_states(
    spark: SparkSession, server: ServerProcess, client: RawFaktory
) -> None:
    for number in range(1203):
        client.push(
            {"jid": f"job-{number:06}", "jobtype": "k", "args": [number], "queue": "q", "retry": -1}
        )
    for _ in range(3):
        client.fail(client.fetch("q")["jid"], "no such file")
    client.push({"jid": "another-one", "jobtype": "k", "args": [], "queue": "other"})
    reader = spark.read.format("millrace").option("url", url(server))
    frame = reader.option("queue", "q").option("parts", 3).load()
    assert frame.dtypes == [(name, kind.lower()) for name, kind in JOBS.items()]
    assert frame.rdd.getNumPartitions() == 3
    assert "sesame" not in frame._jdf.queryExecution().toString()
    assert {row["state"]: row["count"] for row in frame.groupBy("state").count().collect()} == {
        "ready": 1200,
        "dead": 3,
    }
    dead = reader.option("state", "dead").load().orderBy("seq").collect()
    assert [row.jid for row in dead] == ["job-000000", "job-000001", "job-000002"]
    assert (dead[0].payload, dead[0].error_message, dead[0].backtrace) == (
        "[0]",
        "no such file",
        ["here"],
    )
    assert (dead[0].result, dead[0].deadline, dead[0].load) == (None, None, None)
    told = jobs(client, state="dead")[0]
    assert dead[0].created.replace(tzinfo=UTC).timestamp() == pytest.approx(told["created"] / 1e6)


PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "spark-as-a-client.md"


def test_conditions_of_a_query_are_applied_by_the_reader(
    spark: SparkSession, server: ServerProcess, client: RawFaktory
) -> None:
    for number in range(60):
        queue, kind = f"q{number % 3}", f"k{number % 2}"
        client.push(
            {"jid": f"job-{number:06}", "jobtype": kind, "args": [], "queue": queue, "retry": -1}
        )
    for _ in range(4):
        client.fail(client.fetch("q1")["jid"], "no such file")
    spark.conf.set("spark.sql.python.filterPushdown.enabled", True)
    try:
        reader = spark.read.format("millrace").options(url=url(server), pushdown="true")
        for condition, count in (
            ("state = 'dead'", 4),
            ("state = 'dead' AND queue = 'q2'", 0),
            ("state IN ('dead', 'ready') AND queue IN ('q1', 'q2') AND kind = 'k1'", 20),
            ("queue = 'q1' AND state = 'ready' AND jid LIKE 'job-00005%'", 3),
            ("state = 'done' OR queue = 'q0'", 20),
            ("state = 'no such state'", 0),
            ("kind = 'k0' AND kind IN ('k1')", 0),
        ):
            # A new DataFrame for each query: Spark keeps the conditions of the first one.
            assert reader.load().where(condition).count() == count, condition
        plan = reader.load().where("state = 'dead'")._jdf.queryExecution().executedPlan().toString()
        assert "Filter isnotnull(state" in plan
        assert "= dead" not in plan
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_the_server_selects_one_state_and_one_queue() -> None:
    reader = FilteringJobReader(Options({"url": "tcp://localhost:1"}), ["jid"])
    conditions = [
        EqualTo(("state",), "dead"), In(("queue",), ("a",)), EqualTo(("kind",), "k"),
        GreaterThan(("seq",), 5), EqualTo(("jid",), "x"),
    ]  # fmt: skip
    assert list(reader.pushFilters(conditions)) == conditions[3:]
    assert (reader.state, reader.queue) == ("dead", "a")
    assert reader.wanted == {"state": {"dead"}, "queue": {"a"}, "kind": {"k"}}


def test_a_schema_names_the_columns(
    spark: SparkSession, server: ServerProcess, client: RawFaktory
) -> None:
    client.push({"jid": "job-000001", "jobtype": "k", "args": [7], "queue": "q"})
    reader = spark.read.format("millrace").option("url", url(server))
    found = reader.schema("payload STRING, jid STRING").load().collect()
    assert [row.asDict() for row in found] == [{"payload": "[7]", "jid": "job-000001"}]
    with pytest.raises(ValueError, match="no column 'colour'"):
        FilteringJobReader(Options({}), ["jid", "colour"])


def test_the_pipeline_in_ten_lines_repairs_dead_jobs(
    spark: SparkSession, server: ServerProcess, client: RawFaktory, tmp_path: Path
) -> None:
    for name in ("ada", "bob", "eve"):
        client.push(
            {
                "jid": f"job-of-{name}",
                "jobtype": "greet",
                "args": [name],
                "queue": "mail",
                "retry": -1,
            }
        )
        client.fail(client.fetch("mail")["jid"], "no address")
    (tmp_path / "addresses.csv").write_text("user,address\nada,a@example.com\neve,e@example.com\n")
    text = PAGE.read_text().partition("## A pipeline in ten lines")[2]
    code = text.partition("```python\n")[2].partition("```")[0]
    assert len(code.splitlines()) == 10
    code = code.replace("tcp://:password@host:7419", url(server))
    code = code.replace("addresses.csv", str(tmp_path / "addresses.csv"))
    for _ in range(2):  # a repeated run adds no jobs
        exec(code, {"spark": spark})
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
        found = {job["jid"]: job for job in jobs(client, state="ready")}
        assert found.keys() == {"job-of-ada-repaired", "job-of-eve-repaired"}
    assert json.loads(found["job-of-ada-repaired"]["payload"]) == ["ada", "a@example.com"]
    assert len(jobs(client, state="dead")) == 3


def test_a_stream_is_enqueued_once_when_its_last_batch_is_repeated(
    spark: SparkSession, server: ServerProcess, client: RawFaktory, tmp_path: Path
) -> None:
    source = tmp_path / "in"
    source.mkdir()
    for number in range(3):
        rows = [json.dumps({"n": n}) for n in range(number * 100, number * 100 + 100)]
        (source / f"{number}.json").write_text("\n".join(rows))

    def run() -> None:
        frame = (
            spark.readStream.schema("n BIGINT").option("maxFilesPerTrigger", 1).json(str(source))
        )
        stream = frame.writeStream.format("millrace").options(url=url(server), kind="k")
        stream = stream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        stream.trigger(availableNow=True).start().awaitTermination()

    run()
    assert client.queue_size("default") == 300
    assert sorted(load["total"] for load in loads(client).values()) == [100, 100, 100]
    for path in (tmp_path / "checkpoint/commits").glob("*2*"):
        path.unlink()  # as if it had been killed before it recorded the end of the batch
    run()
    assert client.queue_size("default") == 300


# The journal


def ship(lake: Path, server: str, first: int, count: int) -> None:
    rows = [
        (1_794_771_831_000_000 + n, "pushed", n, f"job-{n}", "q", "k", 3, 3, "", 0, 2, 0, 5, 0, 0, 0, 0, 7, 6, 5)
        for n in range(first, first + count)
    ]  # fmt: skip
    EventsTable(lake).append(server, event_run(first, 2, rows))


def stream_reader(lake: Path) -> JournalReader:
    return JournalReader(Options({"lake": str(lake)}), StructType())


def ranges(reader: JournalReader, start: Offset, end: Offset) -> list[tuple[str, int, int]]:
    found = cast("list[FileRange]", reader.partitions(start, end))
    return [(each.partition["server"], each.after, each.last) for each in found]


def test_a_stream_reads_each_event_once(tmp_path: Path) -> None:
    assert stream_reader(tmp_path).reportLatestOffset() == {}
    for first in (101, 201, 301):
        ship(tmp_path, "aa", first, 100)
    ship(tmp_path, "bb", 1, 10)
    reader = stream_reader(tmp_path)
    assert reader.reportLatestOffset() == {"aa": 400, "bb": 10}
    assert reader.latestOffset({}, ReadMaxRows(120)) == {"aa": 220}
    assert reader.latestOffset({"aa": 390}, ReadMaxRows(15)) == {"aa": 400, "bb": 5}
    assert reader.latestOffset({"aa": 400, "bb": 10}, ReadMaxRows(15)) == {"aa": 400, "bb": 10}
    assert ranges(reader, {}, {"aa": 220}) == [("aa", 100, 200), ("aa", 200, 220)]
    assert ranges(reader, {"aa": 220}, {"aa": 400, "bb": 5}) == [
        ("bb", 0, 5), ("aa", 220, 300), ("aa", 300, 400),
    ]  # fmt: skip
    assert ranges(reader, {"aa": 400}, {"aa": 400}) == []


def test_a_stream_of_available_events_ends_at_its_start(tmp_path: Path) -> None:
    ship(tmp_path, "aa", 1, 100)
    reader = stream_reader(tmp_path)
    reader.prepareForTriggerAvailableNow()
    ship(tmp_path, "aa", 101, 100)
    assert reader.latestOffset({"aa": 50}, ReadMaxRows(1000)) == {"aa": 100}
    assert reader.reportLatestOffset() == {"aa": 200}


def test_a_table_is_read_at_a_version(spark: SparkSession, tmp_path: Path) -> None:
    ship(tmp_path, "aa", 1, 30)
    ship(tmp_path, "aa", 31, 12)
    reader = spark.read.format("millrace").options(lake=str(tmp_path))
    assert reader.load().select("event_id").count() == 42
    assert reader.option("version", "1").load().count() == 30
    row = reader.load().orderBy("event_id").select("server", "day", "jid").first()
    assert (row.server, str(row.day), row.jid) == ("aa", "2026-11-15", "job-1")


def test_a_stream_of_the_journal_continues_after_the_last_run(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    ship(lake, "aa", 1, 250)
    ship(lake, "aa", 251, 50)
    ship(lake, "bb", 11, 40)

    def run() -> list[int]:
        stream = spark.readStream.format("millrace").options(lake=str(lake), rows="120").load()
        assert stream.schema == spark.createDataFrame([], f"{schema.ddl()}, day DATE").schema
        sink = stream.writeStream.format("parquet").option("path", str(tmp_path / "out"))
        query = sink.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = query.trigger(availableNow=True).start()
        query.awaitTermination()
        return [progress["numInputRows"] for progress in query.recentProgress]

    assert [rows for rows in run() if rows] == [120, 120, 100]
    ship(lake, "bb", 51, 10)
    assert [rows for rows in run() if rows] == [10]
    found = spark.read.parquet(str(tmp_path / "out"))
    assert sorted((row.server, row.event_id) for row in found.collect()) == [
        *(("aa", n) for n in range(1, 301)),
        *(("bb", n) for n in range(11, 61)),
    ]
    row = found.where("server = 'bb' and event_id = 60").first()
    assert (row.jid, row.type, row.origin, row.state, row.version) == (
        "job-60",
        "pushed",
        "faktory",
        "ready",
        2,
    )

"""`millrace pipeline whatif` on recordings of a real server with real workers."""

import json
import sys
import threading
import time
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession

BENCH = Path(__file__).parents[2] / "bench"
sys.path.insert(0, str(BENCH))

from actors import Session  # noqa: E402
from millrace.pipeline.lake import Lake  # noqa: E402
from millrace.pipeline.run import run  # noqa: E402
from millrace.pipeline.snapshot import Snapshot  # noqa: E402
from millrace.pipeline.whatif.model import Prediction  # noqa: E402
from millrace.pipeline.whatif.prediction import predict  # noqa: E402
from millrace.pipeline.whatif.scenario import parse  # noqa: E402
from millrace.pipeline.whatif.visits import Period  # noqa: E402
from server_process import running_server  # noqa: E402
from speakers import SPEAKERS, Leased, Work  # noqa: E402

SECOND = 1_000_000
MAX_ERROR = 0.1


class Pool(NamedTuple):
    """Threads of one worker."""

    protocol: str
    name: str
    queues: tuple[str, ...]
    threads: int
    #: The pause after an empty answer, in seconds.
    poll: float = 0.0


class Stream(NamedTuple):
    """Jobs of a queue: pushes per second, outside and during bursts, and the median run time."""

    protocol: str
    queue: str
    rate: float
    peak: float
    run: float


STREAMS = (
    Stream("faktory", "critical", 4, 12, 0.05),
    Stream("faktory", "default", 8, 25, 0.1),
    Stream("qless", "index", 3, 20, 0.15),
    Stream("masenko", "hooks", 5, 15, 0.1),
    Stream("goqueue", "thumbs", 5, 20, 0.1),
)
POOLS = (
    Pool("faktory", "w1", ("critical", "default"), 1),
    Pool("faktory", "w2", ("default", "critical"), 1),
    Pool("qless", "w3", ("index",), 2, poll=0.25),
    Pool("masenko", "w4", ("hooks",), 1),
    Pool("goqueue", "w5", ("thumbs",), 2),
)


def now() -> int:
    return time.time_ns() // 1000


def produce(session: Session, stream: Stream, seconds: float, random: Random) -> None:
    """Push jobs; every 10 seconds there is a burst of 2 seconds."""
    started, at, number = time.monotonic(), 0.0, 0
    while at < seconds:
        rate = stream.peak if at % 10 < 2 else stream.rate
        at += random.expovariate(rate)
        time.sleep(max(0.0, started + at - time.monotonic()))
        number += 1
        takes = stream.run * random.lognormvariate(0, 0.5)
        name = f"{stream.queue}-{number:06}"
        work = Work(
            id=name, queue=stream.queue, payload=json.dumps([takes]).encode(), kind="k", ttr=600
        )
        session.request(session.speaker.push(work, now()))
    session.close()


def work(session: Session, pool: Pool, over: threading.Event) -> None:
    """Take jobs and sleep for the time that each of them takes."""
    queue = " ".join(pool.queues)
    while not over.is_set():
        answer = session.request(session.speaker.lease(queue, now(), 0.0 if pool.poll else 1.0))
        if isinstance(answer, Leased):
            (takes,) = json.loads(answer.held.payload)
            time.sleep(takes)
            session.request(session.speaker.complete(answer.held, now()))
        elif pool.poll:
            time.sleep(pool.poll)
    session.close()


def recording(data: Path, seconds: float, seed: int) -> None:
    """Let producers and workers use a server, and ship the events."""
    over = threading.Event()
    with running_server(data, MILLRACE_LAKE_SHIP_EVERY="1s") as server:

        def session(protocol: str, name: str) -> Session:
            return Session("127.0.0.1", server.ports[protocol], SPEAKERS[protocol](name))

        producers = [
            threading.Thread(
                target=produce,
                args=(session(each.protocol, "producer"), each, seconds, Random(f"{seed} {each}")),
            )
            for each in STREAMS
        ]
        workers = [
            threading.Thread(target=work, args=(session(each.protocol, each.name), each, over))
            for each in POOLS
            for _ in range(each.threads)
        ]
        for thread in (*producers, *workers):
            thread.start()
        for thread in producers:
            thread.join()
        time.sleep(2)
        over.set()
        for thread in workers:
            thread.join()
        assert server.stop(timeout=60) == 0


def predicted(spark: SparkSession, data: Path, *changes: str) -> Prediction:
    lake = data / "lake"
    run(Lake(lake), lambda _: spark)
    snapshot = Snapshot(lake)
    assert snapshot.run is not None
    end = int(snapshot.run.time.timestamp() * SECOND)
    period = Period(end - 3600 * SECOND, end)
    return predict(spark, snapshot, period, [parse(each) for each in changes])


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
def test_a_replay_predicts_the_waits_of_a_real_server(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    recording(tmp_path / "data", 40, seed)
    found = predicted(spark, tmp_path / "data")
    replayed = {row.queue: row for row in found.replay.queues}
    assert (found.error_p50 or 0.0) <= MAX_ERROR, found
    assert (found.error_p95 or 0.0) <= MAX_ERROR, found
    for row in found.recorded.queues:
        other = replayed[row.queue]
        assert other.started == row.started
        assert other.wait_p50 == pytest.approx(row.wait_p50, rel=MAX_ERROR, abs=0.005), row.queue
        assert other.wait_p95 == pytest.approx(row.wait_p95, rel=MAX_ERROR, abs=0.005), row.queue

"""Defects of the original server that clients can observe: each test fails there.
Numbers are those of the compatibility sheet. D11, D14 and D17 concern its web page and its files.
"""

import json

import pytest
from conversation import NULL_BULK, OK, Conversation, compact, push, unit


def test_d1_the_default_retry_does_not_leak_between_pushes(talk):
    first, second = talk.client(), talk.client()
    first.pushes(unit("job-0001", retry=0))
    second.pushes(unit("job-0002"))
    assert first.fetches()["retry"] == 0
    assert first.fetches()["retry"] == 25
    first.fails("job-0002")
    assert first.sets()["retries"] == 1


def test_d1_the_default_retry_does_not_leak_inside_a_pushb(talk):
    client = talk.client()
    jobs = [
        unit("job-0001", retry=-1),
        unit("job-0002"),
        unit("job-0003", retry=3),
        unit("job-0004"),
    ]
    client.says(b"PUSHB %b\r\n" % compact(jobs)).hears(b"$2\r\n{}\r\n")
    assert [client.fetches()["retry"] for _ in range(4)] == [-1, 25, 3, 25]


def test_d2_info_during_concurrent_pushes_to_new_queues(talk):
    pushers = [talk.client() for _ in range(3)]
    reader = talk.client(wid="reader")
    for number in range(60):
        pushers[number % 3].pushes(unit(f"job-{number:04}", queue=f"queue-{number}"))
        talk.client(wid=f"worker-{number}")
        assert reader.info()["faktory"]["total_queues"] == number + 1


@pytest.mark.parametrize(
    "line",
    [
        push("job-0009"),
        b"PUSHB %b\r\n" % compact([unit("job-0009"), unit("short")]),
        b'ACK {"jid":"job-0001"}\r\n',
        b'FAIL {"jid":"job-0001"}\r\n',
        b"FLUSH\r\n",
        b"QUEUE PAUSE default\r\n",
        b"QUEUE REMOVE default\r\n",
        b'MUTATE {"cmd":"kill","target":"scheduled"}\r\n',
    ],
)
def test_d3_every_change_is_acknowledged_only_when_durable(talk, line):
    client = talk.client().pushes(unit("job-0001"))
    client.fetches()
    client.pushes(unit("job-0002", at="2027-01-01T00:00:00Z"))
    before = len(client.wire.replies)
    client.says(line)
    assert client.wire.durable[-1] == before
    client.hears(client.wire.replies[-1])


@pytest.mark.parametrize("line", [b"INFO\r\n", b"QUEUE LATENCY default\r\n", b"NOPE\r\n"])
def test_d3_reads_are_answered_immediately(talk, line):
    client = talk.client().pushes(unit("job-0001"))
    before = list(client.wire.durable)
    client.says(line)
    assert client.wire.durable == before
    client.hears(client.wire.replies[-1])


def test_d3_a_job_delivered_before_its_push_is_durable_waits_for_the_commit(talk):
    client = talk.client()
    talk.acts(lambda world: world.hold_commits())
    client.pushes(unit()).fetches()
    assert client.wire.durable == [2, 3]


def test_d4_a_client_that_disconnects_while_waiting_receives_no_job(talk):
    gone, other = talk.client(wid="worker-1"), talk.client()
    gone.says(b"FETCH\r\n").hangs_up()
    other.pushes(unit())
    assert other.sets()["working"] == 0
    assert other.fetches()["jid"] == "job-0001"


def test_d4_jobs_of_a_dead_worker_can_be_recovered_soon():
    with Conversation(recover_lost_workers=True) as talk:
        worker, other = talk.client(wid="worker-1"), talk.client()
        worker.pushes(unit()).fetches()
        worker.hangs_up()
        talk.advance(60 + 15)
        assert other.fetches()["failure"]["errtype"] == "WorkerLost"


def test_d5_flush_leaves_no_memory_behind(talk):
    client = talk.client()
    for number in range(15):
        client.pushes(unit(f"job-{number:04}", queue="q"))
        client.fetches("q")
    client.says(b"QUEUE PAUSE q\r\nFLUSH\r\n").hears(OK, OK)
    faktory = client.info()["faktory"]
    assert faktory["tasks"]["Busy"]["size"] == faktory["sets"]["working"] == 0
    assert faktory["queues"] == {}
    client.pushes(unit(queue="q"))
    assert client.info()["faktory"]["queues"] == {"q": 1}
    assert client.fetches("q")["jid"] == "job-0001"


def test_d5_flush_frees_the_memory_of_a_queue_with_a_waiting_worker(talk):
    worker, boss = talk.client(), talk.client().pushes(unit(queue="q"))
    boss.says(b"QUEUE PAUSE q\r\n").hears_ok()
    worker.says(b"FETCH q\r\n").hears_nothing()
    boss.says(b"FLUSH\r\n").hears_ok()
    assert boss.info()["faktory"]["queues"] == {}
    boss.pushes(unit("job-0002", queue="q"))
    assert worker.hears_json()["jid"] == "job-0002"


def test_d6_removing_a_paused_queue_leaves_no_pause_behind(talk):
    client = talk.client().pushes(unit(queue="q"))
    client.says(b"QUEUE PAUSE q\r\nQUEUE REMOVE q\r\n").hears(OK, OK)
    assert client.pushes(unit("job-0002", queue="q")).fetches("q")["jid"] == "job-0002"


def _dead(client, count):
    jobs = [unit(f"job-{n:05}", retry=-1) for n in range(count)]
    client.says(b"PUSHB %b\r\n" % compact(jobs)).hears(b"$2\r\n{}\r\n")
    for job in jobs:
        client.fetches()
        client.fails(job["jid"])


def test_d7_requeueing_all_dead_jobs_skips_none(talk):
    client = talk.client()
    _dead(client, 250)
    client.mutates("requeue", "dead")
    assert client.sets() == {"dead": 0, "retries": 0, "scheduled": 0, "working": 0, "enqueued": 250}


@pytest.mark.parametrize("target", ["retries", "scheduled"])
def test_d8_killing_all_kills_all(talk, target):
    client = talk.client()
    for number in range(120):
        at = "2027-01-01T00:00:00Z" if target == "scheduled" else None
        client.pushes(unit(f"job-{number:04}", at=at))
        if target == "retries":
            client.fetches()
            client.fails(f"job-{number:04}")
    client.mutates("kill", target)
    assert client.sets() == {"dead": 120, "retries": 0, "scheduled": 0, "working": 0, "enqueued": 0}


def test_d9_quiet_applies_to_every_connection_of_the_worker(talk):
    connections = [talk.client(wid="worker-1") for _ in range(4)]
    connections[0].pushes(unit())
    connections[2].says(b'BEAT {"wid":"worker-1","current_state":"quiet"}\r\n')
    connections[2].hears(b'$17\r\n{"state":"quiet"}\r\n')
    for connection in connections:
        connection.says(b"FETCH\r\n")
    talk.advance(2)
    for connection in connections:
        connection.hears(NULL_BULK)


def test_d10_a_job_killed_before_its_first_failure_behaves_normally(talk):
    client = talk.client().pushes(unit(at="2027-01-01T00:00:00Z"))
    client.mutates("kill", "scheduled").mutates("kill", "dead", regexp="*job-0001*")
    assert client.sets()["dead"] == 1
    client.mutates("requeue", "dead", jobtype="SomeJob")
    fetched = client.fetches()
    assert "failure" not in fetched
    client.fails("job-0001")
    assert client.sets()["retries"] == 1


@pytest.mark.parametrize(
    "number",
    ["9007199254740993", "12345678901234567890", "-9223372036854775809", "1" * 400, "0.1" + "0" * 40 + "1", "1e400"],
)  # fmt: skip
def test_d12_numbers_survive(talk, number):
    client = talk.client()
    client.says(
        b'PUSH {"jid":"job-0001","jobtype":"x","args":[%b],"custom":{"n":%b},"mine":%b}\r\n'
        % ((number.encode(),) * 3)
    ).hears_ok()
    body = client.says(b"FETCH\r\n").hears_bulk()
    exact = json.loads(body, parse_int=str, parse_float=str)
    assert exact["args"] == [number]
    assert exact["custom"] == {"n": number}
    assert exact["mine"] == number


def test_d13_latency_after_a_scheduled_job_was_requeued(talk):
    client = talk.client().pushes(unit(at="2027-01-01T00:00:00Z")).mutates("requeue", "scheduled")
    talk.advance(3.5)
    client.says(b"QUEUE LATENCY default\r\n").hears(b'$15\r\n{"default":3.5}\r\n')
    assert client.fetches()["enqueued_at"] == "2026-11-15T19:43:51Z"


def test_d15_two_jobs_with_one_jid_are_both_completed(talk):
    client = talk.client().pushes(unit(args=[1])).pushes(unit(args=[2]))
    assert [client.fetches()["args"] for _ in range(2)] == [[1], [2]]
    assert client.sets()["working"] == 2
    client.acks("job-0001")
    assert client.sets()["working"] == 1
    client.acks("job-0001")
    assert client.sets()["working"] == 0
    assert client.info()["faktory"]["total_processed"] == 2
    talk.advance(1801)
    assert client.info()["faktory"]["tasks"]["Busy"]["reaped"] == 0


def test_d15_each_of_two_jobs_with_one_jid_has_a_reservation(talk):
    client = talk.client().pushes(unit(args=[1], reserve_for=60)).pushes(unit(args=[2]))
    client.fetches()
    client.fetches()
    talk.advance(60)
    assert client.sets() == {"dead": 0, "retries": 1, "scheduled": 0, "working": 1, "enqueued": 0}
    client.fails("job-0001")
    assert client.sets() == {"dead": 0, "retries": 2, "scheduled": 0, "working": 0, "enqueued": 0}


@pytest.mark.parametrize("cmd", ["discard", "kill", "requeue"])
def test_d16_mutate_of_a_large_set_is_completed(cmd):
    talk = Conversation()
    client = talk.client()
    for start in range(0, 6_000, 2_000):
        jobs = [unit(f"job-{start + n:06}", at="2027-01-01T00:00:00Z") for n in range(2_000)]
        client.says(b"PUSHB %b\r\n" % compact(jobs)).hears(b"$2\r\n{}\r\n")
    client.mutates(cmd, "scheduled", jobtype="SomeJob", regexp="*job-0*")
    sets = client.sets()
    assert sets["scheduled"] == 0
    assert sets["dead"] == (6_000 if cmd == "kill" else 0)
    assert sets["enqueued"] == (6_000 if cmd == "requeue" else 0)


def test_d18_the_dead_set_is_bounded_and_purged_on_time():
    with Conversation(dead_max=150) as talk:
        client = talk.client()
        _dead(client, 200)
        assert client.sets()["dead"] == 150
        talk.advance(180 * 86_400)
        assert client.sets()["dead"] == 0
        assert client.info()["faktory"]["tasks"]["Dead"]["size"] == 0

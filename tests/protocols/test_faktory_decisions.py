"""Decisions of Millrace where the protocol's document is silent or contradicts itself.
One section per row of the decision table, in its order; tests/server covers behaviour that needs
several connections.
"""

import hashlib
import json
import re

import pytest
from conversation import (
    CHALLENGE,
    HI,
    NULL_BULK,
    OK,
    START,
    Conversation,
    Wire,
    World,
    bulk,
    push,
    unit,
)

from house import House
from millrace import __version__
from millrace.engine.states import LEASED
from millrace.protocols.faktory.connection import FaktoryConnection
from millrace.protocols.faktory.settings import FaktoryConfig

SECRET_HI = b'+HI {"v":2,"i":1545,"s":"55104dc76695721d"}\r\n'


def hashed(password: str, times: int) -> bytes:
    digest = (password + CHALLENGE[1]).encode()
    for _ in range(times):
        digest = hashlib.sha256(digest).digest()
    return digest.hex().encode()


# END


def test_end_replies_ok_then_closes(talk):
    talk.client().says(b"END\r\n").hears(OK).hears_the_end()


def test_end_behind_a_blocked_fetch_waits(talk):
    client = talk.client().says(b"FETCH\r\nEND\r\n").hears_nothing()
    talk.advance(2)
    client.hears(NULL_BULK, OK).hears_the_end()


def test_end_without_a_newline_then_disconnect(talk):
    client = talk.client(wid="worker-1").says(b"END").hears_nothing().hangs_up()
    client.hears_the_end()
    assert talk.hub.connections == set()


# bare FETCH


@pytest.mark.parametrize("line", [b"FETCH\r\n", b"FETCH\n", b"FETCH \r\n", b"FETCH  \r\n"])
def test_bare_fetch_scans_default(talk, line):
    client = talk.client().pushes(unit("job-0001", queue="other")).pushes(unit("job-0002"))
    client.says(line)
    assert client.hears_json()["jid"] == "job-0002"


def test_bare_fetch_waits_on_default(talk):
    client, producer = talk.client(), talk.client()
    client.says(b"FETCH\r\n")
    producer.pushes(unit())
    assert client.hears_json()["jid"] == "job-0001"


# FETCH without a ready job


@pytest.mark.parametrize("queue", ["first", "second", "third"])
def test_fetch_without_a_ready_job_waits_on_all_its_queues(talk, queue):
    worker, producer = talk.client(), talk.client()
    worker.says(b"FETCH first second third\r\n")
    talk.advance(1.9)
    producer.pushes(unit(queue=queue))
    assert worker.hears_json()["queue"] == queue


def test_fetch_without_a_ready_job_replies_after_two_seconds(talk):
    client = talk.client().says(b"FETCH a b\r\n")
    talk.advance(1.999999)
    client.hears_nothing()
    talk.advance(0.000001)
    client.hears(NULL_BULK)


def test_fetch_without_a_ready_job_delivers_none_to_a_closed_connection(talk):
    dead, producer = talk.client(wid="worker-1"), talk.client()
    dead.says(b"FETCH\r\n").hangs_up()
    producer.pushes(unit())
    assert producer.sets()["working"] == 0
    assert producer.fetches()["jid"] == "job-0001"


def test_fetch_without_a_ready_job_is_woken_by_a_resumed_queue(talk):
    worker, boss = talk.client(), talk.client().pushes(unit())
    boss.says(b"QUEUE PAUSE default\r\n").hears_ok()
    worker.says(b"FETCH\r\n").hears_nothing()
    boss.says(b"QUEUE RESUME default\r\n").hears_ok()
    assert worker.hears_json()["jid"] == "job-0001"


def test_fetch_without_a_ready_job_is_woken_by_a_due_job(talk):
    worker = talk.client().pushes(unit(at="2026-11-15T19:43:52Z")).says(b"FETCH\r\n")
    talk.advance(0.999999)
    worker.hears_nothing()
    talk.advance(0.000001)
    assert worker.hears_json()["enqueued_at"] == "2026-11-15T19:43:52Z"


def test_fetch_without_a_ready_job_is_woken_once(talk):
    worker, producer = talk.client(), talk.client()
    worker.says(b"FETCH a b a\r\n")
    producer.says(push("job-0001", queue="a") + push("job-0002", queue="b")).hears(OK, OK)
    assert worker.hears_json()["jid"] == "job-0001"
    talk.advance(10)
    worker.hears_nothing()
    assert producer.sets()["enqueued"] == 1


def test_commands_behind_a_waiting_fetch_wait_with_it(talk):
    worker, producer = talk.client(), talk.client()
    worker.says(b'FETCH\r\nACK {"jid":"job-0001"}\r\n').hears_nothing()
    producer.pushes(unit())
    assert worker.hears_json()["jid"] == "job-0001"
    worker.hears_ok()
    assert producer.sets()["working"] == 0


# BEAT with a state change


@pytest.mark.parametrize(
    ("order", "heard"),
    [
        (b"QUIET", b'$17\r\n{"state":"quiet"}\r\n'),
        (b"TERMINATE", b'$21\r\n{"state":"terminate"}\r\n'),
    ],
)
def test_beat_with_a_state_change_is_a_compact_bulk_string(talk, order, heard):
    worker = talk.client(wid="worker-1")
    talk.client().says(b"WORKER %b worker-1\r\n" % order).hears_ok()
    for _ in range(3):
        worker.says(b'BEAT {"wid":"worker-1"}\r\n').hears(heard)


# BEAT from a wid whose HELLO is known


def test_beat_from_a_known_wid_is_accepted_from_any_connection(talk):
    talk.client(wid="worker-1")
    talk.client().says(b'BEAT {"wid":"worker-1"}\r\n').hears_ok()


def test_beat_from_a_known_wid_is_accepted_after_a_long_silence(talk):
    worker = talk.client(wid="worker-1")
    talk.advance(3 * 86_400)
    worker.says(b'BEAT {"wid":"worker-1"}\r\n').hears_ok()


def test_beat_from_a_known_wid_is_accepted_after_its_connections_closed(talk):
    talk.client(wid="worker-1").hangs_up()
    other = talk.client()
    talk.advance(300)
    other.says(b'BEAT {"wid":"worker-1"}\r\n').hears_ok()


def test_beat_from_a_wid_never_seen_is_refused(talk):
    talk.client(wid="worker-1").says(b'BEAT {"wid":"nobody"}\r\n').hears_error(
        "unknown worker nobody"
    )


# another command before HELLO


@pytest.mark.parametrize(
    "line",
    [
        b"hello {}",
        b"HELLO  {}",
        b"HELLO\t{}",
        b"HELLO",
        b"HELLO ",
        b"HELLO []",
        b"INFO",
        b"END",
        b"",
        b" HELLO {}",
        b'PUSH {"jid":"job-0001","jobtype":"x","args":[]}',
        b"\xff\x00\x01",
    ],
)
@pytest.mark.parametrize("end", [b"\r\n", b"\n"])
def test_another_command_before_hello_is_an_error_then_close(talk, line, end):
    client = talk.connect().hears(HI).says(line + end + b'HELLO {"v":2}\r\n')
    client.hears_error_like("expected HELLO {...} first, got ")
    client.hears_the_end()
    assert talk.engine.jobs == {}
    assert talk.hub.connections == set()


@pytest.mark.parametrize(
    "argument",
    [
        b"{",
        b'{"v":2',
        b'{"v":2}x',
        b'{"v":"2"}',
        b'{"v":2.0}',
        b'{"v":300}',
        b'{"pid":"12"}',
        b'{"labels":"a"}',
        b'{"labels":[1]}',
        b'{"wid":12}',
        b'{"pwdhash":1}',
        b'{"hostname":{}}',
        b"{'v':2}",
    ],
)
def test_a_malformed_hello_is_an_error_then_close(talk, argument):
    client = talk.connect().hears(HI).says(b"HELLO %b\r\n" % argument)
    client.hears_error_like("invalid HELLO: ")
    client.hears_the_end()


# HELLO


@pytest.mark.parametrize(
    "argument",
    [
        b"{}",
        b'{"v":1}',
        b'{"v":3}',
        b'{"v":255}',
        b'{"v":null,"wid":null,"pid":null,"labels":null,"hostname":null,"pwdhash":null}',
        b'{"labels":[null,"a"]}',
        b'{"username":null,"wid":"","v":2}',
        b'{"v":2,"anything":{"else":[1]}}',
        b'{"V":2,"Labels":["a"]}',
        b'{ "v" : 2 }',
    ],
)
def test_hello_is_lenient(talk, argument):
    client = talk.connect().hears(HI).says(b"HELLO %b\r\n" % argument).hears_ok()
    client.is_still_there()
    assert talk.hub.workers.known == {}


@pytest.mark.parametrize("version", [b"", b'"v":1,', b'"v":0,', b'"v":null,'])
def test_hello_without_version_2_means_one_iteration(version):
    with Conversation(password="secret") as talk:
        client = talk.connect().hears(SECRET_HI)
        client.says(b'HELLO {%b"pwdhash":"%b"}\r\n' % (version, hashed("secret", 1))).hears_ok()
        stranger = talk.connect().hears(SECRET_HI)
        stranger.says(b'HELLO {%b"pwdhash":"%b"}\r\n' % (version, hashed("secret", 1545)))
        stranger.hears_error("Invalid password").hears_the_end()


@pytest.mark.parametrize("version", [2, 3])
def test_hello_with_version_2_means_all_iterations(version):
    with Conversation(password="secret") as talk:
        client = talk.connect().hears(SECRET_HI)
        client.says(b'HELLO {"v":%d,"pwdhash":"%b"}\r\n' % (version, hashed("secret", 1545)))
        client.hears_ok()
        stranger = talk.connect().hears(SECRET_HI)
        stranger.says(b'HELLO {"v":%d,"pwdhash":"%b"}\r\n' % (version, hashed("secret", 1)))
        stranger.hears_error("Invalid password").hears_the_end()


def test_hello_compares_in_constant_time(monkeypatch):
    compared = []

    def compare(a, b):
        compared.append((a, b))
        return a == b

    monkeypatch.setattr("millrace.protocols.faktory.hub.compare_digest", compare)
    with Conversation(password="secret") as talk:
        client = talk.connect().hears(SECRET_HI)
        client.says(b'HELLO {"v":2,"pwdhash":"abc"}\r\n')
        client.hears_error("Invalid password").hears_the_end()
    assert compared[0] == (hashed("secret", 1545), b"abc")


# unknown top-level job fields


def test_unknown_top_level_job_fields_are_delivered(talk):
    client = talk.client()
    client.says(
        b'PUSH {"priority": 5,"jid":"job-0001","blargh":{"a": [1.0, 1e3]},"jobtype":"SomeJob",'
        b'"nothing":null,"args":[]}\r\n'
    ).hears_ok()
    body = client.says(b"FETCH\r\n").hears_bulk()
    assert body == (
        b'{"retry":25,"jid":"job-0001","queue":"default","jobtype":"SomeJob",'
        b'"created_at":"2026-11-15T19:43:51Z","enqueued_at":"2026-11-15T19:43:51Z","args":[],'
        b'"priority":5,"blargh":{"a": [1.0, 1e3]},"nothing":null}'
    )


# numbers in args and custom


def test_numbers_in_args_and_custom_are_exact(talk):
    numbers = b"[1.0,1e3,12345678901234567890,-0,0.1000,1E+2,123456789012345678901234567890.5]"
    client = talk.client()
    client.says(
        b'PUSH {"jid":"job-0001","jobtype":"x","args":%b,"custom":{"n":%b}}\r\n'
        % (numbers, numbers)
    ).hears_ok()
    body = client.says(b"FETCH\r\n").hears_bulk()
    assert b'"args":' + numbers in body
    assert b'"custom":{"n":' + numbers + b"}" in body


# the same jid pushed again


def test_the_same_work_unit_pushed_again_is_accepted_and_not_enqueued_twice(talk):
    client = talk.client()
    line = push(custom={"a": 1}, retry=3, priority=9)
    for _ in range(3):
        client.says(line).hears_ok()
    assert client.sets()["enqueued"] == 1


@pytest.mark.parametrize("at", [None, "2026-11-15T20:00:00Z"])
def test_an_identical_push_is_a_resend_for_a_minute(talk, at):
    client = talk.client()
    line = push(at=at)
    client.says(line + line).hears(OK, OK)
    talk.advance(59)
    client.says(line).hears_ok()
    assert len(talk.engine.jobs) == 1
    talk.advance(1)
    client.says(line).hears_ok()
    assert len(talk.engine.jobs) == 2


@pytest.mark.parametrize("then", ["leased", "retrying"])
def test_an_identical_push_of_a_job_that_was_fetched_is_a_second_job(talk, then):
    client = talk.client().pushes(unit())
    client.fetches()
    if then == "retrying":
        client.fails("job-0001")
    client.pushes(unit())
    assert len(talk.engine.jobs) == 2


def test_a_worker_that_pushes_the_fetched_job_again_leaves_one_job(talk):
    client = talk.client().pushes(unit())
    fetched = client.fetches()
    client.pushes(fetched).acks("job-0001")
    assert client.sets()["enqueued"] == 1
    assert client.fetches()["jid"] == "job-0001"


# null, and a CR between values


def test_null_is_an_object_without_members(talk):
    client = talk.client()
    client.says(b"PUSH null\r\n").hears_error("jobs must have a reasonable jid parameter")
    client.says(b"PUSHB [null]\r\n")
    assert client.hears_json() == {"": "jobs must have a reasonable jid parameter"}
    client.says(b"FAIL null\r\n").hears_error("missing JID")


def test_a_carriage_return_between_values_does_not_reach_the_worker(talk):
    client = talk.client()
    job = b'{"jid":"job-000%d",\r"jobtype":"t","args":[1,\r2],"custom":{"a":\r3},"x":[\r4]}'
    client.says(b"PUSH " + job % 1 + b"\r\n").hears_ok()
    client.says(b"PUSHB [\r" + job % 2 + b"\r]\r\n").hears(b"$2\r\n{}\r\n")
    for _ in range(2):
        body = client.says(b"FETCH\r\n").hears_bulk()
        assert b"\r" not in body
        found = json.loads(body)
        assert (found["args"], found["custom"], found["x"]) == ([1, 2], {"a": 3}, [4])
    bad = b'PUSH {"jid":"job-0003","jobtype":"t","args":["a\rb"]}\r\n'
    client.says(bad).hears_error_like("invalid JSON: ")


def test_a_failure_that_the_client_sent_is_delivered(talk):
    failure = {"retry_count": 3, "remaining": 22, "message": "m", "errtype": "E"}
    client = talk.client().pushes(unit(failure=failure, custom={"a": 1}))
    assert client.fetches()["failure"] == failure
    client.says(push(jid="job-0002", failure=[])).hears_error_like("invalid JSON: failure must be")


# MUTATE's filter


@pytest.mark.parametrize(
    ("text", "glob"),
    [
        (rb"caf\u00e9", "*café*"),
        (rb"a\/b", "*a/b*"),
        (b"a<b", "*a\\\\u003cb*"),
        (b"x", '*"args":\\["x",1\\]*'),
    ],
)
def test_mutate_filters_canonical_json(talk, text, glob):
    client = talk.client()
    at = b'"at":"2027-01-01T00:00:00Z"'
    line = b'PUSH {"jid":"job-0001","jobtype":"t","args":["%b" , 1],%b}\r\n' % (text, at)
    client.says(line).hears_ok()
    filters = {"cmd": "discard", "target": "scheduled", "filter": {"regexp": glob}}
    client.says(b"MUTATE %b\r\n" % json.dumps(filters).encode()).hears_ok()
    assert client.sets()["scheduled"] == 0


def test_the_same_work_unit_after_its_completion_is_a_new_job(talk):
    client = talk.client().pushes(unit())
    client.fetches()
    client.acks("job-0001").pushes(unit())
    assert client.fetches()["jid"] == "job-0001"


def test_the_same_work_unit_after_its_death_is_a_new_job(talk):
    client = talk.client().pushes(unit(retry=-1))
    client.fetches()
    client.fails("job-0001").pushes(unit(retry=-1))
    assert client.sets() == {"dead": 1, "retries": 0, "scheduled": 0, "working": 0, "enqueued": 1}


@pytest.mark.parametrize(
    "changed",
    [
        {"args": []},
        {"jobtype": "OtherJob"},
        {"queue": "other"},
        {"retry": 24},
        {"reserve_for": 1801},
        {"custom": {"a": 1}},
        {"at": "2001-01-01T00:00:00Z"},
        {"created_at": "2001-01-01T00:00:00Z"},
        {"backtrace": 1},
        {"priority": 1},
    ],
)
def test_a_different_work_unit_with_the_same_jid_is_a_second_job(talk, changed):
    client = talk.client().pushes(unit()).pushes(unit(**changed))
    assert client.sets()["enqueued"] == 2


def test_the_same_work_unit_over_another_connection_is_not_enqueued_twice(talk):
    talk.client().pushes(unit()).hangs_up()
    assert talk.client().pushes(unit()).sets()["enqueued"] == 1


def test_the_same_work_unit_again_is_acknowledged_only_when_the_first_is_durable(talk):
    talk.acts(lambda world: world.hold_commits())
    client = talk.client().says(push() + push()).hears(OK, OK)
    assert client.wire.durable == [2, 3]  # after the greeting and the answer to HELLO


# `retry` absent


def test_retry_absent_is_25_regardless_of_other_pushes(talk):
    first, second = talk.client(), talk.client()
    for number, retry in enumerate([0, -1, 3, 1000]):
        first.pushes(unit(f"job-a{number:03}", retry=retry))
        second.pushes(unit(f"job-b{number:03}"))
    fetched = [first.fetches() for _ in range(8)]
    assert [job["retry"] for job in fetched] == [0, 25, -1, 25, 3, 25, 1000, 25]


# `backtrace`


@pytest.mark.parametrize("wanted", [None, 0, 10, 1000])
def test_backtrace_keeps_at_most_50_lines(talk, wanted):
    client = talk.client().pushes(unit(backtrace=wanted))
    client.fetches()
    client.fails("job-0001", backtrace=[f"line {n}" for n in range(60)])
    talk.advance(15)
    assert client.fetches()["failure"]["backtrace"] == [f"line {n}" for n in range(50)]


# retries exhausted


def test_retries_exhausted_keeps_the_job_in_the_dead_set_for_180_days(talk):
    client = talk.client().pushes(unit(retry=-1))
    client.fetches()
    client.fails("job-0001")
    talk.advance(180 * 86_400 - 1)
    assert client.sets()["dead"] == 1
    talk.advance(1)
    assert client.sets()["dead"] == 0


def test_retries_exhausted_drops_the_oldest_beyond_dead_max():
    with Conversation(dead_max=3) as talk:
        client = talk.client()
        for number in range(5):
            client.pushes(unit(f"job-000{number}", retry=-1))
            client.fetches()
            client.fails(f"job-000{number}")
        assert client.sets()["dead"] == 3
        assert [job.jid for job in talk.engine.dead.values()] == ["job-0002", "job-0003", "job-0004"]  # fmt: skip
        assert talk.engine.retention.dead_dropped == 2


# `retry: 0`


def test_retry_0_is_discarded_and_the_journal_keeps_its_events():
    talk = Conversation()
    events = []
    talk.world.tell = lambda: events.extend(e[1] for e in talk.engine.take_changes().events)
    client = talk.client().pushes(unit(retry=0))
    client.fetches()
    client.fails("job-0001")
    assert talk.engine.jobs == {}
    assert events == ["pushed", "leased", "failed"]


# FLUSH


def test_flush_clears_pauses(talk):
    client = talk.client().pushes(unit())
    client.says(b"QUEUE PAUSE default\r\nFLUSH\r\n").hears(OK, OK)
    assert client.pushes(unit("job-0002")).fetches()["jid"] == "job-0002"


def test_flush_clears_reservations(talk):
    client = talk.client().pushes(unit(reserve_for=60))
    client.fetches()
    client.says(b"FLUSH\r\n").hears_ok()
    assert client.info()["faktory"]["tasks"]["Busy"]["size"] == 0
    client.says(b'FAIL {"jid":"job-0001"}\r\n').hears_error("Job not found job-0001")
    client.acks("job-0001")
    talk.advance(100)
    assert client.info()["faktory"]["total_processed"] == 0


def test_flush_forgets_queues_with_waiters(talk):
    worker, boss = talk.client(), talk.client().pushes(unit())
    worker.fetches()
    worker.says(b"FETCH default\r\n").hears_nothing()
    boss.says(b"FLUSH\r\n").hears_ok()
    assert boss.info()["faktory"]["queues"] == {}
    talk.advance(2)
    worker.hears(NULL_BULK)


def test_flush_of_a_queue_with_waiters_reaches_the_store():
    talk = Conversation()
    worker, boss = talk.client(), talk.client().pushes(unit())
    worker.fetches()
    worker.says(b"FETCH default\r\n").hears_nothing()
    boss.says(b"FLUSH\r\n").hears_ok()
    batches = []
    talk.world.tell = lambda: batches.append(talk.engine.take_changes())
    boss.pushes(unit("job-0002"))
    assert batches[-1].queues == {"default": False}, "after a restart the queue would be unknown"


def test_flush_leaves_waiting_workers_waiting(talk):
    worker, boss = talk.client(), talk.client()
    worker.says(b"FETCH\r\n")
    boss.says(b"FLUSH\r\n" + push()).hears(OK, OK)
    assert worker.hears_json()["jid"] == "job-0001"


# a job with an unwritten FETCH reply


def test_a_job_with_an_unwritten_reply_returns_without_an_attempt(talk):
    gone, other = talk.client(wid="worker-1"), talk.client(wid="worker-2").pushes(unit(retry=1))
    other.pushes(unit("job-0002"))
    gone.stops_reading().says(b"FETCH\r\n")
    assert gone.hears_json()["jid"] == "job-0001"  # sent, but never received
    gone.hangs_up()
    assert other.fetches()["jid"] == "job-0001"
    assert talk.engine.find("job-0001").attempt == 1
    assert other.sets() == {"dead": 0, "retries": 0, "scheduled": 0, "working": 1, "enqueued": 1}
    assert other.info()["faktory"]["total_processed"] == 0


def test_a_job_with_an_unwritten_reply_wakes_a_waiter(talk):
    gone, other = talk.client(wid="worker-1"), talk.client(wid="worker-2")
    gone.stops_reading().pushes(unit()).fetches()
    other.says(b"FETCH\r\n").hears_nothing()
    gone.hangs_up()
    assert other.hears_json()["jid"] == "job-0001"


def test_a_flushed_job_with_an_unwritten_reply_does_not_return(talk):
    gone, other = talk.client(wid="worker-1"), talk.client()
    gone.stops_reading().pushes(unit()).fetches()
    other.says(b"FLUSH\r\n").hears_ok()
    gone.hangs_up()
    assert other.sets() == {"dead": 0, "retries": 0, "scheduled": 0, "working": 0, "enqueued": 0}


# all connections of a worker closed


@pytest.mark.parametrize("recover", [False, True])
def test_all_connections_of_a_worker_closed(recover):
    with Conversation(recover_lost_workers=recover) as talk:
        first, second = talk.client(wid="worker-1"), talk.client(wid="worker-1")
        other = talk.client()
        first.pushes(unit("job-0001")).fetches()
        second.pushes(unit("job-0002")).fetches()
        first.hangs_up()
        talk.advance(30)
        other.says(b'BEAT {"wid":"worker-1"}\r\n').hears_ok()
        talk.advance(40)
        second.hangs_up()
        talk.advance(19.999999)
        assert other.sets()["working"] == 2
        talk.advance(0.000001)
        assert other.sets()["working"] == (0 if recover else 2)
        assert other.sets()["retries"] == (2 if recover else 0)
        talk.advance(15)
        if recover:
            failure = other.fetches()["failure"]
            assert failure["errtype"] == "WorkerLost"
        else:
            other.finds_nothing()


def test_a_worker_that_reconnects_in_time_keeps_its_jobs():
    with Conversation(recover_lost_workers=True) as talk:
        worker = talk.client(wid="worker-1").pushes(unit())
        worker.fetches()
        worker.hangs_up()
        talk.advance(59)
        back = talk.client(wid="worker-1")
        talk.advance(600)
        assert back.sets()["working"] == 1


def test_a_worker_silent_for_60_seconds_is_lost_with_its_last_connection():
    with Conversation(recover_lost_workers=True) as talk:
        worker, other = talk.client(wid="worker-1").pushes(unit()), talk.client()
        worker.fetches()
        talk.advance(100)
        assert other.sets()["working"] == 1
        worker.hangs_up()
        talk.advance(0)
        assert other.sets()["retries"] == 1


def test_a_lost_worker_is_recovered_with_any_wid_and_any_number_of_later_workers():
    with Conversation(recover_lost_workers=True) as talk:
        wids = ["worker-1", "w" * 5000]
        for number, wid in enumerate(wids):
            worker = talk.client(wid=wid).pushes(unit(f"job-000{number}"))
            worker.fetches()
            worker.hangs_up()
        talk.acts(_connect_and_close_thousands)
        talk.advance(61)
        assert talk.client().sets()["retries"] == 2


def _connect_and_close_thousands(world):
    for number in range(12_000):
        wire = Wire(world, FaktoryConnection(world.hub))
        wire.receive(b'HELLO {"wid":"other-%d"}\r\n' % number)
        wire.lose()


def test_a_lost_worker_loses_only_its_jobs():
    with Conversation(recover_lost_workers=True) as talk:
        lost, other = talk.client(wid="worker-1"), talk.client(wid="worker-2")
        lost.pushes(unit("job-0001")).fetches()
        other.pushes(unit("job-0002")).fetches()
        lost.hangs_up()
        talk.advance(61)
        assert [job.jid for job in talk.engine.leased.values()] == ["job-0002"]


# quiet / terminate


@pytest.mark.parametrize("order", [b"QUIET", b"TERMINATE"])
def test_quiet_and_terminate_hold_back_fetch_on_every_connection_of_the_wid(talk, order):
    first, second = talk.client(wid="worker-1"), talk.client(wid="worker-1")
    boss = talk.client(wid="worker-2")
    second.says(b"FETCH\r\n").hears_nothing()  # already waiting at the time of the order
    boss.says(b"WORKER %b worker-1\r\n" % order).hears_ok()
    first.says(b"FETCH\r\n").hears_nothing()
    boss.pushes(unit())
    talk.advance(2)
    first.hears(NULL_BULK)
    second.hears(NULL_BULK)
    assert boss.fetches()["jid"] == "job-0001"


def test_quiet_applies_to_later_connections(talk):
    talk.client(wid="worker-1").says(b'BEAT {"wid":"worker-1","current_state":"quiet"}\r\n').hears(
        bulk(b'{"state":"quiet"}')
    )
    late = talk.client(wid="worker-1").pushes(unit())
    late.finds_nothing()


# too many connections


def test_too_many_connections_is_an_error_after_ok_then_close():
    with Conversation(max_connections=2) as talk:
        talk.client()
        second = talk.client()
        third = talk.connect().hears(HI).says(b"HELLO {}\r\n")
        third.hears(OK).hears_error("too many connections: 3").hears_the_end()
        second.hangs_up()
        talk.client().is_still_there()


# shutdown


def test_shutdown_is_sent_with_every_beat_and_no_job_is_delivered(talk):
    worker, producer = talk.client(wid="worker-1"), talk.client()
    worker.pushes(unit("job-0001")).fetches()
    talk.acts(lambda world: world.hub.stop())
    worker.says(b'BEAT {"wid":"worker-1"}\r\n').hears(bulk(b'{"state":"terminate"}'))
    producer.pushes(unit("job-0002"))
    worker.finds_nothing()
    producer.finds_nothing()
    worker.acks("job-0001").says(b"END\r\n").hears_ok().hears_the_end()


def test_shutdown_ends_a_waiting_fetch_without_a_job(talk):
    worker, producer = talk.client(wid="worker-1"), talk.client()
    worker.says(b"FETCH\r\n")
    talk.acts(lambda world: world.hub.stop())
    producer.pushes(unit())
    talk.advance(2)
    worker.hears(NULL_BULK)


def test_shutdown_ends_a_waiting_fetch_without_wid(talk):
    anonymous, producer = talk.client(), talk.client()
    anonymous.says(b"FETCH\r\n")
    talk.acts(lambda world: world.hub.stop())
    producer.pushes(unit())
    talk.advance(2)
    anonymous.hears(NULL_BULK)


def test_shutdown_is_sent_to_a_late_consumer(talk):
    talk.acts(lambda world: world.hub.stop())
    late = talk.client(wid="worker-1")
    late.says(b'BEAT {"wid":"worker-1"}\r\n').hears(bulk(b'{"state":"terminate"}'))


# PUSHB, QUEUE, MUTATE (all of them: test_faktory_wire.py)


def test_pushb_queue_mutate_are_served(talk):
    client = talk.client().says(b"PUSHB []\r\n").hears(b"$2\r\n{}\r\n")
    client.says(b"QUEUE LATENCY\r\n").hears(b"$2\r\n{}\r\n")
    client.says(b'MUTATE {"cmd":"clear","target":"dead"}\r\n').hears_ok()


# BATCH, TRACK


def test_batch_and_track_answer_like_the_free_edition_of_the_original(talk):
    client = talk.client()
    client.says(b"BATCH NEW {}\r\n")
    client.hears_error("batch subsystem is only available in Faktory Enterprise")
    client.says(b"TRACK GET job-0001\r\n")
    client.hears_error("tracking subsystem is only available in Faktory Enterprise")


# INFO


def test_info_has_the_compatibility_level_and_the_millrace_version(talk):
    server = talk.client().info()["server"]
    assert re.fullmatch(r"1\.(1\d|[2-9]\d)\.\d+", server["faktory_version"])
    assert server["millrace_version"] == __version__
    assert server["description"] == "Faktory"


def test_the_clock_of_these_tests():
    assert START == 1_794_771_831_000_000


def test_wrong_passwords_are_limited_per_minute():
    with Conversation(password="secret") as talk:
        for guess in range(10):
            client = talk.connect()
            client.hears(b'+HI {"v":2,"i":1545,"s":"55104dc76695721d"}\r\n')
            client.says(b'HELLO {"v":2,"pwdhash":"%064x"}\r\n' % guess)
            client.hears_error("Invalid password").hears_the_end()
        client = talk.connect()
        client.hears(b'+HI {"v":2,"i":1545,"s":"55104dc76695721d"}\r\n')
        client.says(b'HELLO {"v":2,"pwdhash":"%b"}\r\n' % hashed("secret", 1545))
        client.hears_error("too many wrong passwords, try again in 60 s").hears_the_end()
        talk.advance(60)
        client = talk.connect()
        client.hears(b'+HI {"v":2,"i":1545,"s":"55104dc76695721d"}\r\n')
        client.says(b'HELLO {"v":2,"pwdhash":"%b"}\r\n' % hashed("secret", 1545)).hears(b"+OK\r\n")


def test_simultaneous_guesses_are_limited():
    """Hashing takes several turns: simultaneous guesses are counted when they end."""
    world = World({"password": "secret"})
    wires = [world.connect() for _ in range(30)]
    for guess, wire in enumerate(wires):
        wire.connection.feed(b'HELLO {"v":2,"pwdhash":"%064x"}\r\n' % guess)
    waiting = wires
    while waiting:
        waiting = [wire for wire in waiting if wire.connection.run(world.now, 16)]
    replies = [wire.connection.replies[-1].data for wire in wires]
    assert replies.count(b"-ERR Invalid password\r\n") == 10
    assert replies.count(b"-ERR too many wrong passwords, try again in 60 s\r\n") == 20


# Limits


def test_deeply_nested_arguments(talk):
    client = talk.client()
    deep = b"[" * 5000 + b"]" * 5000
    job = b'{"jid":"job-000%d","jobtype":"t","args":%b}'
    client.says(b"PUSH " + job % (1, deep) + b"\r\n").hears_ok()
    client.says(b"PUSHB [" + job % (2, deep) + b"]\r\n").hears(b"$2\r\n{}\r\n")
    for _ in range(2):
        assert b'"args":' + deep in client.says(b"FETCH\r\n").hears_bulk()


def test_a_long_hello_and_a_long_worker_id(talk):
    labels = [f"label-{number}" for number in range(5000)]
    hello = {"wid": "w" * 20_000, "labels": labels, "v": 2}
    client = talk.connect().hears(HI).says(b"HELLO %b\r\n" % json.dumps(hello).encode())
    client.hears_ok()
    client.says(b"BEAT %b\r\n" % json.dumps({"wid": hello["wid"]}).encode()).hears_ok()


def test_fetch_of_thousands_of_queues(talk):
    names = [f"queue-{number}" for number in range(9000)]
    client = talk.client().pushes(unit(queue=names[-1]))
    assert client.fetches(*names)["queue"] == names[-1]


@pytest.mark.parametrize("after", ["restart", "reload"])
def test_the_jobs_of_a_worker_that_left_before(after):
    """Before a restart, or while the switch was off."""
    house = House(faktory={"recover_lost_workers": after == "restart"})
    house.client("faktory", "pusher").says(
        b'PUSH {"jid":"aaaaaaaa","jobtype":"t","args":[],"queue":"q"}\r\n'
    )
    worker = house.client("faktory")
    worker.lease("q")
    if after == "restart":
        house.crash()
    else:
        worker.wire.lose()
        house.listeners["faktory"].hub.reload(FaktoryConfig(recover_lost_workers=True))
    house.pass_time(59)
    assert house.job().state == LEASED
    house.pass_time(2)
    assert house.job().failure.group == "WorkerLost"


def test_switching_recovery_off_stops_pending_recoveries():
    with Conversation(recover_lost_workers=True) as talk:
        worker = talk.client(wid="worker-1").pushes(unit())
        worker.fetches()
        worker.hangs_up()
        talk.acts(lambda world: world.hub.reload(FaktoryConfig(recover_lost_workers=False)))
        talk.advance(100)
        assert talk.client().sets()["working"] == 1

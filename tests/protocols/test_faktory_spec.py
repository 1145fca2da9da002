"""The document of the Faktory Work Protocol: its examples, then its sentences in their order.
Where it contradicts itself, the compatibility decisions apply; they have their own file.
"""

import hashlib
import json

import pytest
from conversation import HI, NULL_BULK, OK, Conversation, bulk, compact, push, unit

from millrace.engine.states import DEAD, LEASED, READY, SCHEDULED

NOW = "2026-11-15T19:43:51Z"


# The examples


def test_example_producer_connecting_to_non_secured_server(talk):
    talk.connect().hears(HI).says(b'HELLO {"v":2}\r\n').hears(OK)


def test_example_consumer_connecting_to_non_secured_server(talk):
    worker = talk.connect().hears(HI)
    worker.says(
        b'HELLO {"hostname":"localhost","wid":"4qpc2443vpvai","pid":2676,"labels":["golang"],"v":2}\r\n'
    ).hears(OK)
    known = talk.hub.workers.known["4qpc2443vpvai"]
    assert (known.hostname, known.pid, known.labels) == ("localhost", 2676, ["golang"])


def test_example_producer_connecting_to_a_protected_server():
    hash_ = b"secret" + b"123456789abc"
    for _ in range(1735):
        hash_ = hashlib.sha256(hash_).digest()
    with Conversation(password="secret") as talk:
        talk.acts(lambda world: setattr(world.hub, "challenge", lambda: (1735, "123456789abc")))
        client = talk.connect().hears(b'+HI {"v":2,"i":1735,"s":"123456789abc"}\r\n')
        client.says(b'HELLO {"pwdhash":"%b","v":2}\r\n' % hash_.hex().encode()).hears(OK)


def test_example_beat(talk):
    worker = talk.client(wid="4qpc2443vpvai")
    boss = talk.client()
    worker.says(b'BEAT {"wid": "4qpc2443vpvai","rss_kb":54176}\r\n').hears(OK)
    boss.says(b"WORKER QUIET 4qpc2443vpvai\r\n").hears(OK)
    worker.says(b'BEAT {"wid": "4qpc2443vpvai","rss_kb":55272}\r\n').hears(
        b'$17\r\n{"state":"quiet"}\r\n'
    )
    boss.says(b"WORKER TERMINATE 4qpc2443vpvai\r\n").hears(OK)
    worker.says(b'BEAT {"wid": "4qpc2443vpvai","current_state": "quiet"}\r\n').hears(
        b'$21\r\n{"state":"terminate"}\r\n'
    )
    worker.says(b"END\r\n").hears(OK).hears_the_end()


# Commands and responses


def test_each_command_has_one_response_in_order(talk):
    talk.client().says(b'FLUSH\r\nINFOS\r\nACK {"jid":"x"}\r\nBEAT {"wid":"x"}\r\n').hears(
        OK, b"-ERR unknown command INFOS\r\n", OK, b"-ERR unknown worker x\r\n"
    )


def test_responses_are_sent_only_to_commands(talk):
    idle = talk.client(wid="idle-worker")
    busy = talk.client()
    busy.pushes(unit()).says(b"WORKER QUIET *\r\nFLUSH\r\n").hears(OK, OK)
    talk.advance(3600)
    idle.hears_nothing().is_still_there()


def test_text_is_utf_8(talk):
    client = talk.client()
    client.says('PUSH {"jid":"jöb-→-01","jobtype":"Grüße","args":["日本語 🎉"]}\r\n'.encode())
    client.hears_ok()
    fetched = client.fetches()
    assert fetched["jid"] == "jöb-→-01"
    assert fetched["jobtype"] == "Grüße"
    assert fetched["args"] == ["日本語 🎉"]
    client.acks("jöb-→-01")
    assert client.sets()["working"] == 0


def test_a_failed_command_is_an_error_without_a_change(talk):
    client = talk.client()
    before = talk.world.snapshot()
    client.says(b'PUSH {"jid":"job-0001","args":[]}\r\n')
    client.hears_error("jobs must have a jobtype parameter")
    client.says(b'FAIL {"jid":"job-0001"}\r\n').hears_error("Job not found job-0001")
    assert talk.world.snapshot() == before


# Work units: required fields


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("jid", "jobs must have a reasonable jid parameter"),
        ("jobtype", "jobs must have a jobtype parameter"),
        ("args", "jobs must have an args parameter"),
    ],
)
def test_required_field(talk, field, text):
    incomplete = unit()
    del incomplete[field]
    talk.client().says(b"PUSH %b\r\n" % compact(incomplete)).hears_error(text)
    assert talk.engine.jobs == {}


def test_only_the_required_fields_are_required(talk):
    client = talk.client().pushes(unit())
    client.says(b"FETCH\r\n").hears(
        bulk(
            b'{"retry":25,"jid":"job-0001","queue":"default","jobtype":"SomeJob",'
            b'"created_at":"2026-11-15T19:43:51Z","enqueued_at":"2026-11-15T19:43:51Z",'
            b'"args":[1,"two"]}'
        )
    )


# Work units: optional fields


def test_queue_defaults_to_default(talk):
    client = talk.client().pushes(unit("job-0001")).pushes(unit("job-0002", queue="other"))
    assert client.info()["faktory"]["queues"] == {"default": 1, "other": 1}
    assert client.fetches("default")["jid"] == "job-0001"
    assert client.fetches("other")["queue"] == "other"


@pytest.mark.parametrize(
    ("reserve_for", "held"), [(None, 1800), (60, 60), (600, 600), (86_400, 86_400), (30, 60)]
)
def test_reserve_for_is_how_long_a_worker_may_hold_the_job(talk, reserve_for, held):
    client = talk.client().pushes(unit(reserve_for=reserve_for))
    client.fetches()
    talk.advance(held - 0.001)
    assert client.sets() == {"dead": 0, "retries": 0, "scheduled": 0, "working": 1, "enqueued": 0}
    talk.advance(0.001)
    assert client.sets() == {"dead": 0, "retries": 1, "scheduled": 0, "working": 0, "enqueued": 0}


def test_at_runs_the_job_at_that_time(talk):
    client = talk.client().pushes(unit(at="2026-11-15T19:44:51Z"))
    assert client.sets()["scheduled"] == 1
    talk.advance(57.999)
    client.finds_nothing()
    assert client.sets() == {"dead": 0, "retries": 0, "scheduled": 1, "working": 0, "enqueued": 0}
    talk.advance(0.001)
    assert client.sets() == {"dead": 0, "retries": 0, "scheduled": 0, "working": 0, "enqueued": 1}
    assert client.fetches()["at"] == "2026-11-15T19:44:51Z"


@pytest.mark.parametrize("at", ["", None, NOW, "2001-01-01T00:00:00+01:00"])
def test_at_blank_or_past_runs_the_job_immediately(talk, at):
    assert talk.client().pushes(unit(at=at)).fetches()["jid"] == "job-0001"


@pytest.mark.parametrize(("retry", "runs"), [(None, 26), (25, 26), (1, 2), (3, 4)])
def test_retry_is_the_number_of_retries_before_the_job_is_dead(talk, retry, runs):
    client = talk.client().pushes(unit(retry=retry))
    for _ in range(runs):
        assert client.sets()["dead"] == 0
        client.fetches()
        client.fails("job-0001")
        talk.advance(25**4 + 15)
    assert client.sets() == {"dead": 1, "retries": 0, "scheduled": 0, "working": 0, "enqueued": 0}


def test_retry_0_discards_the_failed_job(talk):
    client = talk.client().pushes(unit(retry=0))
    client.fetches()
    client.fails("job-0001")
    assert talk.engine.jobs == {}


def test_retry_minus_1_saves_the_failed_job_to_the_dead_set(talk):
    client = talk.client().pushes(unit(retry=-1))
    client.fetches()
    client.fails("job-0001")
    assert client.sets() == {"dead": 1, "retries": 0, "scheduled": 0, "working": 0, "enqueued": 0}


def test_created_at_is_set_by_the_server_when_omitted(talk):
    client = talk.client()
    talk.advance(1.5)
    client.pushes(unit())
    talk.advance(10)
    assert client.fetches()["created_at"] == "2026-11-15T19:43:52.5Z"


def test_a_given_created_at_is_preserved(talk):
    given = "2020-02-29T12:00:00.123456789+02:00"
    assert talk.client().pushes(unit(created_at=given)).fetches()["created_at"] == given


def test_custom_reaches_the_worker(talk):
    custom = {"locale": "de", "deep": {"list": [1, None, True]}}
    assert talk.client().pushes(unit(custom=custom)).fetches()["custom"] == custom


def test_custom_is_absent_when_omitted(talk):
    assert "custom" not in talk.client().pushes(unit()).fetches()


# Work units: read-only fields


def test_enqueued_at_is_the_most_recent_time_the_job_was_enqueued(talk):
    client = talk.client()
    client.pushes(unit(enqueued_at="1999-01-01T00:00:00Z"))
    talk.advance(5)
    assert client.fetches()["enqueued_at"] == NOW
    client.fails("job-0001")
    talk.advance(20)
    assert client.fetches()["enqueued_at"] == "2026-11-15T19:44:11Z"


def test_enqueued_at_of_a_scheduled_job_is_its_due_time(talk):
    client = talk.client().pushes(unit(at="2026-11-15T19:44:00Z"))
    talk.advance(100)
    assert client.fetches()["enqueued_at"] == "2026-11-15T19:44:00Z"


def test_failure_is_about_the_most_recent_failure(talk):
    client = talk.client().pushes(unit(failure={"message": "made up by the producer"}))
    assert client.fetches()["failure"] == {"message": "made up by the producer"}
    client.fails("job-0001", errtype="First", message="one", backtrace=["a"])
    talk.advance(15)
    assert client.fetches()["failure"]["message"] == "one"
    client.fails("job-0001", errtype="Second", message="two", backtrace=["b", "c"])
    talk.advance(16)
    failure = client.fetches()["failure"]
    assert (failure["errtype"], failure["message"]) == ("Second", "two")
    assert failure["backtrace"] == ["b", "c"]


# The state diagram


def _state(talk, jid="job-0001"):
    job = talk.engine.find(jid)
    return None if job is None else job.state


def test_push_with_at_scheduled_enqueued_working_removed(talk):
    client = talk.client().pushes(unit(at="2026-11-15T19:43:52Z"))
    assert _state(talk) == SCHEDULED
    talk.advance(1)
    assert _state(talk) == READY
    client.fetches()
    assert _state(talk) == LEASED
    client.acks("job-0001")
    assert _state(talk) is None


def test_a_failed_job_is_retried_and_enqueued_again(talk):
    client = talk.client().pushes(unit())
    assert _state(talk) == READY
    client.fetches()
    client.fails("job-0001")
    assert _state(talk) == SCHEDULED
    assert client.sets()["retries"] == 1
    talk.advance(15)
    assert _state(talk) == READY


def test_an_expired_reservation_is_retried(talk):
    client = talk.client().pushes(unit(reserve_for=60))
    client.fetches()
    talk.advance(60)
    assert client.sets()["retries"] == 1
    talk.advance(15)
    failure = client.fetches()["failure"]
    assert failure["errtype"] == "ReservationExpired"


def test_a_job_without_retries_is_dead(talk):
    client = talk.client().pushes(unit(retry=1))
    for _ in range(2):
        client.fetches()
        client.fails("job-0001")
        talk.advance(16)
    assert _state(talk) == DEAD


def test_a_worked_job_is_purged(talk):
    client = talk.client().pushes(unit())
    client.fetches()
    client.acks("job-0001")
    assert talk.engine.jobs == {}
    client.finds_nothing()


# Client life cycle


@pytest.mark.parametrize(
    "line", [b"INFO", b"PUSH {}", b"FETCH", b"END", b"", b"BEAT {}", b"FLUSH", b"NOPE"]
)
def test_only_hello_is_valid_before_hello(talk, line):
    client = talk.connect().hears(HI).says(line + b"\r\n")
    client.hears_error_like("expected HELLO")
    client.hears_the_end()


def test_an_error_never_changes_the_connections_state(talk):
    client = talk.client().says(b"NOPE\r\n").hears_error("unknown command NOPE")
    client.pushes(unit()).fetches()


def test_the_greeting_has_version_2_and_no_password_fields_by_default(talk):
    greeting = talk.connect()
    greeting.hears(b'+HI {"v":2}\r\n')


def test_greeting_of_a_protected_server_has_iterations_and_salt():
    with Conversation(password="secret") as talk:
        line = talk.connect()._line()
    assert line.startswith(b"+HI ")
    greeting = json.loads(line[4:])
    assert greeting == {"v": 2, "i": 1545, "s": "55104dc76695721d"}
    assert [type(greeting[key]) for key in "vis"] == [int, int, str]


def test_a_quiet_worker_continues_to_beat_and_finishes_its_jobs(talk):
    worker = talk.client(wid="worker-1").pushes(unit())
    worker.fetches()
    worker.says(b'BEAT {"wid":"worker-1","current_state":"quiet"}\r\n')
    worker.hears(b'$17\r\n{"state":"quiet"}\r\n')
    for _ in range(4):
        talk.advance(15)
        worker.says(b'BEAT {"wid":"worker-1"}\r\n').hears(b'$17\r\n{"state":"quiet"}\r\n')
    worker.acks("job-0001").is_still_there()


def test_a_terminating_worker_may_fail_its_jobs(talk):
    worker = talk.client(wid="worker-1").pushes(unit())
    worker.fetches()
    worker.says(b'BEAT {"wid":"worker-1","current_state":"terminate"}\r\n')
    worker.hears(b'$21\r\n{"state":"terminate"}\r\n')
    worker.fails("job-0001").says(b"END\r\n").hears_ok().hears_the_end()


def test_a_consumer_that_never_beats_is_not_disconnected(talk):
    worker = talk.client(wid="worker-1")
    talk.advance(3600)
    worker.is_still_there().says(b'BEAT {"wid":"worker-1"}\r\n').hears_ok()


# HELLO


def test_a_worker_may_have_several_connections_with_the_same_wid(talk):
    talk.client(wid="worker-1")
    second = talk.client(wid="worker-1")
    assert second.info()["faktory"]["tasks"]["Workers"]["size"] == 1
    assert talk.hub.workers.known["worker-1"].connections == 2


def test_a_wrong_password_is_declined():
    with Conversation(password="secret") as talk:
        client = talk.connect()
        client.hears(b'+HI {"v":2,"i":1545,"s":"55104dc76695721d"}\r\n')
        client.says(b'HELLO {"v":2,"pwdhash":"%b"}\r\n' % (b"0" * 64))
        client.hears_error("Invalid password").hears_the_end()


def test_a_missing_password_is_declined():
    with Conversation(password="secret") as talk:
        client = talk.connect()
        client.hears(b'+HI {"v":2,"i":1545,"s":"55104dc76695721d"}\r\n')
        client.says(b'HELLO {"v":2}\r\n').hears_error("Invalid password").hears_the_end()


# FLUSH, INFO, END


def test_flush_clears_all_info(talk):
    client = talk.client()
    for number, fields in enumerate([{}, {"retry": -1}, {"at": "2027-01-01T00:00:00Z"}, {}, {}]):
        client.pushes(unit(f"job-000{number}", **fields))
    client.fetches()
    client.fails("job-0000")
    client.fetches()
    client.fails("job-0001")
    client.fetches()
    assert client.sets() == {"dead": 1, "retries": 1, "scheduled": 1, "working": 1, "enqueued": 1}
    client.says(b"FLUSH\r\n").hears_ok()
    assert client.sets() == {"dead": 0, "retries": 0, "scheduled": 0, "working": 0, "enqueued": 0}
    assert client.info()["faktory"]["total_processed"] == 0
    assert client.info()["faktory"]["total_failures"] == 0
    assert client.info()["faktory"]["queues"] == {}
    talk.advance(86_400 * 60)
    client.finds_nothing()


def test_info_is_a_bulk_string(talk):
    info = talk.client().info()
    assert info["server"]["faktory_version"] == "1.10.0"


def test_end_is_answered_and_closes(talk):
    client = talk.client().says(b"END\r\n").hears_ok()
    client.hears_the_end()
    other = talk.client()
    assert other.info()["server"]["connections"] == 1


def test_commands_after_end_are_ignored(talk):
    client = talk.client().says(b"END\r\n" + push())
    client.hears_ok().hears_the_end()
    assert talk.engine.jobs == {}


# PUSH


def test_push(talk):
    client = talk.client().says(push()).hears(OK)
    assert client.sets()["enqueued"] == 1


# FETCH


def test_fetch_returns_a_work_unit_that_was_enqueued(talk):
    client = talk.client().pushes(unit(args=[{"a": [1]}, None, "x"]))
    assert client.fetches("default")["args"] == [{"a": [1]}, None, "x"]


def test_fetch_takes_jobs_of_a_queue_in_their_order(talk):
    client = talk.client()
    for number in range(5):
        client.pushes(unit(f"job-000{number}"))
    assert [client.fetches()["jid"] for _ in range(5)] == [f"job-000{n}" for n in range(5)]


def test_fetch_checks_the_queues_in_the_given_order(talk):
    client = talk.client()
    for number, queue in enumerate(["low", "high", "low", "high", "mid"]):
        client.pushes(unit(f"job-000{number}", queue=queue))
    order = [client.fetches("high", "mid", "low")["jid"] for _ in range(5)]
    assert order == ["job-0001", "job-0003", "job-0004", "job-0000", "job-0002"]


def test_fetch_without_a_queue_scans_default_only(talk):
    client = talk.client().pushes(unit("job-0001", queue="other"))
    client.finds_nothing()
    client.pushes(unit("job-0002"))
    assert client.fetches()["jid"] == "job-0002"


def test_fetch_blocks_for_two_seconds(talk):
    client = talk.client().says(b"FETCH default\r\n")
    talk.advance(1.999999)
    client.hears_nothing()
    talk.advance(0.000001)
    client.hears(NULL_BULK)


def test_fetch_is_woken_by_a_push(talk):
    worker, producer = talk.client(wid="worker-1"), talk.client()
    worker.says(b"FETCH a b\r\n").hears_nothing()
    talk.advance(1)
    producer.pushes(unit(queue="b"))
    assert worker.hears_json()["jid"] == "job-0001"
    talk.advance(5)
    worker.hears_nothing()


def test_waiting_workers_are_served_in_the_order_of_their_requests(talk):
    workers = [talk.client(wid=f"worker-{n}") for n in range(3)]
    for worker in reversed(workers):
        worker.says(b"FETCH\r\n")
    producer = talk.client()
    for number in range(3):
        producer.pushes(unit(f"job-000{number}"))
    assert [w.hears_json()["jid"] for w in reversed(workers)] == [f"job-000{n}" for n in range(3)]


def test_a_fetched_job_is_not_delivered_again(talk):
    first, second = talk.client(wid="worker-1"), talk.client(wid="worker-2")
    first.pushes(unit()).fetches()
    second.finds_nothing()


# ACK


def test_ack_removes_the_job(talk):
    client = talk.client().pushes(unit())
    client.fetches()
    client.says(b'ACK {"jid":"job-0001"}\r\n').hears(OK)
    assert talk.engine.jobs == {}
    assert client.info()["faktory"]["total_processed"] == 1


# FAIL


def test_fail_stores_the_error(talk):
    client = talk.client().pushes(unit(retry=5))
    client.fetches()
    client.says(
        b'FAIL {"jid":"job-0001","errtype":"RuntimeError","message":"it broke",'
        b'"backtrace":["line 1","line 2"]}\r\n'
    ).hears(OK)
    talk.advance(15)
    assert client.fetches()["failure"] == {
        "failed_at": NOW,
        "next_at": "2026-11-15T19:44:06Z",
        "message": "it broke",
        "errtype": "RuntimeError",
        "backtrace": ["line 1", "line 2"],
        "retry_count": 0,
        "remaining": 5,
    }


def test_fail_of_a_job_without_a_reservation_is_rejected(talk):
    client = talk.client().pushes(unit())
    client.says(b'FAIL {"jid":"job-0001"}\r\n').hears_error("Job not found job-0001")
    assert client.sets()["enqueued"] == 1


# BEAT


@pytest.mark.parametrize(("state", "size"), [(b"quiet", 17), (b"terminate", 21)])
def test_a_worker_can_announce_its_state(talk, state, size):
    worker = talk.client(wid="worker-1")
    worker.says(b'BEAT {"wid":"worker-1","current_state":"%b"}\r\n' % state)
    worker.hears(b'$%d\r\n{"state":"%b"}\r\n' % (size, state))


def test_rss_kb_is_recorded(talk):
    worker = talk.client(wid="worker-1")
    worker.says(b'BEAT {"wid":"worker-1","rss_kb":54176}\r\n').hears_ok()
    assert talk.hub.workers.known["worker-1"].rss_kb == 54176


@pytest.mark.parametrize("argument", [b"{", b"[]", b'{"wid":5}', b'{"wid":"w","rss_kb":"1"}', b"w"])
def test_a_malformed_beat_is_rejected(talk, argument):
    talk.client(wid="w").says(b"BEAT %b\r\n" % argument).hears_error(
        "invalid BEAT " + argument.decode()
    )

"""`job`: everything of one job, of whatever protocol."""

import base64

import msgspec
import pytest

from admin_room import Room
from millrace.admin import jobs
from millrace.engine.job import FAKTORY, GOQUEUE, MASENKO, WORKQ
from millrace.records import JobDetail
from wires import SECOND, START


@pytest.fixture
def room() -> Room:
    return Room()


def detail(room: Room, jid: str, seq: int = 0) -> JobDetail:
    return msgspec.convert(
        room.asks(job={"id": jid, "seq": seq}), JobDetail, builtin_types=(bytes,), strict=False
    )


def test_a_job_of_faktory(room):
    worker = room.faktory_worker("w1")
    worker.receive(
        b'PUSH {"jid":"12345678","jobtype":"Kind","args":[12345678901234567890123],"queue":"q",'
        b'"reserve_for":90,"custom":{"big":12345678901234567890123,"lone":"\\ud800"},'
        b'"backtrace":3,"unknown":[1]}\r\n'
    )
    told = room.asks(job={"id": "12345678"})
    assert told["job"]["kind"] == "Kind"
    assert base64.b64decode(told["job"]["payload"]) == b"[12345678901234567890123]"
    assert told["lease_for"] == 90 * SECOND
    own = told["own"]
    assert own["custom"] == {"big": 12345678901234567890123, "lone": "\ufffd"}
    assert (own["reserve_for"], own["backtrace"], own["unknown"]) == (90, 3, [1])
    assert [reason["code"] for reason in told["reasons"]] == ["unasked", "queued"]
    assert told["reasons"][0]["text"].startswith("No worker of any protocol asks")
    assert told["history"] == []


def test_a_failed_job(room):
    room.push("a1", retries=25)
    job = room.lease()
    room.engine.fail(job, room.now, 3, "Oops", "m" * 5000, ["line 1", "x" * 9999])
    told = room.asks(job={"id": "a1"})
    assert told["job"]["state"] == "scheduled"
    assert told["job"]["failure"]["message"] == "m" * 5000
    assert [len(line) for line in told["backtrace"]] == [6, jobs.MAX_BACKTRACE_LINE]
    assert told["first_failed_at"] == START


def test_a_job_of_qless(room):
    room.put("a1", "q", "priority", 7, "tags", '["one",2]', "retries", 3)
    room.put("b1", "q", "depends", '["a1"]')
    room.speaks_qless("log", "a1", "said", '{"more": [1]}')
    told = room.asks(job={"id": "a1"})
    assert told["job"]["priority"] == 7
    assert told["job"]["tags"] == ["one", "2"]
    assert told["own"]["state"] == "waiting"
    assert told["own"]["remaining"] == 3
    assert [stage[1] for stage in told["history"]] == ["put", "said"]
    assert told["history"][1][2] == {"more": [1]}
    assert [each["jid"] for each in told["waited_for_by"]["jobs"]] == ["b1"]
    waits = room.asks(job={"id": "b1"})
    assert [each["jid"] for each in waits["waits_for"]["jobs"]] == ["a1"]
    assert waits["own"]["state"] == "depends"


def test_asking_makes_no_part_of_qless(room):
    room.push("a1")
    room.asks(job={"id": "a1"})
    room.asks(search={"query": {}})
    assert room.engine.find("a1").extra is None


def test_jobs_of_the_others(room):
    room.push("w", origin=WORKQ, spec=b"60000 2026-01-01T00:00:00Z", rank=5, most_attempts=2)
    room.push("m", origin=MASENKO, dead_queue="graves")
    room.push("g", origin=GOQUEUE, rank=-3, payload=b"\xff\x00")
    workq = room.asks(job={"id": "w"})
    assert workq["own"] == {"ttl": 60000, "time": "2026-01-01T00:00:00Z"}
    assert (workq["job"]["priority"], workq["most_attempts"]) == (5, 2)
    assert room.asks(job={"id": "m"})["dead_queue"] == "graves"
    goqueue = room.asks(job={"id": "g"})
    assert goqueue["job"]["priority"] == 3
    assert base64.b64decode(goqueue["job"]["payload"]) == b"\xff\x00"


def test_twins_and_numbers(room):
    room.push("a1")
    room.push("a1")
    assert room.asks(job={"id": "a1"})["job"]["seq"] == 1
    told = room.asks(job={"id": "a1", "seq": 2})
    assert (told["job"]["seq"], told["twins"]) == (2, 1)
    assert room.asks(job={"id": "2"})["job"]["seq"] == 2
    assert room.refused(job={"id": "b1", "seq": 2})[0] == "not found"
    assert room.refused(job={"id": "b1"})[0] == "not found"
    assert room.refused(job={"id": "x" * 70_000})[0] == "too large"


def test_of_many_that_wait_the_first_are_told(room):
    first = room.push("first")
    for number in range(jobs.MAX_RELATED_JOBS + 5):
        room.push(f"b{number}", blockers=[first.seq])
    told = room.asks(job={"id": "first"})
    assert len(told["waited_for_by"]["jobs"]) == jobs.MAX_RELATED_JOBS
    assert told["waited_for_by"]["more"] == 5


def test_large_payloads_and_results_are_cut(room):
    job = room.push(
        "a1", payload=b"x" * (jobs.MAX_DETAIL_BYTES + 1), origin=WORKQ, expires=START + 10**9
    )
    room.lease(actor=WORKQ)
    room.engine.complete(job, room.now, WORKQ, result=b"y" * (jobs.MAX_DETAIL_BYTES + 1))
    told = room.asks(job={"id": "a1"})
    assert told["job"]["size"] == jobs.MAX_DETAIL_BYTES + 1
    for data in (told["job"]["payload"], told["result"]):
        assert len(base64.b64decode(data)) == jobs.MAX_DETAIL_BYTES


def test_what_cannot_be_read_again_is_text(room):
    room.push("a1", spec=b'{"deep":%b}\n\n\n' % (b"[" * 5000 + b"]" * 5000))
    room.push("a2", spec=b"no json\n\n\n,also none")
    assert room.asks(job={"id": "a1"})["own"]["custom"].startswith('{"deep":[[[')
    assert room.asks(job={"id": "a2"})["own"] == {"custom": "no json"}


def test_the_error_message_is_complete_in_the_detail(room):
    """Up to 64 KiB, not the 300 characters of a list."""
    room.push("a1")
    message = "m" * 5000
    room.engine.fail(room.lease(), room.now, FAKTORY, "E", message, [])
    told = room.asks(job={"id": "a1"})
    assert told["job"]["failure"]["message"] == message
    assert not told["job"]["truncated"]
    (row,) = room.asks(search={"query": {}})["jobs"]
    assert (len(row["failure"]["message"]), row["truncated"]) == (jobs.MESSAGE_EXCERPT_SIZE, True)


def test_a_truncated_value_is_marked(room):
    size = jobs.MAX_DETAIL_BYTES + 1
    job = room.push("a1", origin=WORKQ, expires=START + 10**9)
    room.lease(actor=WORKQ)
    room.engine.complete(job, room.now, WORKQ, result=b"y" * size)
    assert room.asks(job={"id": "a1"})["result_size"] == size
    room.push("a2", "r")
    lines = ["x" * (jobs.MAX_BACKTRACE_LINE + 1)]
    failed = room.lease("r")
    room.engine.fail(failed, room.now, FAKTORY, "E", "m" * (jobs.MAX_MESSAGE_SIZE + 1), lines)
    told = room.asks(job={"id": "a2"})
    assert told["backtrace_truncated"]
    assert told["job"]["truncated"]


def test_a_record_in_a_list_marks_short_names_and_left_out_tags(room):
    room.push("x" * 2000, "long")
    room.push("y", "tagged", tags=[f"t{n}" for n in range(jobs.MAX_LISTED_TAGS + 1)])
    room.push("z", "plain")
    found = {row["queue"]: row["truncated"] for row in room.asks(search={"query": {}})["jobs"]}
    assert found == {"long": True, "tagged": True, "plain": False}

"""`job`: all fields of one job of any protocol."""

import base64

import msgspec
import pytest

from admin_room import Room
from millrace.admin import jobs
from millrace.engine.errors import PayloadDamaged
from millrace.engine.job import Job
from millrace.protocols.registry import FAKTORY, GOQUEUE, MASENKO, WORKQ
from millrace.records import JobDetail
from wires import SECOND, START


@pytest.fixture
def room() -> Room:
    return Room()


def detail(room: Room, jid: str, seq: int = 0) -> JobDetail:
    return msgspec.convert(
        room.asks(job={"id": jid, "seq": seq}), JobDetail, builtin_types=(bytes,), strict=False
    )


def test_a_faktory_job(room):
    worker = room.faktory_worker("w1")
    worker.receive(
        b'PUSH {"jid":"12345678","jobtype":"Kind","args":[12345678901234567890123],"queue":"q",'
        b'"reserve_for":90,"custom":{"big":12345678901234567890123,"lone":"\\ud800"},'
        b'"backtrace":3,"unknown":[1]}\r\n'
    )
    reply = room.asks(job={"id": "12345678"})
    assert reply["job"]["kind"] == "Kind"
    assert base64.b64decode(reply["job"]["payload"]) == b"[12345678901234567890123]"
    assert reply["lease_for"] == 90 * SECOND
    own = reply["protocol_data"]
    assert own["custom"] == {"big": 12345678901234567890123, "lone": "\ufffd"}
    assert (own["reserve_for"], own["backtrace"], own["unknown"]) == (90, 3, [1])
    assert [reason["code"] for reason in reply["reasons"]] == ["unasked", "queued"]
    assert reply["reasons"][0]["text"].startswith("No worker is fetching from queue")
    assert reply["history"] == []


def test_a_failed_job(room):
    room.push("a1", retries=25)
    job = room.lease()
    room.engine.fail(job, room.now, 3, "Oops", "m" * 5000, ["line 1", "x" * 9999])
    reply = room.asks(job={"id": "a1"})
    assert reply["job"]["state"] == "scheduled"
    assert reply["job"]["failure"]["message"] == "m" * 5000
    assert [len(line) for line in reply["backtrace"]] == [6, jobs.MAX_BACKTRACE_LINE]
    assert reply["first_failed_at"] == START


def test_the_backtraces_of_earlier_attempts(room):
    room.push("a1", retries=25)
    for number in range(1, 4):
        job = room.lease()
        lines = [f"line {number}"] if number != 2 else []
        room.engine.fail(job, room.now + number, 3, "Oops", f"m{number}", lines, retry_at=0)
    reply = room.asks(job={"id": "a1"})
    assert reply["backtrace"] == ["line 3"]
    assert reply["earlier_failures"] == [
        {
            "attempt": 1,
            "at": START + 1,
            "group": "Oops",
            "message": "m1",
            "backtrace": ["line 1"],
        }
    ]


def test_the_backtraces_of_earlier_attempts_are_limited(room):
    room.push("a1", retries=100)
    for number in range(1, 15):
        job = room.lease()
        room.engine.fail(job, room.now, 3, "E", "m" * 1000, [str(number)], retry_at=0)
    earlier = room.asks(job={"id": "a1"})["earlier_failures"]
    assert [each["attempt"] for each in earlier] == list(range(13, 3, -1))
    assert {len(each["message"]) for each in earlier} == {300}
    for _ in range(3):
        job = room.lease()
        room.engine.fail(job, room.now, 3, "E", "m", ["x" * 5000], retry_at=0)
    earlier = room.asks(job={"id": "a1"})["earlier_failures"]
    assert [each["attempt"] for each in earlier] == [16]


def test_a_qless_job(room):
    room.put("a1", "q", "priority", 7, "tags", '["one",2]', "retries", 3)
    room.put("b1", "q", "depends", '["a1"]')
    room.speaks_qless("log", "a1", "said", '{"more": [1]}')
    reply = room.asks(job={"id": "a1"})
    assert reply["job"]["priority"] == 7
    assert reply["job"]["tags"] == ["one", "2"]
    assert reply["protocol_data"]["state"] == "waiting"
    assert reply["protocol_data"]["remaining"] == 3
    assert [stage[1] for stage in reply["history"]] == ["put", "said"]
    assert reply["history"][1][2] == {"more": [1]}
    assert [each["jid"] for each in reply["waited_for_by"]["jobs"]] == ["b1"]
    waits = room.asks(job={"id": "b1"})
    assert [each["jid"] for each in waits["waits_for"]["jobs"]] == ["a1"]
    assert waits["protocol_data"]["state"] == "depends"


def test_a_request_creates_no_qless_details(room):
    room.push("a1")
    room.asks(job={"id": "a1"})
    room.asks(search={"query": {}})
    assert room.engine.find("a1").extra is None


def test_jobs_of_other_protocols(room):
    room.push("w", origin=WORKQ, wire_fields=b"60000 2026-01-01T00:00:00Z", rank=5, max_attempts=2)
    room.push("m", origin=MASENKO, dead_queue="graves")
    room.push("g", origin=GOQUEUE, rank=-3, payload=b"\xff\x00")
    workq = room.asks(job={"id": "w"})
    assert workq["protocol_data"] == {"ttl": 60000, "time": "2026-01-01T00:00:00Z"}
    assert (workq["job"]["priority"], workq["max_attempts"]) == (5, 2)
    assert room.asks(job={"id": "m"})["dead_queue"] == "graves"
    goqueue = room.asks(job={"id": "g"})
    assert goqueue["job"]["priority"] == 3
    assert base64.b64decode(goqueue["job"]["payload"]) == b"\xff\x00"


def test_jobs_with_one_id_and_numeric_ids(room):
    room.push("a1")
    room.push("a1")
    assert room.asks(job={"id": "a1"})["job"]["seq"] == 1
    reply = room.asks(job={"id": "a1", "seq": 2})
    assert (reply["job"]["seq"], reply["same_id_count"]) == (2, 1)
    assert room.asks(job={"id": "2"})["job"]["seq"] == 2
    assert room.refused(job={"id": "b1", "seq": 2})[0] == "not found"
    assert room.refused(job={"id": "b1"})[0] == "not found"
    assert room.refused(job={"id": "x" * 70_000})[0] == "too large"


def test_a_limited_number_of_dependents_is_listed(room):
    first = room.push("first")
    for number in range(jobs.MAX_RELATED_JOBS + 5):
        room.push(f"b{number}", blockers=[first.seq])
    reply = room.asks(job={"id": "first"})
    assert len(reply["waited_for_by"]["jobs"]) == jobs.MAX_RELATED_JOBS
    assert reply["waited_for_by"]["more"] == 5


def test_large_payloads_and_results_are_truncated(room):
    job = room.push(
        "a1", payload=b"x" * (jobs.MAX_DETAIL_BYTES + 1), origin=WORKQ, expires_at=START + 10**9
    )
    room.lease(actor=WORKQ)
    room.engine.complete(job, room.now, WORKQ, result=b"y" * (jobs.MAX_DETAIL_BYTES + 1))
    reply = room.asks(job={"id": "a1"})
    assert reply["job"]["size"] == jobs.MAX_DETAIL_BYTES + 1
    for data in (reply["job"]["payload"], reply["result"]):
        assert len(base64.b64decode(data)) == jobs.MAX_DETAIL_BYTES


def test_invalid_custom_fields_are_text(room):
    room.push("a1", wire_fields=b'{"deep":%b}\n\n\n' % (b"[" * 5000 + b"]" * 5000))
    room.push("a2", wire_fields=b"no json\n\n\n,also none")
    assert room.asks(job={"id": "a1"})["protocol_data"]["custom"].startswith('{"deep":[[[')
    assert room.asks(job={"id": "a2"})["protocol_data"] == {"custom": "no json"}


def test_the_error_message_is_complete_in_the_detail(room):
    """Up to 64 KiB, instead of the 300 characters in a list."""
    room.push("a1")
    message = "m" * 5000
    room.engine.fail(room.lease(), room.now, FAKTORY, "E", message, [])
    reply = room.asks(job={"id": "a1"})
    assert reply["job"]["failure"]["message"] == message
    assert not reply["job"]["truncated"]
    (row,) = room.asks(search={"query": {}})["jobs"]
    assert (len(row["failure"]["message"]), row["truncated"]) == (jobs.MESSAGE_EXCERPT_SIZE, True)


def test_a_truncated_value_is_marked(room):
    size = jobs.MAX_DETAIL_BYTES + 1
    job = room.push("a1", origin=WORKQ, expires_at=START + 10**9)
    room.lease(actor=WORKQ)
    room.engine.complete(job, room.now, WORKQ, result=b"y" * size)
    assert room.asks(job={"id": "a1"})["result_size"] == size
    room.push("a2", "r")
    lines = ["x" * (jobs.MAX_BACKTRACE_LINE + 1)]
    failed = room.lease("r")
    room.engine.fail(failed, room.now, FAKTORY, "E", "m" * (jobs.MAX_MESSAGE_SIZE + 1), lines)
    reply = room.asks(job={"id": "a2"})
    assert reply["backtrace_truncated"]
    assert reply["job"]["truncated"]


def test_a_list_marks_shortened_names_and_omitted_tags(room):
    room.push("x" * 2000, "long")
    room.push("y", "tagged", tags=[f"t{n}" for n in range(jobs.MAX_LISTED_TAGS + 1)])
    room.push("z", "plain")
    found = {row["queue"]: row["truncated"] for row in room.asks(search={"query": {}})["jobs"]}
    assert found == {"long": True, "tagged": True, "plain": False}


# A damaged payload


class DamagedReader:
    """The payloads of all jobs are damaged."""

    def read(self, seq: int) -> bytes:
        raise PayloadDamaged(seq, "it does not match its checksum")

    def read_part(self, seq: int, start: int, size: int) -> bytes:
        return self.read(seq)


def damaged_job(room: Room, jid: str = "a1", size: int = 10) -> Job:
    job = room.push(jid)
    room.engine.payloads.reader = DamagedReader()
    job.inline_payload, job.stored_size = b"", size
    return job


def test_the_damaged_payload_of_a_job(room):
    damaged_job(room)
    reply = room.asks(job={"id": "a1"})
    assert reply["payload_error"] == (
        "the payload of job 1 is damaged: it does not match its checksum"
    )
    assert reply["job"]["payload"] == ""
    (listed,) = room.asks(search={"query": {}})["jobs"]
    assert (listed["jid"], listed["payload"]) == ("a1", "")


def test_a_search_finds_a_job_with_a_damaged_payload_by_its_id(room):
    damaged_job(room)
    assert not room.asks(search={"query": {"text": ["nothing"]}})["jobs"]
    assert room.asks(search={"query": {"text": ["a1"]}})["jobs"]


@pytest.mark.parametrize("size", [10, 1 << 20])
def test_a_dead_job_with_a_damaged_payload_can_be_deleted(room, size):
    room.engine.payloads.fetcher = lambda _: None
    job = damaged_job(room, size=size)
    room.push("a2")
    if size == 10:
        assert room.lease().jid == "a2"
    else:  # another thread reads it after the lease
        assert room.lease() is job
        room.engine.bury_damaged(job, room.now, "the payload of job 1 is damaged")
    reply = room.asks(job={"id": "a1"})
    assert reply["job"]["state"] == "dead"
    assert reply["payload_error"].startswith("the payload of job 1 is damaged: ")
    room.act("delete", "a1")
    assert job.seq not in room.engine.jobs

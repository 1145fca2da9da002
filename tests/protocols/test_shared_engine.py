"""Commands of one protocol on jobs that another protocol has pushed, moved or edited."""

import json
from random import Random

import pytest
from resp_conversation import SCRIPT_C, SHA_C
from test_queue_rules import NOW, connect, exchange, resp

from millrace.engine.engine import Engine
from millrace.engine.job import NewJob
from millrace.protocols.registry import WORKQ
from millrace.protocols.spec import protocol_rules

SECOND = 1_000_000
JID = "6ba7b810-9dad-41d1-80b4-00000000000a"


@pytest.fixture
def engine() -> Engine:
    return Engine(Random(1), protocol_rules())


def qless(engine: Engine, *words: str) -> bytes:
    reply = exchange(connect("qless", engine), resp(*words))
    assert not reply.startswith(b"-"), reply
    return reply


def advance(engine: Engine, jid: str, data: str) -> None:
    """Complete a job of the queue `q` over Qless with new data and the next queue `q2`."""
    qless(engine, "QLESS.POP", "1", "q", "w", "1", "1700000000")
    qless(engine, "QLESS.COMPLETE", "0", jid, "w", "q", "1700000001", data, "next", "q2")


#: Data of a Qless worker, and the arguments in Faktory.
EDITED = [
    ('{"a":1}', b'[{"a":1}]'),
    ('{"a":\n1}', b'[{"a": 1}]'),
    ("[1,\r\n2]", b"[1,  2]"),
    (" [1]", b"[1]"),
    ("[1,2]", b"[1,2]"),
]


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize(("data", "args"), EDITED)
def test_faktory_gets_an_array_after_an_edit_over_qless(
    data: str, args: bytes, large: bool, engine: Engine
) -> None:
    if large:
        data = data.replace("1", '"' + "x" * 300_000 + '"')
        args = args.replace(b"1", b'"' + b"x" * 300_000 + b'"')
    faktory = connect("faktory", engine)
    exchange(
        faktory,
        b'PUSH {"jid":"aaaaaaaa","jobtype":"t","args":[1],"queue":"q","custom":{"k":1}}\r\n',
    )
    advance(engine, "aaaaaaaa", data)
    reply = exchange(faktory, b"FETCH q2\r\n")
    unit = reply.split(b"\r\n", 1)[1].removesuffix(b"\r\n")
    assert b'"args":' + args in unit
    assert b"\n" not in unit
    assert b"\r" not in unit
    assert json.loads(unit)["custom"] == {"k": 1}


def test_masenko_gets_one_line_after_an_edit_over_qless(engine: Engine) -> None:
    masenko = connect("masenko", engine)
    exchange(masenko, b'PUSH {"name":"t","queue":"q","payload":{"a":0}}\n')
    (jid,) = engine.by_jid
    advance(engine, jid, '{"a":\n1}')
    reply = exchange(masenko, b'FETCH {"queues":["q2"],"timeout":"1s"}\n')
    assert reply == b'OK {"id":1,"queue":"q2","name":"t","payload":{"a":1}}\n'


def test_a_job_that_was_never_ready_has_no_enqueued_at(engine: Engine) -> None:
    """The filter of MUTATE matches the work unit."""
    push = NewJob(JID, "ping", b"[]", WORKQ, "q", 0, SECOND, due_at=NOW + SECOND)
    engine.push(push, NOW)
    command = b'MUTATE {"cmd":"kill","target":"scheduled","filter":{"regexp":"*1970-01-01*"}}\r\n'
    exchange(connect("faktory", engine), command)
    assert len(engine.scheduled) == 1


def test_a_result_is_that_of_the_newest_job(engine: Engine) -> None:
    custom = b'{"millrace":{"keep_result":3600}}'
    push = b'PUSH {"jid":"aaaaaaaa","jobtype":"t","args":[],"custom":%b}\r\n' % custom
    faktory = connect("faktory", engine)
    exchange(faktory, push + b'FETCH default\r\nACK {"jid":"aaaaaaaa"}\r\n' + push)
    assert [job.state for job in engine.jobs.values()] == [4, 2]
    reply = exchange(faktory, b'MILLRACE {"result":{"jid":"aaaaaaaa"}}\r\n')
    assert b'"state":"ready"' in reply
    exchange(faktory, b'FETCH default\r\nACK {"jid":"aaaaaaaa"}\r\n')
    reply = exchange(faktory, b'MILLRACE {"result":{"jid":"aaaaaaaa"}}\r\n')
    assert b'"state":"done"' in reply


def test_the_latency_is_the_age_of_the_oldest_job_not_of_the_next_one(engine: Engine) -> None:
    engine.push(NewJob(JID, "k", b"[]", WORKQ, "q", 0, SECOND), NOW - 60 * SECOND)
    engine.push(NewJob(JID[:-1] + "b", "k", b"[]", WORKQ, "q", 0, SECOND, rank=5), NOW)
    reply = exchange(connect("faktory", engine), b"QUEUE LATENCY q\r\n")
    assert b'{"q":60' in reply


@pytest.mark.parametrize(
    ("rank", "shown"), [(5, 5), (1 << 62, (1 << 32) - 1), (-1e300, -(1 << 31))]
)
def test_workq_shows_the_priority_within_its_range(rank: float, shown: int, engine: Engine) -> None:
    engine.push(NewJob(JID, "k", b"[]", WORKQ, "q", 0, SECOND, rank=rank, max_attempts=9), NOW)
    reply = exchange(connect("workq", engine), b"inspect job %b\r\n" % JID.encode())
    assert b"\r\npriority %d\r\n" % shown in reply


def test_workq_shows_the_priority_after_a_timeout_over_qless(engine: Engine) -> None:
    engine.push(NewJob(JID, "k", b"[]", WORKQ, "q", 0, SECOND, rank=5, max_attempts=9), NOW)
    qless(engine, "QLESS.POP", "1", "q", "w", "1", "1700000000")
    port = connect("qless", engine)
    exchange(port, resp("SCRIPT", "LOAD", SCRIPT_C))
    assert not exchange(port, resp("EVALSHA", SHA_C, "0", "timeout", "1", JID)).startswith(b"-")
    reply = exchange(connect("workq", engine), b"inspect job %b\r\n" % JID.encode())
    assert b"\r\npriority 5\r\n" in reply

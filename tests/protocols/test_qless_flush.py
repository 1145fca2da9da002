"""FLUSHDB and FLUSHALL: only settings that were made over Qless are removed."""

from random import Random

import pytest
from resp_conversation import SCRIPT_C
from test_queue_rules import NOW, connect, exchange, limited, resp

from millrace.engine.annotations import TRACKED_PREFIX
from millrace.engine.engine import Engine
from millrace.engine.limits import LIMIT_PREFIX, QUEUE_KEY_PREFIX, Limit, read_limit
from millrace.engine.recurring import RECURRING_PREFIX as RECURRING
from millrace.protocols.spec import protocol_rules

PUT = resp("QLESS.PUT", "1", "images", "qless-job", "k", "{}", "1700000000", "0")
FAKTORY_SETTINGS = (
    b'MILLRACE {"recur":{"id":"nightly","jobtype":"report","args":[],"every":86400}}\r\n'
    b'MILLRACE {"limit":{"queue":"images","maximum":2}}\r\n'
    b'MILLRACE {"track":["qless-job"]}\r\n'
)


@pytest.fixture
def engine() -> Engine:
    return Engine(Random(1), protocol_rules())


@pytest.mark.parametrize("command", ["FLUSHDB", "FLUSHALL"])
def test_the_settings_of_other_protocols_stay(command: str, engine: Engine) -> None:
    faktory, qless = connect("faktory", engine), connect("qless", engine)
    exchange(qless, PUT)
    assert exchange(faktory, FAKTORY_SETTINGS).count(b'{"changed":1}') == 3
    assert exchange(qless, resp(command)) == b"+OK\r\n"
    for _ in range(2):
        assert list(engine.recurring.by_id) == ["nightly"]
        assert engine.limits.maximum(QUEUE_KEY_PREFIX + "images", NOW) == 2
        assert list(engine.annotations.tracked) == ["qless-job"]
        engine.load_settings()  # as after a restart


def test_the_settings_of_qless_are_removed(engine: Engine) -> None:
    qless = connect("qless", engine)
    exchange(qless, PUT)
    exchange(qless, resp("QLESS.TRACK", "0", "track", "qless-job", "1700000000"))
    exchange(
        qless,
        resp("QLESS.RECUR", "0", "on", "images", "nightly", "k", "{}", "1700000000", "interval",
             "60", "0"),
    )  # fmt: skip
    exchange(qless, resp("HSET", "ql:th:ql:q:images", "maximum", "2"))
    prefixes = RECURRING, LIMIT_PREFIX, TRACKED_PREFIX
    assert [sum(key.startswith(each) for key in engine.settings) for each in prefixes] == [1, 1, 1]
    exchange(qless, resp("FLUSHDB"))
    assert not any(key.startswith(prefixes) for key in engine.settings)
    assert (engine.recurring.by_id, engine.limits.by_key, engine.annotations.tracked) == ({},) * 3


def test_a_second_track_over_qless_keeps_the_origin(engine: Engine) -> None:
    faktory, qless = connect("faktory", engine), connect("qless", engine)
    exchange(qless, PUT)
    exchange(faktory, b'MILLRACE {"track":["qless-job"]}\r\n')
    exchange(qless, resp("QLESS.TRACK", "0", "track", "qless-job", "1700000000"))
    exchange(qless, resp("FLUSHDB"))
    assert list(engine.annotations.tracked) == ["qless-job"]


def test_a_limit_of_an_older_version_has_no_origin(engine: Engine) -> None:
    assert read_limit(b"\x93\x02\x00\x00").fields() == (2, 0, 0)
    assert Limit(2, origin=7).fields() == (2, 0, 0, 7)


def test_a_limited_port_keeps_the_settings_of_other_queues(engine: Engine) -> None:
    open_port = connect("qless", engine)
    for queue in ("billing", "signup-q"):
        for command in (
            ("QLESS.PAUSE", "0", f"{queue}-ahead"),
            ("QLESS.PUT", "1", queue, f"{queue}-j", "k", "{}", "1700000000", "0"),
            ("QLESS.TRACK", "0", "track", f"{queue}-j", "1700000000"),
            ("QLESS.RECUR", "0", "on", queue, f"{queue}-r", "k", "{}", "1700000000", "interval",
             "60", "0"),
            ("QLESS.SETCONFIG", "0", f"{queue}-heartbeat", "10"),
            ("QLESS.SETCONFIG", "0", f"heartbeat-{queue}", "10"),
            ("HSET", f"ql:th:ql:q:{queue}", "maximum", "2"),
        ):  # fmt: skip
            assert not exchange(open_port, resp(*command)).startswith(b"-"), command
    exchange(open_port, resp("QLESS.SETCONFIG", "0", "heartbeat", "10"))
    before = {key for key in engine.settings if "signup" not in key}
    assert len(before) == 8
    exchange(limited("qless", engine), resp("FLUSHALL"))
    assert set(engine.settings) == before


def test_nothing_of_a_forgotten_queue_stays(engine: Engine) -> None:
    qless = connect("qless", engine)
    exchange(qless, PUT)
    exchange(qless, resp("QLESS.PUT", "1", "images", "late", "k", "{}", "1700000000", "5"))
    exchange(qless, resp("QLESS.POP", "1", "images", "w", "1", "1700000001"))
    script = resp("EVAL", SCRIPT_C, "0", "queue.forget", "1700000002", "images")
    assert exchange(qless, script) == b"$-1\r\n"
    assert b"late" in exchange(qless, resp("QLESS.POP", "1", "images", "w", "1", "1700000009"))
    exchange(qless, resp("FLUSHDB"))
    assert exchange(qless, resp("KEYS", "*")) == b"*0\r\n"
    assert exchange(qless, resp("QLESS.QUEUES", "0", "1700000010")) == b"$2\r\n{}\r\n"

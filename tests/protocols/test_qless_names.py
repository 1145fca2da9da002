"""Names that are not UTF-8: stored and compared byte by byte, and returned unchanged."""

import random
import sys
from collections.abc import Iterator

import pytest
from qless_conversation import Qless, QlessClient, sha_of
from resp_conversation import SCRIPT_C, bulk

from millrace.protocols.qless.names import (
    decode_name,
    encode_name,
    escape_json,
    restore_bytes,
)

PRIVATE = "\U0010feff".encode()


@pytest.fixture
def talk() -> Iterator[Qless]:
    conversation = Qless()
    yield conversation
    conversation.close()


def ask(client: QlessClient, *words: object) -> bytes:
    client.asks("EVALSHA", sha_of(SCRIPT_C), 0, *words)
    taken = client._taken
    client._taken = len(client.wire.heard)
    return bytes(client.wire.heard[taken:])


def test_a_name_survives_the_round_trip() -> None:
    dice = random.Random(1)
    alphabet = b"\xf4\x8f\xba\xbb\x80\xbf\xff\xc3\xa9a"
    known: dict[str, bytes] = {}
    for _ in range(20_000):
        name = bytes(dice.choice(alphabet) for _ in range(dice.randrange(7)))
        text = decode_name(name)
        assert text.encode().decode() == text  # valid Unicode
        assert encode_name(text) == name
        assert known.setdefault(text, name) == name


def test_a_utf8_name_is_unchanged() -> None:
    assert decode_name("grün-ß-\U0001f600".encode()) == "grün-ß-\U0001f600"


def test_a_run_of_bytes_is_restored_at_once() -> None:
    """One call for each byte took 20 ms for a part of a large payload."""
    name = bytes(range(0x80, 0x100)) * 300
    data = decode_name(name).encode()
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        restored = restore_bytes(data)
    finally:
        sys.setprofile(None)
    assert restored == name
    assert calls < 1000, f"{calls} calls for {len(name)} bytes"


def test_json_names_have_the_same_text_in_every_form() -> None:
    text = decode_name(PRIVATE).encode()
    assert escape_json(b'["%b"]' % PRIVATE) == b'["%b"]' % text
    assert escape_json(rb'["\udbff\udeff"]') == b'["%b"]' % text
    assert escape_json(rb'["\\udbff\\udeff"]') == rb'["\\udbff\\udeff"]'
    assert escape_json(b'["\xff"]') == b'["%b"]' % decode_name(b"\xff").encode()


def test_two_jids_that_differ_in_one_byte_are_two_jobs(talk: Qless) -> None:
    c = talk.speaks("C")
    for jid in (b"\xff", b"\xfe", PRIVATE, b"\xef\xbf\xbd"):
        assert ask(c, "put", 1, "w", "q", jid, "klass", "{}", 0) == bulk(jid)
    popped = ask(c, "pop", 2, "q", "w", 10)
    for jid in (b"\xff", b"\xfe", PRIVATE, b"\xef\xbf\xbd"):
        assert popped.count(b'"jid":"%b"' % jid) == 1
        assert ask(c, "complete", 3, jid, "w", "q", "{}") == bulk("complete")
    assert ask(c, "jobs", 4, "complete").count(b"$1\r\n\xff\r\n") == 1


def test_all_parts_of_a_job_keep_their_bytes(talk: Qless) -> None:
    c = talk.speaks("C")
    ask(c, "put", 1, "w", "q", "parent", "klass", "{}", 0)
    ask(c, "put", 1, "w", b"q\xff", b"j\xfe", b"k\x80", b'{"a":"\xe9"}', 0, "tags", b'["t\xfd"]')
    ask(c, "put", 1, "w", b"q\xff", b"c\xfe", "k", "{}", 0, "depends", b'["j\xfe"]')
    job = ask(c, "pop", 2, b"q\xff", b"w\xfb", 1)
    for part in (
        b'"jid":"j\xfe"',
        b'"queue":"q\xff"',
        b'"klass":"k\x80"',
        b'"data":"{\\"a\\":\\"\xe9\\"}"',
        b'"tags":["t\xfd"]',
        b'"dependents":["c\xfe"]',
        b'"worker":"w\xfb"',
    ):
        assert part in job
    assert b'"jobs":["j\xfe"]' in ask(c, "tag", 3, "get", b"t\xfd")
    assert b'"name":"q\xff"' in ask(c, "queues", 3)
    assert b'"name":"w\xfb"' in ask(c, "workers", 3)
    assert ask(c, "fail", 3, b"j\xfe", b"w\xfb", b"g\xfc", b"m\xfc") == bulk(b"j\xfe")
    assert b'{"g\xfc":1}' in ask(c, "failed", 3)
    assert b"Job no\xff does not exist" in ask(c, "heartbeat", 3, b"no\xff", "w")


def test_redis_keys_and_messages_keep_their_bytes(talk: Qless) -> None:
    c, listener = talk.speaks("C"), talk.connect()
    listener.asks("SUBSCRIBE", "ql:log")
    start = len(listener.wire.heard)
    ask(c, "put", 1, "w", b"q\xff", b"j\xfe", "klass", "{}", 0)
    assert b'"jid":"j\xfe","event":"put","queue":"q\xff"' in listener.wire.heard[start:]
    listener._taken = len(listener.wire.heard)
    c.asks("KEYS", b"ql:j:j\xfe").hears(b"*1\r\n" + bulk(b"ql:j:j\xfe"))
    c.asks("ZRANGE", b"ql:q:q\xff-work", 0, -1).hears(b"*1\r\n" + bulk(b"j\xfe"))
    c.asks("HMGET", b"ql:j:j\xfe", "queue").hears(b"*1\r\n" + bulk(b"q\xff"))

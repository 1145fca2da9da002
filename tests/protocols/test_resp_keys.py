"""Scratch keys, the keys of Qless, and waiting for a list."""

import pytest
from resp_conversation import NIL, OK, Resp, array, bulk

from millrace.protocols.qless.commands import TOO_LARGE

WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"
NOT_INTEGER = "ERR value is not an integer or out of range"
NONE = b"*0\r\n"


def bulks(*texts: str) -> bytes:
    return array(*map(bulk, texts))


# Scratch keys


def test_lists():
    with Resp() as talk:
        client = talk.connect()
        client.asks("RPUSH", "list", "a", "b").hears(b":2\r\n")
        client.asks("LPUSH", "list", "c", "d").hears(b":4\r\n")
        client.asks("LLEN", "list").hears(b":4\r\n")
        client.asks("LRANGE", "list", 0, -1).hears(bulks("d", "c", "a", "b"))
        client.asks("BRPOP", "list", 1).hears(bulks("list", "b"))
        client.asks("LRANGE", "list", 0, -1).hears(bulks("d", "c", "a"))
        client.asks("LLEN", "nope").hears(b":0\r\n").asks("LRANGE", "nope", 0, -1).hears(NONE)
        for _ in range(3):
            client.asks("BRPOP", "list", 1)
        client.hears(bulks("list", "a"), bulks("list", "c"), bulks("list", "d"))
        client.asks("EXISTS", "list").hears(b":0\r\n")
        assert talk.hub.scratch._size == 0


@pytest.mark.parametrize(
    ("start", "stop", "items"),
    [
        (0, -1, "abcd"), (0, 0, "a"), (1, 2, "bc"), (-2, -1, "cd"), (-100, 100, "abcd"), (2, 1, ""),
        (4, 9, ""), (-100, -5, ""), (3, 3, "d"), (-1, 0, ""), (0, -4, "a"), (0, -5, ""),
    ],
)  # fmt: skip
def test_ranges(start, stop, items):
    with Resp() as talk:
        client = talk.connect().asks("RPUSH", "list", *"abcd").hears(b":4\r\n")
        client.asks("LRANGE", "list", start, stop).hears(bulks(*items))


def test_hashes():
    with Resp() as talk:
        client = talk.connect()
        client.asks("HSET", "hash", "a", 1, "b", 2).hears(b":2\r\n")
        client.asks("HSET", "hash", "a", 10, "c", 3).hears(b":1\r\n")
        client.asks("HGETALL", "hash").hears(bulks("a", "10", "b", "2", "c", "3"))
        client.asks("HMGET", "hash", "c", "nope", "a").hears(array(bulk("3"), NIL, bulk("10")))
        client.asks("HGETALL", "nope").hears(NONE).asks("HMGET", "nope", "a").hears(array(NIL))
        client.asks("HSET", "hash", "a").hears_resp_error(
            "ERR wrong number of arguments for 'hset' command"
        )
        client.asks("HSET", "hash", "a", 1, "b").hears_resp_error(
            "ERR wrong number of arguments for 'hset' command"
        )
        client.speaks_resp3().asks("HGETALL", "hash").hears(
            b"%3\r\n", *map(bulk, ("a", "10", "b", "2", "c", "3"))
        )
        client.asks("DEL", "hash").hears(b":1\r\n")
        assert talk.hub.scratch._size == 0


def test_kinds_do_not_mix():
    with Resp() as talk:
        client = talk.connect().asks("RPUSH", "list", "a").asks("HSET", "hash", "a", "b")
        client.hears(b":1\r\n", b":1\r\n")
        for command_words in (
            ("HSET", "list", "a", "b"), ("HGETALL", "list"), ("HMGET", "list", "a"),
            ("RPUSH", "hash", "a"), ("LPUSH", "hash", "a"), ("LLEN", "hash"), ("BRPOP", "hash", 0),
            ("LRANGE", "hash", 0, 0), ("ZCARD", "list"), ("ZSCORE", "hash", "a"), ("SMEMBERS", "list"),
            ("ZRANGE", "list", 0, -1), ("LLEN", "ql:set"), ("HGETALL", "ql:list"), ("ZCARD", "ql:list"),
        ):  # fmt: skip
            client.asks(*command_words).hears_resp_error(WRONG_TYPE)
        client.asks("TYPE", "list").asks("TYPE", "hash").asks("TYPE", "nope")
        client.hears(b"+list\r\n", b"+hash\r\n", b"+none\r\n")


def test_deleting_and_counting():
    with Resp() as talk:
        client = talk.connect().asks("RPUSH", "a", "x").asks("HSET", "b", "x", "y")
        client.hears(b":1\r\n", b":1\r\n")
        client.asks("EXISTS", "a", "a", "b", "nope").hears(b":3\r\n")
        client.asks("KEYS", "*").hears(bulks("a", "b", "ql:list", "ql:set"))
        client.asks("KEYS", "[a]").hears(bulks("a")).asks("KEYS", "ql:*").hears(
            bulks("ql:list", "ql:set")
        )
        client.asks("DBSIZE").hears(b":4\r\n")
        client.asks("DEL", "a", "nope", "b", "a").hears(b":2\r\n").asks("DBSIZE").hears(b":2\r\n")
        client.asks("KEYS", "x" * 1001).hears_resp_error(
            "ERR a pattern may have at most 1000 bytes"
        )
        client.asks("RPUSH", "c", "x").asks("FLUSHDB").asks("KEYS", "[^q]*").hears(
            b":1\r\n", OK, NONE
        )
        client.asks("FLUSHALL", "async").hears(OK)
        client.asks("FLUSHDB", "x").hears_resp_error("ERR syntax error")
        assert client.wire.durable == [len(client.wire.replies) - n for n in (4, 2)]
        assert talk.hub.api.flushed == 2


def test_a_flush_removes_all_keys_and_jobs():
    with Resp() as talk:
        client = talk.connect().asks("QLESS.PUT", 0, "a").hears(bulk("a"))
        client.asks("EXISTS", "ql:j:a").asks("FLUSHDB").asks("EXISTS", "ql:j:a")
        client.hears(b":1\r\n", OK, b":0\r\n")
        assert not talk.engine.jobs


def test_keys_expire():
    with Resp() as talk:
        client = talk.connect().asks("RPUSH", "a", "x").hears(b":1\r\n")
        client.asks("TTL", "a").asks("TTL", "nope").hears(b":-1\r\n", b":-2\r\n")
        client.asks("EXPIRE", "a", 10).asks("EXPIRE", "nope", 10).hears(b":1\r\n", b":0\r\n")
        client.asks("TTL", "a").hears(b":10\r\n")
        talk.advance(9)
        client.asks("TTL", "a").asks("LLEN", "a").hears(b":1\r\n", b":1\r\n")
        talk.advance(1.1)
        client.asks("TTL", "a").asks("EXISTS", "a").asks("DBSIZE").hears(
            b":-2\r\n", b":0\r\n", b":2\r\n"
        )
        client.asks("RPUSH", "a", "y").asks("TTL", "a").hears(b":1\r\n", b":-1\r\n")
        client.asks("EXPIRE", "a", -1).asks("EXISTS", "a").hears(b":1\r\n", b":0\r\n")
        client.asks("EXPIRE", "a", "x").hears_resp_error(NOT_INTEGER)
        client.asks("EXPIRE", "a", 1 << 62).hears_resp_error(
            "ERR invalid expire time in 'expire' command"
        )
        assert talk.hub.scratch._size == 0
        assert not talk.hub.scratch._expires


def test_expired_keys_free_space():
    with Resp(max_keys=2) as talk:
        client = talk.connect().asks("RPUSH", "a", "x").asks("HSET", "b", "x", "y")
        client.asks("EXPIRE", "a", 1).hears(b":1\r\n" * 3)
        client.asks("RPUSH", "c", "x").hears_resp_error(
            "OOM command not allowed: the scratch space has room for 2 keys and 16777216 bytes"
        )
        client.asks("RPUSH", "a", "z").hears(b":2\r\n")
        talk.advance(2)
        client.asks("RPUSH", "c", "x").hears(b":1\r\n")


def test_the_space_is_bounded():
    with Resp(max_scratch_bytes=1000) as talk:
        client = talk.connect()
        full = "OOM command not allowed: the scratch space has room for 10000 keys and 1000 bytes"
        client.asks("RPUSH", "a", "x" * 1000).hears_resp_error(full)
        client.asks("RPUSH", "a", "x" * 500).hears(b":1\r\n")
        client.asks("HSET", "b", "f", "x" * 500).hears_resp_error(full)
        client.asks("HSET", "b", "f", "x" * 100).hears(b":1\r\n")
        client.asks("HSET", "b", "f", "x" * 1000).hears_resp_error(full)
        client.asks("HSET", "b", "f", "y" * 100).hears(b":0\r\n")
        client.asks("RPUSH", "a", *[""] * 3).hears_resp_error(full)
        client.asks("EXISTS", "a", "b").hears(b":2\r\n")
        client.asks("BRPOP", "a", 0).asks("DEL", "b")
        client.hears(bulks("a", "x" * 500), b":1\r\n")
        assert talk.hub.scratch._size == 0


def test_few_keys_are_shown(monkeypatch):
    monkeypatch.setattr("millrace.protocols.qless.keys.MAX_KEYS_LISTED", 3)
    with Resp() as talk:
        client = talk.connect().asks("RPUSH", "a", "x").asks("KEYS", "*")
        client.hears(b":1\r\n", bulks("a", "ql:list", "ql:set"))
        client.asks("RPUSH", "b", "x").asks("KEYS", "*").hears(b":1\r\n")
        client.hears_resp_error("ERR more than 3 keys match")


# The keys of Qless


def test_sorted_sets():
    with Resp() as talk:
        client = talk.connect()
        work = "ql:q:queue-work"
        client.asks("ZCARD", work).asks("ZSCORE", work, "a").asks("ZRANGE", work, 0, -1)
        client.hears(b":0\r\n", NIL, NONE)
        for jid in "abc":
            client.asks("QLESS.PUT", 0, jid).hears(bulk(jid))
        client.asks("ZCARD", work).asks("TYPE", work).hears(b":3\r\n", b"+zset\r\n")
        client.asks("ZSCORE", work, "a").asks("ZSCORE", work, "b").asks("ZSCORE", work, "x")
        client.hears(bulk("0.5"), bulk("1"), NIL)
        client.asks("ZRANGE", work, 1, -1).hears(bulks("b", "c"))
        client.asks("ZRANGE", work, 0, 1, "withscores").hears(bulks("a", "0.5", "b", "1"))
        client.asks("ZRANGE", work, 0, 1, "REV").hears_resp_error("ERR syntax error")
        client.asks("ZRANGE", work, 0, "x").hears_resp_error(NOT_INTEGER)
        client.asks("TTL", work).hears(b":-1\r\n")
        client.speaks_resp3()
        client.asks("ZSCORE", work, "a").asks("ZSCORE", work, "b").asks("ZSCORE", work, "x")
        client.hears(b",0.5\r\n", b",1\r\n", b"_\r\n")
        client.asks("ZRANGE", work, 0, 1, "WITHSCORES").hears(
            array(array(bulk("a"), b",0.5\r\n"), array(bulk("b"), b",1\r\n"))
        )


def test_hashes_lists_and_sets():
    with Resp() as talk:
        client = talk.connect().asks("QLESS.PUT", 0, "a").hears(bulk("a"))
        client.asks("HGETALL", "ql:j:a").hears(bulks("jid", "a", "state", "waiting"))
        client.asks("HMGET", "ql:j:a", "state", "x").hears(array(bulk("waiting"), NIL))
        client.asks("HGETALL", "ql:j:x").hears(NONE)
        client.asks("LRANGE", "ql:list", 1, -1).hears(bulks("b", "c")).asks(
            "LLEN", "ql:list"
        ).hears(b":3\r\n")
        client.asks("SMEMBERS", "ql:set").asks("SMEMBERS", "ql:x").asks("SMEMBERS", "x")
        client.hears(bulks("m", "n"), NONE, NONE)
        talk.connect().speaks_resp3().asks("SMEMBERS", "ql:set").asks("SMEMBERS", "x").hears(
            b"~2\r\n", bulk("m"), bulk("n"), b"~0\r\n"
        )
        client.asks("EXISTS", "ql:j:a", "ql:j:x", "ql:list").hears(b":2\r\n")
        client.asks("KEYS", "ql:j:*").hears(bulks("ql:j:a"))


@pytest.mark.parametrize(
    "command_words",
    [
        ("DEL", "a", "ql:list"),
        ("RPUSH", "ql:list", "x"),
        ("LPUSH", "ql:list", "x"),
        ("HSET", "ql:list", "x", "y"),
        ("EXPIRE", "ql:list", 1),
        ("BRPOP", "ql:list", 1),
    ],
)
def test_qless_keys_cannot_be_written(command_words):
    with Resp() as talk:
        client = talk.connect().asks("RPUSH", "a", "x").hears(b":1\r\n")
        client.asks(*command_words).hears_resp_error(
            "ERR 'ql:list' belongs to Qless: only Qless commands can change it"
        )
        client.asks("EXISTS", "a").hears(b":1\r\n")


# Waiting for a list


def test_a_waiting_client_is_served_immediately():
    with Resp() as talk:
        waiter, pusher = talk.connect(), talk.connect()
        waiter.asks("BRPOP", "a", "b", 5).hears_nothing()
        pusher.asks("RPUSH", "b", "x", "y").hears(b":2\r\n")
        waiter.hears(bulks("b", "y"))
        pusher.asks("LLEN", "b").hears(b":1\r\n")
        waiter.asks("BRPOP", "a", "b", 5).hears(bulks("b", "x"))
        assert not talk.hub.scratch._waiters


def test_a_wait_ends():
    with Resp() as talk:
        two, three = talk.connect(), talk.connect().speaks_resp3()
        two.asks("BRPOP", "a", 1.5).hears_nothing()
        three.asks("BRPOP", "a", "0.001").hears_nothing()
        talk.advance(0.001)
        three.hears(b"_\r\n")
        talk.advance(1.498)
        two.hears_nothing()
        talk.advance(0.001)
        two.hears(b"*-1\r\n")
        talk.connect().asks("RPUSH", "a", "x").hears(b":1\r\n")


def test_a_wait_without_a_timeout():
    with Resp() as talk:
        waiter = talk.connect().asks("BRPOP", "a", 0)
        talk.advance(10**9)
        waiter.hears_nothing()
        talk.connect().asks("RPUSH", "a", "x").hears(b":1\r\n")
        waiter.hears(bulks("a", "x"))


def test_commands_behind_a_wait_run_afterwards():
    with Resp() as talk:
        waiter, pusher = talk.connect(), talk.connect()
        waiter.says(b"BRPOP a 5\r\nPING\r\nBRPOP a 5\r\nECHO x\r\n").hears_nothing()
        pusher.asks("RPUSH", "a", "x").hears(b":1\r\n")
        waiter.hears(bulks("a", "x"), b"+PONG\r\n")
        talk.advance(5)
        waiter.hears(b"*-1\r\n", bulk("x"))


def test_the_longest_waiter_is_first():
    with Resp() as talk:
        waiters = [talk.connect().asks("BRPOP", "a", 0) for _ in range(3)]
        pusher = talk.connect()
        pusher.asks("RPUSH", "a", "x", "y").hears(b":2\r\n")
        waiters[0].hears(bulks("a", "y"))
        waiters[1].hears(bulks("a", "x"))
        waiters[2].hears_nothing()
        waiters[0].asks("BRPOP", "a", 0).hears_nothing()
        pusher.asks("LPUSH", "a", "z").hears(b":1\r\n")
        waiters[2].hears(bulks("a", "z"))
        waiters[0].hears_nothing()


def test_a_disconnected_client_receives_no_item():
    with Resp() as talk:
        talk.connect().asks("BRPOP", "a", 0).hangs_up()
        waiter = talk.connect().asks("BRPOP", "a", 0)
        talk.connect().asks("RPUSH", "a", "x").hears(b":1\r\n")
        waiter.hears(bulks("a", "x"))
        assert not talk.engine.timers


def test_an_item_pushed_at_the_end_of_a_wait():
    """Two waits end at the same time, and the next command of one client pushes an item for the
    other.
    """
    with Resp() as talk:
        one, two = talk.connect(), talk.connect()
        one.says(b"BRPOP a 1\r\nRPUSH b x\r\n")
        two.says(b"BRPOP b 1\r\nPING\r\n")
        talk.advance(1)
        one.hears(b"*-1\r\n", b":1\r\n")
        two.hears(bulks("b", "x"), b"+PONG\r\n")


def test_a_removed_list_wakes_no_client():
    with Resp() as talk:
        waiter = talk.connect().asks("BRPOP", "a", 0)
        client = talk.connect().asks("MULTI").asks("RPUSH", "a", "x").asks("DEL", "a")
        client.asks("HSET", "a", "b", "c").asks("EXEC")
        client.hears(OK, b"+QUEUED\r\n" * 3, array(*[b":1\r\n"] * 3))
        waiter.hears_nothing()
        client.asks("DEL", "a").asks("RPUSH", "a", "y").hears(b":1\r\n", b":1\r\n")
        waiter.hears(bulks("a", "y"))


def test_a_flush_wakes_no_client():
    with Resp() as talk:
        waiter = talk.connect().asks("BRPOP", "a", 0)
        client = talk.connect().asks("FLUSHDB").hears(OK)
        waiter.hears_nothing()
        client.asks("RPUSH", "a", "y").hears(b":1\r\n")
        waiter.hears(bulks("a", "y"))


def test_a_subscriber_may_wait_in_resp3():
    with Resp() as talk:
        client = talk.connect().speaks_resp3().asks("SUBSCRIBE", "news")
        client.hears(b">3\r\n", bulk("subscribe"), bulk("news"), b":1\r\n")
        client.asks("BRPOP", "a", 0)
        other = talk.connect().asks("PUBLISH", "news", "hi").hears(b":1\r\n")
        client.hears(b">3\r\n", bulk("message"), bulk("news"), bulk("hi"))
        other.asks("RPUSH", "a", "x").hears(b":1\r\n")
        client.hears(bulks("a", "x"))


@pytest.mark.parametrize(
    ("timeout", "error"),
    [
        ("x", "ERR timeout is not a float or out of range"),
        ("", "ERR timeout is not a float or out of range"),
        ("nan", "ERR timeout is not a float or out of range"),
        ("inf", "ERR timeout is not a float or out of range"),
        ("1e300", "ERR timeout is not a float or out of range"),
        ("1_0", "ERR timeout is not a float or out of range"),
        ("-1", "ERR timeout is negative"),
    ],
)
def test_an_invalid_timeout(timeout, error):
    with Resp() as talk:
        talk.connect().asks("BRPOP", "a", timeout).hears_resp_error(error)


def test_a_field_requested_60000_times_is_limited():
    """16 MiB of scratch space, 65,536 times, would be a terabyte."""
    with Resp() as talk:
        client = talk.connect().asks("HSET", "h", "f", "x" * 1_000_000).hears(b":1\r\n")
        client.asks("HMGET", "h", *["f"] * 60_000).hears_resp_error(TOO_LARGE)
        client.asks("HMGET", "h", *["none"] * 1_000).hears(array(*[NIL] * 1_000))

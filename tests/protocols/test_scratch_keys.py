"""Scratch keys: the commands that workers of the Ruby gem and users' jobs send."""

from collections.abc import Iterator

import pytest
from resp_conversation import NIL, OK, Resp, RespClient, array, bulk


@pytest.fixture
def talk() -> Iterator[Resp]:
    conversation = Resp()
    yield conversation
    conversation.close()


@pytest.fixture
def client(talk: Resp) -> RespClient:
    return talk.connect()


def number(value: int) -> bytes:
    return b":%d\r\n" % value


def test_strings(client: RespClient) -> None:
    client.asks("GET", "a").hears(NIL).asks("SET", "a", "1").hears(OK)
    client.asks("GET", "a").hears(bulk("1")).asks("INCR", "a").hears(number(2))
    client.asks("DECR", "b").hears(number(-1)).asks("INCRBY", "b", 5).hears(number(4))
    client.asks("DECRBY", "b", 1).hears(number(3)).asks("TYPE", "b").hears(b"+string\r\n")
    client.asks("SET", "a", "x").hears(OK).asks("INCR", "a")
    client.hears_resp_error("ERR value is not an integer or out of range")
    client.asks("DEL", "a", "b").hears(number(2)).asks("GET", "b").hears(NIL)


def test_set_with_conditions(client: RespClient) -> None:
    client.asks("SET", "lock", "me", "NX", "EX", 10).hears(OK)
    client.asks("SET", "lock", "you", "NX", "EX", 10).hears(NIL)
    client.asks("TTL", "lock").hears(number(10))
    client.asks("SET", "none", "x", "XX").hears(NIL)
    client.asks("SET", "lock", "you", "XX", "GET").hears(bulk("me"))
    client.asks("TTL", "lock").hears(number(-1))
    client.asks("SET", "lock", "x", "EX", 0)
    client.hears_resp_error("ERR invalid expire time in 'set' command")
    client.asks("SET", "lock", "x", "NOW").hears_resp_error("ERR syntax error")


def test_a_string_expires(talk: Resp, client: RespClient) -> None:
    client.asks("SETEX", "a", 5, "x").hears(OK).asks("TTL", "a").hears(number(5))
    talk.advance(6)
    client.asks("GET", "a").hears(NIL)
    client.asks("SETEX", "a", 0, "x")
    client.hears_resp_error("ERR invalid expire time in 'setex' command")


def test_lists(client: RespClient) -> None:
    client.asks("RPUSH", "l", "a", "b", "c", "d").hears(number(4))
    client.asks("LPOP", "l").hears(bulk("a")).asks("RPOP", "l").hears(bulk("d"))
    client.asks("LPOP", "l", 5).hears(array(bulk("b"), bulk("c")))
    client.asks("EXISTS", "l").hears(number(0)).asks("LPOP", "l").hears(NIL)


def test_hashes(client: RespClient) -> None:
    client.asks("HSET", "h", "a", 1, "b", 2).hears(number(2))
    client.asks("HGET", "h", "b").hears(bulk("2")).asks("HGET", "h", "c").hears(NIL)


def test_sets(client: RespClient) -> None:
    client.asks("SADD", "s", "b", "a", "b").hears(number(2))
    client.asks("SADD", "s", "a").hears(number(0))
    client.asks("SMEMBERS", "s").hears(array(bulk("a"), bulk("b")))
    client.asks("SISMEMBER", "s", "a").hears(number(1))
    client.asks("SISMEMBER", "s", "c").hears(number(0))
    client.asks("SREM", "s", "a", "c").hears(number(1)).asks("SREM", "s", "b").hears(number(1))
    client.asks("EXISTS", "s").hears(number(0))


def test_sorted_sets(client: RespClient) -> None:
    client.asks("ZADD", "z", 2, "b", 1, "a").hears(number(2))
    client.asks("ZADD", "z", 3, "a").hears(number(0))
    client.asks("ZRANGE", "z", 0, -1, "WITHSCORES")
    client.hears(array(bulk("b"), bulk("2"), bulk("a"), bulk("3")))
    client.asks("ZSCORE", "z", "a").hears(bulk("3")).asks("ZCARD", "z").hears(number(2))
    client.asks("ZREM", "z", "a", "b", "c").hears(number(2))
    client.asks("TYPE", "z").hears(b"+none\r\n")
    client.asks("ZADD", "z", "x", "a").hears_resp_error("ERR value is not a valid float")


def test_a_key_has_one_type(client: RespClient) -> None:
    wrong = "WRONGTYPE Operation against a key holding the wrong kind of value"
    client.asks("SADD", "s", "a").hears(number(1))
    for command_words in (("GET", "s"), ("INCR", "s"), ("ZADD", "s", 1, "a"), ("LPOP", "s")):
        client.asks(*command_words).hears_resp_error(wrong)
    client.asks("SET", "s", "x").hears(OK)


def test_the_space_is_bounded() -> None:
    with Resp(max_keys=3, max_scratch_bytes=1000) as talk:
        client = talk.connect()
        client.asks("SET", "a", "x" * 500).hears(OK).asks("SET", "a", "x" * 600).hears(OK)
        client.asks("SET", "b", "x" * 400)
        client.hears_resp_error(
            "OOM command not allowed: the scratch space has room for 3 keys and 1000 bytes"
        )
        client.asks("DEL", "a").hears(number(1)).asks("SADD", "s", "x").hears(number(1))
        client.asks("ZADD", "z", 1, "x").hears(number(1)).asks("DEL", "s", "z").hears(number(2))
        assert talk.hub.scratch._size == 0


def test_qless_keys_are_not_scratch_keys(client: RespClient) -> None:
    for command_words in (
        ("SET", "ql:x", "1"),
        ("INCR", "ql:x"),
        ("SADD", "ql:x", "1"),
        ("ZREM", "ql:x", "1"),
    ):
        client.asks(*command_words).hears_resp_error(
            "ERR 'ql:x' belongs to Qless: only Qless commands can change it"
        )

"""MULTI, EXEC, DISCARD, WATCH."""

import pytest
from resp_conversation import NIL, OK, QUEUED, SHA_C, Resp, array, bulk

from millrace.protocols.qless import transactions
from millrace.protocols.qless.commands import TOO_LARGE

ABORTED = "EXECABORT Transaction discarded because of previous errors."


def test_queued_commands_run_together():
    with Resp() as talk:
        client, other = talk.connect().loads(), talk.connect()
        client.asks("MULTI").hears(OK)
        client.asks("EVALSHA", SHA_C, 0, "put", "a").hears(QUEUED)
        client.asks("ZCARD", "ql:q:queue-work").hears(QUEUED)
        client.asks("ZSCORE", "ql:q:queue-work", "nope").hears(QUEUED)
        client.asks("RPUSH", "list", "x").hears(QUEUED)
        client.asks("LRANGE", "list", 0, -1).hears(QUEUED)
        other.asks("EXISTS", "list", "ql:j:a").hears(b":0\r\n")
        client.asks("EXEC").hears(array(bulk("a"), b":1\r\n", NIL, b":1\r\n", array(bulk("x"))))
        assert client.wire.durable == [0, 7]


def test_the_ruby_client_counts_a_queue_in_a_transaction():
    with Resp() as talk:
        client = talk.connect()
        keys = [f"ql:q:queue-{part}" for part in ("locks", "work", "scheduled", "depends")]
        client.says(b"*1\r\n$5\r\nmulti\r\n").hears(OK)
        for key in keys:
            client.asks("zcard", key).hears(QUEUED)
        client.asks("exec").hears(array(b":0\r\n", b":0\r\n", b":0\r\n", b":0\r\n"))


def test_an_empty_transaction():
    with Resp() as talk:
        talk.connect().asks("MULTI").asks("EXEC").hears(OK, b"*0\r\n")


def test_a_failed_command_does_not_stop_the_others():
    with Resp() as talk:
        client = talk.connect().loads().asks("MULTI").hears(OK)
        client.asks("EVALSHA", SHA_C, 0, "nonsense").asks("SELECT", 99).asks("EVALSHA", "x", 0)
        client.asks("PING").hears(QUEUED * 4)
        client.asks("EXEC").hears(
            array(
                b"-ERR user_script:1: Unknown command nonsense\r\n",
                b"-ERR DB index is out of range\r\n",
                b"-NOSCRIPT No matching script. Please use EVAL.\r\n",
                b"+PONG\r\n",
            )
        )


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b"nonsense", "ERR unknown command 'nonsense', with args beginning with: "),
        (b"echo", "ERR wrong number of arguments for 'echo' command"),
        (b"subscribe a", "ERR Command not allowed inside a transaction"),
        (b"punsubscribe", "ERR Command not allowed inside a transaction"),
        (b"hello 3", "ERR Command not allowed inside a transaction"),
    ],
)
def test_an_invalid_command_aborts_the_transaction(line, error):
    with Resp() as talk:
        client = talk.connect().asks("MULTI").hears(OK).asks("RPUSH", "a", "b").hears(QUEUED)
        client.says(line + b"\r\n").hears_resp_error(error)
        client.asks("RPUSH", "a", "c").hears(QUEUED).asks("EXEC").hears_resp_error(ABORTED)
        client.asks("EXEC").hears_resp_error("ERR EXEC without MULTI")
        client.asks("EXISTS", "a").hears(b":0\r\n")
        client.asks("MULTI").asks("PING").asks("EXEC").hears(OK, QUEUED, array(b"+PONG\r\n"))


def test_misplaced_commands_do_not_abort_the_transaction():
    with Resp() as talk:
        client = talk.connect()
        client.asks("EXEC").hears_resp_error("ERR EXEC without MULTI")
        client.asks("DISCARD").hears_resp_error("ERR DISCARD without MULTI")
        client.asks("MULTI").hears(OK)
        client.asks("MULTI").hears_resp_error("ERR MULTI calls can not be nested")
        client.asks("WATCH", "a").hears_resp_error("ERR WATCH inside MULTI is not allowed")
        client.asks("EXEC").hears(b"*0\r\n")


def test_discard():
    with Resp() as talk:
        client = talk.connect().asks("MULTI").asks("RPUSH", "a", "b").hears(OK, QUEUED)
        client.asks("DISCARD").hears(OK).asks("EXISTS", "a").hears(b":0\r\n")
        client.asks("MULTI").asks("nonsense").hears(OK)
        client.hears_resp_error("ERR unknown command 'nonsense', with args beginning with: ")
        client.asks("DISCARD").hears(OK)
        client.asks("MULTI").asks("EXEC").hears(OK, b"*0\r\n")


def test_quit_and_reset_are_not_queued():
    with Resp() as talk:
        talk.connect().asks("MULTI").asks("QUIT").hears(OK, OK).hears_the_end()
        client = talk.connect().asks("MULTI").asks("PING").asks("RESET")
        client.hears(OK, QUEUED, b"+RESET\r\n").asks("PING").hears(b"+PONG\r\n")


def test_no_command_waits_in_a_transaction():
    with Resp() as talk:
        client = talk.connect().asks("MULTI").asks("BRPOP", "a", 0).asks("RPUSH", "a", "x")
        client.asks("BRPOP", "a", 0).asks("EXEC")
        client.hears(OK, QUEUED * 3, array(b"*-1\r\n", b":1\r\n", array(bulk("a"), bulk("x"))))
        other = talk.connect().speaks_resp3().asks("MULTI").asks("BRPOP", "a", 0).asks("EXEC")
        other.hears(OK, QUEUED, array(b"_\r\n"))


def test_a_waiting_client_is_served_after_the_transaction():
    with Resp() as talk:
        waiter, client = talk.connect().asks("BRPOP", "a", 0), talk.connect()
        client.asks("MULTI").asks("RPUSH", "a", "x").asks("LPUSH", "a", "y").asks("LLEN", "a")
        client.asks("EXEC").hears(OK, QUEUED * 3, array(b":1\r\n", b":2\r\n", b":2\r\n"))
        waiter.hears(array(bulk("a"), bulk("x")))
        client.asks("MULTI").asks("RPUSH", "b", "x").asks("DEL", "b").asks("EXEC")
        client.hears(OK, QUEUED * 2, array(b":1\r\n", b":1\r\n"))


def test_a_transaction_is_bounded():
    with Resp(max_line=1000) as talk:
        client = talk.connect().asks("MULTI").hears(OK)
        client.says(b"PING\r\n" * 10_000)
        client.hears(QUEUED * 10_000).asks("PING").hears_resp_error(
            "ERR a transaction may have at most 10000 commands and must not exceed the maximum request size"
        )
        client.asks("EXEC").hears_resp_error(ABORTED)
        client.asks("MULTI").asks("ECHO", "x" * 600).asks("ECHO", "x" * 600)
        client.hears(OK, QUEUED).hears_resp_error(
            "ERR a transaction may have at most 10000 commands and must not exceed the maximum request size"
        )
        client.asks("EXEC").hears_resp_error(ABORTED)
        client.asks("MULTI").asks("ECHO", "x" * 600).asks("EXEC")
        client.hears(OK, QUEUED, array(bulk("x" * 600)))


# Watching


def test_a_changed_watched_key_aborts_the_transaction():
    with Resp() as talk:
        client, other = talk.connect(), talk.connect()
        for change in (
            ("RPUSH", "a", "x"),
            ("LPUSH", "a", "x"),
            ("EXPIRE", "a", 100),
            ("BRPOP", "a", 1),
            ("DEL", "a"),
            ("HSET", "a", "b", "c"),
            ("FLUSHDB",),
        ):
            client.asks("WATCH", "a", "b").hears(OK)
            other.asks(*change)
            other._taken = len(other.wire.heard)  # of any type
            client.asks("MULTI").asks("PING").asks("EXEC").hears(OK, QUEUED, b"*-1\r\n")
        client.asks("MULTI").asks("PING").asks("EXEC").hears(OK, QUEUED, array(b"+PONG\r\n"))


def test_an_unchanged_watched_key():
    with Resp() as talk:
        client, other = talk.connect(), talk.connect()
        client.asks("WATCH", "a", "ql:j:a", "ql:list", "ql:set", "ql:q:queue-work").hears(OK)
        other.asks("RPUSH", "b", "x").hears(b":1\r\n")
        other.asks("DEL", "a").hears(b":0\r\n").asks("EXISTS", "a").hears(b":0\r\n")
        client.asks("MULTI").asks("RPUSH", "a", "x").asks("EXEC").hears(
            OK, QUEUED, array(b":1\r\n")
        )


@pytest.mark.parametrize("key", ["ql:j:a", "ql:q:queue-work"])
def test_a_watched_key_of_qless(key):
    with Resp() as talk:
        client, other = talk.connect(), talk.connect()
        client.asks("WATCH", key).hears(OK)
        other.asks("QLESS.PUT", 0, "a").hears(bulk("a"))
        client.asks("MULTI").asks("PING").asks("EXEC").hears(OK, QUEUED, b"*-1\r\n")
        client.asks("WATCH", key).asks("MULTI").asks("PING").asks("EXEC")
        client.hears(OK, OK, QUEUED, array(b"+PONG\r\n"))


@pytest.mark.parametrize("end", [("UNWATCH",), ("RESET",)])
def test_unwatch(end):
    with Resp() as talk:
        client = talk.connect().asks("WATCH", "a").hears(OK)
        talk.connect().asks("RPUSH", "a", "x").hears(b":1\r\n")
        client.asks(*end)
        client._taken = len(client.wire.heard)
        client.asks("MULTI").asks("PING").asks("EXEC").hears(OK, QUEUED, array(b"+PONG\r\n"))


def test_watching_is_bounded_and_ends_with_the_connection():
    with Resp() as talk:
        client = talk.connect().asks("WATCH", *range(1000)).hears(OK)
        client.asks("WATCH", "more").hears_resp_error("ERR a client may watch at most 1000 keys")
        client.hangs_up()
        assert not talk.hub.scratch._watchers


def test_names_that_are_watched_are_bounded():
    with Resp() as talk:
        client = talk.connect().asks("WATCH", "k" * 1000).hears(OK)
        text = "ERR the name of a watched key may have at most 1000 bytes"
        client.asks("WATCH", "a", "k" * 1001).hears_resp_error(text)
        assert list(talk.hub.scratch._watchers) == [b"k" * 1000]


def test_the_number_of_queued_arguments_is_bounded():
    with Resp(max_line=10_000) as talk:
        client = talk.connect().asks("MULTI").hears(OK)
        client.asks("DEL", *[""] * 100).hears(QUEUED)
        client.asks("DEL", *[""] * 100)
        client.hears_resp_error(
            "ERR a transaction may have at most 10000 commands and must not exceed the maximum request size"
        )


def test_the_replies_of_a_transaction_are_bounded(monkeypatch):
    """Each of a thousand commands may read the whole scratch space."""
    monkeypatch.setattr(transactions, "MAX_REPLY_BYTES", 1000)
    with Resp() as talk:
        client = talk.connect().asks("RPUSH", "l", "x" * 400).hears(b":1\r\n")
        client.asks("MULTI").hears(OK)
        for _ in range(3):
            client.asks("LRANGE", "l", 0, -1).hears(QUEUED)
        client.asks("LLEN", "l").hears(QUEUED)
        told, error = array(bulk("x" * 400)), b"-%b\r\n" % TOO_LARGE.encode()
        client.asks("EXEC").hears(array(told, told, error, b":1\r\n"))

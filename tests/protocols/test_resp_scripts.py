"""SCRIPT, EVAL, EVALSHA and QLESS.<COMMAND>: the called commands, their arguments and replies."""

import pytest
from resp_conversation import (
    NIL,
    OK,
    SCRIPT_B,
    SCRIPT_C,
    SCRIPT_D,
    SCRIPT_PUT,
    SHA_C,
    Resp,
    array,
    bulk,
)

from millrace.protocols.qless.script_catalog import SPEC_COMMANDS, Script, sha_of

NO_SCRIPT = b"-NOSCRIPT No matching script. Please use EVAL.\r\n"
UNKNOWN = (
    b"-ERR Millrace does not run Lua. It recognizes only the scripts of qless-core and reqless-core, "
    b"and this is not one of them. See QLESS.PUT and similar commands for calls without a script.\r\n"
)
#: A client of dialect A would load this for its command `get`.
SCRIPT_GET = b"if #KEYS > 0 then error('Get(): No Keys') end return redis.call('hgetall', ARGV[1])"


# Loading


def test_a_script_is_loaded_and_known():
    with Resp() as talk:
        client = talk.connect()
        client.asks("EVALSHA", SHA_C, 0, "echo", 1).hears(NO_SCRIPT)
        client.asks("SCRIPT", "EXISTS", SHA_C, "x").hears(array(b":0\r\n", b":0\r\n"))
        client.asks("script", "load", SCRIPT_C).hears(bulk(SHA_C))
        client.asks("SCRIPT", "EXISTS", SHA_C.upper(), "x").hears(array(b":1\r\n", b":0\r\n"))
        client.asks("EVALSHA", SHA_C, 0, "echo", 1).hears(bulk("C  1"))
        client.asks("evalsha", SHA_C.upper(), 0, "echo", 1).hears(bulk("C  1"))
        assert talk.hub.api.kept == {SHA_C.decode(): Script("C")}


def test_a_known_sha_is_not_enough():
    """The client then loads the script, and the next call succeeds."""
    with Resp() as talk:
        client = talk.connect()
        client.asks("EVALSHA", "e22308e0c17253ff34e753088c8e9954c52a6dae", 0, "echo").hears(
            NO_SCRIPT
        )


def test_a_script_loaded_before_a_restart_is_known():
    with Resp() as talk:
        talk.acts(lambda world: world.hub.scripts.update({SHA_C: Script("C")}))
        talk.connect().asks("EVALSHA", SHA_C, 0, "echo", 1).hears(bulk("C  1"))


def test_script_flush_removes_only_scripts():
    with Resp() as talk:
        client = talk.connect().loads().asks("RPUSH", "a", "b").hears(b":1\r\n")
        client.asks("SCRIPT", "FLUSH").hears(OK)
        client.asks("EVALSHA", SHA_C, 0, "echo").hears(NO_SCRIPT)
        client.asks("SCRIPT", "EXISTS", SHA_C).hears(array(b":0\r\n"))
        client.asks("LLEN", "a").hears(b":1\r\n")
        assert talk.hub.api.kept == {}
        client.loads().asks("SCRIPT", "FLUSH", "async").hears(OK)
        client.asks("SCRIPT", "FLUSH", "x").hears_resp_error(
            "ERR SCRIPT FLUSH only support SYNC|ASYNC option"
        )


def test_flushing_the_database_keeps_scripts():
    with Resp() as talk:
        client = talk.connect().loads().asks("FLUSHDB").hears(OK)
        client.asks("EVALSHA", SHA_C, 0, "echo", 1).hears(bulk("C  1"))


@pytest.mark.parametrize("script", [b"return 1", b"", SCRIPT_C[:30], b"x" * ((1 << 20) + 1)])
def test_other_scripts_are_refused(script):
    with Resp() as talk:
        client = talk.connect()
        client.asks("SCRIPT", "LOAD", script).hears(UNKNOWN)
        client.asks("EVAL", script, 0).hears(UNKNOWN)
        client.asks("EVALSHA", sha_of(script), 0).hears(NO_SCRIPT)


def test_loading_waits_for_the_commit_and_a_repetition_changes_nothing():
    with Resp() as talk:
        client = talk.connect().loads().loads()
        assert client.wire.durable == [0]


def test_a_reverted_script_is_stored_when_it_is_loaded_again():
    with Resp() as talk:
        client = talk.connect().loads()
        talk.acts(lambda world: world.hub.api.kept.clear())  # as after a refused commit
        client.asks("EVALSHA", SHA_C, 0, "echo", 1).hears(bulk("C  1")).loads()
        assert talk.hub.api.kept == {SHA_C.decode(): Script("C")}
        assert client.wire.durable == [0, 2]


def test_the_number_of_scripts_is_limited(monkeypatch):
    monkeypatch.setattr("millrace.protocols.qless.hub.MAX_SCRIPTS", 2)
    with Resp() as talk:
        client = talk.connect().loads(SCRIPT_B).loads(SCRIPT_C).loads(SCRIPT_B)
        client.asks("SCRIPT", "LOAD", SCRIPT_D).hears_resp_error(
            "ERR at most 2 scripts can be loaded; SCRIPT FLUSH removes them"
        )


def test_script_errors():
    with Resp() as talk:
        client = talk.connect()
        client.asks("SCRIPT", "KILL").hears_resp_error("NOTBUSY No scripts in execution right now.")
        for words, error in (
            (("LOAD",), "ERR wrong number of arguments for 'script|load' command"),
            (("EXISTS",), "ERR wrong number of arguments for 'script|exists' command"),
            (("FOO",), "ERR unknown subcommand 'FOO'. Try SCRIPT HELP."),
            ((), "ERR wrong number of arguments for 'script' command"),
        ):
            client.asks("SCRIPT", *words).hears_resp_error(error)


# Calling


def test_eval_loads_and_calls():
    with Resp() as talk:
        client = talk.connect().asks("EVAL", SCRIPT_C, 0, "echo", "now", 1).hears(bulk("C  now,1"))
        client.asks("EVALSHA", SHA_C, 0, "echo").hears(bulk("C  "))


@pytest.mark.parametrize(("script", "dialect"), [(SCRIPT_B, "B"), (SCRIPT_C, "C"), (SCRIPT_D, "D")])
def test_a_unified_script_takes_the_command_first(script, dialect):
    with Resp() as talk:
        client, sha = talk.connect().loads(script), sha_of(script)
        client.asks("EVALSHA", sha, 0, "echo", "12.5", "x").hears(bulk(f"{dialect}  12.5,x"))
        client.asks("EVALSHA", sha, 0).hears_resp_error("ERR user_script:1: Must provide a command")
        client.asks("EVALSHA", sha, 1, "echo").hears_resp_error(
            "ERR user_script:1: No Keys should be provided"
        )
        client.asks("EVALSHA", sha, 3, "a", "b", "c").hears_resp_error(
            "ERR user_script:1: No Keys should be provided"
        )
        client.asks("EVALSHA", sha, 0, "nonsense").hears_resp_error(
            "ERR user_script:1: Unknown command nonsense"
        )


def test_a_script_per_command_has_keys():
    with Resp() as talk:
        client = talk.connect().loads(SCRIPT_PUT)
        client.asks("EVALSHA", sha_of(SCRIPT_PUT), 1, "job-1", "klass").hears(bulk("job-1"))
        client.asks("EVALSHA", sha_of(SCRIPT_PUT), 0, "", "klass").hears_resp_error(
            'ERR user_script:1: Put(): Arg "jid" missing'
        )
        client.loads(SCRIPT_GET).asks("EVALSHA", sha_of(SCRIPT_GET), 0, "x").hears_resp_error(
            "ERR user_script:1: Unknown command get"  # of the few commands on this port
        )
        assert talk.engine.find("job-1") is not None


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("x",), "ERR value is not an integer or out of range"),
        (("00",), "ERR value is not an integer or out of range"),
        (("2", "a"), "ERR Number of keys can't be greater than number of args"),
        (("-1", "a"), "ERR Number of keys can't be negative"),
    ],
)
def test_the_number_of_keys(words, error):
    with Resp() as talk:
        client = talk.connect().loads()
        client.asks("EVALSHA", SHA_C, *words).hears_resp_error(error)
        client.asks("EVAL", SCRIPT_C, *words).hears_resp_error(error)
        client.asks("QLESS.PUT", *words).hears_resp_error(error)
        client.asks("EVALSHA", "nobody", *words).hears(NO_SCRIPT)


@pytest.mark.parametrize(
    ("value_name", "resp2", "resp3"),
    [
        ("nil", NIL, b"_\r\n"),
        ("true", b":1\r\n", b":1\r\n"),
        ("false", NIL, b"_\r\n"),
        ("number", b":3\r\n", b":3\r\n"),
        ("empty", b"*0\r\n", b"*0\r\n"),
        ("list", b"*3\r\n$1\r\na\r\n:1\r\n$-1\r\n", b"*3\r\n$1\r\na\r\n:1\r\n_\r\n"),
    ],
)
def test_values_are_converted_as_in_scripts(value_name, resp2, resp3):
    with Resp() as talk:
        client = talk.connect().loads()
        client.asks("EVALSHA", SHA_C, 0, "value", value_name).hears(resp2)
        client.speaks_resp3().asks("EVALSHA", SHA_C, 0, "value", value_name).hears(resp3)


def test_after_a_large_reply_the_next_command_waits():
    with Resp() as talk:
        client = talk.connect().loads()
        client.asks("EVALSHA", SHA_C, 0, "value", "large").asks("PING")
        client.hears(bulk(b"x" * 100_000), b"+PONG\r\n")


# Without a script


def test_the_spec_as_plain_commands():
    with Resp() as talk:
        client = talk.connect()
        client.says(b"QLESS.PUT 1 job-1 klass\r\n").hears(bulk("job-1"))
        client.asks("qless.put", 0, "").hears_resp_error(
            'ERR user_script:1: Put(): Arg "jid" missing'
        )
        assert client.wire.durable == [0]


def test_every_command_of_the_spec_exists():
    names = """Cancel Complete Depends Fail Failed Get GetConfig Heartbeat Jobs Peek Pop Priority Put
        Queues Retry SetConfig Stats Tag Track Workers Unfail ConsistencyCheck"""
    assert {name.lower() for name in names.split()} <= SPEC_COMMANDS
    with Resp() as talk:
        client = talk.connect()
        for name in names.split():
            if name != "Put":
                client.asks(f"QLESS.{name}", 0).hears_resp_error(
                    f"ERR user_script:1: Unknown command {name.lower()}"
                )


# Changes


def test_only_changes_wait_for_the_commit():
    with Resp() as talk:
        client = talk.connect().loads()
        client.asks("EVALSHA", SHA_C, 0, "put", "job-1").hears(bulk("job-1"))
        client.asks("EVALSHA", SHA_C, 0, "echo").hears(bulk("C  "))
        client.asks("EVALSHA", SHA_C, 0, "drop", "job-2").hears(NIL)
        client.asks("EVALSHA", SHA_C, 0, "drop", "job-1").hears(b":1\r\n")
        client.asks("PING").hears(b"+PONG\r\n")
        assert client.wire.durable == [0, 1, 4]


def halt(reason: str):
    return lambda world: setattr(world.engine, "unavailable_reason", reason)


def test_while_the_store_fails_changes_are_refused():
    with Resp() as talk:
        client = talk.connect().loads().asks("RPUSH", "a", "b").hears(b":1\r\n")
        talk.acts(halt("disk full"))
        refusal = "MISCONF disk full: nothing was changed, try again later"
        client.asks("EVALSHA", SHA_C, 0, "put", "job-1").hears_resp_error(refusal)
        client.asks("FLUSHDB").hears_resp_error(refusal)
        client.asks("SCRIPT", "FLUSH").hears_resp_error(refusal)
        client.asks("SCRIPT", "LOAD", SCRIPT_B).hears_resp_error(refusal)
        client.loads().asks("EVALSHA", SHA_C, 0, "echo").hears(bulk("C  "))
        client.asks("LLEN", "a").hears(b":1\r\n")
        client.asks("MULTI").hears(OK)
        client.asks("EVALSHA", SHA_C, 0, "put", "job-1").asks("PING").hears(b"+QUEUED\r\n" * 2)
        client.asks("EXEC").hears(array(b"-%b\r\n" % refusal.encode(), b"+PONG\r\n"))
        talk.acts(halt(""))
        client.asks("EVALSHA", SHA_C, 0, "put", "job-1").hears(bulk("job-1"))


def test_a_refused_reply():
    with Resp() as talk:
        client = talk.connect()
        said = b"-MISCONF disk full: nothing was changed, try again later\r\n"
        assert client.connection.unavailable_reply("disk full") == said

"""Commands about the connection and the server, and the errors that any command can have."""

import pytest
from resp_conversation import NIL, OK, Resp, array, bulk

from millrace import __version__

# Any command


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b"foo a b", "ERR unknown command 'foo', with args beginning with: 'a' 'b' "),
        (b"FOO", "ERR unknown command 'FOO', with args beginning with: "),
        (
            b"foo " + b"x" * 200 + b" yy",
            f"ERR unknown command 'foo', with args beginning with: '{'x' * 128}' ",
        ),
        (
            b"foo " + b"x" * 100 + b" " + b"y" * 100,
            f"ERR unknown command 'foo', with args beginning with: '{'x' * 100}' '{'y' * 25}' ",
        ),
        (b"got x", "ERR unknown command 'got', with args beginning with: 'x' "),
        (b"eval_ro x 0", "ERR unknown command 'eval_ro', with args beginning with: 'x' '0' "),
        (b"qless.nonsense 0", "ERR unknown command 'qless.nonsense', with args beginning with: '0' "),
        (b"ping a b", "ERR wrong number of arguments for 'ping' command"),
        (b"Echo", "ERR wrong number of arguments for 'echo' command"),
        (b"time x", "ERR wrong number of arguments for 'time' command"),
        (b"keys", "ERR wrong number of arguments for 'keys' command"),
        (b"evalsha abc", "ERR wrong number of arguments for 'evalsha' command"),
        (b"subscribe", "ERR wrong number of arguments for 'subscribe' command"),
        (b"publish a", "ERR wrong number of arguments for 'publish' command"),
        (b"qless.put", "ERR wrong number of arguments for 'qless.put' command"),
        (b"reset now", "ERR wrong number of arguments for 'reset' command"),
    ],
)  # fmt: skip
def test_errors_have_the_texts_of_redis(line, error):
    with Resp() as talk:
        talk.connect().says(line + b"\r\n").hears_resp_error(error).is_still_there()


def test_an_error_quotes_its_input_on_one_line():
    with Resp() as talk:
        talk.connect().asks("a\r\nb", b"\xff\n").hears(
            b"-ERR unknown command 'a  b', with args beginning with: '\xff ' \r\n"
        )


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"*1\r\n:1\r\n", "expected '$', got ':'"),
        (b"*x\r\n", "invalid multibulk length"),
        (b"*131073\r\n", "invalid multibulk length"),
        (b"*1\r\n$67108865\r\n", "invalid bulk length"),
        (b'ping "\r\n', "unbalanced quotes in request"),
    ],
)
def test_a_framing_error_ends_the_connection(data, text):
    with Resp() as talk:
        client = talk.connect().asks("PING").hears(b"+PONG\r\n")
        client.says(data + b"PING\r\n").hears_resp_error(f"ERR Protocol error: {text}")
        client.hears_the_end()


# The connection


def test_ping_echo_quit():
    with Resp() as talk:
        client = talk.connect()
        client.says(b"PING\r\n").hears(b"+PONG\r\n").asks("ping", "hi").hears(bulk("hi"))
        client.asks("ECHO", b"\x00\r\n").hears(bulk(b"\x00\r\n"))
        client.says(b"QUIT now\r\nPING\r\n").hears(OK).hears_the_end()


def test_every_database_has_its_scratch_keys():
    with Resp() as talk:
        client = talk.connect().asks("RPUSH", "list", "x").hears(b":1\r\n")
        client.asks("SELECT", 15).hears(OK).asks("LLEN", "list").hears(b":0\r\n")
        client.asks("SELECT", 0).hears(OK).asks("LLEN", "list").hears(b":1\r\n")
        client.asks("SELECT", 16).hears_resp_error("ERR DB index is out of range")
        client.asks("SELECT", -1).hears_resp_error("ERR DB index is out of range")
        client.asks("SELECT", "x").hears_resp_error("ERR value is not an integer or out of range")


def test_client():
    with Resp() as talk:
        client = talk.connect()
        client.asks("CLIENT", "ID").hears(b":1\r\n")
        client.asks("CLIENT", "GETNAME").hears(NIL)
        client.asks("client", "setname", "worker-1").hears(OK)
        client.asks("CLIENT", "GETNAME").hears(bulk("worker-1"))
        client.asks("CLIENT", "INFO").hears(
            bulk("id=1 name=worker-1 db=0 sub=0 psub=0 multi=-1 user=default resp=2\n")
        )
        client.asks("CLIENT", "SETINFO", "lib-name", "redis-rb").hears(OK)
        client.asks("CLIENT", "NO-EVICT", "on").hears(OK).asks("CLIENT", "NO-TOUCH", "off").hears(
            OK
        )
        client.asks("CLIENT", "SETNAME", "").hears(OK).asks("CLIENT", "GETNAME").hears(NIL)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("foo",), "ERR unknown subcommand 'foo'. Try CLIENT HELP."),
        (("KILL", "1"), "ERR unknown subcommand 'KILL'. Try CLIENT HELP."),
        ((), "ERR wrong number of arguments for 'client' command"),
        (("setname",), "ERR wrong number of arguments for 'client|setname' command"),
        (("id", "x"), "ERR wrong number of arguments for 'client|id' command"),
        (("SETINFO", "FOO", "x"), "ERR Unrecognized option 'FOO'"),
        (("NO-EVICT", "maybe"), "ERR syntax error"),
        (("SETNAME", "a\nb"), "ERR Client names cannot contain spaces, newlines or special characters."),
        (("SETNAME", "x" * 1001), "ERR Client names cannot contain spaces, newlines or special characters."),
    ],
)  # fmt: skip
def test_client_errors(words, error):
    with Resp() as talk:
        talk.connect().asks("CLIENT", *words).hears_resp_error(error)


def test_reset():
    with Resp() as talk:
        client = talk.connect().speaks_resp3()
        client.asks("CLIENT", "SETNAME", "me").hears(OK).asks("SELECT", 3).hears(OK)
        client.asks("SUBSCRIBE", "a").hears(b">3\r\n", bulk("subscribe"), bulk("a"), b":1\r\n")
        client.asks("MULTI").hears(OK).asks("PING").hears(b"+QUEUED\r\n")
        client.asks("RESET").hears(b"+RESET\r\n")
        client.asks("CLIENT", "GETNAME").hears(NIL)
        client.asks("EXEC").hears_resp_error("ERR EXEC without MULTI")
        client.asks("PUBLISH", "a", "x").hears(b":0\r\n")
        client.asks("CLIENT", "INFO").hears(
            bulk("id=1 name= db=0 sub=0 psub=0 multi=-1 user=default resp=2\n")
        )


# The server


def info(client, *sections: str) -> dict[str, str]:
    client.asks("INFO", *sections)
    lines = client.hears_bulk().decode().split("\r\n")
    return dict(line.split(":", 1) for line in lines if ":" in line)


def test_info():
    with Resp() as talk:
        client = talk.connect()
        everything = info(client)
        assert everything["redis_version"] == "7.2.0"
        assert everything["millrace_version"] == __version__
        assert everything["uptime_in_seconds"] == "100"
        assert everything["loading"] == "0"
        assert everything["connected_clients"] == "1"
        assert everything["role"] == "master"
        assert everything["cluster_enabled"] == "0"
        assert "db0" not in everything
        assert info(client, "everything").keys() == everything.keys()
        assert "role" not in info(client, "server")
        client.asks("RPUSH", "a", "x").hears(b":1\r\n")
        assert info(client, "Keyspace", "nonsense") == {"db0": "keys=1,expires=0,avg_ttl=0"}
        assert info(client, "nonsense") == {}
        assert info(client, "stats")["total_commands_processed"] == "7"


def test_info_is_text_in_resp3():
    with Resp() as talk:
        talk.connect().speaks_resp3().asks("INFO", "cluster").hears(
            b"=34\r\ntxt:# Cluster\r\ncluster_enabled:0\r\n\r\n"
        )


def test_info_counts_waiting_clients():
    with Resp() as talk:
        talk.connect().asks("BRPOP", "list", 0)
        client = talk.connect()
        assert info(client, "clients")["blocked_clients"] == "1"


def test_command():
    with Resp() as talk:
        client = talk.connect()
        client.asks("COMMAND").hears(b"*0\r\n")
        client.asks("COMMAND", "DOCS").hears(b"*0\r\n")
        client.asks("COMMAND", "INFO", "a", "b").hears(array(NIL, NIL))
        count = len(client.connection.commands)
        client.asks("COMMAND", "COUNT").hears(b":%d\r\n" % count)
        client.asks("COMMAND", "LIST").hears(b"*%d\r\n" % count)
        names = {client.hears_bulk() for _ in range(count)}
        assert {b"evalsha", b"qless.put", b"ping"} <= names
        client.asks("COMMAND", "FOO").hears_resp_error(
            "ERR unknown subcommand 'FOO'. Try COMMAND HELP."
        )
        talk.connect().speaks_resp3().asks("COMMAND", "DOCS", "get").hears(b"%0\r\n")


def test_time():
    with Resp() as talk:
        talk.advance(0.25)
        talk.connect().asks("TIME").hears(array(bulk("1794771831"), bulk("250000")))


def test_config():
    with Resp() as talk:
        client = talk.connect()
        client.asks("CONFIG", "GET", "slow-*").hears(b"*0\r\n")
        client.asks("config", "set", "slowlog-max-len", 100000).hears(OK)
        client.asks("CONFIG", "SET", "slowlog-log-slower-than", 0, "slowlog-max-len", 1).hears(OK)
        client.asks("CONFIG", "RESETSTAT").hears(OK)
        client.asks("CONFIG", "SET", "foo", "bar").hears_resp_error(
            "ERR Unknown option or number of arguments for CONFIG SET - 'foo'"
        )
        client.asks("CONFIG", "SET", "slow").hears_resp_error(
            "ERR wrong number of arguments for 'config|set' command"
        )
        client.asks("CONFIG", "FOO").hears_resp_error(
            "ERR unknown subcommand 'FOO'. Try CONFIG HELP."
        )
        talk.connect().speaks_resp3().asks("CONFIG", "GET", "*").hears(b"%0\r\n")


def test_slowlog():
    with Resp() as talk:
        client = talk.connect()
        client.asks("SLOWLOG", "GET").hears(b"*0\r\n").asks("SLOWLOG", "GET", 10).hears(b"*0\r\n")
        client.asks("slowlog", "len").hears(b":0\r\n").asks("SLOWLOG", "RESET").hears(OK)
        client.asks("SLOWLOG", "GET", "x").hears_resp_error(
            "ERR count should be greater than or equal to -1"
        )
        client.asks("SLOWLOG", "FOO").hears_resp_error(
            "ERR unknown subcommand 'FOO'. Try SLOWLOG HELP."
        )


# The end


def test_a_half_closed_client_receives_its_replies():
    with Resp() as talk:
        client = talk.connect().says(b"PING\r\n*1\r\n$4\r\nPI").hears(b"+PONG\r\n")
        client.says_no_more().hears_the_end()


def test_a_half_closed_client_stops_waiting():
    with Resp() as talk:
        client = talk.connect().says(b"BRPOP list 0\r\nPING\r\n").hears_nothing()
        client.says_no_more().hears(b"*-1\r\n", b"+PONG\r\n").hears_the_end()
        talk.connect().asks("RPUSH", "list", "x").hears(b":1\r\n")

"""The first commands of clients, byte for byte, and their replies."""

import pytest
from resp_conversation import NIL, OK, Resp, bulk, greeting, request

UNKNOWN_SUBCOMMAND = b"-ERR unknown subcommand 'MAINT_NOTIFICATIONS'. Try CLIENT HELP.\r\n"


# redis-py, version by version


@pytest.mark.parametrize("version", ["2.10", "3.5", "4.6"])
def test_old_redis_py_sends_no_handshake(version):
    with Resp() as talk:
        talk.connect().says(b"*1\r\n$4\r\nPING\r\n").hears(b"+PONG\r\n")


@pytest.mark.parametrize("version", ["2.10", "3.5", "4.6"])
def test_old_redis_py_with_another_database(version):
    with Resp() as talk:
        talk.connect().says(b"*2\r\n$6\r\nSELECT\r\n$1\r\n5\r\n").hears(OK)


@pytest.mark.parametrize("version", ["5.0", "6.0", "7.0"])
def test_newer_redis_py_sends_its_name(version):
    with Resp() as talk:
        talk.connect().says(
            b"*4\r\n$6\r\nCLIENT\r\n$7\r\nSETINFO\r\n$8\r\nLIB-NAME\r\n$8\r\nredis-py\r\n"
        ).says(
            b"*4\r\n$6\r\nCLIENT\r\n$7\r\nSETINFO\r\n$7\r\nLIB-VER\r\n$5\r\n%b.0\r\n"
            % version.encode()
        ).hears(OK, OK)


def test_redis_py_8_requires_resp3():
    with Resp() as talk:
        client = talk.connect()
        client.says(b"*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n").hears(
            b"%7\r\n"
            b"$6\r\nserver\r\n$5\r\nredis\r\n"
            b"$7\r\nversion\r\n$5\r\n7.2.0\r\n"
            b"$5\r\nproto\r\n:3\r\n"
            b"$2\r\nid\r\n:1\r\n"
            b"$4\r\nmode\r\n$10\r\nstandalone\r\n"
            b"$4\r\nrole\r\n$6\r\nmaster\r\n"
            b"$7\r\nmodules\r\n*0\r\n"
        )
        client.says(
            b"*6\r\n$6\r\nCLIENT\r\n$19\r\nMAINT_NOTIFICATIONS\r\n$2\r\nON\r\n"
            b"$20\r\nmoving-endpoint-type\r\n$11\r\ninternal-ip\r\n$0\r\n\r\n"
        ).hears(UNKNOWN_SUBCOMMAND)
        client.says(
            b"*4\r\n$6\r\nCLIENT\r\n$7\r\nSETINFO\r\n$8\r\nLIB-NAME\r\n$8\r\nredis-py\r\n"
            b"*4\r\n$6\r\nCLIENT\r\n$7\r\nSETINFO\r\n$7\r\nLIB-VER\r\n$5\r\n8.1.0\r\n"
        ).hears(OK, OK)
        client.asks("CLIENT", "GETNAME").hears(b"_\r\n")


def test_redis_py_8_with_a_password():
    with Resp(password="sesame") as talk:
        talk.connect().says(
            b"*5\r\n$5\r\nHELLO\r\n$1\r\n3\r\n$4\r\nAUTH\r\n$7\r\ndefault\r\n$6\r\nsesame\r\n"
        ).hears(greeting(3, 1)).asks("PING").hears(b"+PONG\r\n")


def test_node_redis_2_reads_info_first():
    with Resp() as talk:
        client = talk.connect().says(b"*1\r\n$4\r\ninfo\r\n")
        lines = client.hears_bulk().split(b"\r\n")
        assert b"loading:0" in lines
        assert b"redis_version:7.2.0" in lines


# HELLO


def test_hello_in_both_protocols():
    with Resp() as talk:
        client = talk.connect()
        client.asks("HELLO").hears(greeting(2, 1))
        client.asks("HELLO", 2).hears(greeting(2, 1))
        client.asks("hello", 3).hears(greeting(3, 1))
        client.asks("HELLO").hears(greeting(3, 1))
        client.asks("HELLO", 2, "SETNAME", "me").hears(greeting(2, 1))
        client.asks("CLIENT", "GETNAME").hears(bulk("me"))
        talk.connect().asks("HELLO", "3", "setname", "you").hears(greeting(3, 2))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("4",), "NOPROTO unsupported protocol version"),
        (("1",), "NOPROTO unsupported protocol version"),
        (("x",), "ERR Protocol version is not an integer or out of range"),
        (("2", "FOO"), "ERR Syntax error in HELLO option 'FOO'"),
        (("2", "AUTH", "default"), "ERR Syntax error in HELLO option 'AUTH'"),
        (("2", "SETNAME"), "ERR Syntax error in HELLO option 'SETNAME'"),
        (("3", "AUTH", "nobody", "x"), "WRONGPASS invalid username-password pair or user is disabled."),
        (("3", "SETNAME", "a b"), "ERR Client names cannot contain spaces, newlines or special characters."),
    ],
)  # fmt: skip
def test_an_invalid_hello_changes_nothing(arguments, error):
    with Resp() as talk:
        client = talk.connect().asks("HELLO", *arguments).hears_resp_error(error)
        client.asks("CLIENT", "GETNAME").hears(NIL)


# AUTH

WRONG = "WRONGPASS invalid username-password pair or user is disabled."
NEEDED = "NOAUTH Authentication required."


def test_wrong_passwords_are_limited_per_minute():
    limited = "WRONGPASS too many wrong passwords, try again in 60 s"
    with Resp(password="sesame") as talk:
        client = talk.connect()
        for guess in range(10):
            client.asks("AUTH", f"wrong {guess}").hears_resp_error(WRONG)
            if not guess:  # a repetition is not counted
                client.asks("AUTH", f"wrong {guess}").hears_resp_error(WRONG)
        client.asks("AUTH", "sesame").hears_resp_error(limited)
        client.asks("HELLO", 3, "AUTH", "default", "sesame").hears_resp_error(limited)
        talk.connect().asks("AUTH", "sesame").hears_resp_error(limited)
        talk.advance(60)
        client.asks("AUTH", "sesame").hears(b"+OK\r\n")


def test_a_password_is_needed():
    with Resp(password="sesame") as talk:
        client = talk.connect()
        client.asks("PING").hears_resp_error(NEEDED)
        client.asks("EVALSHA", "x", 0).hears_resp_error(NEEDED)
        client.asks("SUBSCRIBE", "x").hears_resp_error(NEEDED)
        client.asks("MULTI").hears_resp_error(NEEDED)
        client.asks("GOT").hears_resp_error("ERR unknown command 'GOT', with args beginning with: ")
        client.asks("ECHO").hears_resp_error("ERR wrong number of arguments for 'echo' command")
        client.asks("AUTH", "wrong").hears_resp_error(WRONG)
        client.asks("AUTH", "somebody", "sesame").hears_resp_error(WRONG)
        client.asks("HELLO", 3, "AUTH", "default", "wrong").hears_resp_error(WRONG)
        client.asks("HELLO", 3).hears_resp_error(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO "
            "<proto> AUTH <user> <pass> option can be used to authenticate the client and select "
            "the RESP protocol version at the same time"
        )
        assert client.connection.handshake_overdue()
        client.asks("AUTH", "sesame").hears(OK).asks("PING").hears(b"+PONG\r\n")
        assert not client.connection.handshake_overdue()
        talk.connect().asks("auth", "default", "sesame").hears(OK)
        talk.connect().asks("QUIT").hears(OK).hears_the_end()


def test_no_password_is_needed():
    with Resp() as talk:
        client = talk.connect()
        client.asks("AUTH", "x").hears_resp_error(
            "ERR AUTH <password> called without any password configured for the default user. Are "
            "you sure your configuration is correct?"
        )
        client.asks("AUTH", "default", "x").hears(OK)
        client.asks("AUTH", "other", "x").hears_resp_error(WRONG)
        client.asks("AUTH", "a", "b", "c").hears_resp_error("ERR syntax error")
        assert not client.connection.handshake_overdue()


def test_unauthenticated_clients_have_lower_limits():
    with Resp(password="sesame") as talk:
        talk.connect().says(b"*11\r\n").hears_resp_error(
            "ERR Protocol error: unauthenticated multibulk length"
        ).hears_the_end()
        talk.connect().says(b"*2\r\n$4\r\nAUTH\r\n$20000\r\n").hears_resp_error(
            "ERR Protocol error: unauthenticated bulk length"
        ).hears_the_end()
        client = talk.connect().asks("AUTH", "sesame").hears(OK)
        client.asks("ECHO", "x" * 20_000).hears(bulk("x" * 20_000))
        client.asks("EXISTS", *"abcdefghijkl").hears(b":0\r\n")


def test_reset_removes_the_authentication():
    with Resp(password="sesame") as talk:
        client = talk.connect()
        client.says(request("AUTH", "sesame") + request("ECHO", "x" * 20_000) + request("RESET"))
        client.hears(OK, bulk("x" * 20_000), b"+RESET\r\n")
        client.asks("PING").hears_resp_error(NEEDED)
        client.asks("ECHO", "x" * 20_000).hears_resp_error(
            "ERR Protocol error: unauthenticated bulk length"
        ).hears_the_end()


def test_too_many_clients_are_refused():
    with Resp(max_connections=2) as talk:
        first = talk.connect()
        talk.connect()
        talk.connect().hears_resp_error("ERR max number of clients reached").hears_the_end()
        first.hangs_up()
        talk.connect().asks("PING").hears(b"+PONG\r\n")


@pytest.mark.parametrize("line", [b"POST /\r\n", b"host: 127.0.0.1\r\n"])
def test_an_http_request_is_closed_without_a_reply(line):
    with Resp() as talk:
        talk.connect().says(line + b"SET a b\r\n").hears_the_end()

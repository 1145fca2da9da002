"""The facts of the sheet about framing, commands and error strings (sections 1 to 3), on the wire."""

import json
import time

import pytest
from conversation import START, compact
from masenko_conversation import EMPTY, OK, PONG, Masenko, MasenkoClient, MasenkoWorld, error, heard

from millrace.engine.job import ensure_history
from millrace.protocols.masenko import replies
from millrace.protocols.masenko.replies import LARGE_JSON
from wires import data_of

UNREADABLE = error("cannot unmarshal payload")


def unknown(verb: str) -> bytes:
    return error(f"unknown verb {verb}")


# 1. Framing


@pytest.mark.parametrize(
    "line", [b"PING\n", b"ping\n", b"PiNg\n", b"PING {}\n", b"PING \n", b"PING junk \xff {[\n", b"PING  \n"]
)  # fmt: skip
def test_ping_in_any_case_with_any_argument(line):
    assert heard(line) == PONG


@pytest.mark.parametrize("line", [b"PING\r\n", b"PING \r\n", b"PING {}\r\n"])
def test_crlf_after_a_verb(line):
    assert heard(line) == PONG


@pytest.mark.parametrize("line", [b'PUSH {"name":"a"}\r\n', b'PUSH {"name":"a"} \t\r\n'])
def test_crlf_after_json(line):
    assert heard(line) == b'OK {"id":1}\n'


def test_crlf_after_each_bare_verb():
    with Masenko() as talk:
        client = talk.connect()
        client.says(b"FETCH\r\n").hears_nothing()
        talk.advance(30)
        client.hears(EMPTY).says(b"ATOMIC\r\nDONE\r\n").hears(OK)
        assert client.says(b"INFO\r\n")._line().startswith(b'OK {"queues":[]')
        client.says(b"QUIT\r\n").hears(OK).hears_the_end()


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (b"\n", b""),
        (b" \n", b""),
        (b" PING\n", b""),
        (b"\r\n", b""),
        (b"NOPE\n", b"NOPE"),
        (b"nope {}\n", b"nope"),
        (b"NOPE\r\n", b"NOPE"),
        (b"NO\rPE\n", rb"NO\rPE"),
        (b"PING\t{}\n", rb"PING\t{}"),
        (b"DONE\n", b"DONE"),
        (b"PING\x00\n", rb"PING\u0000"),
        (b'a"b\\c\n', rb"a\"b\\c"),
        (b"<&>\n", rb"\u003c\u0026\u003e"),
        ("ż\u2028\u2029\n".encode(), "ż".encode() + rb"\u2028\u2029"),
        (b"a\xffb\n", rb"a\ufffdb"),
        (b"\xe2\x82\n", rb"\ufffd\ufffd"),
        ("\ufffd\n".encode(), "\ufffd".encode()),
        (b"\xff<\n", rb"\ufffd\u003c"),
    ],
)
def test_unknown_verbs_are_echoed(line, shown):
    assert heard(line) == b'ERR {"msg":"unknown verb %b"}\n' % shown


def test_a_long_s_equals_an_s_in_go():
    assert heard('PU\u017fH {"name":"a"}\n'.encode()) == b'OK {"id":1}\n'
    assert heard("PINGß\n".encode()) == unknown("PINGß")


def test_an_error_does_not_echo_without_bound():
    reply = heard(b"x" * 100_000 + b"\n")
    assert reply.startswith(b'ERR {"msg":"unknown verb xxx')
    assert len(reply) < 5000


def test_pipelined_replies_are_in_order_and_a_fetch_delays_later_commands():
    with Masenko() as talk:
        client, other = talk.connect(), talk.connect()
        client.says('FETCH {"timeout":"10s"}\nPING\nNOPE\nFETCH {"timeout":"1ms"}\nPING')
        client.hears_nothing()
        other.pushes()
        assert client.hears_task()["id"] == 1
        client.hears(PONG, unknown("NOPE"))
        talk.advance(0.001)
        client.hears(EMPTY, PONG)


def test_bytes_without_a_newline_are_dropped_at_the_end():
    with Masenko() as talk:
        client = talk.connect().says(b'PING\nPUSH {"name":"a"}').hears(PONG)
        client.says_no_more().hears_the_end()
        assert talk.engine.next_seq == 1


@pytest.mark.parametrize("extra", [0, 1, 1000])
def test_a_line_is_as_long_as_allowed_and_no_longer(extra):
    with Masenko(max_line=1000) as talk:
        client = talk.connect()
        client.says(b"PING " + b"x" * (995 + extra) + b"\nPING\n")
        if extra:
            client.hears_error("line longer than 1000 bytes").hears_the_end()
        else:
            client.hears(PONG, PONG)


def test_an_endless_line_is_refused():
    with Masenko(max_line=1000) as talk:
        talk.connect().says(b"PING\n" + b"x" * 1001).hears(PONG).hears_error(
            "line longer than 1000 bytes"
        ).hears_the_end()


def test_a_line_of_megabytes():
    with Masenko() as talk:
        client = talk.connect().says(b"PING " + b"x" * ((8 << 20) - 5)).hears_nothing()
        client.says(b"x").hears_error("line longer than 8388608 bytes").hears_the_end()


def test_three_megabytes_are_answered():
    assert heard(b"PING " + b"x" * 3_000_000 + b"\n") == PONG


MEGABYTES = 8 << 20
LONG = {
    "a verb": "ż".encode() * (MEGABYTES // 2 - 5),
    "a bad name": b'PUSH {"name":"%b"}' % (b"!" * (MEGABYTES - 100)),
    "a moment": b'PUSH {"name":"a","execute_at":"2020-01-01T00:00:00.%bZ"}'
    % (b"1" * (MEGABYTES - 100)),
    "a span": b'FETCH {"timeout":"%b"}' % (b"1ns" * (MEGABYTES // 3 - 100)),
    "blockers": b'PUSH {"name":"a","blocked_by":[%b1]}' % (b"1," * (MEGABYTES // 2 - 100)),
    "unusual keys": b'PUSH {"NAME":"a","x":%b1]}' % (b"[1," * 20_000),
    "an unusual id": b"ACK [" + b"1," * 40_000,
}


@pytest.mark.parametrize("problem", LONG)
def test_a_long_line_takes_linear_time(problem):
    world = MasenkoWorld({})
    wire = world.connect()
    started = time.process_time()
    wire.receive(b"ATOMIC\n" + LONG[problem] + b"\nDONE\n" + LONG[problem] + b"\n")
    assert time.process_time() - started < 5
    assert [reply[:3] for reply in wire.replies] == [b"ERR", b"ERR"]
    assert len(wire.heard) < 20_000


def test_a_share_of_commands_at_a_time():
    world = MasenkoWorld({})
    connection = world.connect().connection
    assert connection.receive(b"PING\n" * 10, world.now, 4)
    assert len(connection.replies) == 4
    assert connection.unprocessed_bytes > 0
    assert connection.run(world.now, 4)
    assert not connection.run(world.now, 4)
    assert (len(connection.replies), connection.unprocessed_bytes) == (10, 0)


def test_a_long_line_is_a_larger_share():
    world = MasenkoWorld({})
    connection = world.connect().connection
    assert connection.receive((b"PING " + b"x" * 50_000 + b"\n") * 10, world.now, 64)
    assert len(connection.replies) == 5


def test_fed_input_is_executed_later():
    world = MasenkoWorld({})
    connection = world.connect().connection
    connection.feed(b"PING\nPI")
    connection.feed(b"NG\n")
    assert connection.replies == []
    assert not connection.run(world.now, 64)
    assert data_of(connection) == [PONG, PONG]


def test_too_many_connections():
    with Masenko(max_connections=1) as talk:
        first, second = talk.connect(), talk.connect()
        second.hears_error("too many connections").hears_the_end()
        first.says("PING").hears(PONG).hangs_up()
        talk.connect().says("PING").hears(PONG)


# 1. JSON as Go reads it


def pushed(line: bytes | str) -> tuple[str, str, str, int, bytes]:
    """The result of a PUSH: name, queue, deadqueue, retry, payload."""
    with Masenko() as talk:
        client = talk.connect()
        client.says(b"PUSH %b\n" % (line if isinstance(line, bytes) else line.encode()))
        client.hears(b'OK {"id":1}\n')
        job = talk.job(1)
        dead_queue = "" if job.extra is None else job.extra.dead_queue
        return job.kind, job.queue, dead_queue, job.retries, job.inline_payload


PLAIN = ("a", "default", "", 20, b"")


@pytest.mark.parametrize(
    "line",
    [
        '{"name":"a"}',
        '{"NAME":"a"}',
        ' { "Name" : "a" } ',
        '{"name":"x","Name":"a"}',
        '{"name":"a","name":null}',
        '{"name":"a","color":{"x":[1]},"":1}',
        '{"n\\u0061me":"\\u0061"}',
        '{"name":"a","queue":null,"deadqueue":null,"retry":null,"execute_at":null,"blocked_by":null}',
        '{"name":"a","queue":""}',
        '{"name":"a","deadqueue":""}',
        '{"name":"a","queue":"x","queue":"default"}',
        '{"name":"a","retry":3,"RETRY":20}',
        '{"name":"a","blocked_by":[]}',
        '{"name":"a","execute_at":"2030-01-01T00:00:00Z","execute_at":null}',
    ],
)
def test_equivalent_forms_of_one_task(line):
    assert pushed(line) == PLAIN


@pytest.mark.parametrize(
    "line",
    [
        '{"name":"a","retry":0,"execute_at":"2020-01-01T00:00:00Z"}',
        '{"name":"a","retry":0,"payload":"-0"}',
        '{"name":"a","retry":0,"queue":"b-0"}',
    ],
)
def test_no_retry_with_a_minus_and_a_zero_elsewhere(line):
    """It was mistaken for `"retry":-0`, which Go refuses."""
    assert heard(f"PUSH {line}") == b'OK {"id":1}\n'


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b" ",
        b"{",
        b"}",
        b"x",
        b'{"name":"a"} x',
        b'{"name":"a"}{}',
        b'{"name":"a",}',
        b"[]",
        b"5",
        b'"a"',
        b"true",
        b'["name","a"]',
        b'{"name":5}',
        b'{"name":["a"]}',
        b'{"name":5,"name":"a"}',
        b'{"name":"a","queue":1}',
        b'{"name":"a","deadqueue":{}}',
        b'{"name":"a","retry":"3"}',
        b'{"name":"a","retry":2.0}',
        b'{"name":"a","retry":1e1}',
        b'{"name":"a","retry":-1}',
        b'{"name":"a","retry":-0}',
        b'{"name":"a","retry":256}',
        b'{"name":"a","retry":true}',
        b'{"name":"a","Retry":300}',
        b'{"name":"a","execute_at":""}',
        b'{"name":"a","execute_at":1600000000}',
        b'{"name":"a","execute_at":"2030-01-01T00:00:00"}',
        b'{"name":"a","execute_at":"2030-01-01t00:00:00z"}',
        b'{"name":"a","execute_at":"2030-01-01 00:00:00Z"}',
        b'{"name":"a","execute_at":"2030-01-01T00:00:00,5Z"}',
        b'{"name":"a","execute_at":"2030-13-01T00:00:00Z"}',
        b'{"name":"a","Execute_At":"nonsense"}',
        b'{"name":"a","blocked_by":1}',
        b'{"name":"a","blocked_by":["1"]}',
        b'{"name":"a","blocked_by":[1.0]}',
        b'{"name":"a","blocked_by":[9223372036854775808]}',
        b'{"name":"a","blocked_by":[-9223372036854775809]}',
        b'{"name":"a","Blocked_by":[1,{}]}',
        b'{"name":"a","payload":}',
        b'{"name":"a","payload":01}',
        b'{"name":"a","payload":"\x01"}',
        b'{"name":"a","payload":"\\x"}',
        b'{"name":"a","payload":[1,]}',
        b'{"name":"a","payload":NaN}',
        b'{"name":"a\x00"}',
        b"\xef\xbb\xbf{}",
        b'{"name":"a","payload":' + b"[" * 10_001 + b"]" * 10_001 + b"}",
        b'{"name":"a","payload":"\\ud800' + b"x" * 200_000 + b'"}',
    ],
)
def test_unreadable_json(line):
    assert heard(b"PUSH " + line + b"\n") == UNREADABLE


def test_unknown_keys_of_a_long_line_are_ignored():
    more = b'"more":"%b"' % (b"x" * 100_000)
    assert pushed(b'{"Name":"a","Retry":3,%b}' % more) == ("a", "default", "", 3, b"")
    with Masenko() as talk:
        client = talk.connect()
        client.pushes()
        client.says(b'FETCH {"queues":["default"],%b}\n' % more)
        client.hears(b'OK {"id":1,"queue":"default","name":"a"}\n')
        client.says(b'ACK {"id":1,%b}\n' % more).hears(OK)


@pytest.mark.parametrize(
    "more",
    [
        rb'"more":"\ud800%b"' % (b"x" * 100_000),
        rb'"\uDFFF":[%b{}]' % (b"{}," * 40_000),
        b'"more":"\xff%b"' % (b"x" * 100_000),
        b'"more":%b1%b,"pad":"%b"' % (b"[" * 900, b"]" * 900, b"x" * 100_000),
    ],
    ids=["lone surrogate", "lone surrogate in a key", "not UTF-8", "900 levels"],
)
def test_unusual_text_under_an_unknown_key_of_a_long_line_is_ignored(more):
    payload = rb'"\ud83d\ude00 \\\\ud800"'  # a pair, and an escaped backslash
    expected = ("a", "default", "", 20, payload)
    assert pushed(b'{"name":"a","payload":%b,%b}' % (payload, more)) == expected
    with Masenko() as talk:
        client = talk.connect()
        client.pushes()
        client.says(b'FETCH {"queues":["default"],%b}\n' % more)
        client.hears(b'OK {"id":1,"queue":"default","name":"a"}\n')
        client.says(b'ACK {"id":1,%b}\n' % more).hears(OK)


def test_a_long_line_with_a_lone_surrogate_has_a_bounded_number_of_backslashes():
    more = rb'"more":"\ud800%b%b"' % (b"x" * 100_000, rb"\n" * 9_999)
    assert pushed(b'{"name":"a",%b}' % more) == PLAIN
    assert heard(b'PUSH {"name":"a",%b}\n' % more.replace(b"xx", rb"\n")) == UNREADABLE


def test_a_date_in_the_payload_is_not_a_negative_zero():
    line = b'{"name":"a","retry":0,"payload":"2024-01-02"}'
    assert pushed(line) == ("a", "default", "", 0, b'"2024-01-02"')


def test_null_is_an_empty_object():
    assert heard("PUSH null", "PUSH {}", 'PUSH {"name":null}') == error('invalid task name ""') * 3


def test_invalid_text():
    assert pushed(b'{"name":"a\xff"}') == ("a\ufffd", "default", "", 20, b"")
    assert pushed(rb'{"name":"a\ud800b"}') == ("a\ufffdb", "default", "", 20, b"")
    assert pushed(rb'{"name":"a","queue":"q\ud83d\ude00"}') == ("a", "q😀", "", 20, b"")
    assert pushed(b'{"name":"a","\xff":1}') == PLAIN


@pytest.mark.parametrize(
    ("payload", "shown"),
    [
        (b"1e400", b"1e400"),
        (b"12345678901234567890123", b"12345678901234567890123"),
        (b"2.0", b"2.0"),
        (b"-0.0", b"-0.0"),
        (b"null", b"null"),
        (b'""', b'""'),
        (b"0", b"0"),
        (b"false", b"false"),
        (rb'"\/"', rb'"\/"'),
        (rb'"\ud800"', rb'"\ud800"'),
        (rb'{"a" : "\ud800"}', rb'{"a":"\ud800"}'),
        (b'"\xff"', b'"\xff"'),
        (b'{"\xff": [1, 2]}', b'{"\xff":[1,2]}'),
        (rb'"\u003c"', rb'"\u003c"'),
        (b'"<&>"', rb'"\u003c\u0026\u003e"'),
        ('"ż\u2028\u2029"'.encode(), '"ż'.encode() + rb'\u2028\u2029"'),
        (b"  [ 1 ,\t2 ]  ", b"[1,2]"),
        (b'"a b  c\\" d"', b'"a b  c\\" d"'),
        (b'{ "a  b" : "c \\" \\ud800" }', b'{"a  b":"c \\" \\ud800"}'),
        (
            b'{"a": [1, 2.0, 1e400], "a": "dup",  "b": "<&>"}',
            rb'{"a":[1,2.0,1e400],"a":"dup","b":"\u003c\u0026\u003e"}',
        ),
        (b"[" * 9_000 + b" " + b"]" * 9_000, b"[" * 9_000 + b"]" * 9_000),
        (b"[" * 900 + b"]" * 900, b"[" * 900 + b"]" * 900),
    ],
)  # fmt: skip
def test_payloads_are_returned_unchanged(payload, shown):
    with Masenko() as talk:
        client = talk.connect().says(b'PUSH {"name":"a","payload":%b}\n' % payload)
        client.hears(b'OK {"id":1}\n').says("FETCH")
        client.hears(b'OK {"id":1,"queue":"default","name":"a","payload":%b}\n' % shown)
        assert talk.job(1).inline_payload == payload.strip()


def test_names_are_returned_in_the_format_of_go():
    with Masenko() as talk:
        client = talk.connect()
        client.says(b'PUSH {"name":"a<\\"\\u0001\\b\x7f","queue":"\xc5\xbc\xc3\xb3\xc5\x82w-1&"}\n')
        client.hears(b'OK {"id":1}\n').says('FETCH {"queues":["żółw-1&"]}')
        client.hears(
            b'OK {"id":1,"queue":"\xc5\xbc\xc3\xb3\xc5\x82w-1\\u0026","name":"a\\u003c\\"\\u0001\\b\x7f"}\n'
        )


# 2. PUSH


@pytest.mark.parametrize(
    "name", ["a", "0", "_", "-", "has space!", "żółw-1", "x" * 255, "!a!", "ż1"]
)
def test_good_names(name):
    assert pushed(compact({"name": name, "queue": name, "deadqueue": name}))[:3] == (name,) * 3


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("", rb"\"\""),
        ("!!!", rb"\"!!!\""),
        ("ąę", '\\"ąę\\"'.encode()),
        ("<&>ż!", rb"\"\u003c\u0026\u003e" + 'ż!\\"'.encode()),
        ('"', rb"\"\\\"\""),
        ("\\", rb"\"\\\\\""),
        ("\n\x00\x7f", rb"\"\\n\\x00\\x7f\""),
        ("\u00a0\u200b", rb"\"\\u00a0\\u200b\""),
        ("\u2028", rb"\"\\u2028\""),
        ("\U000e0001", rb"\"\\U000e0001\""),
    ],
)
def test_bad_names(name, shown):
    assert (
        heard(b"PUSH %b\n" % compact({"name": name}))
        == b'ERR {"msg":"invalid task name %b"}\n' % shown
    )
    if name:
        queue = compact({"name": "a", "queue": name})
        assert heard(b"PUSH %b\n" % queue) == b'ERR {"msg":"invalid queue name %b"}\n' % shown


def test_a_bad_deadqueue_is_reported_with_the_name_of_the_queue():
    assert heard('PUSH {"name":"a","queue":"q","deadqueue":"!!!"}') == error(
        'invalid queue name "q"'
    )


def test_the_order_of_the_checks():
    bad = {"queue": "!", "deadqueue": "?", "name": "."}
    blocked = {"blocked_by": [0] * 256, "payload": "x" * 65_536}
    with Masenko(dialect="original") as talk:
        client = talk.connect()
        client.says(b"PUSH %b\n" % compact({**bad, **blocked, "retry": 300})).hears(UNREADABLE)
        for fix, text in (
            ({}, 'invalid queue name "!"'),
            ({"queue": "q"}, 'invalid queue name "q"'),
            ({"deadqueue": "d"}, 'invalid task name "."'),
            ({"name": "n"}, "at most 255 blocked by task IDs can be provided"),
            ({"blocked_by": [0] * 255}, "cannot use relative blocked by outside of a transaction"),
            ({"blocked_by": [1]}, "cannot push to queue: wall append: serialize operation: input: arguments too big"),
        ):  # fmt: skip
            bad |= blocked | fix
            blocked = {}
            client.says(b"PUSH %b\n" % compact(bad)).hears_error(text)


@pytest.mark.parametrize("retry", [0, 1, 20, 255])
def test_retry(retry):
    assert pushed(f'{{"name":"a","retry":{retry}}}')[3] == retry


@pytest.mark.parametrize("blocker", [0, -1, -9_223_372_036_854_775_808])
def test_no_relative_blockers_outside_of_a_transaction(blocker):
    text = "cannot use relative blocked by outside of a transaction"
    for key in ("blocked_by", "Blocked_By"):
        assert heard(f'PUSH {{"name":"a","{key}":[1,{blocker}]}}') == error(text)
    assert heard('PUSH {"name":"a","blocked_by":[null]}') == error(text)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"queue": "q" * 256}, "queue name too long"),
        ({"name": "n" * 256}, "task name too long"),
        ({"deadqueue": "d" * 256}, "deadqueue name too long"),
        ({"queue": "q" + "ż" * 128}, "queue name too long"),
        ({"payload": "x" * 65_534}, "arguments too big"),
        ({"queue": "q" * 256, "name": "n" * 256, "payload": "x" * 65_534}, "queue name too long"),
        ({"name": "n" * 256, "deadqueue": "d" * 256}, "task name too long"),
        ({"deadqueue": "d" * 256, "payload": "x" * 65_534}, "deadqueue name too long"),
    ],
)
def test_values_beyond_their_length_skip_an_id(fields, problem):
    with Masenko(dialect="original") as talk:
        client = talk.connect().says(b"PUSH %b\n" % compact({"name": "a", **fields}))
        client.hears_error(
            f"cannot push to queue: wall append: serialize operation: input: {problem}"
        )
        assert client.pushes() == 2
        assert list(talk.engine.jobs) == [2]
        assert client.queues() == {"default": (1, 0, 0)}


def test_names_are_limited_in_the_dialect_of_the_original_only():
    fields = {"queue": "q" * 256, "name": "n" * 300, "deadqueue": "d" * 1000}
    assert pushed(compact(fields))[:3] == ("n" * 300, "q" * 256, "d" * 1000)


def test_values_of_the_maximum_length():
    fields = {"queue": "q" + "ż" * 127, "name": "n" * 255, "deadqueue": "d" * 255}
    assert pushed(compact({**fields, "payload": "x" * 65_533}))[4] == b'"' + b"x" * 65_533 + b'"'


def test_the_size_of_a_payload_is_that_of_its_input():
    line = b'{"name":"a","payload":[%b1]}' % (b" " * 65_532)
    assert len(pushed(line)[4]) == 65_535
    line = b'PUSH {"name":"a","payload":[%b1]}\n' % (b" " * 65_533)
    assert b"arguments too big" in heard(line, dialect="original")
    assert heard(line) == b'OK {"id":1}\n'


def test_all_queues_share_one_counter_of_ids():
    with Masenko() as talk:
        client, other = talk.connect(), talk.connect()
        assert [client.pushes(queue=q) for q in "abc"] == [1, 2, 3]
        client.says("PUSH x").hears(UNREADABLE)
        assert other.pushes() == 4


def test_ids_continue_beyond_32_bits():
    with Masenko() as talk:
        talk.acts(lambda world: world.engine.skip_seqs((1 << 32) - 1))
        client = talk.connect()
        first = client.pushes()
        assert first == 1 << 32
        client.pushes("b", blocked_by=[first])
        assert client.fetches()["id"] == first
        client.finds_nothing().says('ACK {"id":1}').hears_error("task not acquired")
        client.acks(first)
        assert client.fetches()["id"] == first + 1
        client.nacks(first + 1)


# 2. FETCH


def fetch_error(line: str, **options: int) -> bytes:
    return heard(f"FETCH {line}", **options)


@pytest.mark.parametrize(
    "line", ["FETCH", "FETCH ", "fetch {}", 'FETCH {"queues":["default"]}', "FETCH null",
             'FETCH {"Queues":["default"],"x":1}', 'FETCH {"queues":["x","default"]}',
             'FETCH {"queues":[null]}', 'FETCH {"queues":[" default","default"],"timeout":"1s"}',
             'FETCH {"queues":["default","default"]}', 'FETCH {"queues":["\\ud800","defau\\u006ct"]}'],
)  # fmt: skip
def test_forms_of_a_fetch_from_the_default_queue(line):
    with Masenko() as talk:
        client = talk.connect()
        client.pushes()
        client.says(line).hears(b'OK {"id":1,"queue":"default","name":"a"}\n')


@pytest.mark.parametrize(
    "line", ['{"queues":[]}', '{"queues":null}', '{"queues":[],"timeout":"44s"}']
)
def test_an_empty_list_of_queues_is_answered_immediately(line):
    with Masenko() as talk:
        client = talk.connect()
        client.pushes()
        client.says(f"FETCH {line}").hears(EMPTY)


def test_invalid_queue_names_are_empty_queues():
    with Masenko() as talk:
        client = talk.connect()
        client.pushes()
        client.finds_nothing("", "!!!", "x" * 300, "Default", "*")
        assert client.queues() == {"default": (1, 0, 0)}


@pytest.mark.parametrize(
    "line",
    [
        " ",
        "x",
        "[]",
        '"default"',
        "{} {}",
        '{"queues":"default"}',
        '{"queues":[1]}',
        '{"queues":{"a":1}}',
        '{"timeout":""}',
        '{"timeout":"1"}',
        '{"timeout":"5 s"}',
        '{"timeout":1.5}',
        '{"timeout":1e7}',
        '{"timeout":true}',
        '{"timeout":[]}',
        '{"timeout":{}}',
        '{"timeout":9223372036854775808}',
        '{"timeout":-9223372036854775809}',
        '{"timeout":99999999999999999999999}',
        '{"Timeout":"x"}',
        '{"TIMEOUT":1.0}',
        '{"queues":["a","b"],"timeout":"1s"',
    ],
)
def test_fetches_that_cannot_be_read(line):
    assert fetch_error(line) == UNREADABLE


@pytest.mark.parametrize(
    "timeout", ["0", "-1", "null", '"0"', '"0s"', '"-5s"', '"-0.1ns"', "-9223372036854775808", "-0"]
)
def test_an_invalid_timeout(timeout):
    text = error("timeout must be greater than zero")
    assert fetch_error(f'{{"timeout":{timeout}}}') == text
    assert fetch_error(f'{{"queues":[],"TimeOut":{timeout}}}') == text


@pytest.mark.parametrize(
    ("heartbeat", "shown"),
    [
        (45_000_000, "45s"),
        (1_000_000, "1s"),
        (90_000_000, "1m30s"),
        (1_500_000, "1.5s"),
        (500_000, "500ms"),
        (3_600_000_000, "1h0m0s"),
    ],
)
def test_a_timeout_beyond_the_heartbeat(heartbeat, shown):
    text = error(f"timeout must be smaller than the heartbeat frequency {shown}")
    line = f'{{"queues":[],"timeout":{heartbeat * 1000 + 1}}}'
    assert fetch_error(line, heartbeat=heartbeat) == text
    assert fetch_error(line.replace("}", ',"queues":["a"]}'), heartbeat=heartbeat) == text


@pytest.mark.parametrize("timeout", ['"1m"', '"45.000000001s"', "45000000001", '"2h45m"'])
def test_timeouts_longer_than_45_seconds(timeout):
    text = error("timeout must be smaller than the heartbeat frequency 45s")
    assert fetch_error(f'{{"timeout":{timeout}}}') == text


@pytest.mark.parametrize(
    ("timeout", "seconds"),
    [
        ("30000000", 0.03),
        ('"30ms"', 0.03),
        ('"1.5s"', 1.5),
        ('"1s500ms"', 1.5),
        ('".5s"', 0.5),
        ('"+2s"', 2),
        ('"1500\\u00b5s"', 0.0015),
        ('"1500\u03bcs"', 0.0015),
        ('"1500us"', 0.0015),
        ('"0.7m"', 42),
        ('"4.999912s"', 4.999912),
    ],
)
def test_timeouts(timeout, seconds):
    with Masenko() as talk:
        client = talk.connect().says(f'FETCH {{"queues":["x"],"timeout":{timeout}}}')
        talk.advance(seconds - 0.000001)
        client.hears_nothing()
        talk.advance(0.000001)
        client.hears(EMPTY)


def test_thousands_of_queues():
    names = [f"q{n}" for n in range(20_000)]
    with Masenko() as talk:
        client, other = talk.connect(), talk.connect()
        other.pushes(queue=names[-1])
        client.says(b"FETCH %b\n" % compact({"queues": names}))
        client.hears(b'OK {"id":1,"queue":"q19999","name":"a"}\n')
        client.says(b"FETCH %b\n" % compact({"queues": names, "timeout": "1s"})).hears_nothing()
        other.pushes(queue=names[5])
        talk.advance(0.05)
        client.hears(b'OK {"id":2,"queue":"q5","name":"a"}\n')
        client.says(b"FETCH %b\n" % compact({"queues": names, "timeout": "1s"}))
        talk.advance(1)
        client.hears(EMPTY).says("PING").hears(PONG)
        assert set(talk.engine.queues) == {"q19999", "q5"}


def test_a_fetch_from_a_million_queues_blocks_no_other_client():
    world = MasenkoWorld({})
    connection = world.connect().connection
    names = b"".join(b'"%d",' % n for n in range(900_000))
    connection.receive(b'FETCH {"queues":[%b"b"]}\n' % names, world.now, 1)
    slices = 1
    while connection.run(world.now, 1):
        slices += 1
    assert slices > 800
    assert connection.waiter is not None


def test_a_repeated_fetch_is_parsed_again_after_another():
    with Masenko() as talk:
        client = talk.connect()
        for queue in "ab":
            client.pushes(queue=queue)
            client.pushes(queue=queue)
        line = 'FETCH {"queues":["a"]}'
        assert client.says(line).hears_task()["queue"] == "a"
        assert client.says(line.replace('"a"', '"b"')).hears_task()["queue"] == "b"
        client.says("FETCH x").hears(UNREADABLE)
        assert client.says(line.replace('"a"', '"b"')).hears_task()["queue"] == "b"
        assert client.says(line).hears_task()["queue"] == "a"


def test_ready_tasks_are_first_in_first_out():
    with Masenko() as talk:
        client = talk.connect()
        for number in range(5):
            client.pushes(f"n{number}")
        assert [client.fetches()["name"] for _ in range(5)] == ["n0", "n1", "n2", "n3", "n4"]


def test_any_number_of_tasks_at_a_time_acknowledged_in_any_order():
    with Masenko() as talk:
        client = talk.connect()
        for _ in range(50):
            client.pushes()
        for _ in range(50):
            client.fetches()
        for task in (*range(2, 51, 2), *range(1, 51, 2)):
            client.acks(task)
        assert client.queues() == {"default": (0, 0, 0)}


def test_waiting_fetches_are_answered_immediately_in_order():
    with Masenko() as talk:
        first, second, client = talk.connect(), talk.connect(), talk.connect()
        first.asks("a", "b", timeout="40s")
        second.asks("b", timeout="40s")
        client.pushes(queue="b")
        assert first.hears_task()["id"] == 1
        second.hears_nothing()
        client.pushes(queue="b")
        assert second.hears_task()["id"] == 2


def test_failures_in_the_reply():
    with Masenko() as talk:
        client = talk.connect()
        task = client.pushes(payload={"a": 1})
        client.fetches()
        client.nacks(task)
        talk.advance(1)
        client.says("FETCH").hears(
            b'OK {"id":1,"queue":"default","name":"a","payload":{"a":1},"failures":1}\n'
        )


# 2. ACK and NACK


VERBS = pytest.mark.parametrize("verb", ["ACK", "NACK", "ack", "nAck"])


def record(verb: str) -> str:
    return "ackRequest" if verb.upper() == "ACK" else "nackRequest"


@VERBS
@pytest.mark.parametrize(
    "line", ["{}", '{"id":0}', '{"id":null}', "null", '{"x":1}', '{"id":null,"ID":0}']
)
def test_a_missing_id(verb, line):
    assert heard(f"{verb} {line}") == error("missing id")


@VERBS
def test_tasks_of_other_clients(verb):
    with Masenko() as talk:
        client, other = talk.connect(), talk.connect()
        client.pushes()
        client.pushes()
        client.fetches()
        for task in (1, 2, 3, 4_294_967_295):
            other.says(f'{verb} {{"id":{task}}}').hears_error("task not acquired")
        talk.acts(lambda world: world.hold_commits())
        client.says(f'{verb} {{"id":1}}').hears(OK)
        client.says(f'{verb} {{"id":1}}').hears_error("task not acquired")
        assert client.wire.durable == [0, 1, 3, 4]  # also refused by the rule for durability


@VERBS
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", "unexpected end of JSON input"),
        (" ", "unexpected end of JSON input"),
        ("{", "unexpected end of JSON input"),
        ("x", "invalid character 'x' looking for beginning of value"),
        ("{}x", "invalid character 'x' after top-level value"),
        ('{"id":1,}', "invalid character '}' looking for beginning of object key string"),
        ("{'id':1}", "invalid character '\\'' looking for beginning of object key string"),
        ('{"id":01}', "invalid character '1' after object key:value pair"),
        ('{"id":-}', "invalid character '}' in numeric literal"),
        ('{"id":tru}', "invalid character '}' in literal true (expecting 'e')"),
        ("[" * 10_001, "exceeded max depth"),
        ('{"id":"x"}', "json: cannot unmarshal string into Go struct field R.id of type uint32"),
        ('{"id":"1"}', "json: cannot unmarshal string into Go struct field R.id of type uint32"),
        ('{"id":-1}', "json: cannot unmarshal number -1 into Go struct field R.id of type uint32"),
        ('{"id":-0}', "json: cannot unmarshal number -0 into Go struct field R.id of type uint32"),
        (
            '{"id":1.0}',
            "json: cannot unmarshal number 1.0 into Go struct field R.id of type uint32",
        ),
        (
            '{"id":1e3}',
            "json: cannot unmarshal number 1e3 into Go struct field R.id of type uint32",
        ),
        (
            '{"id":4294967296}',
            "json: cannot unmarshal number 4294967296 into Go struct field R.id of type uint32",
        ),
        ('{"id":true}', "json: cannot unmarshal bool into Go struct field R.id of type uint32"),
        ('{"id":[1]}', "json: cannot unmarshal array into Go struct field R.id of type uint32"),
        ('{"id":{}}', "json: cannot unmarshal object into Go struct field R.id of type uint32"),
        (
            '{"Id":[],"id":"x","id":5}',
            "json: cannot unmarshal array into Go struct field R.id of type uint32",
        ),
        ("[]", "json: cannot unmarshal array into Go value of type proto.R"),
        ("[1]", "json: cannot unmarshal array into Go value of type proto.R"),
        ("5", "json: cannot unmarshal number into Go value of type proto.R"),
        ('"x"', "json: cannot unmarshal string into Go value of type proto.R"),
        ("false", "json: cannot unmarshal bool into Go value of type proto.R"),
        ("[" + "1," * 70_000, "json: cannot unmarshal array into Go value of type proto.R"),
    ],
)
def test_ids_that_cannot_be_read(verb, line, words):
    text = "unmarshal payload: " + words.replace("R.id", f"{record(verb)}.id")
    assert heard(f"{verb} {line}") == error(text.replace("proto.R", f"proto.{record(verb)}"))


@pytest.mark.parametrize(
    "line", ['{"id":1}', '{"ID":1}', ' { "id" : 1 } ', '{"id":5,"Id":1,"x":"\\ud800"}']
)
def test_equivalent_forms_of_one_id(line):
    with Masenko() as talk:
        client = talk.connect()
        client.pushes()
        client.fetches()
        client.says(f"ACK {line}").hears(OK)


# 2. INFO


def test_no_queues():
    assert heard("INFO", dialect="original") == b'OK {"queues":[]}\n'


def test_info_of_the_original():
    with Masenko(dialect="original") as talk:
        client = talk.connect()
        for queue in ("b", "a", "b<"):
            client.pushes(queue=queue)
        client.fetches("a")
        client.says("INFO junk").hears(
            b'OK {"queues":[{"name":"b","ready":1,"delayed":0,"to_ack":0},'
            b'{"name":"a","ready":0,"delayed":0,"to_ack":1},'
            rb'{"name":"b\u003c","ready":1,"delayed":0,"to_ack":0}]}'
            b"\n"
        )


def test_metrics():
    with Masenko() as talk:
        client, other = talk.connect(), talk.connect()
        client.pushes("a", queue="q")
        client.pushes("a", queue="q", execute_at="2030-01-01T00:00:00Z")
        client.fetches("q")
        client.finds_nothing().says("NACK x")
        client.hears_error(
            "unmarshal payload: invalid character 'x' looking for beginning of value"
        )
        client.acks(1).says("PING").hears(PONG).says("NOPE").hears(unknown("NOPE"))
        client.commits('PUSH {"name":"a"}', 'PUSH {"name":"a"}').hears(b'OK {"ids":[3,4]}\n')
        client.commits("PING").hears_error("PING is not allowed in transaction.")
        other.says("QUIT").hears(OK)
        assert client.info()["metrics"] == {
            "masenko_clients_total": 1,
            "masenko_requests_total": {
                "PING": 1,
                "PUSH": 4,
                "FETCH": 1,
                "ACK": 1,
                "NACK": 0,
                "INFO": 1,
                "QUIT": 1,
                "ATOMIC": 1,
            },
            "masenko_responses_total": {"OK": 6, "EMPTY": 1, "ERR": 3, "PONG": 1},
            "masenko_tasks_total": {
                "q": {"ready": 0, "delayed": 1, "to_ack": 0},
                "default": {"ready": 2, "delayed": 0, "to_ack": 0},
            },
        }


@pytest.mark.parametrize("size", [2, 200], ids=["short", "in slices"])
def test_the_commands_of_a_transaction_count_if_it_succeeds(size):
    with Masenko() as talk:
        client = talk.connect()
        task = client.pushes()
        client.fetches()
        pushes = ['PUSH {"name":"a"}'] * (size - 1)
        client.commits(*pushes, 'ACK {"id":9999}').hears_error("task 9999 not acquired")
        expected = {"PUSH": 1, "FETCH": 1, "ACK": 0, "ATOMIC": 0}
        requests = client.info()["metrics"]["masenko_requests_total"]
        assert {verb: requests[verb] for verb in expected} == expected
        client.commits(*pushes, f'ACK {{"id":{task}}}')
        assert client._line().startswith(b"OK ")
        expected = {"PUSH": size, "FETCH": 1, "ACK": 1, "ATOMIC": 1}
        requests = client.info()["metrics"]["masenko_requests_total"]
        assert {verb: requests[verb] for verb in expected} == expected


def test_a_queue_stays_after_its_last_ack_and_blocked_tasks_are_not_counted():
    with Masenko() as talk:
        client = talk.connect()
        first = client.pushes(queue="a")
        second = client.pushes(queue="b", blocked_by=[first])
        assert client.queues() == {"a": (1, 0, 0), "b": (0, 0, 0)}
        client.fetches("a")
        client.acks(first)
        assert client.queues() == {"a": (0, 0, 0), "b": (1, 0, 0)}
        assert client.fetches("b")["id"] == second


def test_waiting_does_not_register_a_queue():
    with Masenko() as talk:
        client, other = talk.connect(), talk.connect()
        client.asks("nowhere", timeout="1s")
        assert other.queues() == {}
        talk.advance(1)
        client.hears(EMPTY)


def drop(client: MasenkoClient, queue: str, **fields: object) -> None:
    task = client.pushes(queue=queue, retry=0, **fields)
    assert client.fetches(queue)["id"] == task
    client.nacks(task)


def test_a_queue_is_removed_with_its_last_dropped_task():
    with Masenko() as talk:
        client = talk.connect()
        for queue in "abc":
            client.pushes(queue=queue)
        drop(client, "gone")
        assert list(client.queues()) == ["a", "b", "c"]
        drop(client, "moved", deadqueue="dead")
        assert list(client.queues()) == ["a", "b", "c", "dead"]
        drop(client, "same", deadqueue="same")
        assert client.queues()["same"] == (1, 0, 0)


@pytest.mark.parametrize("keeps", ["ready", "delayed", "leased", "blocked"])
def test_a_queue_with_other_tasks_stays(keeps):
    with Masenko() as talk:
        client = talk.connect()
        blocker = client.pushes(queue="other")
        task = client.pushes(queue="q", retry=0)
        fields: dict[str, object] = {
            "delayed": {"execute_at": "2030-01-01T00:00:00Z"},
            "blocked": {"blocked_by": [blocker]},
        }.get(keeps, {})
        client.pushes(queue="q", **fields)
        client.fetches("q")
        if keeps == "leased":
            client.fetches("q")
        client.nacks(task)
        assert "q" in client.queues()


def test_a_paused_queue_or_one_with_waiters_stays():
    with Masenko() as talk:
        client, other = talk.connect(), talk.connect()
        task = client.pushes(queue="q", retry=0)
        client.fetches("q")
        talk.acts(lambda world: world.engine.pause("q", paused=True, now=world.now))
        client.nacks(task)
        assert "q" in client.queues()
        talk.acts(lambda world: world.engine.pause("q", paused=False, now=world.now))
        task = client.pushes(queue="q", retry=0)
        client.fetches("q")
        other.asks("q", timeout="1s")
        client.nacks(task)
        assert "q" in client.queues()
        other.hangs_up()


# 2. QUIT


@pytest.mark.parametrize("line", ["QUIT", "quit", "QUIT {}", "QUIT junk"])
def test_quit_closes_the_connection_and_ignores_later_commands(line):
    with Masenko() as talk:
        client = talk.connect()
        client.says(f'{line}\nPUSH {{"name":"a"}}').hears(OK).hears_the_end()
        assert talk.engine.next_seq == 1


# Replies that wait for a commit


def test_which_replies_announce_a_change():
    with Masenko() as talk:
        client = talk.connect()
        client.pushes()  # 0
        client.says("PUSH x").hears(UNREADABLE)
        client.fetches()
        client.says("PING").hears(PONG)
        client.says("INFO")._line()
        client.commits('PUSH {"name":"a"}').hears(b'OK {"ids":[2]}\n')  # 5
        client.commits().hears(OK)
        client.fetches()
        client.acks(2)  # 8
        talk.acts(lambda world: world.hold_commits())
        client.nacks(1)  # 9
        client.says('NACK {"id":1}').hears_error("task not acquired")  # 10
        client.says("QUIT").hears(OK)
        assert client.wire.durable == [0, 5, 8, 9, 10]


def test_a_task_with_an_uncommitted_push_waits_for_the_commit():
    with Masenko() as talk:
        client = talk.connect()
        client.pushes()
        talk.acts(lambda world: world.hold_commits())
        client.pushes()
        client.fetches()
        client.fetches()
        assert client.wire.durable == [0, 1, 3]


# 8. execute_at in its forms


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2026-11-15T19:43:52Z", 1),
        ("2026-11-15T19:43:52.999999999Z", 1),
        ("2026-11-15T20:43:52+01:00", 1),
        ("2026-11-15T11:13:52-08:30", 1),
        ("2026-11-15T19:44:51.5Z", 60),
    ],
)
def test_times(text, seconds):
    with Masenko() as talk:
        client = talk.connect()
        client.pushes(execute_at=text)
        assert talk.job(1).due_at == START + seconds * 1_000_000
        assert client.queues() == {"default": (0, 1, 0)}


@pytest.mark.parametrize(
    "text", ["1969-12-31T23:59:59Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"]
)
def test_times_far_away(text):
    with Masenko() as talk:
        client = talk.connect()
        client.pushes(execute_at=text)
        assert client.queues() == {"default": (0, 1, 0)}
        if text < "2":
            assert client.fetches()["id"] == 1


# Jobs of other protocols


@pytest.mark.parametrize(
    ("payload", "shown"),
    [
        (b'{"a": [1, 2]}', b'"payload":{"a":[1,2]}'),
        (b"[\n1,\r\n2]", b'"payload":[1,2]'),
        (b"plain <text>", rb'"payload":"plain \u003ctext\u003e"'),
        ("żółw\n".encode(), '"payload":"żółw\\n"'.encode()),
        (b"", b'"payload":""'),
        (b"\xff\x00", b'"payload":"/wA=","encoding":"base64"'),
        (b'"\xff"', b'"payload":"Iv8i","encoding":"base64"'),
        (b"01", b'"payload":"01"'),
    ],
)
@pytest.mark.parametrize(("kind", "name"), [("SomeJob", b"SomeJob"), ("", b"q")])
def test_a_job_of_another_protocol(payload, shown, kind, name):
    from scene import unit

    with Masenko() as talk:
        push = unit("some-jid", "q", payload=payload, kind=kind)
        talk.acts(lambda world: world.engine.push(push, world.now))
        client = talk.connect().says('FETCH {"queues":["q"]}')
        client.hears(b'OK {"id":1,"queue":"q","name":"%b",%b}\n' % (name, shown))
        client.acks(1)
        assert talk.engine.jobs == {}


def test_a_job_of_another_protocol_fails_by_the_rules_of_its_origin():
    from scene import unit

    with Masenko() as talk:
        talk.acts(lambda world: world.engine.push(unit("some-jid", "q"), world.now))
        client = talk.connect()
        client.fetches("q")
        client.nacks(1).finds_nothing("q")
        talk.advance(15)
        assert client.fetches("q")["failures"] == 1
        talk.acts(lambda world: setattr(ensure_history(world.engine.jobs[1]), "failures", 300))
        client.nacks(1)
        assert talk.dead == [1]
        assert "q" in client.queues()  # Masenko does not remove it


def test_the_failure_count_is_limited_to_eight_bits():
    from scene import unit

    with Masenko() as talk:
        talk.acts(lambda world: world.engine.push(unit("some-jid", "q"), world.now))
        talk.acts(lambda world: setattr(ensure_history(world.engine.jobs[1]), "failures", 300))
        assert talk.connect().fetches("q")["failures"] == 255


def test_a_task_can_be_found_by_its_id_of_other_protocols():
    with Masenko() as talk:
        client = talk.connect()
        client.pushes()
        assert talk.engine.find("00000000-0000-4000-8000-000000000001") is talk.job(1)


def test_the_reply_is_valid_json():
    with Masenko() as talk:
        client = talk.connect()
        client.pushes("x" * 100, payload={"k": ["v", 1.5, None, True]})
        assert json.loads(json.dumps(client.fetches()))["payload"] == {"k": ["v", 1.5, None, True]}


@pytest.mark.parametrize("text", ["plain", "<a href='x'>&\u2028\u2029", "\u00e2\u2027\u202a"])
def test_special_characters_of_large_payloads_are_escaped(text):
    small = f'["{text}"]'.encode()
    large = f'["{text * LARGE_JSON}"]'.encode()
    assert replies.escape_html(large) == b'["%b"]' % (replies.escape_html(small)[2:-2] * LARGE_JSON)

"""Wire facts beyond the protocol's document, by section: greeting, password, commands, replies,
error texts, life cycle, INFO, additional commands, requirements of clients.
"""

import json
import re

import pytest
from conversation import HI, NULL_BULK, OK, Conversation, bulk, compact, push, unit

from millrace.engine.job import NewJob
from millrace.engine.states import DEAD
from millrace.protocols.registry import GOQUEUE, MASENKO
from support.plain import copy_of
from wires import data_of

NOW = "2026-11-15T19:43:51Z"
SECRET_HI = b'+HI {"v":2,"i":1545,"s":"55104dc76695721d"}\r\n'
#: The layout of a timestamp in Go.
LAYOUT = "2006-01-02T15:04:05.999999999Z07:00"
#: The test vector of the sheet: password foobar, this salt, 1545 iterations.
VECTOR = b"6d877f8e5544b1f2598768f817413ab8a357afffa924dedae99eb91472d4ec30"


# Connection and greeting


def test_greeting_bytes(talk):
    talk.connect().hears(b'+HI {"v":2}\r\n')


def test_greeting_bytes_with_a_password():
    with Conversation(password="foobar") as talk:
        talk.connect().hears(b'+HI {"v":2,"i":1545,"s":"55104dc76695721d"}\r\n')


def test_no_idle_timeout(talk):
    client = talk.client()
    talk.advance(7 * 86_400)
    assert client.info()["server"]["uptime"] == 7 * 86_400


def test_a_second_hello_is_an_unknown_command(talk):
    talk.client().says(b'HELLO {"v":2}\r\nFLUSH\r\n').hears(b"-ERR unknown command HELLO\r\n", OK)


@pytest.mark.parametrize("wid", [b"", b',"wid":null', b',"wid":""'])
def test_a_client_without_a_wid_is_a_producer(talk, wid):
    talk.connect().hears(HI).says(b'HELLO {"v":2%b}\r\n' % wid).hears_ok()
    assert talk.hub.workers.known == {}


def test_a_wid_may_be_short_and_strange(talk):
    talk.connect().hears(HI).says('HELLO {"wid":"2é "}\r\n'.encode()).hears_ok()
    assert list(talk.hub.workers.known) == ["2é "]


# Password


def test_the_password_vector():
    with Conversation(password="foobar") as talk:
        client = talk.connect().hears(SECRET_HI)
        client.says(b'HELLO {"v":2,"pwdhash":"%b"}\r\n' % VECTOR).hears_ok()


@pytest.mark.parametrize(
    "wrong",
    [VECTOR.upper(), VECTOR[:-1], VECTOR + b"0", b"", b"foobar", "é".encode(), VECTOR[:-1] + b"1"],
)
def test_any_other_hash_is_refused_and_the_connection_closed(wrong):
    with Conversation(password="foobar") as talk:
        client = talk.connect().hears(SECRET_HI)
        client.says(b'HELLO {"v":2,"pwdhash":"%b"}\r\nINFO\r\n' % wrong)
        client.hears(b"-ERR Invalid password\r\n").hears_the_end()
        assert talk.hub.connections == set()


def test_a_password_set_between_greeting_and_hello_causes_no_crash():
    # SIGHUP may set a password between the two.
    with Conversation() as talk:
        client = talk.connect().hears(HI)
        talk.acts(lambda world: setattr(world.hub, "password", "foobar"))
        client.says(b'HELLO {"v":2}\r\n')
        heard = bytes(client.wire.heard)[len(HI) :]
        assert heard in {b"+OK\r\n", b"-ERR Invalid password\r\n"}
        client.hears(heard)
        talk.connect().hears(SECRET_HI)


def test_a_password_that_is_dropped_between_greeting_and_hello():
    with Conversation(password="foobar") as talk:
        client = talk.connect().hears(SECRET_HI)
        talk.acts(lambda world: setattr(world.hub, "password", ""))
        client.says(b'HELLO {"v":2,"pwdhash":"%b"}\r\n' % VECTOR).hears_ok()


def test_a_password_hash_is_ignored_without_a_password(talk):
    talk.connect().hears(HI).says(b'HELLO {"v":2,"pwdhash":"nonsense"}\r\n').hears_ok()


# Commands


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_lines_end_in_lf_or_crlf(talk, end):
    client = talk.connect().hears(HI)
    client.says(b'HELLO {"v":2}' + end).hears_ok()
    client.says(b"FLUSH" + end).hears_ok()
    client.says(b"PUSH %b" % compact(unit()) + end).hears_ok()
    assert client.fetches()["jid"] == "job-0001"


def test_line_endings_may_be_mixed(talk):
    talk.client().says(b"FLUSH\nFLUSH\r\nFLUSH\n\nFLUSH\r\n").hears(
        OK, OK, OK, b"-ERR unknown command \r\n", OK
    )


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (b"push {}", "push"),
        (b"Flush", "Flush"),
        (b" PUSH {}", ""),
        (b"", ""),
        (b"NOPE with arguments", "NOPE"),
        (b"FLUSHX", "FLUSHX"),
        (b"PUSH\t{}", "PUSH\t{}"),
        ("ÄRGER x".encode(), "ÄRGER"),
    ],
)
def test_unknown_commands(talk, line, name):
    client = talk.client().says(line + b"\r\nFLUSH\r\n")
    client.hears_error(f"unknown command {name}").hears_ok()


@pytest.mark.parametrize(
    "verb", [b"FLUSH", b"INFO", b"END", b"BATCH", b"TRACK", b"QUEUE LATENCY", b"FETCH"]
)
def test_a_trailing_space_is_fine(talk, verb):
    plain, spaced = talk.client(), talk.client()
    plain.says(verb + b"\r\n")
    spaced.says(verb + b" \r\n")
    talk.advance(2)
    without_count = re.compile(rb'"command_count":\d+')
    heard = [without_count.sub(b"", bytes(c.wire.heard)) for c in (plain, spaced)]
    assert heard[0] == heard[1]
    assert len(heard[0]) > len(HI + OK)
    assert not re.search(rb"unknown|internal", heard[0])
    for client in (plain, spaced):
        client.hears(bytes(client.wire.heard)[len(HI + OK) :])


@pytest.mark.parametrize(
    "line", [b"PUSH %b ", b"PUSH  %b", b"PUSH \t%b\r", b"PUSHB [%b] ", b"PUSHB  [ %b ]"]
)
def test_spaces_around_a_json_argument_are_fine(talk, line):
    client = talk.client().says(line % compact(unit()) + b"\r\n")
    client.hears(b"$2\r\n{}\r\n" if line.startswith(b"PUSHB") else OK)
    assert client.sets()["enqueued"] == 1


@pytest.mark.parametrize("line", [b"FLUSH everything", b"END of story"])
def test_extra_arguments_are_ignored(talk, line):
    talk.client().says(line + b"\r\n").hears_ok()


def test_extra_arguments_of_info_are_ignored(talk):
    client = talk.client().says(b"INFO about everything\r\n")
    assert client.hears_json()["server"]["connections"] == 1


def test_cr_inside_json_whitespace_is_fine(talk):
    client = talk.client()
    client.says(b'PUSH {"jid":"job-0001",\r"jobtype":"x",\r"args":[1,\r2]}\r\n').hears_ok()
    client.says(b"FETCH\r\n")
    body = client.hears_bulk()
    assert json.loads(body)["args"] == [1, 2]
    assert b"\r\n" not in body


def test_a_long_line(talk):
    client = talk.client().pushes(unit(args=["x" * 1_000_000]))
    assert len(client.fetches()["args"][0]) == 1_000_000


@pytest.mark.parametrize(
    "line", [b"PUSH", b"ACK", b"FAIL", b"BEAT", b"PUSHB", b"QUEUE", b"QUEUE PAUSE", b"QUEUE REMOVE"]
)
def test_a_missing_argument_is_an_internal_error_and_the_connection_lives_on(talk, line):
    talk.client().says(line + b"\r\nFLUSH\r\n").hears(b"-ERR internal error\r\n", OK)


def test_pipelined_replies_are_in_order(talk):
    jobs = b"".join(push(f"job-{n:04}") for n in range(200))
    client = talk.client().says(jobs + b"FETCH\r\n" * 200).hears(OK * 200)
    assert [client.hears_json()["jid"] for _ in range(200)] == [f"job-{n:04}" for n in range(200)]


# Replies


def test_exact_forms_of_success(talk):
    client = talk.client(wid="worker-1")
    client.says(push()).hears(b"+OK\r\n")
    client.says(b"FETCH\r\n").hears_bulk()
    client.says(b'FAIL {"jid":"job-0001"}\r\n').hears(b"+OK\r\n")
    client.says(b'ACK {"jid":"job-0001"}\r\n').hears(b"+OK\r\n")
    client.says(b'MUTATE {"cmd":"kill","target":"retries"}\r\n').hears(b"+OK\r\n")
    client.says(b"QUEUE PAUSE default\r\n").hears(b"+OK\r\n")
    client.says(b"QUEUE RESUME default\r\n").hears(b"+OK\r\n")
    client.says(b"QUEUE LATENCY default\r\n").hears(b'$13\r\n{"default":0}\r\n')
    client.says(b"QUEUE REMOVE default\r\n").hears(b"+OK\r\n")
    client.says(b"PUSHB []\r\n").hears(b"$2\r\n{}\r\n")
    client.says(b'BEAT {"wid":"worker-1"}\r\n').hears(b"+OK\r\n")
    client.says(b"FLUSH\r\n").hears(b"+OK\r\n")
    client.finds_nothing()


# Error texts


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b'FAIL {"jid":"job-none"}', "Job not found job-none"),
        (b'BEAT {"wid":"nobody"}', "unknown worker nobody"),
        (b"UNPUSH", "unknown command UNPUSH"),
        (b"ACK", "internal error"),
        (b"ACK x", "invalid ACK x"),
        (b'ACK {"jid":"x","n":1}', 'invalid ACK {"jid":"x","n":1}'),
        (b"FAIL x", "invalid FAIL x"),
        (b'FAIL {"jid":1}', 'invalid FAIL {"jid":1}'),
        (b'FAIL {"backtrace":[{}]}', 'invalid FAIL {"backtrace":[{}]}'),
        (b"FAIL {}", "missing JID"),
        (b'FAIL {"jid":""}', "missing JID"),
        (b'FAIL {"jid":null}', "missing JID"),
        (b"BEAT x", "invalid BEAT x"),
        (b'BEAT {"wid":"w","rss_kb":1.5}', 'invalid BEAT {"wid":"w","rss_kb":1.5}'),
        (b"PUSH {}", "jobs must have a reasonable jid parameter"),
        (b'PUSH {"jid":"1234567"}', "jobs must have a reasonable jid parameter"),
        (b'PUSH {"jid":"12345678"}', "jobs must have a jobtype parameter"),
        (b'PUSH {"jid":"12345678","jobtype":"x"}', "jobs must have an args parameter"),
        (
            b'PUSH {"jid":"12345678","jobtype":"x","args":[],"reserve_for":86401}',
            "jobs cannot be reserved for more than one day",
        ),
        (
            b'PUSH {"jid":"12345678","jobtype":"x","args":[],"queue":"a b"}',
            r'cannot get "a b" queue: queue names must match \A[a-zA-Z0-9._-]+\z',
        ),
        (b"QUEUE UNPAUSE default", "no such QUEUE subcommand: UNPAUSE"),
        (b"QUEUE LATENCY *", "QUEUE LATENCY does not support wildcards"),
        (b"MUTATE", "invalid format"),
        (b"MUTATE x", "invalid format"),
        (b'MUTATE {"cmd":"burn","target":"dead"}', "unknown mutate operation"),
        (b'MUTATE {"target":"dead"}', "unknown mutate operation"),
        (b'MUTATE {"cmd":"kill","target":"queues"}', "invalid target for mutation command"),
        (b'MUTATE {"cmd":"kill"}', "invalid target for mutation command"),
        (b"BATCH NEW {}", "batch subsystem is only available in Faktory Enterprise"),
        (b"TRACK GET x", "tracking subsystem is only available in Faktory Enterprise"),
    ],
)
def test_error_texts(talk, line, text):
    talk.client().says(line + b"\r\nFLUSH\r\n").hears_error(text).hears_ok().is_still_there()


@pytest.mark.parametrize(
    ("line", "start"),
    [
        (b"PUSH {", "invalid JSON: unexpected end of JSON input"),
        (b"PUSH nonsense", "invalid JSON: "),
        (b"PUSH []", "invalid JSON: "),
        (b'PUSH {"jid":"12345678"} x', "invalid JSON: "),
        (b"PUSHB {}", "invalid JSON: "),
        (b"PUSHB [", "invalid JSON: unexpected end of JSON input"),
        (b"PUSHB [1]", "invalid JSON: "),
        (
            b'PUSH {"jid":"12345678","jobtype":"x","args":[],"at":"x"}',
            f'invalid timestamp for \'at\': "x": parsing time "x" as "{LAYOUT}": cannot parse "x" as ',
        ),
    ],
)
def test_error_texts_that_end_in_a_detail(talk, line, start):
    client = talk.client().says(line + b"\r\nFLUSH\r\n")
    client.hears_error_like(start)
    client.hears_ok().is_still_there()


def test_echoed_input_is_truncated(talk):
    client = talk.client().says(b"X" * 100_000 + b"\r\nACK " + b"y" * 100_000 + b"\r\n")
    first = client.hears_error_like("unknown command XXX")
    second = client.hears_error_like("invalid ACK yyy")
    assert len(first) < 1000
    assert len(second) < 1000


# PUSH: validation, in its order


BROKEN = [  # each field is wrong; the error names the first of them
    ({"custom": 1}, "invalid JSON: "),
    ({"jid": "short"}, "jobs must have a reasonable jid parameter"),
    ({"jobtype": ""}, "jobs must have a jobtype parameter"),
    ({"args": None}, "jobs must have an args parameter"),
    ({"reserve_for": 86_401}, "jobs cannot be reserved for more than one day"),
    ({"at": "tomorrow"}, "invalid timestamp for 'at': "),
    ({"queue": "no/slash"}, 'cannot get "no/slash" queue: '),
]


@pytest.mark.parametrize("first", range(len(BROKEN)))
def test_push_validates_in_order(talk, first):
    broken = unit()
    for fields, _ in BROKEN[first:]:
        broken |= fields
    talk.client().says(b"PUSH %b\r\n" % compact(broken)).hears_error_like(BROKEN[first][1])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("jid", 12345678),
        ("jid", ["12345678"]),
        ("jobtype", 1),
        ("jobtype", {}),
        ("queue", 1),
        ("queue", False),
        ("args", {}),
        ("args", "[]"),
        ("args", 1),
        ("retry", 1.5),
        ("retry", True),
        ("retry", "3"),
        ("retry", []),
        ("reserve_for", 60.5),
        ("reserve_for", True),
        ("reserve_for", "60"),
        ("backtrace", 1.5),
        ("backtrace", False),
        ("backtrace", "1"),
        ("at", 1),
        ("at", {}),
        ("created_at", 1),
        ("created_at", True),
        ("enqueued_at", 1),
        ("custom", "{}"),
        ("custom", []),
        ("custom", True),
    ],
)
def test_push_types_are_strict(talk, field, value):
    client = talk.client().says(b"PUSH %b\r\n" % compact({**unit(), field: value}))
    client.hears_error_like("invalid JSON: ")
    assert talk.engine.jobs == {}


@pytest.mark.parametrize("literal", [b"1.0", b"1e1", b"9223372036854775808", b"-9223372036854775809", b"1" * 30, b"-" + b"1" * 30, b"1" * 5000])  # fmt: skip
@pytest.mark.parametrize("field", [b"retry", b"reserve_for", b"backtrace"])
def test_push_integers_have_64_bits(talk, field, literal):
    line = b'PUSH {"jid":"job-0001","jobtype":"x","args":[],"%b":%b}\r\n' % (field, literal)
    talk.client().says(line).hears_error_like("invalid JSON: ")
    assert talk.engine.jobs == {}


@pytest.mark.parametrize(
    "field",
    ["queue", "retry", "reserve_for", "at", "backtrace", "created_at", "enqueued_at", "custom", "failure"],
)  # fmt: skip
def test_push_null_is_absent(talk, field):
    client = talk.client().pushes(unit(**{field: None}))
    assert client.says(b"FETCH\r\n").hears_bulk() == (
        b'{"retry":25,"jid":"job-0001","queue":"default","jobtype":"SomeJob",'
        b'"created_at":"2026-11-15T19:43:51Z","enqueued_at":"2026-11-15T19:43:51Z",'
        b'"args":[1,"two"]}'
    )


def test_push_keys_match_in_any_case(talk):
    client = talk.client()
    client.says(
        b'PUSH {"JID":"job-0001","JobType":"x","ARGS":[1],"Queue":"q","RETRY":3,"Reserve_For":120,'
        b'"Custom":{"A":1},"AT":"2001-01-01T00:00:00Z","Backtrace":7,"Created_At":"long ago"}\r\n'
    ).hears_ok()
    assert client.says(b"FETCH q\r\n").hears_bulk() == (
        b'{"retry":3,"custom":{"A":1},"jid":"job-0001","queue":"q","jobtype":"x",'
        b'"created_at":"long ago","enqueued_at":"2026-11-15T19:43:51Z",'
        b'"at":"2001-01-01T00:00:00Z","args":[1],"reserve_for":120,"backtrace":7}'
    )


def test_push_the_last_of_two_keys_wins(talk):
    client = talk.client()
    client.says(
        b'PUSH {"jid":"job-0001","JID":"job-0002","jobtype":"x","args":[1],"args":[2]}\r\n'
    ).hears_ok()
    fetched = client.fetches()
    assert (fetched["jid"], fetched["args"]) == ("job-0002", [2])


@pytest.mark.parametrize("jid", ["éééé", "12345678", "🎉🎉", "x" * 5000])
def test_push_jid_of_8_bytes_or_more(talk, jid):
    assert talk.client().pushes(unit(jid)).fetches()["jid"] == jid


@pytest.mark.parametrize("jid", ["", "1234567", "ééé"])
def test_push_jid_of_fewer_than_8_bytes(talk, jid):
    talk.client().says(push(jid)).hears_error("jobs must have a reasonable jid parameter")


@pytest.mark.parametrize("queue", ["a", "A.b_c-9", "q" * 300, "--", "."])
def test_push_queue_names(talk, queue):
    assert talk.client().pushes(unit(queue=queue)).fetches(queue)["queue"] == queue


@pytest.mark.parametrize("queue", ["a b", "a/b", "é", "a\n", "*", "a:b", " a", "a\u0660"])
def test_push_bad_queue_names(talk, queue):
    client = talk.client().says(push(queue=queue))
    error = client.hears_error_like("cannot get ")
    assert error.endswith(r"queue: queue names must match \A[a-zA-Z0-9._-]+\z")
    assert talk.engine.jobs == {}


def test_push_created_at_is_never_validated(talk):
    fetched = talk.client().pushes(unit(created_at='the day before "yesterday"')).fetches()
    assert fetched["created_at"] == 'the day before "yesterday"'


@pytest.mark.parametrize("empty", ["", None])
def test_push_created_at_empty_is_now(talk, empty):
    assert talk.client().pushes(unit(created_at=empty)).fetches()["created_at"] == NOW


@pytest.mark.parametrize(
    "at",
    [
        "2026-11-15T19:45:00Z",
        "2026-11-15T19:45:00.5Z",
        "2026-11-15T20:45:00+01:00",
        "2026-11-15T19:45:00.123456789012Z",
        "9999-12-31T23:59:59Z",
    ],
)
def test_push_at_in_the_future(talk, at):
    client = talk.client().pushes(unit(at=at))
    assert client.sets()["scheduled"] == 1


@pytest.mark.parametrize(
    "at",
    [
        "2026-11-15",
        "2026-11-15 19:45:00Z",
        "2026-11-15T19:45:00",
        "2026-11-15T19:45Z",
        "2026-11-15T19:45:00+0100",
        "2026-13-15T19:45:00Z",
        "2026-02-30T19:45:00Z",
        "2026-11-15T25:45:00Z",
        "2026-11-15T19:45:00Z ",
        "now",
        "1794771831",
        "２０２６-11-15T19:45:00Z",  # noqa: RUF001 - digits, but not Go's
    ],
)
def test_push_at_that_is_not_a_timestamp(talk, at):
    client = talk.client().says(push(at=at))
    client.hears_error_like(f"invalid timestamp for 'at': {json.dumps(at, ensure_ascii=False)}: ")
    assert talk.engine.jobs == {}


# The job as it is returned


def test_key_order_of_a_full_job(talk):
    client = talk.client()
    client.says(
        b'PUSH {"backtrace":10,"reserve_for":120,"args":[],"at":"2026-11-15T19:43:52Z",'
        b'"enqueued_at":"x","created_at":"2026-01-01T00:00:00Z","jobtype":"J","queue":"q",'
        b'"jid":"job-0001","custom":{"a":1},"retry":3,"extra":true}\r\n'
    ).hears_ok()
    talk.advance(1)
    client.fetches("q")
    client.fails("job-0001", errtype="E", message="m", backtrace=["b"])
    talk.advance(15)
    assert client.says(b"FETCH q\r\n").hears_bulk() == (
        b'{"retry":3,'
        b'"failure":{"failed_at":"2026-11-15T19:43:52Z","next_at":"2026-11-15T19:44:07Z",'
        b'"message":"m","errtype":"E","backtrace":["b"],"retry_count":0,"remaining":3},'
        b'"custom":{"a":1},"jid":"job-0001","queue":"q","jobtype":"J",'
        b'"created_at":"2026-01-01T00:00:00Z","enqueued_at":"2026-11-15T19:44:07Z",'
        b'"at":"2026-11-15T19:43:52Z","args":[],"reserve_for":120,"backtrace":10,"extra":true}'
    )


def test_empty_members_are_omitted_except_retry(talk):
    client = talk.client().pushes(unit(retry=0, reserve_for=0, backtrace=0, at="", custom={}))
    assert list(client.fetches()) == ["retry", "jid", "queue", "jobtype", "created_at", "enqueued_at", "args"]  # fmt: skip


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [
        (0, "2026-11-15T19:43:51Z"),
        (450_000, "2026-11-15T19:43:51.45Z"),
        (1, "2026-11-15T19:43:51.000001Z"),
        (123_456, "2026-11-15T19:43:51.123456Z"),
        (9_000_000, "2026-11-15T19:44:00Z"),
    ],
)
def test_timestamps_are_utc_with_trailing_zeros_trimmed(talk, microseconds, text):
    client = talk.client()
    talk.advance(microseconds / 1_000_000)
    fetched = client.pushes(unit()).fetches()
    assert fetched["created_at"] == fetched["enqueued_at"] == text


def test_args_are_returned_byte_for_byte(talk):
    args = rb'[ 1.0 , "<&>", "\u003c", "\ud83d\ude00", {"b":1,"a":2,"b":3}, [ ] ]'
    client = talk.client().says(b'PUSH {"jid":"job-0001","jobtype":"x","args":%b}\r\n' % args)
    client.hears_ok()
    assert b'"args":' + args + b"}" in client.says(b"FETCH\r\n").hears_bulk()


def test_lone_surrogates_become_the_replacement_character(talk):
    client = talk.client()
    client.says(rb'PUSH {"jid":"job-\ud800-01","jobtype":"\udc00","args":["a\ud83dz"]}' + b"\r\n")
    client.hears_ok()
    fetched = client.fetches()
    assert fetched["jid"] == "job-\ufffd-01"
    assert fetched["jobtype"] == "\ufffd"
    assert fetched["args"] == ["a\ufffdz"]
    client.acks("job-\ufffd-01")
    assert client.sets()["working"] == 0


def test_strings_with_quotes_and_control_characters_are_returned_unchanged(talk):
    jid, kind = 'job "quoted" \\ \u2028', "tab\tand\u0001control/"
    fetched = talk.client().pushes({"jid": jid, "jobtype": kind, "args": ["\r\n\u0000"]}).fetches()
    assert (fetched["jid"], fetched["jobtype"], fetched["args"]) == (jid, kind, ["\r\n\u0000"])


# FETCH


def test_fetch_skips_paused_queues(talk):
    client = talk.client().pushes(unit("job-0001", queue="a")).pushes(unit("job-0002", queue="b"))
    client.says(b"QUEUE PAUSE a\r\n").hears_ok()
    assert client.fetches("a", "b")["jid"] == "job-0002"
    client.finds_nothing("a", "b")


@pytest.mark.parametrize("names", ["no/such", "unknown", "é", "* ?", "\x1f"])
def test_fetch_of_unknown_or_invalid_queues_just_waits(talk, names):
    client = talk.client().finds_nothing(names)
    assert client.info()["faktory"]["queues"] == {}


def test_fetch_registers_no_queues(talk):
    client = talk.client()
    client.finds_nothing("a", "b", "c")
    assert talk.engine.queues == {}


# ACK and FAIL


@pytest.mark.parametrize(
    "argument", [b'{"jid":"never"}', b'{"jid":""}', b'{"jid":null}', b'{"jid":"\xff"}']
)
def test_ack_of_an_unknown_jid_is_ok(talk, argument):
    client = talk.client().says(b"ACK %b\r\n" % argument).hears_ok()
    assert client.info()["faktory"]["total_processed"] == 0


def test_ack_again_is_ok_and_counts_once(talk):
    client = talk.client().pushes(unit())
    client.fetches()
    client.acks("job-0001").acks("job-0001")
    assert client.info()["faktory"]["total_processed"] == 1


def test_ack_of_a_waiting_job_has_no_effect(talk):
    client = talk.client().pushes(unit()).acks("job-0001")
    assert client.fetches()["jid"] == "job-0001"


@pytest.mark.parametrize("argument", [b"", b"x", b"[]", b'"job-0001"', b'{"jid":1}', b'{"jid":"x","n":1}', b'{"jid":"x"', b"{}", b"null", b'{"other":"x"}', b'{"JID":"x"}'])  # fmt: skip
def test_ack_malformed(talk, argument):
    talk.client().says(b"ACK %b\r\n" % argument).hears_error_like("invalid ACK ")


def test_anyone_may_ack_and_fail(talk):
    worker, other = talk.client(wid="worker-1"), talk.client()
    worker.pushes(unit("job-0001")).pushes(unit("job-0002"))
    worker.fetches()
    worker.fetches()
    other.acks("job-0001").fails("job-0002")
    assert other.sets() == {"dead": 0, "retries": 1, "scheduled": 0, "working": 0, "enqueued": 0}


def test_processed_and_failures_are_counted(talk):
    client = talk.client()
    for number in range(3):
        client.pushes(unit(f"job-000{number}"))
        client.fetches()
    client.acks("job-0000").fails("job-0001").fails("job-0002")
    faktory = client.info()["faktory"]
    assert (faktory["total_processed"], faktory["total_failures"]) == (3, 2)


def test_fail_keys_match_in_any_case(talk):
    client = talk.client().pushes(unit())
    client.fetches()
    client.says(
        b'FAIL {"JID":"job-0001","errType":"E","Message":"m","BackTrace":["b"]}\r\n'
    ).hears_ok()
    talk.advance(15)
    failure = client.fetches()["failure"]
    assert (failure["errtype"], failure["message"], failure["backtrace"]) == ("E", "m", ["b"])


@pytest.mark.parametrize(
    ("errtype", "message", "kept_type", "kept_message"),
    [
        (None, None, "unknown", "unknown"),
        ("", "  ", "unknown", "unknown"),
        ("  E  ", "\n m \t", "E", "m"),
        ("E" * 200, "m" * 2000, "E" * 100, "m" * 1000),
        ("é" * 60, "é" * 600, "é" * 50, "é" * 500),
        ("x" + "é" * 60, "x" + "€" * 400, "x" + "é" * 49, "x" + "€" * 333),
    ],
)
def test_fail_trims_and_cuts(talk, errtype, message, kept_type, kept_message):
    client = talk.client().pushes(unit())
    client.fetches()
    client.fails("job-0001", errtype=errtype, message=message)
    talk.advance(15)
    failure = client.fetches()["failure"]
    assert (failure["errtype"], failure["message"]) == (kept_type, kept_message)
    assert "backtrace" not in failure


def test_failure_record_over_several_failures(talk):
    client = talk.client().pushes(unit(retry=2))
    seen = []
    for _ in range(3):
        failure = client.fetches().get("failure")
        seen.append(
            failure and (failure["failed_at"], failure["retry_count"], failure["remaining"])
        )
        client.fails("job-0001")
        talk.advance(100)
    assert talk.engine.find("job-0001").state == DEAD
    for _ in range(2):  # two more attempts
        client.mutates("requeue", "dead")
        failure = client.fetches()["failure"]
        seen.append((failure["failed_at"], failure["retry_count"], failure["remaining"]))
        client.fails("job-0001")
    assert seen == [None, (NOW, 0, 2), (NOW, 1, 1), (NOW, 2, 0), (NOW, 3, 0)]


@pytest.mark.parametrize("dice", [0, 7, 29])
@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_backoff_is_count_to_the_fourth_plus_15_plus_a_random_term(dice, count):
    with Conversation() as talk:
        talk.acts(lambda world: setattr(world.dice, "throw", dice))
        client = talk.client().pushes(unit())
        for _ in range(count):
            client.fetches()
            client.fails("job-0001")
            talk.advance(100_000)
        client.fetches()
        client.fails("job-0001")
        talk.advance(count**4 + 15 + dice * (count + 1) - 0.000001)
        assert client.sets()["retries"] == 1
        talk.advance(0.000001)
        assert client.sets() == {"dead": 0, "retries": 0, "scheduled": 0, "working": 0, "enqueued": 1}  # fmt: skip


@pytest.mark.parametrize("retry", [-1, -5])
def test_a_negative_retry_is_dead_immediately(talk, retry):
    client = talk.client().pushes(unit(retry=retry))
    client.fetches()
    client.fails("job-0001")
    assert client.sets()["dead"] == 1


def test_expiry(talk):
    client = talk.client(wid="worker-1").pushes(unit(reserve_for=60, retry=3))
    client.fetches()
    talk.advance(60)
    faktory = client.info()["faktory"]
    assert faktory["tasks"]["Busy"] == {"reaped": 1, "size": 0}
    assert (faktory["total_processed"], faktory["total_failures"]) == (1, 1)
    talk.advance(15)
    assert client.fetches()["failure"] == {
        "failed_at": "2026-11-15T19:44:51Z",
        "next_at": "2026-11-15T19:45:06Z",
        "message": "Faktory job reservation expired",
        "errtype": "ReservationExpired",
        "retry_count": 0,
        "remaining": 3,
    }


def test_late_ack_is_ok_and_ignored(talk):
    client = talk.client().pushes(unit(reserve_for=60))
    client.fetches()
    talk.advance(61)
    client.acks("job-0001")
    assert client.sets()["retries"] == 1
    assert client.info()["faktory"]["total_processed"] == 1


def test_late_fail_is_job_not_found(talk):
    client = talk.client().pushes(unit(reserve_for=60))
    client.fetches()
    talk.advance(61)
    client.says(b'FAIL {"jid":"job-0001"}\r\n').hears_error("Job not found job-0001")
    assert client.info()["faktory"]["total_failures"] == 1


def test_expiry_of_a_job_with_retry_0_discards_it(talk):
    client = talk.client().pushes(unit(reserve_for=60, retry=0))
    client.fetches()
    talk.advance(60)
    assert talk.engine.jobs == {}


def test_jobs_of_a_disconnected_worker_wait_for_their_reservation(talk):
    worker = talk.client(wid="worker-1").pushes(unit())
    worker.fetches()
    worker.hangs_up()
    other = talk.client()
    talk.advance(1799)
    assert other.sets()["working"] == 1
    talk.advance(1)
    assert other.sets()["retries"] == 1


# BEAT


def beat(wid="worker-1", **fields):
    return b"BEAT %b\r\n" % compact({"wid": wid, **fields})


QUIET, TERMINATE = bulk(b'{"state":"quiet"}'), bulk(b'{"state":"terminate"}')


@pytest.mark.parametrize(
    ("states", "heard"),
    [
        (["", "running", "QUIET", "sleeping"], [OK] * 4),
        (["quiet", "", "running", "quiet"], [QUIET] * 4),
        (["terminate", "quiet", ""], [TERMINATE] * 3),
        (["quiet", "terminate", "quiet"], [QUIET, TERMINATE, TERMINATE]),
    ],
)
def test_beat_moves_the_state_forward_only(talk, states, heard):
    worker = talk.client(wid="worker-1")
    for state, reply in zip(states, heard, strict=True):
        worker.says(beat(current_state=state)).hears(reply)


def test_beat_always_returns_the_state(talk):
    worker = talk.client(wid="worker-1")
    worker.says(beat(current_state="quiet")).hears(QUIET)
    for _ in range(20):
        talk.advance(15)
        worker.says(beat()).hears(QUIET)


def test_each_beat_overwrites_rss_kb(talk):
    worker = talk.client(wid="worker-1", rss_kb=5)
    known = talk.hub.workers.known["worker-1"]
    assert known.rss_kb == 5
    worker.says(beat(rss_kb=77)).hears_ok()
    assert known.rss_kb == 77
    worker.says(beat()).hears_ok()
    assert known.rss_kb == 0


# INFO


def test_info_exact_bytes_of_an_empty_server(talk):
    client = talk.client()
    talk.advance(37.450162)
    client.says(b"INFO\r\n")
    version = talk.client().info()["server"]["millrace_version"].encode()
    task = b'{"cycles":0,"enqueued":0,"size":0,"wall_time_sec":0}'
    client.hears(
        bulk(
            b'{"now":"2026-11-15T19:44:28.450162Z","server_utc_time":"19:44:28 UTC",'
            b'"faktory":{"queues":{},"sets":{"dead":0,"retries":0,"scheduled":0,"working":0},'
            b'"tasks":{"Busy":{"reaped":0,"size":0},"Dead":%b,"Retries":%b,"Scheduled":%b,'
            b'"Workers":{"reaped":0,"size":0}},'
            b'"total_failures":0,"total_processed":0,"total_enqueued":0,"total_queues":0},'
            b'"server":{"description":"Faktory","faktory_version":"1.10.0","millrace_version":"%b",'
            b'"uptime":37,"connections":1,"command_count":1,"used_memory_mb":7}}'
            % (task, task, task, version)
        )
    )


def _leaves(value, path=()):
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, (*path, key))
    else:
        yield path, value


def test_info_counters_are_integers_from_0_up(talk):
    client = talk.client(wid="worker-1")
    client.pushes(unit("job-0001")).pushes(unit("job-0002", retry=-1, reserve_for=60))
    client.pushes(unit("job-0003", at="2026-11-15T19:43:53Z"))
    client.fetches()
    client.fails("job-0001")
    client.fetches()
    talk.advance(100.5)
    for path, value in _leaves(client.info()):
        text = {"now", "server_utc_time", "description", "faktory_version", "millrace_version"}
        if path[-1] in text:
            assert isinstance(value, str), path
        elif path[-1] == "wall_time_sec":
            assert value >= 0, path
        else:
            assert type(value) is int, path
            assert value >= 0, path


def test_info_counters_are_not_negative_when_the_clock_is_set_back(talk):
    client = talk.client().pushes(unit())
    talk.acts(lambda world: setattr(world, "now", world.now - 3_600_000_000))
    assert client.info()["server"]["uptime"] == 0


def test_info_counts_all_sets(talk):
    client = talk.client(wid="worker-1")
    client.pushes(unit("job-0001", queue="b")).pushes(unit("job-0002", queue="a", retry=-1))
    client.pushes(unit("job-0003", queue="a")).pushes(unit("job-0004", queue="a"))
    client.pushes(unit("job-0005", queue="c", at="2027-01-01T00:00:00Z"))
    client.fetches("b")
    client.fails("job-0001")
    client.fetches("a")
    client.fails("job-0002")
    client.fetches("a")
    faktory = client.info()["faktory"]
    assert faktory["queues"] == {"a": 1, "b": 0, "c": 0}
    assert list(faktory["queues"]) == ["a", "b", "c"]
    assert faktory["sets"] == {"dead": 1, "retries": 1, "scheduled": 1, "working": 1}
    assert {name: task["size"] for name, task in faktory["tasks"].items()} == {
        "Busy": 1,
        "Dead": 1,
        "Retries": 1,
        "Scheduled": 1,
        "Workers": 1,
    }
    assert (faktory["total_enqueued"], faktory["total_queues"]) == (1, 3)


def test_info_lists_an_empty_queue_until_it_is_removed(talk):
    client = talk.client().pushes(unit(queue="q"))
    client.fetches("q")
    client.acks("job-0001")
    assert client.info()["faktory"]["queues"] == {"q": 0}
    client.says(b"QUEUE REMOVE q\r\n").hears_ok()
    assert client.info()["faktory"]["queues"] == {}


def test_info_counts_identified_connections(talk):
    client = talk.client()
    talk.connect().hears(HI)
    other = talk.client(wid="worker-1")
    assert client.info()["server"]["connections"] == 2
    other.says(b"END\r\n").hears_ok()
    assert client.info()["server"]["connections"] == 1


def test_info_command_count_counts_known_commands(talk):
    client = talk.client().says(b"FLUSH\r\nNOPE\r\n" + push() + b"PUSH {}\r\n")
    client.hears(OK, b"-ERR unknown command NOPE\r\n", OK)
    client.hears_error("jobs must have a reasonable jid parameter")
    assert client.info()["server"]["command_count"] == 4


# PUSHB


def test_pushb_pushes_all(talk):
    client = talk.client()
    client.says(b"PUSHB %b\r\n" % compact([unit("job-0001"), unit("job-0002", queue="q")]))
    client.hears(b"$2\r\n{}\r\n")
    assert client.info()["faktory"]["queues"] == {"default": 1, "q": 1}


def test_a_waiting_client_gets_a_job_of_its_first_queue_from_a_pushb(talk):
    client, worker = talk.client(), talk.client()
    worker.says(b"FETCH q default\r\n")
    client.says(b"PUSHB %b\r\n" % compact([unit("job-0001"), unit("job-0002", queue="q")]))
    client.hears(b"$2\r\n{}\r\n")
    assert b"job-0002" in worker.hears_bulk()


def test_a_waiting_client_gets_a_job_of_its_first_queue_from_resumed_queues(talk):
    client, worker = talk.client(), talk.client()
    client.pushes(unit("job-0001")).pushes(unit("job-0002", queue="q"))
    client.says(b"QUEUE PAUSE *\r\n").hears(OK)
    worker.says(b"FETCH q default\r\n")
    client.says(b"QUEUE RESUME default q\r\n").hears(OK)
    assert b"job-0002" in worker.hears_bulk()


@pytest.mark.parametrize("argument", [b"[]", b"null", b" [ ] "])
def test_pushb_of_an_empty_list(talk, argument):
    talk.client().says(b"PUSHB %b\r\n" % argument).hears(b"$2\r\n{}\r\n")


def test_pushb_reports_failures_and_pushes_the_other_jobs(talk):
    client = talk.client()
    jobs = [
        unit("job-0001"),
        unit("short"),
        unit("job-0002", jobtype=""),
        unit("job-0003", args=None),
        unit("job-0004", queue="a b"),
        unit("job-0005", reserve_for=100_000),
        unit("job-0006"),
    ]
    client.says(b"PUSHB %b\r\n" % compact(jobs))
    assert client.hears_json() == {
        "short": "jobs must have a reasonable jid parameter",
        "job-0002": "jobs must have a jobtype parameter",
        "job-0003": "jobs must have an args parameter",
        "job-0004": r'cannot get "a b" queue: queue names must match \A[a-zA-Z0-9._-]+\z',
        "job-0005": "jobs cannot be reserved for more than one day",
    }
    assert [client.fetches()["jid"] for _ in range(2)] == ["job-0001", "job-0006"]


def test_pushb_reports_invalid_extensions_and_pushes_the_other_jobs(talk):
    client = talk.client()
    jobs = [unit(f"job-{number:04}") for number in range(250)]
    jobs[150]["custom"] = {"millrace": {"tags": [1]}}
    client.says(b"PUSHB %b\r\n" % compact(jobs))
    refused = client.hears_json()
    assert list(refused) == ["job-0150"]
    assert refused["job-0150"].startswith("invalid custom: ")
    assert client.info()["faktory"]["queues"] == {"default": 249}


def test_pushb_reports_jobs_without_a_jid_under_one_key(talk):
    client = talk.client().says(b'PUSHB [{"jobtype":"x"},{},{"jid":null}]\r\n')
    assert client.hears_json() == {"": "jobs must have a reasonable jid parameter"}


@pytest.mark.parametrize(
    "argument",
    [
        b'[{"jid":"job-0001","jobtype":"x","args":[]},{"jid":5}]',
        b'[{"jid":"job-0001","jobtype":"x","args":[]},7]',
        b'[{"jid":"job-0001","jobtype":"x","args":[]},{"jid":"job-0002","jobtype":"x","args":[],"retry":"1"}]',
        b'[{"jid":"job-0001","jobtype":"x","args":[]}',
        b'{"jid":"job-0001","jobtype":"x","args":[]}',
        b'"job"',
    ],
)
def test_a_wrong_type_anywhere_in_a_pushb_rejects_all(talk, argument):
    talk.client().says(b"PUSHB %b\r\n" % argument).hears_error_like("invalid JSON: ")
    assert talk.engine.jobs == {}


def test_pushb_schedules(talk):
    client = talk.client()
    client.says(b"PUSHB %b\r\n" % compact([unit(at="2027-01-01T00:00:00Z")]))
    client.hears(b"$2\r\n{}\r\n")
    assert client.sets()["scheduled"] == 1


def test_pushb_of_the_same_work_unit_twice_pushes_it_once(talk):
    client = talk.client().says(b"PUSHB %b\r\n" % compact([unit(), unit()]))
    client.hears(b"$2\r\n{}\r\n")
    assert client.sets()["enqueued"] == 1


def test_pushb_of_3000_jobs(talk):
    client = talk.client()
    client.says(b"PUSHB %b\r\n" % compact([unit(f"job-{n:05}") for n in range(3000)]))
    client.hears(b"$2\r\n{}\r\n")
    assert client.sets()["enqueued"] == 3000


def test_jids_in_the_reply_to_pushb_are_json(talk):
    client = talk.client().says(b"PUSHB %b\r\n" % compact([unit('"\\é\n')]))
    assert client.hears_json() == {'"\\é\n': "jobs must have a reasonable jid parameter"}


# QUEUE


@pytest.mark.parametrize("sub", [b"PAUSE", b"pause", b"Pause"])
def test_queue_subcommands_match_in_any_case(talk, sub):
    client = talk.client().pushes(unit())
    client.says(b"QUEUE %b default\r\n" % sub).hears_ok()
    client.finds_nothing()


def test_the_verb_queue_is_case_sensitive(talk):
    talk.client().says(b"queue PAUSE default\r\n").hears_error("unknown command queue")


@pytest.mark.parametrize("names", [b"a b", b"*", b" a  b "])
def test_queue_pause_and_resume(talk, names):
    client = talk.client().pushes(unit("job-0001", queue="a")).pushes(unit("job-0002", queue="b"))
    client.says(b"QUEUE PAUSE %b\r\n" % names).hears_ok()
    client.finds_nothing("a", "b")
    assert client.info()["faktory"]["queues"] == {"a": 1, "b": 1}
    client.pushes(unit("job-0003", queue="a"))
    client.says(b"QUEUE RESUME %b\r\n" % names).hears_ok()
    assert [client.fetches("a", "b")["jid"] for _ in range(3)] == ["job-0001", "job-0003", "job-0002"]  # fmt: skip


@pytest.mark.parametrize("names", [b"a b", b"*"])
def test_queue_remove_deletes_jobs_name_and_pause(talk, names):
    client = talk.client().pushes(unit("job-0001", queue="a")).pushes(unit("job-0002", queue="b"))
    client.says(b"QUEUE PAUSE a\r\nQUEUE REMOVE %b\r\n" % names).hears(OK, OK)
    assert client.info()["faktory"]["queues"] == {}
    assert talk.engine.jobs == {}
    client.pushes(unit("job-0003", queue="a"))
    assert client.fetches("a")["jid"] == "job-0003"


def test_queue_remove_keeps_the_sets(talk):
    client = talk.client()
    client.pushes(unit("job-0001")).pushes(unit("job-0002", at="2026-11-15T19:43:52Z"))
    client.fetches()
    client.says(b"QUEUE REMOVE default\r\n").hears_ok()
    assert client.sets() == {"dead": 0, "retries": 0, "scheduled": 1, "working": 1, "enqueued": 0}
    talk.advance(1)
    assert client.info()["faktory"]["queues"] == {"default": 1}, "a queue with jobs is listed"
    assert client.fetches()["jid"] == "job-0002"


def test_queue_remove_and_a_job_that_fails_later(talk):
    client = talk.client().pushes(unit())
    client.fetches()
    client.says(b"QUEUE REMOVE default\r\n").hears_ok()
    client.fails("job-0001")
    talk.advance(15)
    assert client.info()["faktory"]["queues"] == {"default": 1}, "a queue with jobs is listed"


@pytest.mark.parametrize("sub", [b"PAUSE", b"RESUME", b"REMOVE"])
@pytest.mark.parametrize("names", [b"unknown", b"no/such x", b"*"])
def test_queue_commands_on_unknown_queues_have_no_effect(talk, sub, names):
    client = talk.client().says(b"QUEUE %b %b\r\n" % (sub, names)).hears_ok()
    assert client.info()["faktory"]["queues"] == {}
    assert client.pushes(unit(queue="unknown")).fetches("unknown")["jid"] == "job-0001"


def test_queue_pause_of_an_unknown_queue_with_waiters_has_no_effect(talk):
    worker, boss = talk.client(), talk.client()
    worker.says(b"FETCH q\r\n").hears_nothing()
    boss.says(b"QUEUE PAUSE q\r\n").hears_ok()
    boss.pushes(unit(queue="q"))
    assert worker.hears_json()["jid"] == "job-0001"


def test_queue_latency(talk):
    client = talk.client().pushes(unit("job-0001", queue="old"))
    talk.advance(10)
    client.pushes(unit("job-0002", queue="old")).pushes(unit("job-0003", queue="new"))
    talk.advance(2.25)
    client.says(b"QUEUE LATENCY old new unknown\r\n")
    client.hears(bulk(b'{"new":2.25,"old":12.25,"unknown":0}'))
    client.fetches("old")
    client.says(b"QUEUE LATENCY old\r\n").hears(bulk(b'{"old":2.25}'))
    client.fetches("old")
    client.says(b"QUEUE latency old\r\n").hears(bulk(b'{"old":0}'))


def test_queue_latency_counts_from_the_last_time_the_job_was_enqueued(talk):
    client = talk.client().pushes(unit())
    talk.advance(100)
    client.fetches()
    client.fails("job-0001")
    talk.advance(20)
    client.says(b"QUEUE LATENCY default\r\n").hears(bulk(b'{"default":5.0}'))


def test_queue_latency_of_no_queue(talk):
    talk.client().says(b"QUEUE LATENCY\r\n").hears(bulk(b"{}"))


def test_queue_latency_refuses_only_a_lone_star(talk):
    client = talk.client().says(b"QUEUE LATENCY *\r\n")
    client.hears_error("QUEUE LATENCY does not support wildcards")
    client.says(b"QUEUE LATENCY * a\r\n").hears(bulk(b'{"*":0,"a":0}'))


def test_queue_latency_is_answered_while_changes_are_refused(talk):
    client = talk.client().pushes(unit())
    talk.acts(lambda world: setattr(world.engine, "unavailable_reason", "the disk is full"))
    client.says(b"QUEUE LATENCY default\r\n").hears(bulk(b'{"default":0}'))


@pytest.mark.parametrize(
    "line",
    [
        push("job-0002"),
        b"PUSHB []\r\n",
        b'ACK {"jid":"job-0001"}\r\n',
        b'FAIL {"jid":"job-0001"}\r\n',
        b"FLUSH\r\n",
        b"QUEUE PAUSE default\r\n",
        b'MUTATE {"cmd":"clear","target":"dead"}\r\n',
    ],
)
def test_changes_are_refused_while_the_store_fails(talk, line):
    client = talk.client().pushes(unit())
    talk.acts(lambda world: setattr(world.engine, "unavailable_reason", "the disk is full"))
    client.says(line)
    client.hears_error("the disk is full: nothing was changed, try again later")
    client.says(b"FETCH\r\n").hears_nothing()
    talk.acts(lambda world: world.engine.resume(world.now))
    assert client.hears_json()["jid"] == "job-0001"


# MUTATE


def _fill(client, talk):
    """Two jobs in each set: retries r, dead d, scheduled s; one queued, one leased."""
    for number, kind in enumerate(["Alpha", "Beta"], 1):
        client.pushes(unit(f"dead-000{number}", jobtype=kind, retry=-1, args=[number]))
        client.pushes(unit(f"retry-000{number}", jobtype=kind, args=[number]))
        client.pushes(unit(f"sched-000{number}", jobtype=kind, args=[number], at="2027-01-01T00:00:00Z"))  # fmt: skip
        for _ in range(2):
            client.fails(client.fetches()["jid"], message=f"broke {number}")
    client.pushes(unit("work-0001", jobtype="Alpha")).fetches()
    client.pushes(unit("wait-0001", jobtype="Alpha"))


def _jids(talk, target):
    engine = talk.engine
    if target == "dead":
        return sorted(job.jid for job in engine.dead.values())
    wanted = target == "retries"
    return sorted(job.jid for job in engine.scheduled.values() if bool(job.failures) == wanted)


PREFIX = {"dead": "dead", "retries": "retry", "scheduled": "sched"}


@pytest.mark.parametrize("target", ["dead", "retries", "scheduled"])
@pytest.mark.parametrize("cmd", ["clear", "kill", "discard", "requeue"])
@pytest.mark.parametrize(
    ("filters", "hit"),
    [
        (None, "12"),
        ({}, "12"),
        ({"jids": []}, "12"),
        ({"jids": ["{}-0001"]}, "1"),
        ({"jids": ["{}-0002", "{}-0001", "{}-0002"]}, "12"),
        ({"jids": ["nobody", "work-0001", "wait-0001"]}, ""),
        ({"jids": ["{}-0001"], "jobtype": "Beta", "regexp": "*nothing*"}, "1"),
        ({"jobtype": "Beta"}, "2"),
        ({"jobtype": "beta"}, ""),
        ({"regexp": "*Alpha*"}, "1"),
        ({"regexp": "Alpha"}, ""),
        ({"regexp": "*-000[13]*"}, "1"),
        ({"regexp": "*-000[^1]*"}, "2"),
        ({"regexp": '*"args":?2?*'}, "2"),
        ({"regexp": "*"}, "12"),
        ({"regexp": "*000*", "jobtype": "Alpha"}, "1"),
        ({"regexp": "*Beta*", "jobtype": "Alpha"}, ""),
        ({"jobtype": None, "regexp": None, "jids": None}, "12"),
    ],
    ids=str,
)
def test_mutate(talk, cmd, target, filters, hit):
    client = talk.client()
    _fill(client, talk)
    prefix = PREFIX[target]
    operation = {"cmd": cmd, "target": target}
    if filters is not None:
        operation["filter"] = json.loads(json.dumps(filters).replace("{}-", prefix + "-"))
    client.says(b"MUTATE %b\r\n" % compact(operation)).hears_ok()

    hit = "12" if cmd == "clear" else hit
    hits = [f"{prefix}-000{number}" for number in hit]
    rest = [f"{prefix}-000{number}" for number in "12" if number not in hit]
    expected = {name: [f"{PREFIX[name]}-0001", f"{PREFIX[name]}-0002"] for name in PREFIX}
    expected[target] = rest
    if cmd == "kill":
        expected["dead"] = sorted({*expected["dead"], *hits})
    assert {name: _jids(talk, name) for name in PREFIX} == expected
    assert [job.jid for job in talk.engine.leased.values()] == ["work-0001"]
    waiting = {"wait-0001", *(hits if cmd == "requeue" else [])}
    assert {client.fetches()["jid"] for _ in waiting} == waiting
    assert client.sets()["enqueued"] == 0


def test_mutate_with_spaces_in_its_json(talk):
    client = talk.client().pushes(unit(jobtype="Send Mail", at="2027-01-01T00:00:00Z"))
    client.says(
        b'MUTATE { "cmd": "discard", "target": "scheduled", "filter": {"jobtype": "Send Mail"} }\r\n'
    ).hears_ok()
    assert talk.engine.jobs == {}


def test_mutate_kill_retains_for_180_days_and_renews_the_retention_of_dead_jobs(talk):
    client = talk.client().pushes(unit(at="2028-01-01T00:00:00Z")).mutates("kill", "scheduled")
    talk.advance(100 * 86_400)
    client.mutates("kill", "dead")
    talk.advance(179 * 86_400)
    assert client.sets()["dead"] == 1
    talk.advance(86_400)
    assert client.sets()["dead"] == 0


def test_mutate_requeue_keeps_at_and_failure_and_the_count(talk):
    client = talk.client().pushes(unit(at="2026-11-15T19:43:52Z", retry=5))
    talk.advance(1)
    client.fetches()
    client.fails("job-0001", message="m", errtype="E")
    client.mutates("requeue", "retries")
    fetched = client.fetches()
    assert fetched["at"] == "2026-11-15T19:43:52Z"
    assert fetched["failure"]["message"] == "m"
    assert (fetched["failure"]["retry_count"], fetched["failure"]["remaining"]) == (0, 5)
    client.fails("job-0001")
    client.mutates("requeue", "retries")
    assert client.fetches()["failure"]["retry_count"] == 1


def test_mutate_requeue_puts_jobs_behind_waiting_ones(talk):
    client = talk.client().pushes(unit("job-0001", at="2027-01-01T00:00:00Z"))
    client.pushes(unit("job-0002"))
    talk.advance(0.000001)
    client.mutates("requeue", "scheduled")
    assert [client.fetches()["jid"] for _ in range(2)] == ["job-0002", "job-0001"]


def test_mutate_requeue_wakes_a_waiting_worker(talk):
    worker, boss = talk.client(), talk.client().pushes(unit(at="2027-01-01T00:00:00Z"))
    worker.says(b"FETCH\r\n").hears_nothing()
    boss.mutates("requeue", "scheduled")
    assert worker.hears_json()["jid"] == "job-0001"


def test_mutate_finds_every_job_of_a_jid(talk):
    client = talk.client()
    for number in range(3):
        client.pushes(unit(args=[number], at="2027-01-01T00:00:00Z"))
    client.mutates("discard", "scheduled", jids=["job-0001"])
    assert talk.engine.jobs == {}


def test_mutate_of_2000_jobs_serves_other_clients_in_between(talk):
    client, other = talk.client(), talk.client()
    jobs = [unit(f"job-{n:05}", at="2027-01-01T00:00:00Z") for n in range(2000)]
    client.says(b"PUSHB %b\r\n" % compact(jobs)).hears(b"$2\r\n{}\r\n")
    connection = client.connection
    connection.feed(b'MUTATE {"cmd":"clear","target":"scheduled"}\r\n')
    assert connection.run(talk.now, 64) is True
    assert connection.replies == []
    left = len(talk.engine.scheduled)
    assert 0 < left < 2000
    assert other.sets()["scheduled"] == left
    while connection.run(talk.now, 64):
        pass
    assert data_of(connection) == [OK]
    assert talk.engine.jobs == {}
    talk.failed = True  # half of it ran outside of the conversation, which cannot be replayed


def test_a_partly_refused_mutate_is_not_acknowledged():
    talk = Conversation()
    client, engine = talk.client(), talk.engine
    jobs = [unit(f"job-{n:05}", at="2027-01-01T00:00:00Z") for n in range(2000)]
    client.says(b"PUSHB %b\r\n" % compact(jobs)).hears(b"$2\r\n{}\r\n")
    written = [copy_of(job) for job in engine.jobs.values()]
    connection = client.connection
    connection.feed(b'MUTATE {"cmd":"kill","target":"scheduled"}\r\n')
    assert connection.run(talk.now, 64) is True
    # The turn ends here, the disk is full, and the changes so far are reverted ...
    engine.revert([engine.take_changes()], written, {"default": False})
    engine.unavailable_reason = "the disk is full"
    connection.run(talk.now, 16)
    # ... but the disk has space again before the command continues.
    engine.resume(talk.now)
    while connection.run(talk.now, 64):
        pass
    (reply,) = data_of(connection)
    assert reply.startswith(b"-ERR ") or len(engine.dead) == 2000, reply


@pytest.mark.parametrize(
    ("glob", "text", "matches"),
    [
        ("*abc*", "abc", True),
        ("abc", "abc", False),  # the whole text of the job is matched, not only its args
        ("*a?c*", "abc", True),
        ("*a?c*", "ac", False),
        ("*a[bx]c*", "abc", True),
        ("*a[bx]c*", "adc", False),
        ("*a[^bx]c*", "adc", True),
        ("*a[b-d]c*", "acc", True),
        ("*a[b-d]c*", "aec", False),
        (r"*a\*c*", "a*c", True),
        (r"*a\*c*", "abc", False),
        (r"*a\?c*", "a?c", True),
        (r"*a[\]x]c*", "axc", True),
        ("*a.c*", "abc", False),
        ("*a.c*", "a.c", True),
        ("*(a|b)+*", "(a|b)+", True),
        ("*(a|b)+*", "aab", False),
        ("*^a$*", "^a$", True),
        ("*{a}*", "{a}", True),
        ("**abc**", "abc", True),
        ("*ABC*", "abc", False),
        ("*é*", "é", True),
        ("*a[z-a]c*", "abc", True),  # Redis takes a range either way round
        ("*a?c*", "aéc", False),  # Redis matches bytes
        ("*a??c*", "aéc", True),
        ("*[}", "abc", True),  # the closing bracket is optional in Redis
        ("*[^}", "abc", False),
    ],
)
def test_mutate_regexp_is_a_redis_glob(talk, glob, text, matches):
    client = talk.client().pushes(unit(args=[text], at="2027-01-01T00:00:00Z"))
    client.mutates("discard", "scheduled", regexp=glob)
    assert talk.engine.jobs == {} if matches else len(talk.engine.jobs) == 1


# Requirements of clients


def test_greeting_json_has_no_space_and_version_is_exactly_2(talk):
    words = bytes(talk.connect().hears(HI).wire.heard).split(b" ")
    assert len(words) == 2
    assert json.loads(words[1])["v"] == 2


def test_greeting_json_has_no_space_with_a_password():
    with Conversation(password="x") as talk:
        client = talk.connect()
        words = bytes(client.hears(SECRET_HI).wire.heard).split(b" ")
    assert len(words) == 2


def test_every_reply_is_complete(talk):
    client = talk.client().pushes(unit(args=["x" * 10_000]))
    client.fetches()
    client.info()
    assert [reply[:4] for reply in client.wire.replies][:3] == [b"+HI ", b"+OK\r", b"+OK\r"]
    assert len(client.wire.replies) == 5
    assert len(client.wire.replies[3]) > 10_000


def test_bulk_bodies_are_one_line_for_any_push(talk):
    client = talk.client()
    client.says(
        b'PUSH {"jid":"job-0001","jobtype":"x",\r "args":[\r"a\\r\\nb"\r],\r"custom":{\r"k":"\\r\\n"\r},'
        b'"other":\r[\r]}\r\n'
    ).hears_ok()
    body = client.says(b"FETCH\r\n").hears_bulk()
    assert b"\n" not in body
    client.fails("job-0001", message="two\r\nlines", backtrace=["a\r\nb"])
    talk.advance(15)
    assert b"\n" not in client.says(b"FETCH\r\n").hears_bulk()


def test_camel_case_errtype(talk):
    client = talk.client().pushes(unit())
    client.fetches()
    client.says(b'FAIL {"jid":"job-0001","errType":"PHP","message":"m"} \n').hears_ok()
    talk.advance(15)
    assert client.fetches()["failure"]["errtype"] == "PHP"


def test_an_exception_backtrace_of_objects_is_an_invalid_fail(talk):
    client = talk.client().pushes(unit())
    client.fetches()
    client.says(b'FAIL {"jid":"job-0001","backtrace":[{"file":"x.php"}]}\r\n')
    client.hears_error_like("invalid FAIL ")
    assert client.sets()["working"] == 1


@pytest.mark.parametrize(
    "hello",
    [
        b'HELLO {"wid":"2"}\r\n',  # Perl
        b'HELLO {"hostname":"h","username":null,"pid":1,"labels":["ruby"],"v":2,"wid":""}\n',  # Ruby
        b'HELLO {"wid":null,"pwdhash":null,"v":2}\n',  # Haskell
        b'HELLO {"hostname":"h","wid":"w","labels":null,"pid":null,"v":2} \r\n',  # .NET
        b'HELLO {"v":2} \r\n',  # PHP
    ],
)
def test_hellos_of_existing_clients(talk, hello):
    talk.connect().hears(HI).says(hello).hears_ok()


def test_fetch_is_shorter_than_the_shortest_read_timeout(talk):
    client = talk.client().says(b"FETCH a b c\r\n")
    talk.advance(2.0)
    client.hears(NULL_BULK)


def test_a_client_that_sends_a_wid_and_never_beats_is_served_for_hours(talk):
    client = talk.client(wid="worker-1")
    talk.advance(3600)
    assert client.pushes(unit()).fetches()["jid"] == "job-0001"


# WORKER, a command of Millrace


def test_worker_quiet_and_terminate(talk):
    first, second, boss = talk.client(wid="w1"), talk.client(wid="w2"), talk.client()
    boss.says(b"WORKER QUIET w1\r\n").hears_ok()
    first.says(beat("w1")).hears(QUIET)
    second.says(beat("w2")).hears_ok()
    boss.says(b"WORKER terminate *\r\n").hears_ok()
    first.says(beat("w1")).hears(TERMINATE)
    second.says(beat("w2")).hears(TERMINATE)
    boss.says(b"WORKER QUIET *\r\n").hears_ok()
    first.says(beat("w1")).hears(TERMINATE)


def test_worker_of_an_unknown_wid(talk):
    talk.client().says(b"WORKER QUIET nobody\r\n").hears_error("unknown worker nobody")


def test_worker_star_without_workers(talk):
    talk.client().says(b"WORKER TERMINATE *\r\n").hears_ok()


@pytest.mark.parametrize(
    "line", [b"WORKER", b"WORKER ", b"WORKER QUIET", b"WORKER STOP w", b"WORKER QUIET a b"]
)
def test_worker_malformed(talk, line):
    client = talk.client().says(line + b"\r\nFLUSH\r\n")
    client.hears_error("expected WORKER QUIET|TERMINATE <wid>|*").hears_ok()


def test_a_worker_that_reconnects_runs_again(talk):
    worker, boss = talk.client(wid="w1"), talk.client()
    boss.says(b"WORKER TERMINATE w1\r\n").hears_ok()
    worker.says(b"END\r\n").hears_ok().hears_the_end()
    again = talk.client(wid="w1")
    again.says(beat("w1")).hears_ok()
    again.pushes(unit()).fetches()


def test_a_queue_name_of_another_protocol_is_written_as_json():
    with Conversation() as talk:
        talk.acts(
            lambda world: world.engine.push(
                NewJob("", "", b"[1]", GOQUEUE, 'a"b', 0, 1_000_000), world.now
            )
        )
        client = talk.client()
        client.says(b'FETCH a"b\r\n')
        assert json.loads(client.hears_bulk())["queue"] == 'a"b'


def test_a_masenko_task_without_a_payload_has_no_arguments():
    with Conversation() as talk:
        talk.acts(
            lambda world: world.engine.push(
                NewJob("", "work", b"", MASENKO, "default", 0, 1_000_000), world.now
            )
        )
        client = talk.client()
        client.says(b"FETCH default\r\n")
        assert json.loads(client.hears_bulk())["args"] == []

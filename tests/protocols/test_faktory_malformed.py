"""Malformed input: the server refuses it with one clear line, without effects on other clients, and
with memory and time in proportion to its length.
"""

import gc
import json
import re
import signal
import threading
import time
import tracemalloc
import weakref
from contextlib import contextmanager

import pytest
from conversation import HI, OK, Conversation, World, bulk, compact, push, unit
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.engine.restoration import sort_for_restore

MILLION = 1_000_000
DEEP_ARRAY = b"[" * MILLION
DEEP_OBJECT = b'{"a":' * MILLION
DEEP_CLOSED = b"[" * MILLION + b"]" * MILLION
UNIT = b'"jid":"job-0001","jobtype":"x","args":[]'


@contextmanager
def at_most(seconds: float):
    """Fails a test that takes longer, so that it cannot block the other tests."""
    assert threading.current_thread() is threading.main_thread()

    def on_timeout(*_):
        raise AssertionError(f"still at it after {seconds} s")

    before = signal.signal(signal.SIGALRM, on_timeout)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def refused(talk, line, start):
    """Send a line while another client waits. The client receives an error, and no state changes."""
    client, bystander = talk.client(), talk.client(wid="bystander")
    client.pushes(unit("job-here", queue="elsewhere"))
    bystander.says(b"FETCH\r\n")
    before = talk.world.snapshot()
    client.says(line + b"\r\n")
    text = client.hears_error_like(start)
    assert len(text) < 1000
    assert talk.world.snapshot() == before
    client.says(b"FLUSH\r\n").hears_ok().is_still_there()
    bystander.hears_nothing()
    client.pushes(unit("job-next"))
    assert bystander.hears_json()["jid"] == "job-next"


# Bad JSON


BAD_JSON = [
    b"",
    b" ",
    b"{",
    b"}",
    b"{]",
    b'{"jid"',
    b'{"jid":',
    b'{"jid":"x',
    b'{"jid":"x"',
    b'{"jid":"x",}',
    b'{"jid":"x"}}',
    b'{"jid":"x"} {"jid":"y"}',
    b"{'jid':'x'}",
    b"{jid:x}",
    b'{"jid":undefined}',
    b'{"jid":NaN}',
    b'{"jid":"x" "wid":"y"}',
    b'{"jid":"\\x41"}',
    b'{"jid":"\\u00"}',
    b'{"jid":"a\tb"}',
    b'{"jid":"a\x00b"}',
    b'{"jid":01}',
    b'{"jid":1.}',
    b'{"jid":.5}',
    b'{"jid":+1}',
    b'{"jid":0x10}',
    b"\xef\xbb\xbf{}",
    b"\x00",
    b"\x1f\x8b\x08\x00\x00\x00\x00\x00",
    b"true",
    b"7",
    b'"{}"',
    b"[[]]",
]


@pytest.mark.parametrize("argument", BAD_JSON)
@pytest.mark.parametrize(
    ("verb", "start"),
    [
        (b"PUSH", "invalid JSON: "),
        (b"PUSHB", "invalid JSON: "),
        (b"ACK", "invalid ACK "),
        (b"FAIL", "invalid FAIL "),
        (b"BEAT", "invalid BEAT "),
        (b"MUTATE", "invalid format"),
    ],
)
def test_bad_json(talk, verb, start, argument):
    refused(talk, verb + b" " + argument, start)


@pytest.mark.parametrize(
    "argument", [b'{"v":2', b'{"v":2,}', b"{'v':2}", b"{\x00}", b'{"v":2}{', b"{]"]
)
def test_bad_json_in_hello_closes_with_an_error(talk, argument):
    client = talk.connect().hears(HI).says(b"HELLO " + argument + b"\r\n")
    client.hears_error_like("invalid HELLO: ")
    client.hears_the_end()


# Wrong types


@pytest.mark.parametrize(
    ("line", "start"),
    [
        (b'FAIL {"jid":["x"]}', "invalid FAIL "),
        (b'FAIL {"jid":"x","errtype":1}', "invalid FAIL "),
        (b'FAIL {"jid":"x","message":{}}', "invalid FAIL "),
        (b'FAIL {"jid":"x","backtrace":"line"}', "invalid FAIL "),
        (b'FAIL {"jid":"x","backtrace":[1]}', "invalid FAIL "),
        (b'BEAT {"wid":["x"]}', "invalid BEAT "),
        (b'BEAT {"wid":"bystander","current_state":1}', "invalid BEAT "),
        (b'BEAT {"wid":"bystander","rss_kb":1.0}', "invalid BEAT "),
        (b'BEAT {"wid":"bystander","rss_kb":18446744073709551616}', "invalid BEAT "),
        (b'ACK {"jid":{}}', "invalid ACK "),
        (b'ACK {"jid":true}', "invalid ACK "),
        (b'MUTATE {"cmd":1,"target":"dead"}', "invalid format"),
        (b'MUTATE {"cmd":"kill","target":[]}', "invalid format"),
        (b'MUTATE {"cmd":"kill","target":"dead","filter":[]}', "invalid format"),
        (b'MUTATE {"cmd":"kill","target":"dead","filter":"x"}', "invalid format"),
        (b'MUTATE {"cmd":"kill","target":"dead","filter":{"jids":"x"}}', "invalid format"),
        (b'MUTATE {"cmd":"kill","target":"dead","filter":{"jids":[1]}}', "invalid format"),
        (b'MUTATE {"cmd":"kill","target":"dead","filter":{"regexp":1}}', "invalid format"),
        (b'MUTATE {"cmd":"kill","target":"dead","filter":{"jobtype":{}}}', "invalid format"),
    ],
)
def test_wrong_types(talk, line, start):
    refused(talk, line, start)


# Depth


@pytest.mark.parametrize(
    ("line", "start"),
    [
        (b'PUSH {"jid":"job-0001","jobtype":"x","args":%b}', "invalid JSON: nested too deeply"),
        (b'PUSH {%b,"custom":{"a":%%b}}' % UNIT, "invalid JSON: nested too deeply"),
        (b'PUSH {%b,"other":%%b}' % UNIT, "invalid JSON: nested too deeply"),
        (b'PUSH {"jid":%b}', "invalid JSON: "),
        (b"PUSH %b", "invalid JSON: "),
        (b"PUSHB %b", "invalid JSON: "),
        (b"PUSHB [%b]", "invalid JSON: "),
        (b'PUSHB [{%b},{"args":%%b}]' % UNIT, "invalid JSON: "),
        (b'ACK {"jid":%b}', "invalid ACK "),
        (b'ACK {"jid":"x","a":%b}', "invalid ACK "),
        (b"ACK %b", "invalid ACK "),
        (b'FAIL {"jid":"x","backtrace":%b}', "invalid FAIL "),
        (b'FAIL {"jid":"x","other":%b}', "invalid FAIL "),
        (b'BEAT {"wid":"bystander","other":%b}', "invalid BEAT "),
        (b'BEAT {"wid":%b}', "invalid BEAT "),
        (b'MUTATE {"cmd":"kill","target":"dead","filter":%b}', "invalid format"),
        (b'MUTATE {"cmd":"kill","target":"dead","filter":{"jids":%b}}', "invalid format"),
        (b'MUTATE {"cmd":"kill","target":"dead","filter":{"a":%b}}', "invalid format"),
        (b'MUTATE {"cmd":"kill","target":"dead","a":%b}', "invalid format"),
    ],
)
@pytest.mark.parametrize("deep", [DEEP_ARRAY, DEEP_OBJECT, DEEP_CLOSED], ids=["arrays", "objects", "closed"])  # fmt: skip
def test_nested_a_million_deep(talk, line, start, deep):
    with at_most(20):
        refused(talk, line % deep, start)


@pytest.mark.parametrize("deep", [DEEP_ARRAY, DEEP_OBJECT, DEEP_CLOSED], ids=["arrays", "objects", "closed"])  # fmt: skip
@pytest.mark.parametrize("hello", [b'HELLO {"a":%b}', b'HELLO {"labels":%b}', b'HELLO {"wid":%b}'])
def test_hello_nested_a_million_deep(talk, hello, deep):
    client = talk.connect().hears(HI).says(hello % deep + b"\r\n")
    client.hears_error_like("invalid HELLO: ")
    client.hears_the_end()


def test_nested_two_hundred_deep_is_accepted(talk):
    nested = b"[" * 200 + b"]" * 200
    client = talk.client().says(b'PUSH {"jid":"job-0001","jobtype":"x","args":%b}\r\n' % nested)
    client.hears_ok()
    assert b'"args":' + nested in client.says(b"FETCH\r\n").hears_bulk()


# Numbers


NUMBERS = [b"9223372036854775808", b"18446744073709551616", b"-" + b"9" * 40, b"1" * 5000, b"1e400", b"-1e-400", b"1.5", b"1E2"]  # fmt: skip


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("field", [b"retry", b"backtrace", b"reserve_for"])
def test_numbers_that_are_not_64_bit_integers(talk, field, number):
    refused(talk, b'PUSH {%b,"%b":%b}' % (UNIT, field, number), "invalid JSON: ")


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("field", [b"pid", b"v", b"rss_kb"])
def test_numbers_in_hello_that_do_not_fit_their_integer_type(talk, field, number):
    client = talk.connect().hears(HI).says(b'HELLO {"%b":%b}\r\n' % (field, number))
    client.hears_error_like("invalid HELLO: ")
    client.hears_the_end()


def test_a_negative_version_is_out_of_range(talk):
    client = talk.connect().hears(HI).says(b'HELLO {"v":-1}\r\n')
    client.hears_error_like("invalid HELLO: ")
    client.hears_the_end()


@pytest.mark.parametrize("number", [b"9223372036854775807", b"-9223372036854775807"])
def test_the_largest_retry(talk, number):
    client = talk.client().says(b'PUSH {%b,"retry":%b}\r\n' % (UNIT, number)).hears_ok()
    assert client.fetches()["retry"] == int(number)
    client.fails("job-0001")
    assert client.sets()["dead" if number.startswith(b"-") else "retries"] == 1


# Text


INVALID_UTF8 = [
    b"\xff",
    b"\xc3(",
    b"\xed\xa0\x80",
    b"\xf8\x88\x80\x80\x80",
    b"\xe2\x82",
    b"\xc0\xaf",
]


@pytest.mark.parametrize("bad", INVALID_UTF8)
@pytest.mark.parametrize(
    ("line", "start"),
    [
        (b"PUSH %b", "invalid JSON: "),
        (b'FAIL {"jid":"x","message":"%b"}', "Job not found x"),
        (b'FAIL {"jid":"%b"}', "Job not found \ufffd"),
        (b'BEAT {"wid":"%b"}', "unknown worker \ufffd"),
        (b"QUEUE %b x", "no such QUEUE subcommand: "),
        (b"WORKER QUIET %b", "unknown worker "),
        (b"%b", "unknown command "),
    ],
)
def test_invalid_utf_8(talk, line, start, bad):
    refused(talk, line % bad, start)


@pytest.mark.parametrize("bad", INVALID_UTF8)
def test_invalid_utf_8_is_delivered_as_replacement_characters(talk, bad):
    worker = talk.connect().hears(HI).says(b'HELLO {"wid":"w%b"}\r\n' % bad).hears_ok()
    text = re.sub("[\udc80-\udcff]", "\ufffd", bad.decode("utf-8", "surrogateescape"))
    push = b'{"jid":"job-%b-%d","jobtype":"t%b","args":["%b"],"custom":{"%b":1},"%b":[]}'
    worker.says(b"PUSH " + push % (bad, 1, bad, bad, bad, bad) + b"\r\n").hears_ok()
    worker.says(b"PUSHB [" + push % (bad, 2, bad, bad, bad, bad) + b"]\r\n").hears(b"$2\r\n{}\r\n")
    for number in (1, 2):
        job = worker.fetches()
        assert (job["jid"], job["jobtype"]) == (f"job-{text}-{number}", f"t{text}")
        assert (job["args"], job["custom"], job[text]) == ([text], {text: 1}, [])
        worker.says(b'ACK {"jid":"job-%b-%d"}\r\n' % (bad, number)).hears_ok()
    assert worker.sets()["working"] == 0


@pytest.mark.parametrize("bad", INVALID_UTF8)
def test_invalid_utf_8_in_queue_names_names_no_queue(talk, bad):
    client = talk.client().finds_nothing()
    client.says(b"FETCH %b\r\n" % bad)
    talk.advance(2)
    client.hears(b"$-1\r\n")
    client.says(b"QUEUE PAUSE %b\r\nQUEUE REMOVE %b\r\n" % (bad, bad)).hears(OK, OK)
    client.says(b"QUEUE LATENCY %b\r\n" % bad)
    assert list(client.hears_json().values()) == [0]


SURROGATES = [rb"\ud800", rb"\udfff", rb"\ud800\ud800", rb"\udc00\ud800", rb"\uD83D!"]


@pytest.mark.parametrize("lone", SURROGATES)
def test_lone_surrogates_are_replaced_in_all_stored_text(talk, lone):
    text = json.loads(b'"%b"' % lone).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    worker = talk.connect().hears(HI).says(b'HELLO {"wid":"w%b"}\r\n' % lone).hears_ok()
    (wid,) = talk.hub.workers.known
    wid.encode()
    worker.says(
        b'PUSH {%b,"custom":{"a":"%b"},"x%b":"%b"}\r\n' % (UNIT, lone, lone, lone)
    ).hears_ok()
    fetched = worker.fetches()
    assert set(fetched["custom"]["a"]) <= set("\ufffd!")
    worker.says(
        b'FAIL {"jid":"job-0001","message":"m%b","errtype":"e%b","backtrace":["b%b"]}\r\n'
        % (lone, lone, lone)
    ).hears_ok()
    talk.advance(15)
    failure = worker.fetches()["failure"]
    for kept in (failure["message"], failure["errtype"], failure["backtrace"][0], text):
        kept.encode()
        assert "\ufffd" in kept


@pytest.mark.parametrize("lone", SURROGATES)
def test_lone_surrogates_in_queries_match_no_job(talk, lone):
    client = talk.client()
    client.says(b'FAIL {"jid":"%b"}\r\n' % lone).hears_error_like("Job not found \ufffd")
    client.says(b'BEAT {"wid":"%b"}\r\n' % lone).hears_error_like("unknown worker \ufffd")
    client.says(
        b'MUTATE {"cmd":"kill","target":"dead","filter":{"jobtype":"%b"}}\r\n' % lone
    ).hears_ok()


@pytest.mark.parametrize(
    "text", ["line\u2028separator", "nel\u0085", "vt\u000b", "ff\u000c", "fs\u001c", "cr\rcr"]
)
def test_no_kind_of_line_ending_gets_into_an_error(talk, text):
    client = talk.client().says(text.encode() + b"\r\n")
    error = client.hears_error_like("unknown command ")
    assert len(error.splitlines()) == 1
    client.says(b"FAIL %b\r\n" % compact({"jid": text + "\n" + text}))
    error = client.hears_error_like("Job not found ")
    assert len(error.splitlines()) == 1


# Lines


def test_half_a_line_has_no_effect(talk):
    client = talk.client().says(push()[:-2]).hears_nothing()
    talk.advance(3600)
    client.hears_nothing().hangs_up()
    assert talk.engine.jobs == {}


def test_half_a_line_behind_complete_lines_has_no_effect(talk):
    client = talk.client().says(push("job-0001") + push("job-0002")[:-1])
    client.hears_ok()
    client.hangs_up()
    assert [job.jid for job in talk.engine.jobs.values()] == ["job-0001"]


def test_empty_input_has_no_effect(talk):
    client = talk.connect().hears(HI).says(b"").hears_nothing()
    client.says(b'HELLO {"v":2}\r\n').hears_ok().says(b"").hears_nothing().is_still_there()


@pytest.mark.parametrize("identified", [False, True])
@pytest.mark.parametrize("end", [b"\r\n", b"\n", b""])
def test_a_line_beyond_the_limit_is_refused_and_the_connection_closed(identified, end):
    with Conversation(max_line=1000) as talk:
        bystander = talk.client()
        client = talk.client() if identified else talk.connect().hears(HI)
        client.says(b"PUSH " + b"x" * 1500 + end)
        client.hears_error("command too long: the limit is 1000 bytes").hears_the_end()
        bystander.says(b"FLUSH\r\n").hears_ok()


def test_commands_before_a_line_beyond_the_limit_are_executed():
    with Conversation(max_line=1000) as talk:
        client = talk.client().says(push() + b"x" * 1500 + b"\r\n" + push("job-0002"))
        client.hears_ok().hears_error("command too long: the limit is 1000 bytes").hears_the_end()
        assert [job.jid for job in talk.engine.jobs.values()] == ["job-0001"]


@pytest.mark.parametrize("size", range(995, 1010))
def test_segments_make_no_difference_around_the_limit(size):
    with Conversation(max_line=1000) as talk:
        client = talk.client().says(b"x" * size + b"\r\n")
        client.hears(bytes(client.wire.heard)[len(HI + OK) :])


def test_a_line_beyond_the_limit_behind_a_waiting_fetch_is_refused_in_order():
    with Conversation(max_line=1000) as talk:
        client = talk.client().says(b"FETCH\r\n" + b"x" * 5000).hears_nothing()
        talk.advance(2)
        client.hears(b"$-1\r\n").hears_error("command too long: the limit is 1000 bytes")
        client.hears_the_end()


def test_a_line_beyond_the_limit_is_not_buffered():
    talk = Conversation(max_line=10_000)
    client = talk.client()
    tracemalloc.start()
    try:
        client.connection.feed(b"FETCH\r\n")
        client.connection.run(talk.now, 64)
        for _ in range(1000):
            client.connection.feed(b"x" * 10_000)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


# Time and memory


@contextmanager
def memory_below(limit: int):
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < limit, f"{peak:,} bytes"


def test_fetch_of_thousands_of_queues_costs_as_much_as_its_line():
    names = b" ".join(b"%x" % number for number in range(20_000))
    talk = Conversation()
    client = talk.client()
    with memory_below(64 * len(names)):
        client.says(b"FETCH " + names + b"\r\n")


@pytest.mark.parametrize(
    "line",
    [
        b'FAIL {"jid":"job-0001","backtrace":%b}\r\n',
        b'FAIL {"jid":"job-0001","message":%b}\r\n',
        b'PUSH {"jid":"job-0001","jobtype":"x","args":[],"retry":%b}\r\n',
        b'MUTATE {"cmd":"kill","target":"dead","filter":{"jids":%b}}\r\n',
    ],
)
def test_a_value_of_a_wrong_type_is_refused_before_it_is_parsed(talk, line):
    client = talk.client()
    said = line % (b"[%b[]]" % (b"[]," * 100_000))
    with memory_below(8 * len(said)):
        client.connection.receive(said, talk.now, 64)
        assert client.connection.replies.pop().data.startswith(b"-ERR invalid ")


@pytest.mark.parametrize("verb", [b"FETCH", b"QUEUE PAUSE", b"QUEUE LATENCY"])
def test_too_many_queues_are_refused(talk, verb):
    client = talk.client()
    names = b" ".join(b"%x" % number for number in range(10_001))
    client.says(b"%b %b\r\n" % (verb, names))
    client.hears_error("too many queues: at most 10000, not 10001")
    client.says(b"%b %b\r\n" % (verb, b"\xe2\x80\x83a" * 300_000))
    client.hears_error("queue names too long: at most 1048576 bytes")
    assert not talk.engine.queues


def test_fetch_of_several_hundred_queues_works(talk):
    names = [f"queue-{number}" for number in range(300)]
    client = talk.client().pushes(unit(queue="queue-299"))
    assert client.fetches(*names)["queue"] == "queue-299"


def test_pushb_truncates_echoed_values(talk):
    client = talk.client()
    units = [unit("job-0001", at="x" * 100_000), unit("job-0002", queue="/" * 100_000)]
    client.says(b"PUSHB %b\r\n" % compact(units))
    errors = client.hears_json()
    assert errors["job-0001"].startswith("invalid timestamp for 'at': \"xxx")
    assert errors["job-0002"].startswith('cannot get "///')
    assert max(map(len, errors.values())) < 5000


@pytest.mark.parametrize("stars", [5, 30])
def test_a_glob_with_several_stars_is_matched_in_bounded_time(stars):
    talk = Conversation()
    client = talk.client().pushes(unit(args=["a" * 300], at="2027-01-01T00:00:00Z"))
    with at_most(3):
        client.mutates("discard", "scheduled", regexp="*a" * stars + "*b*b")
    assert len(talk.engine.jobs) == 1


def test_a_glob_of_megabytes_is_refused_or_matched_in_bounded_time():
    talk = Conversation()
    client = talk.client().pushes(unit(at="2027-01-01T00:00:00Z"))
    operation = {"cmd": "discard", "target": "scheduled", "filter": {"regexp": "*ab" * 1_000_000}}
    with at_most(3):
        client.says(b"MUTATE %b\r\n" % compact(operation))
    assert client.wire.replies[-1] in {OK, b"-ERR invalid format\r\n"}
    assert len(talk.engine.jobs) == 1


def test_different_jobs_with_one_jid_take_no_extra_time():
    talk = Conversation()
    client = talk.client()
    lines = b"".join(push(args=[number]) for number in range(8_000))
    with at_most(4):
        client.says(lines)
    client.hears(OK * 8_000)
    assert client.sets()["enqueued"] == 8_000
    again = World({}).engine
    with at_most(2):
        again.restore(sort_for_restore(talk.engine.jobs.values()), {"default": False})
    assert len(again.find_all("job-0001")) == 8_000


def test_workers_that_come_and_go_are_forgotten_beyond_a_limit():
    world = World({})
    for number in range(30_000):
        wire = world.connect()
        wire.receive(b'HELLO {"v":2,"wid":"worker-%d"}\r\n' % number)
        wire.lose()
        world.clients.clear()
    assert world.hub.connections_by_worker == {}
    assert len(world.hub.workers.known) <= 20_000


def test_long_worker_ids_are_forgotten_beyond_a_limit():
    world = World({})
    for number in range(300):
        wire = world.connect()
        wire.receive(b'HELLO {"v":2,"wid":"%b-%d"}\r\n' % (b"w" * 100_000, number))
        wire.lose()
        world.clients.clear()
    assert sum(len(wid) for wid in world.hub.workers.known) <= 4_000_000


def test_a_long_backtrace_is_truncated_before_it_is_stored(talk):
    client = talk.client().pushes(unit())
    client.fetches()
    client.fails("job-0001", backtrace=["x"] * 10_000, message="m" * 100_000, errtype="e" * 100_000)
    failure = talk.engine.find("job-0001").failure
    assert (len(failure.backtrace), len(failure.message), len(failure.group)) == (50, 1000, 100)


# Random work units

TEXT = st.text(max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
JID = st.just("job-0001") | st.text(min_size=8, max_size=12)
LISTS = st.lists(JSON, max_size=3)
#: Usually valid; sometimes a field has a random type or is absent.
FIELDS = st.tuples(
    st.fixed_dictionaries(
        {"jid": JID, "jobtype": st.text(min_size=1, max_size=12), "args": LISTS},
        optional={
            "queue": st.sampled_from(["default", "q", "", "a b"]),
            "retry": st.integers(),
            "reserve_for": st.integers(-10, 90_000) | st.integers(),
            "at": st.sampled_from(["", "2026-11-15T19:43:52Z", "2001-01-01T00:00:00+01:00"]) | TEXT,
            "backtrace": st.integers(),
            "created_at": TEXT,
            "custom": st.dictionaries(TEXT, JSON, max_size=2),
            "failure": JSON,
            "Anything": JSON,
        },
    ),
    st.dictionaries(
        st.sampled_from(["jid", "jobtype", "args", "queue", "retry", "at", "custom"]),
        JSON,
        max_size=1,
    ),
).map(lambda parts: parts[0] | parts[1])


@settings(max_examples=300, deadline=None)
@given(FIELDS, st.booleans())
def test_any_work_unit_is_refused_or_delivered_unchanged(fields, escaped):
    """A work unit is refused without a trace, or accepted, delivered unchanged, and can be
    acknowledged.
    """
    talk = Conversation()
    client = talk.client()
    client.says(b"PUSH " + json.dumps(fields, ensure_ascii=escaped).encode() + b"\r\n")
    reply = client.wire.replies[-1]
    if reply != OK:
        assert reply.startswith(b"-ERR ")
        assert talk.engine.jobs == {}
        return
    client.hears_ok()
    talk.advance(10)
    (job,) = talk.engine.jobs.values()
    if job.state == 0:
        return  # scheduled after the end of this test
    fetched = client.fetches(job.queue)
    for key in ("jid", "jobtype", "args"):
        assert fetched[key] == fields[key]
    assert fetched.get("custom") == (fields.get("custom") or None)
    assert fetched.get("Anything") == fields.get("Anything")
    assert fetched["retry"] == (25 if fields.get("retry") is None else fields["retry"])
    assert -(2**63) <= fetched.get("reserve_for", 0) <= 86_400
    client.acks(fields["jid"])
    assert talk.engine.jobs == {}


def test_at_most_can_fail():
    with pytest.raises(AssertionError, match="still at it"), at_most(0.01):
        time.sleep(5)


def test_memory_below_can_fail():
    with pytest.raises(AssertionError, match="bytes"), memory_below(1000):
        bulk(b"x" * 2000)


@pytest.mark.sources_only("native objects have no weak references")
def test_a_connection_closed_during_a_long_command_frees_its_input():
    world = World({})
    wire = world.connect()
    wire.receive(b'HELLO {"v":2}\r\n')
    units = [unit(f"job-{number:04}") for number in range(500)]
    wire.connection.receive(b"PUSHB %b\r\n" % compact(units), world.now, 1)
    connection_ref = weakref.ref(wire.connection)
    gc.disable()  # in a server the collector runs rarely
    try:
        wire.lose()
        wire.connection = None
        assert connection_ref() is None
    finally:
        gc.enable()

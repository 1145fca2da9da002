"""Requests from bytes in any segments, with limits."""

import time
import tracemalloc

import pytest
from resp_conversation import request

from millrace.protocols.qless.resp_requests import (
    LARGE_ARGUMENT,
    MAX_LINE,
    READ_BATCH_ARGUMENTS,
    READ_BATCH_BYTES,
    ProtocolError,
    RequestBuffer,
    RequestLimits,
    parse_complete,
    split_words,
)

LIMITS = RequestLimits(100, 1000, 5000)
LARGE = RequestLimits(65_536, 64 << 20, 64 << 20)


def drain(*pieces: bytes, limits: RequestLimits = LIMITS) -> list[list[bytes]]:
    """All requests; no bytes may be left."""
    requests, found = RequestBuffer(), []
    for piece in pieces:
        requests.feed(piece)
        while (args := requests.take(limits)) is not None or requests.is_partly_read:
            if args is not None:
                found.append(args)
    assert len(requests) == 0
    return found


def refused(data: bytes, limits: RequestLimits = LIMITS) -> str:
    """The error, which is the same for the whole input and for single bytes."""
    texts = []
    for pieces in ([data], [data[n : n + 1] for n in range(len(data))] if len(data) < 5000 else []):
        requests = RequestBuffer()
        try:
            for piece in pieces:
                requests.feed(piece)
                while requests.take(limits) is not None or requests.is_partly_read:
                    pass
        except ProtocolError as problem:
            texts.append(str(problem))
    assert texts, "it was not refused"
    assert len(set(texts)) == 1
    return texts[0]


# Arrays


@pytest.mark.parametrize(
    "words",
    [
        [b"PING"],
        [b""],
        [b"a", b"", b"\r\n", b"*3\r\n$1\r\nx\r\n"],
        [b"\x00\xff", b"%5\r\n~3\r\n>2\r\n|1\r\n"],
        [b"x"] * 100,
        [b"*1000000000\r\n"],
        [b"$1000000000\r\n", b"|99999999"],
    ],
)
def test_an_array_of_bulk_strings(words):
    data = request(*words)
    assert drain(data) == [words]
    assert drain(*[data[n : n + 1] for n in range(len(data))]) == [words]
    assert drain(data * 3) == [words] * 3
    assert drain(data[:5], data[5:] + data[:-1], data[-1:]) == [words] * 2


def test_empty_requests_have_no_effect():
    assert drain(b"*0\r\n*-1\r\n\r\n\n   \r\n*1\r\n$1\r\na\r\n") == [[], [], [], [], [], [b"a"]]


def test_arrays_and_lines_mixed():
    assert drain(b"one two\r\n" + request("a") + b"three\n" + request("b") + request("c")) == [
        [b"one", b"two"],
        [b"a"],
        [b"three"],
        [b"b"],
        [b"c"],
    ]


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"*x\r\n", "invalid multibulk length"),
        (b"*\r\n", "invalid multibulk length"),
        (b"*01\r\n", "invalid multibulk length"),
        (b"*+1\r\n", "invalid multibulk length"),
        (b"*1 \r\n", "invalid multibulk length"),
        (b"*1\n$1\r\na\r\n", "invalid multibulk length"),
        (b"*101\r\n", "invalid multibulk length"),
        (b"*1000000000\r\n", "invalid multibulk length"),
        (b"*99999999999999999999\r\n", "invalid multibulk length"),
        (b"*1\r\n$x\r\n", "invalid bulk length"),
        (b"*1\r\n$-1\r\n", "invalid bulk length"),
        (b"*1\r\n$01\r\na\r\n", "invalid bulk length"),
        (b"*1\r\n$1001\r\n", "invalid bulk length"),
        (b"*1\r\n$1000000000\r\n", "invalid bulk length"),
        (b"*1\r\n$1\na\r\n", "invalid bulk length"),
        (b"*6" + b"\r\n$1000\r\n" + (b"x" * 1000 + b"\r\n$1000\r\n") * 5, "too big request"),
        (b"*1\r\n:1\r\n", "expected '$', got ':'"),
        (b"*1\r\n+OK\r\n", "expected '$', got '+'"),
        (b"*1\r\n*1\r\n$1\r\na\r\n", "expected '$', got '*'"),
        (b"*1\r\n" * 20 + b"$1\r\na\r\n", "expected '$', got '*'"),
        (b"*2\r\n$1\r\na\r\n_\r\n", "expected '$', got '_'"),
        (b"*1\r\n\x80\r\n", "expected '$', got '\x80'"),
        (b"*1\r\n$1\r\nabc", "expected CRLF after a bulk string"),
        (b"*1\r\n$1\r\na\n\n", "expected CRLF after a bulk string"),
        (b"*" + b"1" * (MAX_LINE + 1), "too big mbulk count string"),
        (b"*1\r\n$" + b"1" * (MAX_LINE + 1), "too big bulk count string"),
        (b"x" * (MAX_LINE + 1), "too big inline request"),
        (b"x" * (MAX_LINE + 1) + b"\n", "too big inline request"),
    ],
)
def test_invalid_requests(data, complaint):
    assert refused(data) == complaint
    assert refused(request("PING") + data) == complaint


def test_at_the_limits():
    assert drain(request(*[b""] * 100))
    assert drain(request(b"x" * 1000))
    assert drain(request(*[b"x" * 1000] * 5))
    assert drain(b"x" * MAX_LINE + b"\n")


def test_unauthenticated_clients_have_lower_limits():
    unauthenticated_limits = RequestLimits(2, 10, 15, "unauthenticated")
    assert drain(request("AUTH", "sesame"), limits=unauthenticated_limits) == [[b"AUTH", b"sesame"]]
    assert (
        refused(request("a", "b", "c"), unauthenticated_limits)
        == "unauthenticated multibulk length"
    )
    assert refused(request("x" * 11), unauthenticated_limits) == "unauthenticated bulk length"
    assert refused(request("x" * 8, "y" * 8), unauthenticated_limits) == "too big request"
    assert refused(b"*x\r\n", unauthenticated_limits) == "invalid multibulk length"
    assert refused(b"*1\r\n$-5\r\n", unauthenticated_limits) == "invalid bulk length"


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_new_limits_apply_to_buffered_requests(size):
    """Three requests arrive together; the first one lowers the limits."""
    unauthenticated_limits = RequestLimits(2, 10, 15, "unauthenticated")
    for second in (request("a", "b", "c"), request("x" * 11)):
        requests = RequestBuffer()
        data = request("RESET") + second + request("PING")
        for n in range(0, len(data), size):
            requests.feed(data[n : n + size])
        assert requests.take(LIMITS) == [b"RESET"]
        with pytest.raises(ProtocolError, match="unauthenticated"):
            requests.take(unauthenticated_limits)


# The hiredis parser


def test_hiredis_reads_complete_requests():
    assert parse_complete(request("a", "b")) == ([[b"a", b"b"]], 20 - 2)
    two = request("a") + request("", "*")
    assert parse_complete(two) == ([[b"a"], [b"", b"*"]], len(two))
    assert parse_complete(two + b"*1\r\n$5\r\nab") == ([[b"a"], [b"", b"*"]], len(two))
    assert parse_complete(two + b"PING\r\n") == ([[b"a"], [b"", b"*"]], len(two))
    assert parse_complete(request("a")) == ([[b"a"]], 11)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PING\r\n",
        b"*1\r\n$4\r\nPI",
        b"*1\r\n:1\r\n",
        b"*1\r\n+a\r\n",
        b"*1\r\n-a\r\n",
        b"*1\r\n(1\r\n",
        b"*1\r\n,1\r\n",
        b"*1\r\n#t\r\n",
        b"*1\r\n_\r\n",
        b"*1\r\n=5\r\ntxt:a\r\n",
        b"*1\r\n$-1\r\n",
        b"*-1\r\n",
        b"*1\r\n$1\r\naXY",
        b"*1\r\n*1\r\n$1\r\na\r\n",
        b"*1\r\n%1\r\n*1\r\n+a\r\n+b\r\n",
        b"*1\r\n~1\r\n$1\r\na\r\n",
        b"*1\r\n>1\r\n$1\r\na\r\n",
        b"*1\r\n|1\r\n$1\r\na\r\n$1\r\nb\r\n",
        b"*1\r\n" * 20,
    ],
)
def test_input_that_only_hiredis_accepts_is_refused(data):
    assert parse_complete(data) == ([], 0)
    assert parse_complete(request("PING")) == ([[b"PING"]], 14)  # no part of it is left


@pytest.mark.parametrize(
    "header",
    [
        b"*1000000000\r\n",
        b"*1\r\n*1000000000\r\n",
        b"*1\r\n%1000000000\r\n",
        b"*1\r\n~1000000000\r\n",
        b"*1\r\n>1000000000\r\n",
        b"*1\r\n|1000000000\r\n",
        b"*2\r\n$1\r\naXY*1000000000\r\n",
        b"*1\r\n$1000000000\r\n",
        b"*99999\r\n",
        b"*1\r\n*99999\r\n",
    ],
)
def test_a_length_alone_allocates_no_memory(header):
    tracemalloc.start()
    try:
        for data in (header, b"*1\r\n$4\r\nPING\r\n" + header):
            requests = RequestBuffer()
            requests.feed(data)
            with_error(requests)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000


def with_error(requests: RequestBuffer) -> None:
    try:
        while requests.take(LARGE) is not None:
            pass
    except ProtocolError:
        pass


def test_buffered_bytes_are_counted():
    requests = RequestBuffer()
    requests.feed(b"*3\r\n$100\r\n" + b"x" * 100 + b"\r\n$1000\r\n" + b"y" * 500)
    assert requests.take(LIMITS) is None
    assert 600 <= len(requests) <= 1700
    requests.feed(b"y" * 500 + b"\r\n$1\r\nz\r\n")
    assert requests.take(LIMITS) == [b"x" * 100, b"y" * 1000, b"z"]
    assert len(requests) == 0


@pytest.mark.parametrize("size", [1, 100, 10_000, 1 << 20])
def test_a_large_argument_takes_linear_time(size):
    """The input is not scanned repeatedly: twice the input takes about twice the time."""
    times = []
    for length in (100_000, 200_000):
        data = request("EVAL", b"x" * length, "tail")
        pieces = [data[n : n + size] for n in range(0, len(data), size)]
        requests = RequestBuffer()
        started = time.process_time()
        for piece in pieces:
            requests.feed(piece)
            args = requests.take(LARGE)
        times.append(time.process_time() - started)
        assert args == [b"EVAL", b"x" * length, b"tail"]
    assert times[1] < 0.1 + 3 * times[0]


def test_a_long_pipeline_in_odd_segments():
    data = request("EVALSHA", "0123456789" * 4, 0, "put", "a" * 50) * 5000
    for size in (1000, READ_BATCH_BYTES - 1, READ_BATCH_BYTES + 1):
        found = drain(*(data[n : n + size] for n in range(0, len(data), size)))
        assert len(found) == 5000
        assert all(args[3] == b"put" for args in found)


@pytest.mark.parametrize("count", [READ_BATCH_ARGUMENTS, READ_BATCH_ARGUMENTS + 1, 20_000])
@pytest.mark.parametrize("step", [999, 256 << 10, 1 << 20])
def test_many_arguments_are_read_in_steps(count, step):
    sent = request("DEL", *["a"] * count) + request("PING")
    requests, found = RequestBuffer(), []
    for start in range(0, len(sent), step):
        requests.feed(sent[start : start + step])
        known = 0
        while (args := requests.take(LARGE)) is not None or requests.is_partly_read:
            assert len(requests._args) - known <= READ_BATCH_ARGUMENTS
            known = len(requests._args)
            if args is not None:
                found.append(args)
    assert found == [[b"DEL", *[b"a"] * count], [b"PING"]]
    assert len(requests) == 0


def test_a_pipeline_is_parsed_a_few_bytes_at_a_time():
    requests = RequestBuffer()
    requests.feed(request("PING") * 18_000)
    assert requests.take(LARGE) == [b"PING"]
    assert len(requests._parsed) * len(request("PING")) < READ_BATCH_BYTES


# Inline commands


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"", []),
        (b"  \t ", []),
        (b"PING", [b"PING"]),
        (b" set  a\tb ", [b"set", b"a", b"b"]),
        (b'ping "a b"', [b"ping", b"a b"]),
        (b"ping 'a b'", [b"ping", b"a b"]),
        (b'ping ""', [b"ping", b""]),
        (b'pi"ng"', [b"ping"]),
        (rb'ping "\x41\x0a\n\r\t\b\a\"\\\q\x4"', [b"ping", b'A\n\n\r\t\b\a"\\qx4']),
        (rb"ping '\'\n\x41'", [b"ping", rb"'\n\x41"]),
        (rb"ping a\nb", [b"ping", rb"a\nb"]),
        (b'ping "it\'s" \'a "b"\'', [b"ping", b"it's", b'a "b"']),
        (b"ping a\x00b", [b"ping", b"a\x00b"]),
    ],
)
def test_inline_commands(line, words):
    assert split_words(line) == words
    assert drain(line + b"\r\n") == [words]
    assert drain(line + b"\n") == [words]


@pytest.mark.parametrize(
    "line", [b'"', b"'", b'a "b', b"a 'b", b'a "b"c', b"a 'b'c", b'a "b\\"', b"a 'b\\'", b'"a""b"']
)
def test_quotes_that_do_not_match(line):
    assert refused(line + b"\r\n") == "unbalanced quotes in request"


LARGE_LIMITS = RequestLimits(100, 1 << 20, 1 << 21)


@pytest.mark.parametrize("step", [1000, LARGE_ARGUMENT - 1, LARGE_ARGUMENT, 1 << 20])
@pytest.mark.parametrize("size", [LARGE_ARGUMENT + 1, 3 * LARGE_ARGUMENT])
def test_a_large_argument_is_moved_part_by_part(step, size):
    data = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    sent = request("PUT", data, "tail") + request("PING")
    requests, found, received = RequestBuffer(), [], 0
    for start in range(0, len(sent), step):
        requests.feed(sent[start : start + step])
        received += len(sent[start : start + step])
        while (args := requests.take(LARGE_LIMITS)) is not None:
            found.append(args)
        if not found:
            assert received - 100 <= len(requests) <= received
            assert len(requests._buffer) <= step + 2
    assert found == [[b"PUT", data, b"tail"], [b"PING"]]
    assert len(requests) == 0


def test_a_large_argument_without_its_end_is_refused():
    sent = b"*2\r\n$3\r\nPUT\r\n$%d\r\n" % (LARGE_ARGUMENT + 1) + b"x" * (LARGE_ARGUMENT + 3)
    assert refused(sent, LARGE_LIMITS) == "expected CRLF after a bulk string"

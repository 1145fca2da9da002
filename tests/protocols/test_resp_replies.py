"""Values in RESP2 and RESP3; hiredis must read them back."""

import math

import pytest
from hiredis import Reader

from millrace.protocols.connection import MAX_JOINED_BYTES
from millrace.protocols.qless.resp import (
    JOINED_PARTS,
    LARGE_PART,
    NO_LIST,
    OK,
    Error,
    Map,
    Push,
    Set,
    Simple,
    Verbatim,
    encode,
    join_parts,
)


@pytest.mark.parametrize(
    ("value", "resp2", "resp3"),
    [
        (None, b"$-1\r\n", b"_\r\n"),
        (NO_LIST, b"*-1\r\n", b"_\r\n"),
        (True, b":1\r\n", b"#t\r\n"),
        (False, b":0\r\n", b"#f\r\n"),
        (0, b":0\r\n", b":0\r\n"),
        (-(1 << 63), b":-9223372036854775808\r\n", b":-9223372036854775808\r\n"),
        (b"", b"$0\r\n\r\n", b"$0\r\n\r\n"),
        (b"a\r\nb", b"$4\r\na\r\nb\r\n", b"$4\r\na\r\nb\r\n"),
        ("grün", b"$5\r\ngr\xc3\xbcn\r\n", b"$5\r\ngr\xc3\xbcn\r\n"),
        ("\U0010feff", b"$1\r\n\xff\r\n", b"$1\r\n\xff\r\n"),
        ("\ud800", b"$1\r\n?\r\n", b"$1\r\n?\r\n"),
        (OK, b"+OK\r\n", b"+OK\r\n"),
        (Simple("none"), b"+none\r\n", b"+none\r\n"),
        (Error("ERR no"), b"-ERR no\r\n", b"-ERR no\r\n"),
        (Error("ERR a\r\nb"), b"-ERR a  b\r\n", b"-ERR a  b\r\n"),
        (Verbatim("a:b"), b"$3\r\na:b\r\n", b"=7\r\ntxt:a:b\r\n"),
        (1.5, b"$3\r\n1.5\r\n", b",1.5\r\n"),
        (2.0, b"$1\r\n2\r\n", b",2\r\n"),
        (-0.1, b"$4\r\n-0.1\r\n", b",-0.1\r\n"),
        (1394000060.9877, b"$15\r\n1394000060.9877\r\n", b",1394000060.9877\r\n"),
        (1e300, b"$6\r\n1e+300\r\n", b",1e+300\r\n"),
        (math.inf, b"$3\r\ninf\r\n", b",inf\r\n"),
        (-math.inf, b"$4\r\n-inf\r\n", b",-inf\r\n"),
        ([], b"*0\r\n", b"*0\r\n"),
        ([b"a", 1, None], b"*3\r\n$1\r\na\r\n:1\r\n$-1\r\n", b"*3\r\n$1\r\na\r\n:1\r\n_\r\n"),
        ([[b"a"], []], b"*2\r\n*1\r\n$1\r\na\r\n*0\r\n", b"*2\r\n*1\r\n$1\r\na\r\n*0\r\n"),
        (Map(), b"*0\r\n", b"%0\r\n"),
        (
            Map([("a", 1), (b"b", [2.5])]),
            b"*4\r\n$1\r\na\r\n:1\r\n$1\r\nb\r\n*1\r\n$3\r\n2.5\r\n",
            b"%2\r\n$1\r\na\r\n:1\r\n$1\r\nb\r\n*1\r\n,2.5\r\n",
        ),
        (Set([b"m"]), b"*1\r\n$1\r\nm\r\n", b"~1\r\n$1\r\nm\r\n"),
        (Push([b"m", 1]), b"*2\r\n$1\r\nm\r\n:1\r\n", b">2\r\n$1\r\nm\r\n:1\r\n"),
    ],
)
def test_both_protocols(value, resp2, resp3):
    assert encode(value, 2) == resp2
    assert encode(value, 3) == resp3
    for written in (resp2, resp3):
        reader = Reader(notEnoughData=...)
        reader.feed(written)
        assert reader.gets() is not ...
        assert not reader.has_data()


def test_an_error_is_truncated():
    written = encode(Error("ERR " + "ü" * 10_000), 2)
    assert len(written) < 4100
    assert written.startswith(b"-ERR \xc3\xbc")
    written[1:-2].decode()


@pytest.mark.parametrize(
    ("sizes", "pieces"),
    [
        ([5], 1),
        ([5] * 100_000, 1),
        ([20] * 100_000, 8),
        ([5, MAX_JOINED_BYTES, 5], 3),
        ([MAX_JOINED_BYTES, LARGE_PART + 1], 2),
        ([LARGE_PART] * 5, 3),
    ],
)
def test_the_parts_of_a_large_reply_are_joined_into_pieces(sizes: list[int], pieces: int) -> None:
    parts = [b"%d" % (number % 10) * size for number, size in enumerate(sizes)]
    work, slices = join_parts(parts), 1
    while True:
        try:
            next(work)
        except StopIteration as ended:
            found = ended.value
            break
        slices += 1
    assert b"".join(found) == b"".join(parts)
    assert len(found) == pieces
    assert slices >= len(parts) // JOINED_PARTS

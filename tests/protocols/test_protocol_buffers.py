"""The inbox: lines and blocks out of bytes in any pieces."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.protocols.buffers import ByteBuffer


def test_lines():
    inbox = ByteBuffer(100)
    inbox.feed(b"one\r\ntwo\nthr")
    assert (inbox.line(), inbox.line(), inbox.line()) == (b"one\r", b"two", None)
    inbox.feed(b"ee\nfour\n")
    assert (inbox.line(), inbox.line(), inbox.line()) == (b"three", b"four", None)
    assert len(inbox) == 0


def test_blocks():
    inbox = ByteBuffer(100)
    inbox.feed(b"4\nab")
    assert inbox.line() == b"4"
    assert inbox.take(4) is None
    inbox.feed(b"\n")
    assert inbox.take(4) is None
    inbox.feed(b"cnext\n")
    assert inbox.take(4) == b"ab\nc"
    assert inbox.line() == b"next"
    assert inbox.take(0) == b""


@pytest.mark.parametrize(
    "pieces",
    [[b"x" * 101], [b"x" * 101 + b"\n"], [b"x" * 50, b"x" * 51], [b"x" * 50, b"x" * 51 + b"\n"]],
)
def test_a_line_beyond_the_limit(pieces):
    inbox = ByteBuffer(100)
    for piece in pieces:
        inbox.feed(piece)
        assert inbox.line() is None
    assert inbox.too_long


def test_a_line_at_the_limit():
    inbox = ByteBuffer(100)
    for _ in range(100):
        inbox.feed(b"x")
        assert inbox.line() is None
    assert not inbox.too_long
    inbox.feed(b"\n")
    assert inbox.line() == b"x" * 100


def test_a_megabyte_byte_by_byte_takes_no_longer_than_it_must():
    for block in (False, True):
        inbox = ByteBuffer(1 << 21)
        inbox.feed(b"begun")
        started = time.process_time()
        for _ in range(1 << 20):
            inbox.feed(b"x")
            assert (inbox.take(1 << 21) if block else inbox.line()) is None
        assert time.process_time() - started < 30  # quadratic, it would be minutes


@given(
    st.lists(
        st.one_of(st.binary(max_size=30).map(lambda b: b.replace(b"\n", b"")), st.integers(0, 30)),
        max_size=12,
    ),
    st.data(),
)
def test_pieces_make_no_difference(parts, data):
    """Whatever the pieces, the same lines and blocks come out, in the same order."""
    stream = b"".join(part + b"\n" if isinstance(part, bytes) else b"b" * part for part in parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    inbox, out, wanted = ByteBuffer(1000), [], list(parts)
    for piece in pieces:
        inbox.feed(piece)
        while wanted:
            part = wanted[0]
            found = inbox.line() if isinstance(part, bytes) else inbox.take(part)
            if found is None:
                break
            out.append(found)
            wanted.pop(0)
    assert out == [part if isinstance(part, bytes) else b"b" * part for part in parts]
    assert len(inbox) == 0

"""The input buffer: lines and blocks from bytes in any segments."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.protocols.buffers import ByteBuffer, LineBuffer


def test_lines():
    inbox = ByteBuffer(100)
    inbox.feed(b"one\r\ntwo\nthr")
    assert (inbox.take_line(), inbox.take_line(), inbox.take_line()) == (b"one\r", b"two", None)
    inbox.feed(b"ee\nfour\n")
    assert (inbox.take_line(), inbox.take_line(), inbox.take_line()) == (b"three", b"four", None)
    assert len(inbox) == 0


def test_blocks():
    inbox = ByteBuffer(100)
    inbox.feed(b"4\nab")
    assert inbox.take_line() == b"4"
    assert inbox.take(4) is None
    inbox.feed(b"\n")
    assert inbox.take(4) is None
    inbox.feed(b"cnext\n")
    assert inbox.take(4) == b"ab\nc"
    assert inbox.take_line() == b"next"
    assert inbox.take(0) == b""


@pytest.mark.parametrize(
    "pieces",
    [[b"x" * 101], [b"x" * 101 + b"\n"], [b"x" * 50, b"x" * 51], [b"x" * 50, b"x" * 51 + b"\n"]],
)
def test_a_line_beyond_the_limit(pieces):
    inbox = ByteBuffer(100)
    for piece in pieces:
        inbox.feed(piece)
        assert inbox.take_line() is None
    assert inbox.too_long


def test_a_line_at_the_limit():
    inbox = ByteBuffer(100)
    for _ in range(100):
        inbox.feed(b"x")
        assert inbox.take_line() is None
    assert not inbox.too_long
    inbox.feed(b"\n")
    assert inbox.take_line() == b"x" * 100


def test_a_megabyte_in_single_bytes_takes_linear_time():
    for block in (False, True):
        inbox = ByteBuffer(1 << 21)
        inbox.feed(b"begun")
        started = time.process_time()
        for _ in range(1 << 20):
            inbox.feed(b"x")
            assert (inbox.take(1 << 21) if block else inbox.take_line()) is None
        assert time.process_time() - started < 30  # quadratic time would be minutes


@given(
    st.lists(
        st.one_of(st.binary(max_size=30).map(lambda b: b.replace(b"\n", b"")), st.integers(0, 30)),
        max_size=12,
    ),
    st.data(),
)
def test_segments_make_no_difference(parts, data):
    """The lines and blocks are the same, in the same order, for all segments."""
    stream = b"".join(part + b"\n" if isinstance(part, bytes) else b"b" * part for part in parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    inbox, out, wanted = ByteBuffer(1000), [], list(parts)
    for piece in pieces:
        inbox.feed(piece)
        while wanted:
            part = wanted[0]
            found = inbox.take_line() if isinstance(part, bytes) else inbox.take(part)
            if found is None:
                break
            out.append(found)
            wanted.pop(0)
    assert out == [part if isinstance(part, bytes) else b"b" * part for part in parts]
    assert len(inbox) == 0


# Large lines

LARGE = b"x" * (3 << 20)


@pytest.mark.parametrize("size", [1 << 16, 1 << 18, (3 << 20) + 1, 5 << 20])
def test_a_large_line_between_small_ones(size):
    lines = LineBuffer(8 << 20)
    text = b"one\n" + LARGE + b"\ntwo\n" + LARGE + b"\n\nthree\nfou"
    for at in range(0, len(text), size):
        lines.feed(text[at : at + size])
    taken = []
    while lines.pending:
        taken.append(lines.take_line())
    assert taken == [b"one", LARGE, b"two", LARGE, b"", b"three"]
    assert lines.size == 0
    assert lines.memory_used == 3
    assert not lines.empty


def test_a_large_line_that_arrived_in_pieces_is_taken_without_a_copy():
    lines = LineBuffer(8 << 20)
    for at in range(0, len(LARGE), 1 << 18):
        lines.feed(LARGE[at : at + (1 << 18)])
        assert lines.memory_used == at + (1 << 18)
    assert lines.partial_head == b"x"
    lines.feed(b"\n")
    [held] = lines.pending
    assert lines.take_line() is held
    assert lines.empty


def test_a_large_line_beyond_the_limit():
    lines = LineBuffer(2 << 20)
    for at in range(0, len(LARGE), 1 << 18):
        lines.feed(LARGE[at : at + (1 << 18)])
    assert lines.too_long
    assert not lines.pending

"""Whatever clients say, in whatever pieces: the replies are the same, each line has one, each is
well-formed, nothing breaks, and what is refused changes nothing.
"""

import json

from hypothesis import example, given, settings
from hypothesis import strategies as st
from masenko_conversation import MasenkoWorld

SETTINGS = settings(max_examples=300, deadline=None)
SECOND = 1_000_000

names = st.sampled_from([b'"a"', b'"b"', b'""', b'"!"', b"null", b"5", b'"\\ud800x"', b'"\xffx"', b'"%b"' % (b"n" * 256)])  # fmt: skip
numbers = st.sampled_from(
    [b"0", b"1", b"2", b"3", b"-1", b"-0", b"1.0", b"1e3", b"256", b"null", b'"1"', b"[]",
     b"4294967296", b"9223372036854775808", b"18446744073709551616"]
)  # fmt: skip
payloads = st.sampled_from([b"1e400", b"[ 1 ]", b'"\xff"', b'"\\ud800"', b"{", b"null", b'"<&>"'])
moments = st.sampled_from(
    [b'"2026-11-15T19:43:50Z"', b'"2026-11-15T19:43:53Z"', b'"x"', b"null", b"1"]
)
spans = st.sampled_from(
    [b'"1ms"', b'"1s"', b'"1m"', b'"0"', b'"-1s"', b'"x"', b"1000000", b"1.5", b"null"]
)
keys = st.sampled_from(
    [b"name", b"Name", b"queue", b"deadqueue", b"payload", b"retry", b"execute_at", b"blocked_by",
     b"BLOCKED_BY", b"id", b"queues", b"timeout", b"nobody"]
)  # fmt: skip
BY_KEY = {
    b"name": names,
    b"queue": names,
    b"deadqueue": names,
    b"payload": payloads,
    b"retry": numbers,
    b"execute_at": moments,
    b"blocked_by": st.lists(numbers, max_size=3).map(lambda found: b"[%b]" % b",".join(found)),
    b"id": numbers,
    b"queues": st.lists(names, max_size=3).map(lambda found: b"[%b]" % b", ".join(found)),
    b"timeout": spans,
}


@st.composite
def objects(draw, *wanted: bytes) -> bytes:
    chosen = [*wanted, *draw(st.lists(keys, max_size=3))]
    anything = st.one_of(names, numbers, payloads, moments, spans)
    parts = [b'"%b":%b' % (key, draw(BY_KEY.get(key.lower(), anything))) for key in chosen]
    return b"{%b}" % b",".join(parts)


bodies = st.one_of(
    objects(),
    objects(b"name"),
    objects(b"id"),
    objects(b"queues", b"timeout"),
    st.sampled_from([b"", b" ", b"null", b"[]", b"{", b"x", b"{} x"]),
    st.binary(max_size=12).map(lambda found: found.replace(b"\n", b"")),
)
PUSHES = st.sampled_from(
    [
        b'PUSH {"name":"a"}',
        b'PUSH {"name":"a","retry":0,"deadqueue":"b","queue":"a"}',
        b'PUSH {"name":"a","blocked_by":[-1]}',
    ]
)
lines = st.one_of(
    PUSHES,
    st.sampled_from(
        [b"ATOMIC", b"DONE", b"PING", b"INFO", b"FETCH", b"\r", b"done\r", b"QUIT", b""]
    ),
    st.builds(
        lambda verb, body: b"%b %b" % (verb, body),
        st.sampled_from([b"PUSH", b"push", b"FETCH", b"ACK", b"NACK", b"ATOMIC", b"x"]),
        bodies,
    ),
    st.binary(max_size=20).map(lambda found: found.replace(b"\n", b"")),
)


def play(pieces: list[bytes], before: int = 0) -> tuple[list[bytes], bool, dict]:
    """What a client hears, whether it was cut, and what is left."""
    world = MasenkoWorld({})
    for number in range(before):
        world.connect().receive(b'PUSH {"name":"n%d"}\n' % number)
    wire = world.connect()
    for piece in pieces:
        wire.receive(piece)
    for _ in range(40):
        world.advance(22 * SECOND)  # everything that waits times out
        if not wire.waits:
            break
    replies, closed = list(wire.replies), wire.closed
    snapshot = world.snapshot()
    wire.end()
    assert wire.closed, "an ended connection is still open"
    for other in world.clients:
        other.lose()
    assert not world.hub.connections
    assert not world.engine.holders
    assert not world.engine.leased
    return replies, closed, snapshot


@given(st.lists(lines, max_size=14), st.integers(0, 3), st.data())
@example([b"ATOMIC", b'PUSH {"name":"a"}', b"x", b"DONE", b"DONE"], 0, None)
@SETTINGS
def test_pieces_make_no_difference(said, before, data):
    stream = b"".join(line + b"\n" for line in said)
    drawn = data.draw(st.lists(st.integers(0, len(stream)), max_size=10)) if data else [3]
    cuts = sorted(drawn)
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    whole = play([stream] if stream else [], before)
    assert play([piece for piece in pieces if piece], before) == whole
    assert play([bytes([byte]) for byte in stream], before) == whole


@given(st.lists(lines, max_size=14), st.integers(0, 3))
@SETTINGS
def test_every_line_has_its_reply(said, before):
    """One for each line, but one for a transaction, and none after QUIT or for what has no end."""
    replies, closed, _ = play([b"".join(line + b"\n" for line in said)], before)
    wanted = 0
    inside = False
    for line in said:
        verb = line.partition(b" ")[0]
        if b" " not in line:
            verb = verb.removesuffix(b"\r")
        verb = verb.upper()
        if inside:
            inside = verb != b"DONE"
            wanted += not inside
        elif verb == b"ATOMIC":
            inside = True
        else:
            wanted += 1
            if verb == b"QUIT":
                break
    if closed and replies[-1] == b'ERR {"msg":"no heartbeat"}\n':
        replies.pop()
    assert len(replies) == wanted


@given(lines, st.booleans())
@SETTINGS
def test_what_is_refused_changes_nothing(line, in_a_transaction):
    world = MasenkoWorld({"dialect": "original"})
    wire = world.connect()
    wire.receive(b'PUSH {"name":"a","retry":0}\nPUSH {"name":"b","blocked_by":[1]}\nFETCH\n')
    before = {seq: repr(job) for seq, job in world.engine.jobs.items()}
    stream = b'ATOMIC\nPUSH {"name":"c"}\nACK {"id":1}\n%b\nDONE\n' if in_a_transaction else b"%b\n"  # fmt: skip
    said = len(wire.replies)
    wire.receive(stream % line)
    first = wire.replies[said] if len(wire.replies) > said else b""
    if first.startswith(b"ERR"):
        assert {seq: repr(job) for seq, job in world.engine.jobs.items()} == before
        message = json.loads(first[4:])["msg"]
        assert 0 < len(message) < 5000

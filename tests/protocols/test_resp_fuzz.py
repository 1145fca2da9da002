"""Whatever a client says, in whatever pieces: the replies are the same, each is one well-formed value,
nothing breaks, and after an error of framing nothing more is said.
"""

from hypothesis import given, settings
from hypothesis import strategies as st
from resp_conversation import (
    SCRIPT_B,
    SCRIPT_C,
    SCRIPT_D,
    SCRIPT_PUT,
    SHA_C,
    RespWorld,
    request,
)

from millrace.protocols.qless.connection import QlessConnection
from millrace.protocols.qless.resp import Limits, ProtocolError, Requests, read_whole

SETTINGS = settings(max_examples=300, deadline=None)

words = st.sampled_from(
    [
        *(b"", b"0", b"1", b"2", b"3", b"-1", b"-2", b"x", b"*", b"a", b"b", b"q", b"ql:list"),
        *(b"ql:set", b"ql:j:a", b"ql:q:queue-work", b"ql:*", b"put", b"drop", b"echo", b"value"),
        *(
            b"nil",
            b"true",
            b"list",
            b"LOAD",
            b"EXISTS",
            b"FLUSH",
            b"GET",
            b"SET",
            b"SETNAME",
            b"INFO",
        ),
        *(b"AUTH", b"default", b"sesame", b"WITHSCORES", b"0.5", b"9223372036854775807", b"\r\n"),
        *(b"$1\r\na\r\n", b"*1\r\n", b"\x00\xff", b"NUMSUB", b"slow-x", b"on"),
        *(SCRIPT_B, SCRIPT_C, SCRIPT_D, SCRIPT_PUT, SHA_C),
    ]
)
names = st.sampled_from([*QlessConnection.commands, b"get", b"nonsense", b""]).flatmap(
    lambda name: st.sampled_from([name, name.lower()])
)
arrays = st.builds(lambda name, args: request(name, *args), names, st.lists(words, max_size=5))
lines = st.builds(
    lambda name, args: b" ".join([name, *args]) + b"\r\n",
    names,
    st.lists(st.sampled_from([b"a", b"0", b'"x y"', b"'", b"ql:list", b"1"]), max_size=4),
)
nonsense = st.one_of(
    st.binary(max_size=20),
    st.sampled_from(
        [
            *(b"*1\r\n:1\r\n", b"*1\r\n*1\r\n$1\r\na\r\n", b"*1\r\n$-1\r\n", b"*-1\r\n", b"*0\r\n"),
            *(
                b"*1\r\n+PING\r\n",
                b"*1\r\n$4\r\nPINGXX",
                b"*999999999\r\n",
                b"*2\r\n%1\r\n",
                b"\r\n",
            ),
            *(b"*1\r\n#f\r\n", b"#f\r\n", b"*1\r\n=8\r\ntxt:PING\r\n", b"*1\r\n(1\r\n", b"*05\r\n"),
        ]
    ),
)
commands = st.one_of(arrays, arrays, arrays, lines, nonsense)
streams = st.lists(commands, max_size=15).map(b"".join)


def cut(stream: bytes, data: st.DataObject) -> list[bytes]:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    return [piece for piece in pieces if piece]


def play(pieces: list[bytes], password: str) -> tuple[bytes, bool, dict]:
    world = RespWorld({"password": password, "max_scratch": 3000})
    world.connect()  # somebody else
    wire = world.connect()
    if password:
        wire.receive(request("AUTH", password))
    for piece in pieces:
        wire.receive(piece)
    world.advance(10_000_000)
    heard, closed = bytes(wire.heard), wire.closed
    snapshot = world.snapshot()
    if not closed:
        wire.end()
        world.advance(1)
        assert wire.closed, "an ended connection is still open"
    assert not world.hub.pubsub.channels
    assert not world.hub.pubsub.patterns
    assert not world.hub.keyspace._waiters
    assert not world.hub.keyspace._watchers
    return heard, closed, snapshot


@given(streams, st.sampled_from(["", "sesame"]), st.data())
@SETTINGS
def test_pieces_make_no_difference(stream, password, data):
    assert play(cut(stream, data), password) == play([stream] if stream else [], password)


@given(streams, st.data())
@SETTINGS
def test_hiredis_makes_no_difference(stream, data):
    """Read at once, or with limits so low that every step is our own: the same requests."""
    large = Limits(1000, 10_000, 100_000)
    small = Limits(1000, 10_000, 100_000)
    small.at_once = 0
    assert requests_of([stream], large) == requests_of(cut(stream, data), small)


def requests_of(pieces: list[bytes], limits: Limits) -> tuple[list[list[bytes]], str]:
    requests, found = Requests(), []
    try:
        for piece in pieces:
            requests.feed(piece)
            while (args := requests.take(limits)) is not None:
                found.append(args)
    except ProtocolError as problem:
        return found, str(problem)
    return found, ""


@given(st.binary(max_size=200) | streams)
@SETTINGS
def test_what_is_read_at_once_is_what_came(data):
    requests, size = read_whole(data)
    assert b"".join(request(*args) for args in requests) == data[:size]
    assert read_whole(request("PING")) == ([[b"PING"]], 14)

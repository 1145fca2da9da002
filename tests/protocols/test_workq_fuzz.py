"""Whatever a client says, in whatever pieces: the replies are the same, each is well-formed, nothing
breaks, and no payload is taken for a command.
"""

from hypothesis import given, settings
from hypothesis import strategies as st
from workq_conversation import WorkqWorld, uid

SETTINGS = settings(max_examples=300, deadline=None)

numbers = st.sampled_from(
    [
        b"0",
        b"1",
        b"5",
        b"100",
        b"1000",
        b"86400000",
        b"86400001",
        b"x",
        b"-1",
        b"+4",
        b"04",
        b"",
        b"18446744073709551615",
    ]
)
names = st.sampled_from([b"a", b"b", b"ping", b"*", b"-x", b"n" * 256, b""])
ids = st.one_of(
    st.integers(1, 4).map(uid),
    st.sampled_from([b"bad", b"", b"urn:uuid:", b"00000000-0000-4000-8000-000000000001"]),
)
flags = st.lists(
    st.sampled_from(
        [
            b"-priority=1",
            b"-priority=x",
            b"-max-fails=2",
            b"-max-attempts=1",
            b"-x=",
            b"-=",
            b"-y=1",
            b"-z",
        ]
    ),
    max_size=4,
)
payloads = st.one_of(
    st.sampled_from([b"", b"pong", b"\r\n", b"delete %b\r\n" % uid(1), b"x\r\nlease a 0"]),
    st.binary(max_size=20),
)
times = st.sampled_from(
    [b"2026-11-15T19:43:51Z", b"2026-11-15T19:43:53Z", b"2030-01-01T00:00:00Z", b"x"]
)


@st.composite
def with_block(draw, *parts):
    payload = draw(payloads)
    size = draw(st.one_of(st.just(b"%d" % len(payload)), numbers))
    words = (
        [draw(part) if not isinstance(part, bytes) else part for part in parts]
        + [size]
        + draw(flags)
    )
    return (
        b" ".join(words)
        + draw(st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\n"]))
        + payload
        + b"\r\n"
    )


@st.composite
def line(draw, *parts):
    words = [draw(part) if not isinstance(part, bytes) else part for part in parts] + draw(flags)
    return b" ".join(words) + b"\r\n"


commands = st.one_of(
    with_block(b"add", ids, names, numbers, numbers),
    with_block(b"add", ids, st.just(b"ping"), st.just(b"100"), st.just(b"1000")),
    with_block(b"schedule", ids, names, numbers, numbers, times),
    with_block(b"run", ids, names, numbers, numbers),
    with_block(b"complete", ids),
    with_block(b"fail", ids),
    line(b"lease", names, names, numbers),
    line(b"result", ids, numbers),
    line(b"delete", ids),
    line(b"inspect", b"job", ids),
    line(b"inspect", b"jobs", names, numbers, numbers),
    line(b"inspect", b"scheduled-jobs", names, numbers, numbers),
    line(b"inspect", b"queues", numbers, numbers),
    line(b"inspect", b"server"),
    st.binary(max_size=30),
)


def play(pieces: list[bytes]) -> tuple[bytes, bool, dict]:
    world = WorkqWorld({})
    wire = world.connect()
    for piece in pieces:
        wire.receive(piece)
    for _ in range(20):
        world.advance(5_000_000_000)
    heard, closed = bytes(wire.heard), wire.closed
    snapshot = world.snapshot()
    if not closed:
        wire.end()
        world.advance(90_000_000_000)
        assert wire.closed, "an ended connection is still open"
    return heard, closed, snapshot


@given(st.lists(commands, max_size=12).map(b"".join), st.data())
@SETTINGS
def test_pieces_make_no_difference(stream, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert play([piece for piece in pieces if piece]) == play([stream] if stream else [])


@given(commands, st.booleans())
@SETTINGS
def test_a_payload_is_no_command_whatever_became_of_its_line(said, in_pieces):
    """After each line of a command with a payload come bytes that would delete somebody's job. Its
    size is never one at which they could begin anew.
    """
    line = said.split(b"\r\n", 1)[0]
    if line.split(b" ")[0] not in {b"add", b"schedule", b"run", b"complete", b"fail"}:
        return
    world = WorkqWorld({})
    world.connect().receive(b"add %b victims 1000 99999999 4\r\npong\r\n" % uid(7))
    wire = world.connect()
    stream = line + b"\r\n" + b"delete %b\r\n" % uid(7) * 3
    for piece in (stream[n : n + 5] for n in range(0, len(stream), 5)) if in_pieces else (stream,):
        wire.receive(piece)
    assert len(wire.replies) <= 1
    assert uid(7).decode() in world.engine.by_jid

"""Whatever a client says, in whatever pieces: the replies are the same, each is well-formed, nothing
breaks, and no data is taken for a command. A model that knows only whole commands agrees.
"""

from struct import pack

from goqueue_conversation import GoqueueWorld, add, added, delete, error, reserve, reserved
from hypothesis import given, settings
from hypothesis import strategies as st

SETTINGS = settings(max_examples=300, deadline=None)
MAX_DATA = 40

numbers = st.one_of(st.integers(0, 3), st.sampled_from([60, 255, 2**31, 2**32 - 1]))
names = st.sampled_from([b"a", b"b", b"", b"\xc5\xbc", b"\xff", b"q" * 255, b"q" * 256])
datas = st.one_of(
    st.sampled_from([b"", b"\0", delete(1), b"ADD\0a\0", b"x" * MAX_DATA, b"x" * (MAX_DATA + 1)]),
    st.binary(max_size=20),
)
words = st.sampled_from(
    [b"FOO\0", b"ADDED\0", b"add\0", b"\0", b"A", b"W" * 300, b"\xff\0", b"CONNECT\0", b"CON"]
)

commands = st.one_of(
    st.builds(add, datas, names, numbers, numbers),
    st.builds(add, datas, st.just("a"), numbers, numbers),
    st.builds(add, datas, names, numbers, numbers, st.integers(0, MAX_DATA + 5)),
    st.builds(reserve, names, numbers),
    st.builds(reserve, st.just("a"), numbers),
    st.builds(delete, st.integers(0, 6)),
    st.just(b"CONNECT\0"),
    words,
    st.binary(max_size=30),
)


def play(pieces: list[bytes]) -> tuple[bytes, bool, dict]:
    world = GoqueueWorld({"max_data": MAX_DATA})
    wire = world.connect()
    for piece in pieces:
        wire.receive(piece)
    world.advance(5_000_000_000)
    heard, closed = bytes(wire.heard), wire.closed
    snapshot = world.snapshot()
    if not closed:
        wire.end()
        assert wire.closed, "an ended connection is still open"
    assert not world.engine._waiters, "somebody who is gone still waits"
    assert not world.hub.connections
    return heard, closed, snapshot


@given(st.lists(commands, max_size=12).map(b"".join), st.data())
@SETTINGS
def test_pieces_make_no_difference(stream, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert play([piece for piece in pieces if piece]) == play([stream] if stream else [])


@given(st.binary(max_size=200), st.integers(1, 9))
@SETTINGS
def test_bytes_make_no_difference_either(stream, size):
    pieces = [stream[n : n + size] for n in range(0, len(stream), size)]
    assert play(pieces) == play([stream] if stream else [])


@given(st.binary(max_size=MAX_DATA), names, numbers, numbers, st.integers(1, 9))
@SETTINGS
def test_data_is_no_command_whatever_becomes_of_its_add(data, name, priority, ttp, size):
    """However the ADD is answered, nothing in its data deletes somebody's job."""
    world = GoqueueWorld({"max_data": MAX_DATA})
    world.connect().receive(add(b"victim", "victims"))
    wire = world.connect()
    stream = add((delete(1) + data)[:MAX_DATA], name, priority, ttp)
    for at in range(0, len(stream), size):
        wire.receive(stream[at : at + size])
    assert len(wire.replies) <= 1
    assert world.engine.jobs[1].payload == b"victim"


# A model

good_names = st.sampled_from(["a", "b", "ż"])
good_commands = st.one_of(
    st.tuples(
        st.just("add"), good_names, st.integers(0, 2), st.integers(0, 3), st.binary(max_size=8)
    ),
    st.tuples(st.just("reserve"), good_names),
    st.tuples(st.just("delete"), st.integers(1, 8)),
    st.tuples(st.just("sleep"), st.integers(1, 3)),
)


class Model:
    """Jobs in one dictionary, all looked through each time."""

    def __init__(self) -> None:
        self.now = 0
        self.seq = 0
        self.reserves = 0
        self.jobs: dict[int, tuple[str, int, int, bytes]] = {}
        #: When a reservation ends, and how many there were before it.
        self.until: dict[int, tuple[int, int]] = {}

    def add(self, name: str, priority: int, ttp: int, data: bytes) -> tuple[bytes, bytes]:
        self.seq += 1
        self.jobs[self.seq] = (name, priority, max(1, ttp), data)
        return add(data, name, priority, ttp), added(self.seq)

    def reserve(self, name: str) -> tuple[bytes, bytes]:
        """With a time-out of 1 s: of those that are ready the most urgent, else of those that will
        be by then the first that comes back.
        """
        mine = [seq for seq, job in self.jobs.items() if job[0] == name]
        ready = [seq for seq in mine if self.until.get(seq, (0, 0))[0] <= self.now]
        soon = [seq for seq in mine if self.until.get(seq, (0, 0))[0] == self.now + 1]
        if ready:
            seq = min(ready, key=lambda seq: (self.jobs[seq][1], seq))
        else:
            self.now += 1
            if not soon:
                return reserve(name, 1), b"TIMEOUT\0"
            seq = min(soon, key=lambda seq: self.until[seq])
        _, priority, ttp, data = self.jobs[seq]
        self.reserves += 1
        self.until[seq] = (self.now + ttp, self.reserves)
        return reserve(name, 1), reserved(seq, data, priority, ttp)

    def delete(self, seq: int) -> tuple[bytes, bytes]:
        if self.jobs.pop(seq, None) is None:
            return delete(seq), error(f"Job {seq} already deleted")
        self.until.pop(seq, None)
        return delete(seq), b"OK\0"


@given(st.lists(good_commands, max_size=25))
@SETTINGS
def test_a_model_agrees(said):
    world, model = GoqueueWorld({}), Model()
    start = world.now
    wire = world.connect()
    for what, *fields in said:
        if what == "sleep":
            model.now += fields[0]
        else:
            command, reply = getattr(model, what)(*fields)
            before = len(wire.heard)
            wire.receive(command)
            world.advance(start + model.now * 1_000_000 - world.now)
            assert bytes(wire.heard[before:]) == reply, (what, fields)
        world.advance(start + model.now * 1_000_000 - world.now)
    assert set(world.engine.jobs) == set(model.jobs)


@given(st.integers(0, 2**32 - 1), st.binary(max_size=60))
@SETTINGS
def test_a_length_is_believed_only_as_far_as_bytes_have_come(size, data):
    world = GoqueueWorld({"max_data": MAX_DATA})
    wire = world.connect()
    wire.receive(b"ADD\0a\0" + pack("<III", 0, 1, size) + data[:MAX_DATA])
    held = wire.connection._held()
    assert held <= 18 + MAX_DATA
    if size > MAX_DATA:
        assert wire.closed
    elif size > len(data[:MAX_DATA]):
        assert wire.heard == b""
        assert not world.engine.jobs
    else:
        assert world.engine.jobs[1].payload == data[:size]

"""A model of Go Job Queue on complete commands agrees with the server."""

from goqueue_conversation import GoqueueWorld, add, added, delete, error, reserve, reserved
from hypothesis import given, settings
from hypothesis import strategies as st

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
    """All jobs in one dictionary, searched linearly."""

    def __init__(self) -> None:
        self.now = 0
        self.seq = 0
        self.jobs: dict[int, tuple[str, int, int, bytes]] = {}
        #: The end of the last reservation of each reserved job.
        self.until: dict[int, int] = {}

    def add(self, name: str, priority: int, ttp: int, data: bytes) -> tuple[bytes, bytes]:
        self.seq += 1
        self.jobs[self.seq] = (name, priority, max(1, ttp), data)
        return add(data, name, priority, ttp), added(self.seq)

    def reserve(self, name: str) -> tuple[bytes, bytes]:
        """With a timeout of 1 s: the most urgent ready job, or else the most urgent of the jobs
        that become ready at its end. Reservations that end at the same time return their jobs
        together, and the spec and the original reserve the lower number first, whether the client
        waits or not.
        """
        mine = [seq for seq, job in self.jobs.items() if job[0] == name]
        ready = [seq for seq in mine if self.until.get(seq, 0) <= self.now]
        soon = [seq for seq in mine if self.until.get(seq, 0) == self.now + 1]
        if ready:
            seq = min(ready, key=lambda seq: (self.jobs[seq][1], seq))
        else:
            self.now += 1
            if not soon:
                return reserve(name, 1), b"TIMEOUT\0"
            seq = min(soon, key=lambda seq: (self.jobs[seq][1], seq))
        _, priority, ttp, data = self.jobs[seq]
        self.until[seq] = self.now + ttp
        return reserve(name, 1), reserved(seq, data, priority, ttp)

    def delete(self, seq: int) -> tuple[bytes, bytes]:
        if self.jobs.pop(seq, None) is None:
            return delete(seq), error(f"Job {seq} already deleted")
        self.until.pop(seq, None)
        return delete(seq), b"OK\0"


@given(st.lists(good_commands, max_size=25))
@settings(max_examples=300, deadline=None)
def test_a_model_agrees(said):
    world, model = GoqueueWorld({}), Model()
    start = world.now
    wire = world.connect()
    for operation, *fields in said:
        if operation == "sleep":
            model.now += fields[0]
        else:
            command, reply = getattr(model, operation)(*fields)
            before = len(wire.heard)
            wire.receive(command)
            world.advance(start + model.now * 1_000_000 - world.now)
            assert bytes(wire.heard[before:]) == reply, (operation, fields)
        world.advance(start + model.now * 1_000_000 - world.now)
    assert set(world.engine.jobs) == set(model.jobs)

"""Invariants of payloads: regardless of the result of its command, the server never parses a byte
of a payload as a command, however the bytes are split.
"""

from conversation import World
from goqueue_conversation import GoqueueWorld, add, delete
from stream_checks import HEAD, in_sizes
from workq_conversation import WorkqWorld, uid

_WITH_BLOCK = {b"add", b"schedule", b"run", b"complete", b"fail"}
VICTIM = 7


def check_workq(data: bytes) -> None:
    """Send bytes after the line that would delete another client's job. The size never ends at a
    position where they could start a command.
    """
    line = data[HEAD:].split(b"\r\n", 1)[0]
    deletes = b"delete %b\r\n" % uid(VICTIM)
    if line.split(b" ")[0] not in _WITH_BLOCK or b"\n" in line or uid(VICTIM) in line.lower():
        return
    world = WorkqWorld({})
    world.connect().receive(b"add %b victims 1000 99999999 4\r\npong\r\n" % uid(VICTIM))
    _say(world, line + b"\r\n" + deletes * 3, data)
    assert uid(VICTIM).decode() in world.engine.by_jid


def check_goqueue(data: bytes) -> None:
    """The data of an ADD is a DELETE of another client's job, with any name and numbers."""
    found = data[HEAD:]
    world = GoqueueWorld({"max_data": 40})
    world.connect().receive(add(b"victim", "victims"))
    name, _, rest = found.removeprefix(b"ADD\0").partition(b"\0")
    numbers = [int.from_bytes(rest[at : at + 4], "little") for at in (0, 4)]
    _say(world, add((delete(1) + rest)[:40], name, *numbers), data)
    assert world.engine.jobs[1].inline_payload == b"victim"


def _say(world: World, stream: bytes, data: bytes) -> None:
    wire = world.connect()
    for piece in in_sizes(stream, data[1:HEAD].ljust(HEAD - 1, b"\0")):
        wire.receive(piece)
    assert len(wire.replies) <= 1, wire.replies


CHECKS = {"workq-blocks": check_workq, "goqueue-blocks": check_goqueue}

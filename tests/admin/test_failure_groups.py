"""`failures`: groups by size, each with its newest job."""

import pytest

from admin_room import Room
from millrace.admin.jobs import MESSAGE_EXCERPT_SIZE
from millrace.admin.search import MAX_GROUP_QUEUES
from millrace.engine.events import fingerprint
from millrace.engine.states import DEAD
from millrace.protocols.qless import attempts
from millrace.protocols.registry import FAKTORY


@pytest.fixture
def room() -> Room:
    return Room()


def failed(room: Room, jid: str, message: str, queue: str = "q", retries: int = 25) -> None:
    room.push(jid, queue, retries=retries)
    room.engine.fail(room.lease(queue), room.now, FAKTORY, "Oops", message, [])
    room.now += 1


def test_the_largest_group_is_first(room):
    failed(room, "a", "rare")
    failed(room, "b", "timeout after 3 s", "one")
    failed(room, "c", "timeout after 4 s", "two", retries=-1)
    reply = room.asks(failures={})
    assert (reply["count"], reply["jobs"]) == (2, 3)
    first, second = reply["groups"]
    assert first == {
        "fingerprint": fingerprint("Oops", "timeout after 1 s"),
        "group": "Oops",
        "message": "timeout after 4 s",
        "dead": 1,
        "retrying": 1,
        "newest_at": room.now - 1,
        "newest_jid": "c",
        "newest_seq": room.engine.find("c").seq,
        "queues": ["two", "one"],
    }
    assert (second["message"], second["retrying"]) == ("rare", 1)


def test_the_list_is_bounded(room):
    for letter in "abcdefgh":
        failed(room, letter, "broken " + letter * 3, retries=-1)
        failed(room, letter + "2", "same", letter)
    reply = room.asks(failures={"limit": 3})
    assert (len(reply["groups"]), reply["count"], reply["jobs"]) == (3, 9, 16)
    assert len(reply["groups"][0]["queues"]) == MAX_GROUP_QUEUES


def test_a_long_message_is_truncated(room):
    failed(room, "a", "x" * 100_000)
    assert len(room.asks(failures={})["groups"][0]["message"]) == MESSAGE_EXCERPT_SIZE


def test_without_failures_the_list_is_empty(room):
    assert room.asks(failures={}) == {"groups": [], "count": 0, "jobs": 0}


def test_a_failure_over_qless(room):
    room.put("a")
    room.pop()
    room.speaks_qless("fail", "a", "w1", "group", "message")
    (group,) = room.asks(failures={})["groups"]
    assert (group["group"], group["dead"], group["newest_jid"]) == ("group", 1, "a")


def test_a_qless_failure_of_a_blocked_job(room):
    """Only the dialect of the spec allows this."""
    room.put("first")
    job = room.put("a", "q", "depends", '["first"]')
    args = [b"a", b"w1", b"group", b"message"]
    attempts.fail_any(room.qless, room.now, args)
    assert job.state == DEAD
    (group,) = room.asks(failures={})["groups"]
    assert (group["group"], group["dead"], group["newest_jid"]) == ("group", 1, "a")


def test_a_killed_qless_job_is_in_a_group(room):
    room.put("a")
    room.act("kill", "a")
    (group,) = room.asks(failures={})["groups"]
    assert (group["dead"], group["newest_jid"]) == (1, "a")

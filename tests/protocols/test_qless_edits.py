"""Commands that change jobs and queues, in dialect C."""

from collections.abc import Iterator

import pytest
from qless_conversation import Qless, QlessClient, job_fields


@pytest.fixture
def talk() -> Iterator[Qless]:
    conversation = Qless()
    yield conversation
    conversation.close()


@pytest.fixture
def c(talk: Qless) -> QlessClient:
    return talk.speaks("C")


# depends


def test_depends_on_and_off(c: QlessClient) -> None:
    for jid in "abcd":
        c.put(1, jid)
    c.put(2, "z", "depends", '["a"]')
    assert c("depends", 3, "z", "on", "b", "c", "unknown") == 1
    assert c.get("z")["dependencies"] == ["a", "b", "c"]
    assert c.get("b")["dependents"] == ["z"]
    assert c("depends", 4, "z", "off", "b", "d", "unknown") == 1
    assert c.get("z")["dependencies"] == ["a", "c"]
    assert c("depends", 5, "z", "off", "all") == 1
    assert job_fields(c.get("z"), "state", "dependencies") == ("waiting", {})
    assert c.get("a")["dependents"] == {}


def test_the_last_dependency_is_removed(c: QlessClient) -> None:
    c.put(1, "a")
    c.put(2, "b", "depends", '["a"]')
    c.put(2, "c", "depends", '["a"]', delay=10)
    c("depends", 3, "b", "off", "a")
    c("depends", 3, "c", "off", "a")
    assert [c.state("b"), c.state("c")] == ["waiting", "scheduled"]  # its delay is kept
    assert c.pop(4, 5) == ["a", "b"]
    assert c.pop(12, 5) == ["c"]


def test_depends_refuses_invalid_requests(c: QlessClient) -> None:
    c.put(1, "a")
    c.put(1, "b", "depends", '["a"]')
    assert c.refused("depends", 2) == "Job(): no jid provided"
    assert c.refused("depends", 2, "b") == 'Depends(): Arg "command" missing'
    words = "Depends(): Job {} not in the depends state: {}"
    assert c.refused("depends", 2, "a", "on", "b") == words.format("a", "waiting")
    assert c.refused("depends", 2, "zz", "on", "b") == words.format("zz", "false")
    words = 'Depends(): Argument "command" must be "on" or "off"'
    assert c.refused("depends", 2, "b", "foo", "a") == words
    assert c.get("b")["dependencies"] == ["a"]


# priority


def test_priority_is_truncated_only_in_the_reply(c: QlessClient) -> None:
    c.put(1, "a")
    c.put(2, "b")
    assert c("priority", 3, "b", 2.5) == 2
    assert c.get("b")["priority"] == 2.5
    assert c.pop(4, 2) == ["b", "a"]


def test_the_priority_of_a_waiting_job_puts_it_before_its_equals(c: QlessClient) -> None:
    for number, jid in enumerate("abc"):
        c.put(1 + number, jid)
    c("priority", 5, "c", 0)
    assert c.pop(6, 3) == ["c", "a", "b"]


def test_the_priority_of_a_job_that_is_not_waiting(c: QlessClient) -> None:
    c.put(1, "a")
    c.put(1, "b", delay=10)
    c.put(1, "c")
    c.pop(2)
    assert c("priority", 3, "a", 7) == 7
    assert c("priority", 3, "b", 8) == 8
    c("retry", 4, "a", "q", "w1")
    assert c.pop(11, 3) == ["b", "a", "c"]


def test_priority_refuses_invalid_requests(c: QlessClient) -> None:
    c.put(1, "a")
    assert c.refused("priority", 2) == "Job(): no jid provided"
    words = 'Priority(): Arg "priority" missing or not a number: '
    assert c.refused("priority", 2, "a") == words + "nil"
    assert c.refused("priority", 2, "a", "x") == words + "x"
    assert c.refused("priority", 2, "zz", 1) == "Priority(): Job zz does not exist"


# tag add, tag remove


def test_tags_added_and_removed(c: QlessClient) -> None:
    c.put(1, "a", "tags", '["x"]')
    assert c.json("tag", 2, "add", "a", "y", "x", "z", "y") == ["x", "y", "z"]
    assert c.get("a")["tags"] == ["x", "y", "z"]
    assert c.json("tag", 3, "remove", "a", "x", "z", "absent") == ["y"]
    assert c("tag", 4, "remove", "a", "y") == "{}"
    assert c.get("a")["tags"] == {}


def test_an_existing_tag_keeps_its_time(c: QlessClient) -> None:
    c.put(1, "a", "tags", '["t"]')
    c.put(2, "b", "tags", '["t"]')
    c("tag", 3, "add", "a", "t")
    assert c.json("tag", 4, "get", "t")["jobs"] == ["a", "b"]


def test_numeric_tags(c: QlessClient) -> None:
    c.put(1, "a", "tags", '[1, 2.5, "x"]')
    assert c.get("a")["tags"] == [1, 2.5, "x"]
    assert c.json("tag", 2, "get", "1")["jobs"] == ["a"]
    assert c.json("tag", 3, "remove", "a", "1") == [2.5, "x"]


def test_tag_refuses_invalid_requests(c: QlessClient) -> None:
    command = 'Tag(): Arg "command" must be "add", "remove", "get" or "top"'
    assert c.refused("tag", 1) == command
    words = 'Tag(): First argument must be "add", "remove" or "get"'
    assert c.refused("tag", 1, "foo") == words
    assert c.refused("tag", 1, "add") == 'Tag(): Arg "jid" missing'
    assert c.refused("tag", 1, "add", "zz", "t") == "Tag(): Job zz does not exist"
    assert c.refused("tag", 1, "remove", "zz", "t") == "Tag(): Job zz does not exist"


# track


def test_track_and_untrack(c: QlessClient) -> None:
    assert c.json("track", 1) == {"jobs": {}, "expired": {}}
    c.put(1, "a")
    c.put(1, "b")
    assert c("track", 2, "track", "b") == "1"
    assert c("track", 3, "TRACK", "a") == "1"
    assert c("track", 4, "track", "a") == "0"
    shown = c.json("track", 5)
    assert [job["jid"] for job in shown["jobs"]] == ["b", "a"]
    assert [job["tracked"] for job in shown["jobs"]] == [True, True]
    assert c("track", 6, "unTRACK", "b") == "1"
    assert c("track", 7, "untrack", "b") == "0"
    assert c.get("b")["tracked"] is False


def test_tracking_survives_the_job_and_can_be_ended(c: QlessClient) -> None:
    c.put(1, "a")
    c("track", 2, "track", "a")
    c("cancel", 3, "a")
    assert c.json("track", 4) == {"jobs": {}, "expired": ["a"]}
    c.put(5, "a")
    assert c.get("a")["tracked"] is True
    c("cancel", 6, "a")
    assert c("track", 7, "untrack", "a") == "1"
    assert c.json("track", 8) == {"jobs": {}, "expired": {}}


def test_track_refuses_invalid_requests(c: QlessClient) -> None:
    c.put(1, "a")
    assert c.refused("track", 2, "track") == 'Track(): Arg "jid" missing'
    assert c.refused("track", 2, "foo", "a") == 'Track(): Unknown action "foo"'
    assert c.refused("track", 2, "track", "zz") == "Track(): Job does not exist"


# unfail


def test_unfail_takes_the_oldest(c: QlessClient) -> None:
    for number, jid in enumerate("abcd"):
        c.put(number, jid, "retries", 2)
        c.pop(number)
        c("fail", 10 + number, jid, "w1", "group", "message")
    assert c("unfail", 20, "other", "group", 2) == 2
    job = c.get("a")
    assert job_fields(job, "state", "queue", "remaining") == ("waiting", "other", 2)
    assert job["failure"]["group"] == "group"
    assert job["history"][-1] == {"what": "put", "when": 20, "q": "other"}
    assert c.json("failed", 21, "group")["jobs"] == ["d", "c"]
    assert c.pop(22, 5, queue="other") == ["a", "b"]
    assert c.json("stats", 23, "q", 20)["failed"] == 2
    assert c("unfail", 24, "q", "group") == 2
    assert c("unfail", 25, "q", "group") == 0
    assert c("unfail", 25, "q", "unknown") == 0


def test_unfail_refuses_invalid_requests(c: QlessClient) -> None:
    assert c.refused("unfail", 1) == "Queue(): no queue name provided"
    assert c.refused("unfail", 1, "q") == 'Unfail(): Arg "group" missing'
    assert c.refused("unfail", 1, "q", "g", "x") == 'Unfail(): Arg "count" not a number: x'


# pause, unpause, queue.forget


def test_pause_several_queues(c: QlessClient) -> None:
    c.put(1, "a", queue="q1")
    assert c("pause", 2, "q1", "q2") is None
    c.put(3, "b", queue="q2")
    assert c.pop(4, queue="q1") == []
    assert c.pop(4, queue="q2") == []
    assert len(c.json("peek", 5, "q2", 1)) == 1
    assert c("unpause", 6, "q1") is None
    assert c.pop(7, queue="q1") == ["a"]
    assert c.pop(7, queue="q2") == []
    words = "Wrong number of args calling Redis command from script"
    assert [c.refused("pause", 8), c.refused("unpause", 8)] == [words, words]


def test_workers_of_a_paused_queue_can_finish(c: QlessClient) -> None:
    c.put(1, "a")
    c.pop(2)
    c("pause", 3, "q")
    assert c("heartbeat", 4, "a", "w1") == 64
    assert c("complete", 5, "a", "w1", "q", "{}") == "complete"


def test_forgotten_queues_keep_their_jobs(c: QlessClient) -> None:
    c.put(1, "a")
    c.put(2, "b", queue="other")
    assert c("queue.forget", 3, "q") is None
    assert [queue["name"] for queue in c.json("queues", 4)] == ["other"]
    assert c.pop(5) == ["a"]
    c.put(6, "c")
    assert [queue["name"] for queue in c.json("queues", 7)] == ["other", "q"]


def test_a_forgotten_queue_stays_paused(c: QlessClient) -> None:
    c.put(1, "a")
    c("pause", 2, "q")
    c("queue.forget", 3, "q")
    assert c.pop(4) == []
    assert c.json("queues", 5) == {}
    assert c.json("queues", 5, "q")["paused"] is True
    c.put(6, "b")
    assert c.json("queues", 7)[0]["paused"] is True
    c("queue.forget", 8, "q")
    c("unpause", 9, "q")
    assert c.pop(10, 2) == ["a", "b"]


# log


def test_log_adds_to_the_history(c: QlessClient) -> None:
    c.put(1, "a")
    assert c("log", 2.5, "a", "hello", '{"who": "me", "n": 1}') is None
    assert c("log", 3, "a", "bye") is None
    assert c.get("a")["history"][1:] == [
        {"what": "hello", "when": 2, "who": "me", "n": 1},
        {"what": "bye", "when": 3},
    ]


def test_logged_data_cannot_replace_fields_of_the_history(c: QlessClient) -> None:
    c.put(1, "a")
    data = '{"what": "x", "when": 9, "now": 1, "most": 2, "self": 3, "more": 4, "q": 5}'
    c("log", 2, "a", "hello", data)
    logged = c.get("a")["history"][1]
    assert job_fields(logged, "what", "when", "now", "q") == ("hello", 2, 1, 5)


def test_log_refuses_invalid_requests(c: QlessClient) -> None:
    c.put(1, "a")
    assert c.refused("log", 2) == "Log(): Argument 'jid' missing"
    assert c.refused("log", 2, "a") == "Log(): Argument 'message' missing"
    assert c.refused("log", 2, "zz", "m") == "Log(): Job zz does not exist"
    words = "Expected value but found invalid token at character 1"
    assert c.refused("log", 2, "a", "m", "nope") == words


# config.set, config.unset


def test_config_refuses_invalid_requests(c: QlessClient) -> None:
    assert c.refused("config.set", 1) == 'config.set(): Arg "option" missing'
    assert c.refused("config.set", 1, "o") == 'config.set(): Arg "value" missing'
    assert c.refused("config.unset", 1) == 'config.unset(): Arg "option" missing'
    assert c("config.unset", 1, "unknown") is None

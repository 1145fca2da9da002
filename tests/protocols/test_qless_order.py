"""Jobs of one priority: by the time of the latest put or the due time, then in the order of calls."""

from collections.abc import Iterator

import pytest
from qless_conversation import Qless, QlessClient


@pytest.fixture
def talk() -> Iterator[Qless]:
    conversation = Qless()
    yield conversation
    conversation.close()


@pytest.fixture
def c(talk: Qless) -> QlessClient:
    return talk.speaks("C")


def test_jobs_put_at_the_same_time_are_in_the_order_of_the_calls(c: QlessClient) -> None:
    for jid in ("b", "a", "c"):
        c.put(5, jid)
    assert c.pop(6, 10) == ["b", "a", "c"]


def test_a_job_that_is_put_again_goes_behind_later_jobs(c: QlessClient) -> None:
    for jid in ("a", "b", "a", "c", "b", "d"):
        c.put(5, jid)
    assert c.pop(6, 10) == ["a", "c", "b", "d"]


def test_a_retried_job_goes_behind_waiting_jobs(c: QlessClient) -> None:
    c.put(5, "a")
    c.put(5, "b")
    assert c.pop(5) == ["a"]
    c("retry", 5, "a", "q", "w1")
    c.put(5, "c")
    assert c.pop(6, 10) == ["b", "a", "c"]


def test_a_job_unblocked_by_its_dependency_goes_behind_waiting_jobs(c: QlessClient) -> None:
    c.put(1, "parent", queue="other")
    c.put(1, "child", "depends", '["parent"]')
    c.put(5, "a")
    assert c.pop(5, queue="other") == ["parent"]
    c("complete", 5, "parent", "w1", "other", "{}")
    c.put(5, "b")
    assert c.pop(6, 10) == ["a", "child", "b"]


def test_jobs_moved_at_the_same_time_keep_the_order_of_the_calls(c: QlessClient) -> None:
    for jid in ("a", "b", "c"):
        c.put(1, jid)
    c.pop(2, 10)
    for jid in ("c", "a", "b"):
        c("complete", 3, jid, "w1", "q", "{}", "next", "n")
    assert c.pop(4, 10, queue="n") == ["c", "a", "b"]


def test_delayed_jobs_are_ordered_by_due_time(c: QlessClient) -> None:
    c.put(1, "late", delay=20)
    c.put(1, "early", delay=10)
    c.put(15, "between")
    assert c.pop(30, 10) == ["early", "between", "late"]


def test_unfailed_jobs_are_in_the_order_of_their_failures(c: QlessClient) -> None:
    for jid in ("a", "b", "c"):
        c.put(1, jid)
    c.pop(2, 10)
    for jid in ("b", "c", "a"):
        c("fail", 3, jid, "w1", "group", "message")
    c.put(4, "new")
    c("unfail", 4, "q", "group")
    assert c.pop(5, 10) == ["new", "b", "c", "a"]

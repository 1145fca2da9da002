"""Ids: the jids that the engine makes where clients give none, and seqs that nobody gets."""

from uuid import UUID

import pytest

from failing_stores import FailingMemoryStore
from millrace.store import MemoryStore
from scene import Scene, commit, refused, restarted, unit


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_job_without_a_jid_gets_one_made_of_its_seq(scene):
    jobs = [scene.push("") for _ in range(300)]
    assert jobs[0].jid == "00000000-0000-4000-8000-000000000001"
    assert jobs[255].jid == "00000000-0000-4000-8000-000000000100"
    assert len({job.jid for job in jobs}) == 300
    assert all(UUID(job.jid).version == 4 for job in jobs)
    assert all(scene.engine.by_jid[job.jid] is job for job in jobs)
    assert {event.jid for event in scene.events()} == {job.jid for job in jobs}


def test_a_jid_once_made_stays_over_a_restart(scene):
    job = scene.push("")
    again = restarted(scene, MemoryStore())
    assert again.engine.find(job.jid).seq == job.seq
    assert again.push("").jid == "00000000-0000-4000-8000-000000000002"


@pytest.mark.parametrize("gone", [0, 1])
def test_a_jid_that_is_made_may_be_one_that_a_client_has_given(scene, gone):
    jid = "00000000-0000-4000-8000-000000000003"
    theirs = scene.push(jid)
    scene.push("other")
    ours = scene.push("")
    assert ours.jid == jid
    assert scene.engine.find_all(jid) == [theirs, ours]
    again = restarted(scene, MemoryStore())
    assert [job.seq for job in again.engine.find_all(jid)] == [1, 3]
    scene.engine.cancel((theirs, ours)[gone], scene.now)
    assert scene.engine.find_all(jid) == [(ours, theirs)[gone]]


def test_burned_seqs_are_given_to_nobody(scene):
    store = MemoryStore()
    assert scene.push("a").seq == 1
    scene.engine.burn(3)
    assert scene.push("").jid == "00000000-0000-4000-8000-000000000005"
    scene.engine.burn(0)
    jobs = scene.engine.push_many([unit("b"), unit("c", blockers=[-1])], scene.now)
    assert [job.seq for job in jobs] == [6, 7]
    assert sorted(scene.engine.jobs) == [1, 5, 6, 7]
    scene.engine.burn(2)
    assert restarted(scene, store).push("d").seq == 10


def test_burning_seqs_is_nothing_that_must_be_durable(scene):
    before = scene.engine.changes
    scene.engine.burn(1000)
    assert scene.engine.changes == before
    assert not scene.engine.batch


def test_a_refused_push_s_jid_is_not_made_again(scene):
    store = FailingMemoryStore()
    kept = scene.push("")
    commit(scene.engine, store)
    lost = scene.push("").jid
    refused(scene, store)
    assert scene.engine.find(lost) is None
    assert scene.push("").jid not in {kept.jid, lost}

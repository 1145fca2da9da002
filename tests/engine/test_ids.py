"""Ids: jids that the engine generates for pushes without one, and skipped seqs."""

from uuid import UUID

import pytest

from failing_stores import FailingMemoryStore
from millrace.store import MemoryStore
from scene import Scene, commit, refused, restarted, unit


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_job_without_a_jid_gets_one_from_its_seq(scene):
    jobs = [scene.push("") for _ in range(300)]
    assert jobs[0].jid == "00000000-0000-4000-8000-000000000001"
    assert jobs[255].jid == "00000000-0000-4000-8000-000000000100"
    assert len({job.jid for job in jobs}) == 300
    assert all(UUID(job.jid).version == 4 for job in jobs)
    assert all(scene.engine.by_jid[job.jid] is job for job in jobs)
    assert {event.jid for event in scene.events()} == {job.jid for job in jobs}


def test_a_generated_jid_survives_a_restart(scene):
    job = scene.push("")
    again = restarted(scene, MemoryStore())
    assert again.engine.find(job.jid).seq == job.seq
    assert again.push("").jid == "00000000-0000-4000-8000-000000000002"


@pytest.mark.parametrize("removed", [0, 1])
def test_a_generated_jid_may_equal_the_jid_of_a_client(scene, removed):
    jid = "00000000-0000-4000-8000-000000000003"
    given = scene.push(jid)
    scene.push("other")
    generated = scene.push("")
    assert generated.jid == jid
    assert scene.engine.find_all(jid) == [given, generated]
    again = restarted(scene, MemoryStore())
    assert [job.seq for job in again.engine.find_all(jid)] == [1, 3]
    scene.engine.cancel((given, generated)[removed], scene.now)
    assert scene.engine.find_all(jid) == [(generated, given)[removed]]


def test_skipped_seqs_are_never_used(scene):
    store = MemoryStore()
    assert scene.push("a").seq == 1
    scene.engine.skip_seqs(3)
    assert scene.push("").jid == "00000000-0000-4000-8000-000000000005"
    scene.engine.skip_seqs(0)
    jobs = scene.engine.push_many([unit("b"), unit("c", blockers=[-1])], scene.now)
    assert [job.seq for job in jobs] == [6, 7]
    assert sorted(scene.engine.jobs) == [1, 5, 6, 7]
    scene.engine.skip_seqs(2)
    assert restarted(scene, store).push("d").seq == 10


def test_skipping_seqs_does_not_wait_for_a_commit(scene):
    scene.engine.caller.must_wait = False
    scene.engine.skip_seqs(1000)
    assert not scene.engine.caller.must_wait
    assert not scene.engine.change_set


def test_the_jid_of_a_refused_push_is_not_generated_again(scene):
    store = FailingMemoryStore()
    kept = scene.push("")
    commit(scene.engine, store)
    lost = scene.push("").jid
    refused(scene, store)
    assert scene.engine.find(lost) is None
    assert scene.push("").jid not in {kept.jid, lost}

"""`act`: each action to jobs of each kind, to some and to all that a query means."""

from typing import Any

import pytest

from admin_room import Room
from millrace.admin.bulk import (
    ACTION_SLICE_SIZE,
    MAX_DEPENDENTS_PER_SLICE,
    MAX_NAMED_JOBS,
    PROGRESS_INTERVAL,
    SCAN_SLICE_SIZE,
    act_on_jobs,
    format_filter,
)
from millrace.engine.job import GOQUEUE, MASENKO, QLESS, WORKQ, alias
from millrace.engine.states import BLOCKED, DEAD, DONE, LEASED, READY, SCHEDULED
from millrace.protocols.qless.job_view import part_of, state_of
from millrace.records import ActionRequest, JobFilter
from wires import SECOND, START


@pytest.fixture
def room() -> Room:
    return Room()


# Retry


def test_retry_makes_a_dead_job_ready(room):
    job = room.dead()
    assert room.act("retry", "a1") == {
        "done": 1,
        "refused": [],
        "refused_count": 0,
        "looked": 1,
        "of": 1,
        "over": True,
    }
    assert job.state == READY
    assert room.wire.durable == [0]


def test_retry_makes_a_scheduled_job_ready(room):
    job = room.push(due=START + 100 * SECOND)
    room.act("retry", "a1")
    assert job.state == READY


def test_retry_of_others_is_refused(room):
    room.push("ready")
    assert room.unfit("retry", "ready").startswith("it is ready: ")
    room.lease()
    assert room.unfit("retry", "ready").startswith("a worker has it: ")
    assert room.unfit("retry", "nobody") == "there is no such job"


def test_retry_of_a_failed_job_of_qless_puts_it_into_its_queue(room):
    job = room.put("j1")
    room.pop()
    room.speaks_qless("fail", "j1", "w1", "group", "message", "{}")
    assert job.state == DEAD
    room.act("retry", "j1")
    assert job.state == READY
    history = [stage[1] for stage in part_of(job).history]
    assert history == ["put", "popped", "failed", "put"]
    assert part_of(job).history[-1][2] == {"q": "q"}


# Kill


def test_kill(room):
    jobs = [room.push("ready"), room.push("later", due=START + SECOND)]
    jobs.append(room.push("blocked", blockers=[jobs[0].seq]))
    room.act("kill", "ready", "later", "blocked")
    assert [job.state for job in jobs] == [DEAD] * 3
    assert room.unfit("kill", "ready").startswith("it is dead")


def test_a_job_that_a_worker_has_cannot_be_killed(room):
    room.push()
    room.lease()
    assert room.unfit("kill", "a1").startswith("a worker has it")


def test_a_killed_job_of_qless_is_in_a_group_of_failures(room):
    job = room.put("j1")
    room.act("kill", "j1")
    assert job.state == DEAD
    assert room.speaks_qless("failed") == b'{"killed":1}'


def test_a_throttled_job_that_is_killed_has_its_order_again(room):
    room.speaks_qless("config.set", "x", "y")
    for jid in ("j1", "j2"):
        room.put(jid, "q", "priority", 7)
    room.qless.throttles.set("ql:q:q", 1, 0, room.now)
    room.pop()
    room.pop()
    job = room.engine.find("j2")
    room.qless.throttles.set_aside(job, "ql:q:q", room.now)
    assert state_of(job) == "throttled"
    room.act("kill", "j2")
    room.act("retry", "j2")
    assert (job.state, job.rank, state_of(job)) == (READY, 7, "waiting")


# Cancel and delete


def test_cancel_removes_what_nobody_has(room):
    room.push("a1")
    room.push("a2")
    room.lease()
    assert room.unfit("cancel", "a1").startswith("a worker has it")
    room.act("cancel", "a2")
    assert list(room.engine.by_jid) == ["a1"]


def test_cancel_of_one_that_others_wait_for(room):
    blocker = room.push("a1")
    for number in range(5):
        room.push(f"b{number}", blockers=[blocker.seq])
    reason = room.unfit("cancel", "a1")
    assert reason == "others wait for it: b0, b1, b2 and 2 more. Cancel them, too, or delete it"


def turns(room: Room, **asked: Any) -> list[int]:
    """How many jobs changed in each turn of it."""
    telling, found = act_on_jobs(room.hub, ActionRequest(**asked), room.now), []
    room.hub.now, events = room.now, room.engine.batch.events
    before = len(events)
    for _ in telling:
        found.append(len(events) - before)
        before = len(events)
    return found


def test_those_who_wait_for_what_is_deleted_are_let_go_some_at_a_time(room):
    blocker = room.push("a1")
    waiting = [
        room.push(f"b{number}", blockers=[blocker.seq])
        for number in range(2 * MAX_DEPENDENTS_PER_SLICE)
    ]
    changed = turns(room, action="delete", jobs=["a1"])
    assert (max(changed), sum(changed)) == (ACTION_SLICE_SIZE, 2 * MAX_DEPENDENTS_PER_SLICE + 1)
    assert {job.state for job in waiting} == {READY}
    assert [room.lease().jid for _ in range(3)] == ["b0", "b1", "b2"]
    room.check()


def test_few_that_wait_are_let_go_with_it(room):
    blocker = room.push("a1")
    for number in range(10):
        room.push(f"b{number}", blockers=[blocker.seq])
    assert turns(room, action="delete", jobs=["a1"]) == [11]


def test_many_that_wait_are_passed_some_at_a_time(room):
    blocker = room.push("a1")
    for number in range(3 * SCAN_SLICE_SIZE):
        room.push(f"b{number}", blockers=[blocker.seq])
    assert turns(room, action="cancel", jobs=["a1"]) == [0, 0, 0, 0]
    changed = turns(room, action="cancel", query=JobFilter(queue="q"))
    assert max(changed) <= ACTION_SLICE_SIZE
    assert not room.engine.jobs
    room.check()


def test_cancel_of_those_who_wait_together_with_what_they_wait_for(room):
    first = room.push("a1")
    second = room.push("a2", blockers=[first.seq])
    room.push("a3", blockers=[second.seq, first.seq])
    taker = room.connect()
    assert room.act("cancel", "a1", "a2", "a3")["done"] == 3
    assert not room.engine.jobs
    assert room.engine.batch.events == []
    assert [event[1] for event in room.kept[-1].events][-3:] == ["cancelled"] * 3
    assert taker.replies == []


def test_cancel_of_jobs_that_wait_for_each_other_changes_nothing(room):
    first, second = room.put("a"), room.put("b", "q", "depends", '["a"]')
    room.speaks_qless("put", "w", "q", "a", "klass", "{}", 0, "depends", '["b"]')
    assert (first.state, second.state) == (BLOCKED, BLOCKED)
    assert room.act("cancel", "a", "b")["done"] == 0


def test_delete_removes_whatever_it_is_doing(room):
    room.push("a1")
    room.lease()
    room.dead("a2")
    waiting = room.push("a3", blockers=[room.engine.find("a1").seq])
    room.act("delete", "a1", "a2")
    assert room.engine.jobs == {waiting.seq: waiting}
    assert waiting.state == READY


def test_delete_tells_those_who_listen_to_qless(room):
    room.put("j1", "q", "tags", '["t"]')
    room.pop()
    told = []
    room.qless.publish = lambda channel, message: told.append((channel, message))
    room.qless.hub.pubsub.channels[b"x"] = {}
    room.speaks_qless("track", "track", "j1")
    room.act("delete", "j1")
    assert [channel for channel, _ in told] == ["track", "log", "w:w1", "canceled"]
    assert room.qless.tags == {}


# Move


def test_move(room):
    job = room.push("a1", tags=["x"])
    room.act("move", "a1", queue="other")
    assert (job.queue, job.state) == ("other", READY)
    assert room.audit()[0] == ("ann", "move", "a1 to the queue other", 1)


def test_what_is_scheduled_stays_so_when_it_is_moved(room):
    job = room.push(due=START + 100 * SECOND)
    room.act("move", "a1", queue="other")
    assert (job.state, job.due) == (SCHEDULED, START + 100 * SECOND)


def test_a_scheduled_job_of_qless_keeps_its_moment_by_the_clock_of_its_callers(room):
    job = room.put("j1", delay=100)
    room.act("move", "j1", queue="other")
    assert (job.state, job.queue, job.due) == (SCHEDULED, "other", START + 100 * SECOND)
    room.now += 101 * SECOND
    assert b"j1" in room.pop("other")


def test_a_job_of_another_protocol_that_qless_knows_is_moved(room):
    job = room.push(due=START + 100 * SECOND, tags=["x"])
    part_of(job)
    room.act("move", "a1", queue="other")
    assert (job.state, job.queue, job.extra.tags) == (SCHEDULED, "other", ["x"])
    room.engine.tick(START + 100 * SECOND)
    assert job.state == READY


def test_move_of_one_that_a_worker_has_is_refused(room):
    room.push()
    room.lease()
    assert room.unfit("move", "a1", queue="other") == "a worker has it: time it out first"


def test_a_completed_job_of_qless_can_be_moved_and_run_again(room):
    job = room.put("j1")
    room.pop()
    room.speaks_qless("complete", "j1", "w1", "q", "{}")
    assert job.state == DONE
    room.act("move", "j1", queue="again")
    assert (job.state, job.queue) == (READY, "again")
    assert b"again" in room.speaks_qless("queues")


@pytest.mark.parametrize("queue", ["", "x" * 256])
def test_a_queue_that_cannot_be(room, queue):
    room.push()
    request = {"action": "move", "jobs": ["a1"], "queue": queue}
    assert room.refused(act=request)[0] == "bad request"


# Priority


@pytest.mark.parametrize(("origin", "rank"), [(WORKQ, 5), (GOQUEUE, -5), (MASENKO, 5)])
def test_priority_is_in_the_numbers_of_the_jobs_own_protocol(room, origin, rank):
    job = room.push(origin=origin)
    room.act("priority", "a1", priority=5)
    assert job.rank == rank


def test_priority_of_qless(room):
    room.put("j1")
    job = room.put("j2")
    room.act("priority", "j2", priority=3)
    assert part_of(job).priority == 3
    assert room.lease() is job


def test_priority_of_a_job_of_another_protocol_that_qless_knows(room):
    job = room.push()
    part_of(job)
    room.act("priority", "a1", priority=3)
    assert (job.rank, part_of(job).priority) == (3, 3)


@pytest.mark.parametrize("number", [1e300, -1e17])
def test_a_priority_beyond_all_bounds(room, number):
    room.push()
    request = {"action": "priority", "jobs": ["a1"], "priority": number}
    assert room.refused(act=request)[0] == "bad request"


# Tags and tracking


def test_tags(room):
    job, other = room.push(), room.put("j1", "q", "tags", '["t"]')
    room.act("tag", "a1", "j1", tags=["t", "u"])
    assert job.extra.tags == other.extra.tags == ["t", "u"]
    assert room.qless.tags.keys() == {"t", "u"}
    assert room.unfit("tag", "a1", tags=["t"]) == "it has these tags already"
    room.act("untag", "a1", tags=["t"])
    assert job.extra.tags == ["u"]
    assert room.unfit("untag", "a1", tags=["t"]) == "it has none of these tags"


def test_tags_without_qless():
    room = Room(qless=False)
    job = room.push()
    room.act("tag", "a1", tags=["t"])
    assert job.extra.tags == ["t"]
    assert job.extra.own is None


def test_a_tag_that_was_there_before_qless_looked(room):
    job = room.push(tags=["x"])
    room.act("tag", "a1", tags=["y"])
    assert job.extra.tags == ["x", "y"]


def test_tracking(room):
    room.push()
    room.act("track", "a1")
    assert "a1" in room.qless.tracked
    room.act("untrack", "a1")
    assert "a1" not in room.qless.tracked
    assert room.unfit("untrack", "a1") == "it is not tracked"


def test_what_is_gone_can_be_untracked(room):
    room.push()
    room.act("track", "a1")
    room.act("delete", "a1")
    assert "a1" in room.qless.tracked
    acted = room.act("untrack", "a1")
    assert (acted["done"], acted["of"], acted["refused"]) == (1, 1, [])
    assert "a1" not in room.qless.tracked
    assert room.audit()[0] == ("ann", "untrack", "a1", 1)
    assert room.unfit("untrack", "a1") == "there is no such job"


def test_tracking_without_qless():
    room = Room(qless=False)
    room.push()
    code, reason = room.refused(act={"action": "track", "jobs": ["a1"]})
    assert (code, reason) == ("not found", "that is of Qless, and its port is off")


# Dependencies and leases


def test_undepend(room):
    first, second = room.push("a1"), room.push("a2")
    job = room.push("a3", blockers=[first.seq, second.seq])
    assert room.unfit("undepend", "a3", blockers=["a3"]) == "it waits for none of these"
    room.act("undepend", "a3", blockers=["a1"])
    assert (job.state, job.extra.blockers) == (BLOCKED, [second.seq])
    room.act("undepend", "a3")
    assert job.state == READY
    assert room.unfit("undepend", "a3").startswith("it is ready")


def test_undepend_does_not_release_a_load(room):
    room.push("a1", load="mine")
    reason = room.unfit("undepend", "a1")
    assert reason == "it waits for the release of the load mine, not for a job"


@pytest.mark.parametrize("actor", [WORKQ, MASENKO, GOQUEUE])
def test_timeout_is_what_the_policy_says_of_expired_leases(room, actor):
    job = room.push()
    room.engine.holders.add("w1")
    room.lease(actor=actor)
    room.act("timeout", "a1")
    assert (job.state, job.failures, job.failure.group) == (SCHEDULED, 1, "ReservationExpired")
    assert room.unfit("timeout", "a1") == "it is scheduled: no worker has it"


def test_timeout_of_a_lock_of_qless(room):
    job = room.put("j1")
    room.put("j2")
    room.pop()
    room.act("timeout", "j1")
    assert state_of(job) == "stalled"
    assert part_of(job).history[-1][1] == "timed-out"
    assert room.lease() is job


# Which jobs


def test_a_number_means_one_job_whatever_ids_there_are(room):
    first, second = room.dead("2"), room.dead("b")
    room.asks(act={"action": "retry", "seqs": [2, 9]})
    assert (first.state, second.state) == (DEAD, READY)
    room.act("retry", "2")
    assert first.state == READY


def test_what_looks_like_a_number_is_an_id_and_nothing_else(room):
    stranger = room.push("stranger")
    room.push("1")
    assert room.act("delete", "1")["done"] == 1
    assert room.unfit("delete", "1") == "there is no such job"
    assert room.act_on_all("delete", {"id": "1"})[-1]["done"] == 0
    assert room.asks(search={"query": {"id": "1"}})["jobs"][0]["jid"] == "stranger"
    waiting = room.push("b", blockers=[stranger.seq])
    assert room.unfit("undepend", "b", blockers=["1"]) == "it waits for none of these"
    room.act("undepend", "b", blockers=[alias(1)])
    assert waiting.state == READY
    assert room.act("delete", alias(1))["done"] == 1
    assert room.act_on_all("delete", {"id": alias(waiting.seq)})[-1]["done"] == 1


def test_the_oldest_of_one_id_is_meant(room):
    jobs = [room.dead("a1"), room.dead("a1")]
    room.act("retry", "a1", "a1")
    assert [job.state for job in jobs] == [READY, DEAD]


@pytest.mark.parametrize(
    "request_",
    [
        {"action": "retry"},
        {"action": "retry", "jobs": ["a"], "query": {}},
        {"action": "tag", "jobs": ["a"]},
        {"action": "tag", "jobs": ["a"], "tags": [""]},
        {"action": "explode", "jobs": ["a"]},
    ],
)
def test_what_makes_no_sense_is_refused(room, request_):
    assert room.refused(act=request_)[0] == "bad request"
    assert room.audit() == []


def test_only_so_many_can_be_named(room):
    jobs = ["a"] * (MAX_NAMED_JOBS + 1)
    assert room.refused(act={"action": "retry", "jobs": jobs})[0] == "too large"


def test_only_the_first_refusals_are_told(room):
    acted = room.act("retry", *(f"a{number}" for number in range(150)))
    assert (len(acted["refused"]), acted["refused_count"]) == (100, 150)


# All that a query means


def test_act_on_all(room):
    jobs = [room.dead(f"a{number}") for number in range(3 * PROGRESS_INTERVAL + 10)]
    other = room.dead("b", "other")
    told = room.act_on_all("retry", {"queue": "q", "state": "dead"})
    assert {job.state for job in jobs} == {READY}
    assert other.state == DEAD
    assert [each["over"] for each in told] == [False] * 3 + [True]
    assert [each["done"] for each in told] == [500, 1000, 1500, 1510]
    assert {each["of"] for each in told} == {1510}
    assert room.audit() == [("ann", "retry", "queue:q state:dead", 1510)]


def test_each_is_done_once_however_it_moves(room):
    """A job that is moved is still meant by the query."""
    jobs = [room.push(f"a{number}") for number in range(2 * ACTION_SLICE_SIZE)]
    (*_, acted) = room.act_on_all("move", {}, queue="other")
    assert acted["done"] == len(jobs)
    assert [event[1] for batch in room.kept for event in batch.events].count("moved") == len(jobs)


def test_what_has_changed_since_it_was_found_is_left_alone(room):
    for number in range(3 * ACTION_SLICE_SIZE):
        room.push(f"a{number}")
    connection = room.wire.connection
    connection.receive(b'{"act":{"action":"delete","query":{"state":"ready"}}}\n', room.now, 64)
    assert len(room.engine.jobs) == 2 * ACTION_SLICE_SIZE
    taken = [room.lease() for _ in range(ACTION_SLICE_SIZE)]
    room.wire.run()
    assert [job.seq for job in taken] == list(room.engine.leased)


def test_whoever_goes_away_stops_it(room):
    for number in range(10 * ACTION_SLICE_SIZE):
        room.push(f"a{number}")
    connection = room.wire.connection
    connection.receive(b'{"act":{"action":"kill","query":{},"by":"ann"}}\n', room.now, 64)
    for _ in range(4):
        assert connection.run(room.now, 64)
    room.wire.lose()
    room.wire = room.connect()
    dead = len(room.engine.dead)
    assert 0 < dead < 10 * ACTION_SLICE_SIZE
    assert room.audit() == [("ann", "kill", "all jobs", dead)]


def test_another_command_waits_until_it_is_over(room):
    for number in range(3 * ACTION_SLICE_SIZE):
        room.push(f"a{number}")
    room.wire.receive(b'{"act":{"action":"kill","query":{}}}\n{"sizes":true}\n')
    assert b'"over":true' in room.wire.replies[0]
    assert b'"dead":150' in room.wire.replies[1]


def test_while_nothing_can_be_kept_nothing_is_changed(room):
    job = room.dead()
    room.engine.halted = "the disk is full"
    request = {"action": "retry", "jobs": ["a1"]}
    code, reason = room.refused(act=request)
    assert (code, reason) == (
        "unavailable",
        "the disk is full: nothing was changed, try again later",
    )
    assert job.state == DEAD
    assert room.audit() == []


def test_what_is_undone_meanwhile_ends_it(room):
    for number in range(3 * ACTION_SLICE_SIZE):
        room.push(f"a{number}")
    connection = room.wire.connection
    connection.receive(b'{"act":{"action":"kill","query":{}}}\n', room.now, 64)
    connection.run(room.now, 64)
    room.engine.reverts += 1
    room.wire.run()
    assert b'"code":"unavailable"' in room.wire.replies[-1]


def test_queries_format_filter():
    query = JobFilter(queue="a b", state="dead", tracked=True, words=["x", 'say "hi"'])
    assert format_filter(query) == 'queue:"a b" state:dead tracked:true x "say \\"hi\\""'
    assert format_filter(JobFilter()) == "all jobs"


def test_qless_and_others_of_one_id(room):
    first, second = room.dead("j1"), room.put("j2")
    assert second.origin == QLESS
    room.act("retry", "j1", "j2")
    assert (first.state, second.state) == (READY, READY)


def test_a_job_that_is_leased_over_another_protocol_is_deleted_for_good(room):
    job = room.push()
    room.lease(actor=WORKQ)
    assert job.state == LEASED
    room.act("delete", "a1")
    assert not room.engine.leased


# Only where they were seen


def test_only_those_of_the_named_that_are_still_there(room):
    dead, ready = room.dead("d"), room.push("r")
    assert room.act("delete", "d", "r", only={"state": "dead"})["done"] == 1
    assert dead.seq not in room.engine.jobs
    assert room.engine.jobs[ready.seq].state == READY
    reason = "it is not where it was seen: it is ready"
    assert room.unfit("delete", "r", only={"state": "dead"}) == reason
    assert room.unfit("delete", "r", only={"queue": "other", "state": "ready"}) == reason
    room.lease()
    assert room.unfit("delete", "r", only={"queue": "q", "state": "ready"}).endswith("has it")
    assert ready.state == LEASED


def test_of_twins_the_one_that_is_there_is_meant(room):
    running, waiting = room.push("a"), room.push("a")
    assert room.lease() is running
    room.act("delete", "a", only={"state": "ready"})
    assert running.seq in room.engine.jobs
    assert waiting.seq not in room.engine.jobs


def test_only_is_for_jobs_that_are_named(room):
    room.push("a")
    wrong = {"action": "delete", "query": {"id": "a"}, "only": {"state": "ready"}}
    assert room.refused(act=wrong)[0] == "bad request"
    wrong = {"action": "delete", "jobs": ["a"], "only": {"words": ["x"]}}
    assert room.refused(act=wrong)[0] == "bad request"

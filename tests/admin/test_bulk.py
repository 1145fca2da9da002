"""`act`: each action on jobs of each protocol, on named jobs and on all jobs of a query."""

import gc
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
)
from millrace.engine.annotations import ensure_details
from millrace.engine.job import Job, id_from_seq
from millrace.engine.states import BLOCKED, DEAD, DONE, LEASED, READY, SCHEDULED
from millrace.protocols.qless.job_view import state_of
from millrace.protocols.registry import GOQUEUE, MASENKO, QLESS, WORKQ
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
        "skipped": [],
        "skipped_count": 0,
        "examined": 1,
        "total": 1,
        "finished": True,
    }
    assert job.state == READY
    assert room.wire.durable == [0]


def test_retry_makes_a_scheduled_job_ready(room):
    job = room.push(due_at=START + 100 * SECOND)
    room.act("retry", "a1")
    assert job.state == READY


def test_retry_of_ready_leased_or_unknown_jobs_is_refused(room):
    room.push("ready")
    assert room.unfit("retry", "ready").startswith("The job is ready;")
    room.lease()
    assert room.unfit("retry", "ready").startswith("The job is leased;")
    assert room.unfit("retry", "nobody") == "Job not found."


def test_retry_of_a_failed_qless_job_puts_it_into_its_queue(room):
    job = room.put("j1")
    room.pop()
    room.speaks_qless("fail", "j1", "w1", "group", "message", "{}")
    assert job.state == DEAD
    room.act("retry", "j1")
    assert job.state == READY
    history = [stage[1] for stage in ensure_details(job).log]
    assert history == ["put", "popped", "failed", "put"]
    assert ensure_details(job).log[-1][2] == {"q": "q"}


# Kill


def test_kill(room):
    jobs = [room.push("ready"), room.push("later", due_at=START + SECOND)]
    jobs.append(room.push("blocked", blockers=[jobs[0].seq]))
    room.act("kill", "ready", "later", "blocked")
    assert [job.state for job in jobs] == [DEAD] * 3
    assert room.unfit("kill", "ready").startswith("The job is dead;")


def test_a_leased_job_cannot_be_killed(room):
    room.push()
    room.lease()
    assert room.unfit("kill", "a1").startswith("The job is leased;")


def test_a_killed_qless_job_is_in_a_failure_group(room):
    job = room.put("j1")
    room.act("kill", "j1")
    assert job.state == DEAD
    assert room.speaks_qless("failed") == b'{"killed":1}'


def test_a_throttled_job_that_is_killed_keeps_its_order(room):
    room.speaks_qless("config.set", "x", "y")
    for jid in ("j1", "j2"):
        room.put(jid, "q", "priority", 7)
    room.qless.throttles.set("ql:q:q", 1, 0, room.now)
    room.pop()
    room.pop()
    job = room.engine.find("j2")
    room.qless.throttles.park(job, "ql:q:q", room.now)
    assert state_of(job) == "throttled"
    room.act("kill", "j2")
    room.act("retry", "j2")
    assert (job.state, job.rank, state_of(job)) == (READY, 7, "waiting")


# Cancel and delete


def test_cancel_removes_ready_and_running_jobs(room):
    room.push("a1")
    room.push("a2")
    leased = room.lease()
    room.act("cancel", "a1")
    room.act("cancel", "a2")
    assert not room.engine.by_jid
    assert leased.seq not in room.engine.leased


def test_cancel_of_a_job_with_dependents_is_refused(room):
    blocker = room.push("a1")
    for number in range(5):
        room.push(f"b{number}", blockers=[blocker.seq])
    reason = room.unfit("cancel", "a1")
    assert reason == (
        "Other jobs depend on it: b0, b1, b2 and 2 more. Cancel them as well, or delete the job."
    )


def turns(room: Room, **fields: Any) -> list[int]:
    """The number of jobs that change in each turn."""
    telling, found = act_on_jobs(room.hub, ActionRequest(**fields), room.now), []
    room.hub.now, events = room.now, room.engine.change_set.events
    before = len(events)
    for _ in telling:
        found.append(len(events) - before)
        before = len(events)
    return found


def test_dependents_of_deleted_jobs_are_unblocked_in_slices(room):
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


def test_a_few_dependents_are_unblocked_in_the_same_turn(room):
    blocker = room.push("a1")
    for number in range(10):
        room.push(f"b{number}", blockers=[blocker.seq])
    assert turns(room, action="delete", jobs=["a1"]) == [11]


def test_dependents_are_scanned_in_slices(room):
    blocker = room.push("a1")
    for number in range(3 * SCAN_SLICE_SIZE):
        room.push(f"b{number}", blockers=[blocker.seq])
    assert turns(room, action="cancel", jobs=["a1"]) == [0, 0, 0, 0]
    changed = turns(room, action="cancel", query=JobFilter(queue="q"))
    assert max(changed) <= ACTION_SLICE_SIZE
    assert not room.engine.jobs
    room.check()


def test_cancel_of_jobs_together_with_their_blockers(room):
    first = room.push("a1")
    second = room.push("a2", blockers=[first.seq])
    room.push("a3", blockers=[second.seq, first.seq])
    taker = room.connect()
    assert room.act("cancel", "a1", "a2", "a3")["done"] == 3
    assert not room.engine.jobs
    assert room.engine.change_set.events == []
    assert [event[1] for event in room.kept[-1].events][-3:] == ["cancelled"] * 3
    assert taker.replies == []


def test_cancel_of_jobs_that_wait_for_each_other_changes_nothing(room):
    first, second = room.put("a"), room.put("b", "q", "depends", '["a"]')
    room.speaks_qless("put", "w", "q", "a", "klass", "{}", 0, "depends", '["b"]')
    assert (first.state, second.state) == (BLOCKED, BLOCKED)
    assert room.act("cancel", "a", "b")["done"] == 0


def test_delete_removes_jobs_in_every_state(room):
    room.push("a1")
    room.lease()
    room.dead("a2")
    waiting = room.push("a3", blockers=[room.engine.find("a1").seq])
    room.act("delete", "a1", "a2")
    assert room.engine.jobs == {waiting.seq: waiting}
    assert waiting.state == READY


def test_delete_publishes_qless_events(room):
    room.put("j1", "q", "tags", '["t"]')
    room.pop()
    published = []
    room.qless.publisher.publish = lambda channel, message: published.append((channel, message))
    room.qless.hub.pubsub.channels[b"x"] = {}
    room.speaks_qless("track", "track", "j1")
    room.act("delete", "j1")
    assert [channel for channel, _ in published] == ["track", "log", "w:w1", "canceled"]
    assert room.qless.tags == {}


# Move


def test_move(room):
    job = room.push("a1", tags=["x"])
    room.act("move", "a1", queue="other")
    assert (job.queue, job.state) == ("other", READY)
    assert room.audit()[0] == ("ann", "move", "a1 to the queue other", 1)


def test_a_moved_scheduled_job_stays_scheduled(room):
    job = room.push(due_at=START + 100 * SECOND)
    room.act("move", "a1", queue="other")
    assert (job.state, job.due_at) == (SCHEDULED, START + 100 * SECOND)


def test_a_moved_scheduled_qless_job_keeps_its_due_time(room):
    job = room.put("j1", delay=100)
    room.act("move", "j1", queue="other")
    assert (job.state, job.queue, job.due_at) == (SCHEDULED, "other", START + 100 * SECOND)
    room.now += 101 * SECOND
    assert b"j1" in room.pop("other")


def test_a_job_of_another_protocol_with_qless_details_is_moved(room):
    job = room.push(due_at=START + 100 * SECOND, tags=["x"])
    ensure_details(job)
    room.act("move", "a1", queue="other")
    assert (job.state, job.queue, job.extra.tags) == (SCHEDULED, "other", ["x"])
    room.engine.tick(START + 100 * SECOND)
    assert job.state == READY


def test_move_of_a_leased_job_is_refused(room):
    room.push()
    room.lease()
    assert room.unfit("move", "a1", queue="other").startswith("The job is leased;")


def test_a_completed_qless_job_can_be_moved_and_run_again(room):
    job = room.put("j1")
    room.pop()
    room.speaks_qless("complete", "j1", "w1", "q", "{}")
    assert job.state == DONE
    room.act("move", "j1", queue="again")
    assert (job.state, job.queue) == (READY, "again")
    assert b"again" in room.speaks_qless("queues")


@pytest.mark.parametrize("queue", ["", "x" * 256])
def test_an_invalid_queue_name_is_refused(room, queue):
    room.push()
    request = {"action": "move", "jobs": ["a1"], "queue": queue}
    assert room.refused(act=request)[0] == "bad request"


# Priority


@pytest.mark.parametrize(("origin", "rank"), [(WORKQ, 5), (GOQUEUE, -5), (MASENKO, 5)])
def test_the_priority_uses_the_numbers_of_the_job_s_protocol(room, origin, rank):
    job = room.push(origin=origin)
    room.act("priority", "a1", priority=5)
    assert job.rank == rank


def test_priority_of_a_qless_job(room):
    room.put("j1")
    job = room.put("j2")
    room.act("priority", "j2", priority=3)
    assert ensure_details(job).priority == 3
    assert room.lease() is job


def test_priority_of_a_job_of_another_protocol_with_qless_details(room):
    job = room.push()
    ensure_details(job)
    room.act("priority", "a1", priority=3)
    assert (job.rank, ensure_details(job).priority) == (3, 3)


@pytest.mark.parametrize("number", [1e300, -1e17])
def test_a_priority_out_of_range_is_refused(room, number):
    room.push()
    request = {"action": "priority", "jobs": ["a1"], "priority": number}
    assert room.refused(act=request)[0] == "bad request"


# Tags and tracking


def test_tags(room):
    job, other = room.push(), room.put("j1", "q", "tags", '["t"]')
    room.act("tag", "a1", "j1", tags=["t", "u"])
    assert job.extra.tags == other.extra.tags == ["t", "u"]
    assert room.qless.tags.keys() == {"t", "u"}
    assert room.unfit("tag", "a1", tags=["t"]) == "The job has these tags already."
    room.act("untag", "a1", tags=["t"])
    assert job.extra.tags == ["u"]
    assert room.unfit("untag", "a1", tags=["t"]) == "The job has none of these tags."


def test_tags_without_qless():
    room = Room(qless=False)
    job = room.push()
    room.act("tag", "a1", tags=["t"])
    assert job.extra.tags == ["t"]
    assert job.extra.details is None


def test_tags_of_the_push_are_kept(room):
    job = room.push(tags=["x"])
    room.act("tag", "a1", tags=["y"])
    assert job.extra.tags == ["x", "y"]


def test_tracking(room):
    room.push()
    room.act("track", "a1")
    assert "a1" in room.qless.tracked
    room.act("untrack", "a1")
    assert "a1" not in room.qless.tracked
    assert room.unfit("untrack", "a1") == "The job is not tracked."


def test_a_removed_job_can_be_untracked(room):
    room.push()
    room.act("track", "a1")
    room.act("delete", "a1")
    assert "a1" in room.qless.tracked
    acted = room.act("untrack", "a1")
    assert (acted["done"], acted["total"], acted["skipped"]) == (1, 1, [])
    assert "a1" not in room.qless.tracked
    assert room.audit()[0] == ("ann", "untrack", "a1", 1)
    assert room.unfit("untrack", "a1") == "Job not found."


def test_tracking_without_qless():
    room = Room(qless=False)
    room.push()
    assert room.act("track", "a1")["done"] == 1
    assert [row["jid"] for row in room.asks(tracked={})["tracked"]] == ["a1"]
    assert room.act("untrack", "a1")["done"] == 1
    assert room.engine.annotations.tracked == {}


# Dependencies and leases


def test_undepend(room):
    first, second = room.push("a1"), room.push("a2")
    job = room.push("a3", blockers=[first.seq, second.seq])
    assert (
        room.unfit("undepend", "a3", waits_for=["a3"]) == "The job depends on none of these jobs."
    )
    room.act("undepend", "a3", waits_for=["a1"])
    assert (job.state, job.extra.blockers) == (BLOCKED, [second.seq])
    room.act("undepend", "a3")
    assert job.state == READY
    assert room.unfit("undepend", "a3").startswith("The job is ready;")


def test_undepend_does_not_release_a_load(room):
    room.push("a1", load="mine")
    reason = room.unfit("undepend", "a1")
    assert reason == "The job waits for the load mine, not for other jobs."


@pytest.mark.parametrize("actor", [WORKQ, MASENKO, GOQUEUE])
def test_timeout_applies_the_policy_of_expired_leases(room, actor):
    job = room.push()
    room.engine.leases.holders.add("w1")
    room.lease(actor=actor)
    room.act("timeout", "a1")
    assert (job.state, job.failures, job.failure.group) == (SCHEDULED, 1, "ReservationExpired")
    assert (
        room.unfit("timeout", "a1")
        == "The job is scheduled; this action requires the state leased."
    )


def test_timeout_of_a_qless_lock(room):
    job = room.put("j1")
    room.put("j2")
    room.pop()
    room.act("timeout", "j1")
    assert state_of(job) == "stalled"
    assert ensure_details(job).log[-1][1] == "timed-out"
    assert room.lease() is job


# Selection of jobs


def test_a_seq_identifies_one_job_regardless_of_ids(room):
    first, second = room.dead("2"), room.dead("b")
    room.asks(act={"action": "retry", "seqs": [2, 9]})
    assert (first.state, second.state) == (DEAD, READY)
    room.act("retry", "2")
    assert first.state == READY


def test_a_numeric_id_is_only_an_id(room):
    other_job = room.push("stranger")
    room.push("1")
    assert room.act("delete", "1")["done"] == 1
    assert room.unfit("delete", "1") == "Job not found."
    assert room.act_on_all("delete", {"id": "1"})[-1]["done"] == 0
    assert room.asks(search={"query": {"id": "1"}})["jobs"][0]["jid"] == "stranger"
    waiting = room.push("b", blockers=[other_job.seq])
    assert room.unfit("undepend", "b", waits_for=["1"]) == "The job depends on none of these jobs."
    room.act("undepend", "b", waits_for=[id_from_seq(1)])
    assert waiting.state == READY
    assert room.act("delete", id_from_seq(1))["done"] == 1
    assert room.act_on_all("delete", {"id": id_from_seq(waiting.seq)})[-1]["done"] == 1


def test_the_oldest_job_of_an_id_is_used(room):
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
def test_invalid_requests_are_refused(room, request_):
    assert room.refused(act=request_)[0] == "bad request"
    assert room.audit() == []


def test_the_number_of_named_jobs_is_limited(room):
    jobs = ["a"] * (MAX_NAMED_JOBS + 1)
    assert room.refused(act={"action": "retry", "jobs": jobs})[0] == "too large"


def test_only_the_first_refusals_are_listed(room):
    acted = room.act("retry", *(f"a{number}" for number in range(150)))
    assert (len(acted["skipped"]), acted["skipped_count"]) == (100, 150)


# All jobs of a query


def test_act_on_all(room):
    jobs = [room.dead(f"a{number}") for number in range(3 * PROGRESS_INTERVAL + 10)]
    other = room.dead("b", "other")
    published = room.act_on_all("retry", {"queue": "q", "state": "dead"})
    assert {job.state for job in jobs} == {READY}
    assert other.state == DEAD
    assert [each["finished"] for each in published] == [False] * 3 + [True]
    assert [each["done"] for each in published] == [500, 1000, 1500, 1510]
    assert {each["total"] for each in published} == {1510}
    assert room.audit() == [("ann", "retry", "queue:q state:dead", 1510)]


def test_each_job_is_changed_once_although_it_still_matches(room):
    """A moved job still matches the query."""
    jobs = [room.push(f"a{number}") for number in range(2 * ACTION_SLICE_SIZE)]
    (*_, acted) = room.act_on_all("move", {}, queue="other")
    assert acted["done"] == len(jobs)
    assert [event[1] for batch in room.kept for event in batch.events].count("moved") == len(jobs)


def test_jobs_that_changed_since_the_search_are_skipped(room):
    for number in range(3 * ACTION_SLICE_SIZE):
        room.push(f"a{number}")
    connection = room.wire.connection
    connection.receive(b'{"act":{"action":"delete","query":{"state":"ready"}}}\n', room.now, 64)
    assert len(room.engine.jobs) == 2 * ACTION_SLICE_SIZE
    taken = [room.lease() for _ in range(ACTION_SLICE_SIZE)]
    room.wire.run()
    assert [job.seq for job in taken] == list(room.engine.leased)


def test_a_closed_connection_stops_the_action(room):
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


def test_the_next_command_waits_until_the_action_ends(room):
    for number in range(3 * ACTION_SLICE_SIZE):
        room.push(f"a{number}")
    room.wire.receive(b'{"act":{"action":"kill","query":{}}}\n{"sizes":true}\n')
    assert b'"finished":true' in room.wire.replies[0]
    assert b'"dead":%d' % (3 * ACTION_SLICE_SIZE) in room.wire.replies[1]


def test_changes_are_refused_while_the_store_fails(room):
    job = room.dead()
    room.engine.unavailable_reason = "the disk is full"
    request = {"action": "retry", "jobs": ["a1"]}
    code, reason = room.refused(act=request)
    assert (code, reason) == (
        "unavailable",
        "the disk is full: nothing was changed, try again later",
    )
    assert job.state == DEAD
    assert room.audit() == []


def test_a_revert_ends_the_action(room):
    for number in range(3 * ACTION_SLICE_SIZE):
        room.push(f"a{number}")
    connection = room.wire.connection
    connection.receive(b'{"act":{"action":"kill","query":{}}}\n', room.now, 64)
    connection.run(room.now, 64)
    room.engine.revert_count += 1
    room.wire.run()
    assert b'"code":"unavailable"' in room.wire.replies[-1]


def test_the_audit_log_has_the_query_in_search_syntax(room):
    query = JobFilter(queue="a b", state="dead", tracked=True, terms=["x", 'say "hi"'])
    assert turns(room, action="kill", query=query)
    assert turns(room, action="kill", query=JobFilter())
    newest, first = room.hub.audit.before(0, 2)
    assert first.target == 'queue:"a b" state:dead is:tracked x "say \\"hi\\""'
    assert newest.target == "all jobs"


def test_ids_of_qless_and_other_protocols(room):
    first, second = room.dead("j1"), room.put("j2")
    assert second.origin == QLESS
    room.act("retry", "j1", "j2")
    assert (first.state, second.state) == (READY, READY)


def test_a_job_leased_over_another_protocol_is_deleted_permanently(room):
    job = room.push()
    room.lease(actor=WORKQ)
    assert job.state == LEASED
    room.act("delete", "a1")
    assert not room.engine.leased


# The condition `only`


def test_only_named_jobs_that_still_match_are_changed(room):
    dead, ready = room.dead("d"), room.push("r")
    assert room.act("delete", "d", "r", only={"state": "dead"})["done"] == 1
    assert dead.seq not in room.engine.jobs
    assert room.engine.jobs[ready.seq].state == READY
    reason = "The job is ready and no longer matches."
    assert room.unfit("delete", "r", only={"state": "dead"}) == reason
    assert room.unfit("delete", "r", only={"queue": "other", "state": "ready"}) == reason
    room.lease()
    assert room.unfit("delete", "r", only={"queue": "q", "state": "ready"}).startswith(
        "The job is leased"
    )
    assert ready.state == LEASED


def test_of_several_jobs_with_one_id_the_matching_one_is_changed(room):
    running, waiting = room.push("a"), room.push("a")
    assert room.lease() is running
    room.act("delete", "a", only={"state": "ready"})
    assert running.seq in room.engine.jobs
    assert waiting.seq not in room.engine.jobs


def test_only_requires_named_jobs(room):
    room.push("a")
    wrong = {"action": "delete", "query": {"id": "a"}, "only": {"state": "ready"}}
    assert room.refused(act=wrong)[0] == "bad request"
    wrong = {"action": "delete", "jobs": ["a"], "only": {"text": ["x"]}}
    assert room.refused(act=wrong)[0] == "bad request"


@pytest.mark.parametrize("action", ["kill", "cancel", "delete"])
def test_an_action_on_all_jobs_keeps_no_list_of_them(room, action):
    """The garbage collector examines each job of a new list of a million jobs."""
    count = 3 * SCAN_SLICE_SIZE
    root = room.push("root")
    for number in range(count):
        room.push(f"job-{number}", origin=QLESS, blockers=[root.seq] if number == 7 else [])
    request = ActionRequest(action, query=JobFilter(queue="q"))
    work = act_on_jobs(room.hub, request, START)
    before = {id(each) for each in gc.get_objects()}
    while not room.engine.change_set.event_count > count + 1:  # the first job has changed
        next(work)
    lists = [each for each in gc.get_objects() if isinstance(each, list) and len(each) > count]
    assert not [each for each in lists if id(each) not in before and isinstance(each[0], Job)]
    *_, last = work
    assert last.done == last.total == count + 1

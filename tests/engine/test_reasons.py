"""The reasons why a job is not running, and their texts."""

import msgspec
import pytest

from millrace.engine.job import FOREVER, Job
from millrace.engine.reasons import MAX_EXAMINED, RECENT_PERIOD, Blocker, Reason, sentence, why
from millrace.engine.states import DEAD, LEASED, SCHEDULED
from millrace.protocols.registry import FAKTORY, MASENKO, WORKQ
from millrace.store import SqliteStore
from scene import SECOND, START, MasenkoScene, Scene, recover, restarted


@pytest.fixture
def scene() -> Scene:
    return Scene()


def reasons(scene: Scene, job: Job) -> list[Reason]:
    return why(scene.engine, job, scene.now).reasons


def codes(scene: Scene, job: Job) -> list[str]:
    return [reason.code for reason in reasons(scene, job)]


def text_of(scene: Scene, job: Job) -> str:
    found = why(scene.engine, job, scene.now)
    return " ".join(sentence(reason, found, scene.now) for reason in found.reasons)


def test_the_report_describes_the_job(scene):
    job = scene.push(origin=WORKQ, kind="ping", queue="ping")
    found = why(scene.engine, job, scene.now)
    assert (found.jid, found.seq, found.queue, found.kind) == ("job-1", 1, "ping", "ping")
    assert (found.origin, found.state, found.attempt) == ("workq", "ready", 0)


def test_no_worker_fetches_from_the_queue(scene):
    job = scene.push()
    assert reasons(scene, job) == [Reason("unasked"), Reason("queued", since=START)]
    assert text_of(scene, job) == (
        'No worker is fetching from queue "default"; no worker has fetched since the server started. '
        "Start a worker. Ready since 2023-11-14 22:13:20 UTC, 0 s ago; next in its queue."
    )


def test_the_last_fetch_was_long_ago(scene):
    scene.pushed_and_leased()
    job = scene.push("job-2")
    scene.now += RECENT_PERIOD
    assert codes(scene, job) == ["queued"]
    scene.now += 1
    assert reasons(scene, job)[0] == Reason("unasked", since=START)
    assert "the last fetch was 2023-11-14 22:13:20 UTC, 60 s ago. Start" in text_of(scene, job)


def test_a_recent_fetch_found_no_job(scene):
    scene.push("elsewhere", "b")
    scene.engine.open_queue("a")
    scene.lease("a", "b")
    assert codes(scene, scene.push("job-2", "a")) == ["queued"]


def test_a_recent_wait_timed_out(scene):
    scene.engine.open_queue("default")
    scene.wait(seconds=2)
    scene.advance(100)
    assert codes(scene, scene.push()) == ["queued"]


def test_a_client_waits_while_the_queue_is_paused(scene):
    job = scene.push()
    scene.engine.pause("default", paused=True, now=scene.now)
    scene.wait(seconds=1000)
    scene.now += 2 * RECENT_PERIOD
    assert codes(scene, job) == ["paused", "queued"]
    assert text_of(scene, job).startswith('Queue "default" is paused. Resume it.')


@pytest.mark.parametrize(
    ("ahead", "expected"),
    [
        (0, "ago; next in its queue."),
        (1, "ago; behind 1 other job."),
        (2, "ago; behind 2 other jobs."),
        (MAX_EXAMINED - 1, f"ago; behind {MAX_EXAMINED - 1} other jobs."),
        (MAX_EXAMINED, f"ago; behind at least {MAX_EXAMINED} other jobs."),
        (MAX_EXAMINED + 9, f"ago; behind at least {MAX_EXAMINED} other jobs."),
    ],
)
def test_other_jobs_are_ahead(scene, ahead, expected):
    for n in range(ahead):
        scene.push(f"before-{n}")
    job = scene.push()
    scene.push("behind it")
    assert reasons(scene, job)[-1].count == min(ahead, MAX_EXAMINED)
    assert text_of(scene, job).endswith(expected)


def test_the_store_fails(scene):
    job, later = scene.push(), scene.push("job-2", due_at=START + SECOND)
    scene.engine.unavailable_reason = "disk full"
    assert reasons(scene, job)[0] == Reason("halted", about="disk full")
    assert codes(scene, later) == ["halted", "not due"]
    assert text_of(scene, job).startswith(
        "The server cannot write to the store (disk full), so it leases no jobs"
    )


def test_the_job_is_not_due(scene):
    job = scene.push(due_at=START + 300 * SECOND)
    assert reasons(scene, job) == [Reason("not due", until=START + 300 * SECOND)]
    assert text_of(scene, job) == "Due 2023-11-14 22:18:20 UTC, in 5 min."


def test_the_job_failed_and_is_not_due(scene):
    job = scene.pushed_and_leased()
    scene.fail(job)
    assert job.state == SCHEDULED
    assert reasons(scene, job) == [
        Reason("not due", since=START, until=job.due_at, about="Oops: it broke")
    ]
    assert text_of(scene, job).endswith(
        "Attempt 1 failed 2023-11-14 22:13:20 UTC, 0 s ago (Oops: it broke)."
    )


def test_the_job_is_blocked(scene):
    blockers = [scene.push(f"first-{n}") for n in range(12)]
    assert scene.lease() is blockers[0]
    job = scene.push(blockers=[each.seq for each in blockers])
    (reason,) = reasons(scene, job)
    assert (reason.code, reason.count, len(reason.blockers)) == ("blocked", 12, 10)
    assert reason.blockers[:2] == [Blocker("first-0", 1, "leased"), Blocker("first-1", 2, "ready")]
    text = text_of(scene, job)
    assert text.startswith("Waits for first-0 (leased), first-1 (ready), ")
    assert text.endswith("first-9 (ready) and 2 more.")


def test_the_job_is_blocked_by_a_dead_job(scene):
    dead = scene.push("dead")
    job = scene.push(blockers=[dead.seq])
    scene.engine.kill(dead, scene.now)
    assert text_of(scene, job) == (
        "Waits for dead (dead). A dead job blocks it until you retry or delete that job."
    )


def test_the_job_is_leased(scene):
    job = scene.pushed_and_leased(lease_duration=1800 * SECOND)
    deadline = START + 1800 * SECOND
    assert reasons(scene, job) == [Reason("leased", START, deadline, "worker-1", "faktory")]
    assert text_of(scene, job) == (
        "Leased by worker-1 (faktory) since 2023-11-14 22:13:20 UTC, 0 s ago; the lease expires "
        "2023-11-14 22:43:20 UTC, in 30 min."
    )


def test_the_lease_has_expired(scene):
    """No timer follows the clock of a Qless client."""
    job = scene.pushed_and_leased(lease_duration=60 * SECOND)
    scene.now += 90 * SECOND
    assert text_of(scene, job).endswith(
        "the lease expired 2023-11-14 22:14:20 UTC, 30 s ago, and the next worker that requests a job receives it."
    )


def test_a_connection_holds_the_job():
    scene = MasenkoScene()
    job = scene.pushed_and_leased()
    assert job.state == LEASED
    assert reasons(scene, job) == [Reason("leased", START, 0, "connection-1", "masenko")]
    assert text_of(scene, job).endswith("0 s ago; the lease lasts while its connection is open.")


def test_the_job_is_done(scene):
    job = scene.pushed_and_leased(expires_at=START + 3600 * SECOND, origin=WORKQ)
    scene.now += 5 * SECOND
    scene.complete(job, result=b"42")
    assert reasons(scene, job) == [
        Reason("done", since=START + 5 * SECOND, until=START + 3600 * SECOND)
    ]
    scene.now += 10 * SECOND
    assert text_of(scene, job) == (
        "Completed 2023-11-14 22:13:25 UTC, 10 s ago. Retained until 2023-11-14 23:13:20 "
        "UTC, in 60 min."
    )


def test_the_job_is_dead(scene):
    job = scene.pushed_and_leased(retries=-1)
    scene.fail(job)
    assert job.state == DEAD
    (reason,) = reasons(scene, job)
    assert (reason.code, reason.since, reason.until) == ("dead", START, job.due_at)
    assert text_of(scene, job).startswith(
        "Failed permanently 2023-11-14 22:13:20 UTC, 0 s ago (Oops: it broke). Retained until"
    )
    assert text_of(scene, job).endswith("Retry or delete it.")


def test_the_end_time_survives_a_restart(scene, tmp_path):
    store = SqliteStore(tmp_path)
    scene = Scene(recover(store))
    done = scene.pushed_and_leased("done", expires_at=FOREVER, origin=WORKQ)
    dead = scene.pushed_and_leased("dead", retries=-1)
    scene = restarted(scene, store)  # the next changes apply to stored jobs
    done, dead = scene.engine.jobs[done.seq], scene.engine.jobs[dead.seq]
    scene.now += SECOND
    scene.complete(done)
    scene.fail(dead)
    before = [why(scene.engine, job, scene.now) for job in (done, dead)]
    assert [each.reasons[0].since for each in before] == [START + SECOND] * 2
    scene = restarted(scene, store)
    again = [why(scene.engine, scene.engine.jobs[job.seq], scene.now) for job in (done, dead)]
    assert again == before
    store.close()


def test_an_end_time_missing_in_older_records(scene):
    job = scene.pushed_and_leased(expires_at=FOREVER, origin=WORKQ)
    scene.complete(job)
    job.history.ended_at = 0
    assert text_of(scene, job) == "Completed at an unknown time."


def test_a_time_after_the_year_9999(scene):
    job = scene.push(due_at=FOREVER - 1)
    assert text_of(scene, job) == "Due after the year 9999."


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "0 s"),
        (119, "119 s"),
        (120, "2 min"),
        (7199, "120 min"),
        (7200, "2 h"),
        (172800, "2 days"),
    ],
)
def test_durations(scene, seconds, expected):
    job = scene.push(due_at=START + seconds * SECOND, origin=MASENKO if seconds else FAKTORY)
    text = text_of(scene, job)
    assert (expected in text) if seconds else ("0 s ago" in text)


def test_empty_fields_are_omitted_in_json(scene):
    job = scene.push()
    encoded = msgspec.json.decode(msgspec.json.encode(why(scene.engine, job, scene.now)))
    assert encoded["reasons"] == [{"code": "unasked"}, {"code": "queued", "since": START}]

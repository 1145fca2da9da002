"""Why a job is not running: every reason there is, and what it says."""

import msgspec
import pytest

from millrace.engine.job import FAKTORY, FOREVER, MASENKO, WORKQ, Job
from millrace.engine.states import DEAD, LEASED, SCHEDULED
from millrace.engine.why import FIRST, LATELY, Blocker, Reason, sentence, why
from millrace.store import SqliteStore
from scene import SECOND, START, MasenkoScene, Scene, recover, restarted


@pytest.fixture
def scene() -> Scene:
    return Scene()


def reasons(scene: Scene, job: Job) -> list[Reason]:
    return why(scene.engine, job, scene.now).reasons


def codes(scene: Scene, job: Job) -> list[str]:
    return [reason.code for reason in reasons(scene, job)]


def words(scene: Scene, job: Job) -> str:
    found = why(scene.engine, job, scene.now)
    return " ".join(sentence(reason, found, scene.now) for reason in found.reasons)


def test_what_is_said_of_the_job_itself(scene):
    job = scene.push(origin=WORKQ, kind="ping", queue="ping")
    found = why(scene.engine, job, scene.now)
    assert (found.jid, found.seq, found.queue, found.kind) == ("job-1", 1, "ping", "ping")
    assert (found.origin, found.state, found.attempt) == ("workq", "ready", 0)


def test_nobody_asks_for_its_queue(scene):
    job = scene.push()
    assert reasons(scene, job) == [Reason("unasked"), Reason("queued", since=START)]
    assert words(scene, job) == (
        'No worker of any protocol asks the server for jobs of the queue "default". None has since '
        "its start. Start one. It became ready 2023-11-14 22:13:20 UTC, 0 s ago, and is the next of "
        "its queue."
    )


def test_somebody_asked_but_long_ago(scene):
    scene.pushed_and_leased()
    job = scene.push("job-2")
    scene.now += LATELY
    assert codes(scene, job) == ["queued"]
    scene.now += 1
    assert reasons(scene, job)[0] == Reason("unasked", since=START)
    assert "The last one did 2023-11-14 22:13:20 UTC, 60 s ago." in words(scene, job)


def test_somebody_asked_and_got_nothing(scene):
    scene.push("elsewhere", "b")
    scene.engine.open_queue("a")
    scene.lease("a", "b")
    assert codes(scene, scene.push("job-2", "a")) == ["queued"]


def test_somebody_waited_in_vain(scene):
    scene.engine.open_queue("default")
    scene.wait(seconds=2)
    scene.advance(100)
    assert codes(scene, scene.push()) == ["queued"]


def test_somebody_waits_while_the_queue_is_paused(scene):
    job = scene.push()
    scene.engine.pause("default", paused=True, now=scene.now)
    scene.wait(seconds=1000)
    scene.now += 2 * LATELY
    assert codes(scene, job) == ["paused", "queued"]
    assert words(scene, job).startswith('The queue "default" is paused. Resume it.')


@pytest.mark.parametrize(
    ("ahead", "says"),
    [
        (0, "is the next of its queue."),
        (1, "is behind 1 other."),
        (2, "is behind 2 others."),
        (FIRST - 1, f"is behind {FIRST - 1} others."),
        (FIRST, f"is behind at least {FIRST} others."),
        (FIRST + 9, f"is behind at least {FIRST} others."),
    ],
)
def test_others_are_ahead_of_it(scene, ahead, says):
    for n in range(ahead):
        scene.push(f"before-{n}")
    job = scene.push()
    scene.push("behind it")
    assert reasons(scene, job)[-1].count == min(ahead, FIRST)
    assert words(scene, job).endswith(says)


def test_nothing_can_be_written(scene):
    job, later = scene.push(), scene.push("job-2", due=START + SECOND)
    scene.engine.halted = "disk full"
    assert reasons(scene, job)[0] == Reason("halted", about="disk full")
    assert codes(scene, later) == ["halted", "not due"]
    assert words(scene, job).startswith("Nothing can be written (disk full), so no job is handed")


def test_it_is_not_due(scene):
    job = scene.push(due=START + 300 * SECOND)
    assert reasons(scene, job) == [Reason("not due", until=START + 300 * SECOND)]
    assert words(scene, job) == "It is not due before 2023-11-14 22:18:20 UTC, in 5 min."


def test_it_failed_and_is_not_due(scene):
    job = scene.pushed_and_leased()
    scene.fail(job)
    assert job.state == SCHEDULED
    assert reasons(scene, job) == [
        Reason("not due", since=START, until=job.due, about="Oops: it broke")
    ]
    assert words(scene, job).endswith(
        "Attempt 1 failed 2023-11-14 22:13:20 UTC, 0 s ago (Oops: it broke)."
    )


def test_it_is_blocked(scene):
    blockers = [scene.push(f"first-{n}") for n in range(12)]
    assert scene.lease() is blockers[0]
    job = scene.push(blockers=[each.seq for each in blockers])
    (reason,) = reasons(scene, job)
    assert (reason.code, reason.count, len(reason.blockers)) == ("blocked", 12, 10)
    assert reason.blockers[:2] == [Blocker("first-0", 1, "leased"), Blocker("first-1", 2, "ready")]
    text = words(scene, job)
    assert text.startswith("It waits for first-0 (leased), first-1 (ready), ")
    assert text.endswith("first-9 (ready) and 2 more.")


def test_it_is_blocked_by_a_dead_one(scene):
    dead = scene.push("dead")
    job = scene.push(blockers=[dead.seq])
    scene.engine.kill(dead, scene.now)
    assert words(scene, job) == (
        "It waits for dead (dead). A dead job blocks it until you retry or remove that job."
    )


def test_somebody_has_it(scene):
    job = scene.pushed_and_leased(lease_for=1800 * SECOND)
    deadline = START + 1800 * SECOND
    assert reasons(scene, job) == [Reason("leased", START, deadline, "worker-1", "faktory")]
    assert words(scene, job) == (
        "worker-1 (faktory) has it since 2023-11-14 22:13:20 UTC, 0 s ago; the lease ends "
        "2023-11-14 22:43:20 UTC, in 30 min."
    )


def test_somebody_has_it_whose_time_is_over(scene):
    """By a clock of ours that no timer follows: Qless."""
    job = scene.pushed_and_leased(lease_for=60 * SECOND)
    scene.now += 90 * SECOND
    assert words(scene, job).endswith(
        "the lease expired 2023-11-14 22:14:20 UTC, 30 s ago, and the next Qless pop receives the job."
    )


def test_a_connection_has_it():
    scene = MasenkoScene()
    job = scene.pushed_and_leased()
    assert job.state == LEASED
    assert reasons(scene, job) == [Reason("leased", START, 0, "connection-1", "masenko")]
    assert words(scene, job).endswith("0 s ago, for as long as its connection stands.")


def test_it_is_done(scene):
    job = scene.pushed_and_leased(expires=START + 3600 * SECOND, origin=WORKQ)
    scene.now += 5 * SECOND
    scene.complete(job, result=b"42")
    assert reasons(scene, job) == [
        Reason("done", since=START + 5 * SECOND, until=START + 3600 * SECOND)
    ]
    scene.now += 10 * SECOND
    assert words(scene, job) == (
        "It was completed 2023-11-14 22:13:25 UTC, 10 s ago. It is kept until 2023-11-14 23:13:20 "
        "UTC, in 60 min."
    )


def test_it_is_dead(scene):
    job = scene.pushed_and_leased(retries=-1)
    scene.fail(job)
    assert job.state == DEAD
    (reason,) = reasons(scene, job)
    assert (reason.code, reason.since, reason.until) == ("dead", START, job.due)
    assert words(scene, job).startswith(
        "It failed for good 2023-11-14 22:13:20 UTC, 0 s ago (Oops: it broke). It is kept until"
    )
    assert words(scene, job).endswith("Retry or remove it.")


def test_when_it_ended_survives_a_restart(scene, tmp_path):
    store = SqliteStore(tmp_path)
    scene = Scene(recover(store))
    done = scene.pushed_and_leased("done", expires=FOREVER, origin=WORKQ)
    dead = scene.pushed_and_leased("dead", retries=-1)
    scene = restarted(scene, store)  # so that what follows changes jobs that are in their table
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


def test_a_moment_that_an_older_version_did_not_keep(scene):
    job = scene.pushed_and_leased(expires=FOREVER, origin=WORKQ)
    scene.complete(job)
    job.ended_at = 0
    assert words(scene, job) == "It was completed at an unknown time."


def test_a_moment_beyond_all_calendars(scene):
    job = scene.push(due=FOREVER - 1)
    assert words(scene, job) == "It is not due before a time beyond the calendar."


@pytest.mark.parametrize(
    ("seconds", "says"),
    [
        (0, "0 s"),
        (119, "119 s"),
        (120, "2 min"),
        (7199, "120 min"),
        (7200, "2 h"),
        (172800, "2 days"),
    ],
)
def test_spans(scene, seconds, says):
    job = scene.push(due=START + seconds * SECOND, origin=MASENKO if seconds else FAKTORY)
    text = words(scene, job)
    assert (says in text) if seconds else ("0 s ago" in text)


def test_what_is_empty_is_left_out_for_programs(scene):
    job = scene.push()
    encoded = msgspec.json.decode(msgspec.json.encode(why(scene.engine, job, scene.now)))
    assert encoded["reasons"] == [{"code": "unasked"}, {"code": "queued", "since": START}]

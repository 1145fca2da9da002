"""Events of the engine, and the fingerprints that group errors."""

import pytest

from millrace.engine.events import Event, fingerprint
from millrace.engine.job import NO_PROTOCOL
from millrace.engine.states import DEAD, GONE, LEASED, NEW, READY, SCHEDULED, TRANSITIONS
from millrace.protocols.registry import FAKTORY, MASENKO
from millrace.store.records import apply_state, decode_any, decode_job, encode, state_row
from scene import SECOND, START, Scene
from support.plain import copy_of, values

#: Every event of a job has at least these fields; few events have more.
USUAL = Event._fields.index("created") + 1


def scene_with_every_cause() -> Scene:
    """A scene in which every cause occurs at least once."""
    scene = Scene()
    engine = scene.engine
    done = scene.pushed_and_leased("done")
    scene.complete(done, result=b"42", keep_until=scene.now + 60 * SECOND)
    scene.push("blocked", tags=["red"], blockers=[scene.pushed_and_leased("blocker").seq])
    scene.complete(engine.find("blocker"))
    scene.lease()
    retried = scene.pushed_and_leased("retried")
    scene.fail(retried)
    scene.advance(60)
    engine.renew(scene.lease(), scene.now + 600 * SECOND, scene.now)
    engine.release(retried, scene.now)
    scene.lease()
    scene.advance(3600)
    engine.kill(scene.push("killed"), scene.now)
    engine.retry_now(engine.find("killed"), scene.now)
    engine.cancel(engine.find("killed"), scene.now)
    doomed = scene.push("doomed", origin=MASENKO, blockers=[scene.push("root").seq], dead_queue="x")
    engine.kill(engine.find("root"), scene.now)
    assert doomed.queue == "x"
    stepping = scene.pushed_and_leased("stepping", "steps")
    engine.complete(stepping, scene.now, FAKTORY, advances=True)
    engine.move(stepping, "next", scene.now, FAKTORY)
    scene.push("evicted", expires_at=scene.now + SECOND)
    scene.advance(1)
    return scene


def test_the_scene_has_every_cause():
    assert set(scene_with_every_cause().causes()) == set(TRANSITIONS)


def test_every_event_is_a_prefix_of_the_event_fields():
    """A reader fills in the other fields with the defaults."""
    for row in scene_with_every_cause().engine.change_set.events:
        assert type(row) is tuple
        assert USUAL <= len(row) <= len(Event._fields)
        for name, value in zip(Event._fields, row, strict=False):
            expected = Event.__annotations__[name]
            kind = tuple if name == "tags" else expected
            assert type(value) is kind, (name, value)


def test_each_value_is_in_its_field():
    scene = Scene()
    scene.push("job-7", "mail", kind="SendMail", payload=b"[1,2]", rank=4, due_at=0)
    scene.now += 5 * SECOND
    scene.lease("mail", holder="worker-9")
    scene.now += 3 * SECOND
    scene.complete(scene.engine.find("job-7"))
    pushed, leased, completed = scene.events()
    assert pushed == Event(
        time=START,
        type="pushed",
        seq=1,
        jid="job-7",
        queue="mail",
        kind="SendMail",
        origin=FAKTORY,
        actor=FAKTORY,
        worker="",
        attempt=0,
        state=READY,
        rank=4,
        ready_at=START,
        leased_at=0,
        wait=0,
        run=0,
        due=0,
        size=5,
        before=NEW,
        created=START,
    )
    assert leased == pushed._replace(
        time=START + 5 * SECOND,
        type="leased",
        worker="worker-9",
        attempt=1,
        state=LEASED,
        before=READY,
        leased_at=START + 5 * SECOND,
        wait=5 * SECOND,
    )
    assert completed == leased._replace(
        time=START + 8 * SECOND,
        type="completed",
        state=GONE,
        before=LEASED,
        wait=5 * SECOND,
        run=3 * SECOND,
        holder=FAKTORY,
        leases=1,
        wait_total=5 * SECOND,
        run_total=3 * SECOND,
        first_leased_at=START + 5 * SECOND,
        outcome="completed",
        ended_at=START + 8 * SECOND,
    )


def test_a_failure_has_its_message_and_fingerprint():
    scene = Scene()
    job = scene.pushed_and_leased()
    scene.now += SECOND
    scene.fail(job, "KeyError", "no key 17")
    event = scene.events()[-1]
    assert (event.type, event.state, event.run) == ("failed", SCHEDULED, SECOND)
    assert (event.group, event.message) == ("KeyError", "no key 17")
    assert event.fingerprint == fingerprint("KeyError", "no key 17")
    assert event.due == job.due_at > scene.now


def test_an_expiry_is_a_failure_without_a_protocol():
    scene = Scene()
    scene.pushed_and_leased(retries=-1)
    scene.advance(1800)
    event = scene.events()[-1]
    assert (event.type, event.state, event.actor) == ("expired", DEAD, NO_PROTOCOL)
    assert event.group == "ReservationExpired"
    assert event.run == 1800 * SECOND


def test_later_events_of_a_job_that_failed_do_not_repeat_the_failure():
    scene = Scene()
    job = scene.pushed_and_leased()
    scene.fail(job)
    scene.advance_to(job.due_at)
    event = scene.events()[-1]
    assert event.type == "due"
    assert (event.group, event.message, event.fingerprint) == ("", "", "")


def test_the_end_of_a_job_carries_its_totals():
    scene = Scene()
    job = scene.pushed_and_leased("job-1", "here")
    first = job.leased_at
    scene.now += SECOND
    scene.fail(job, "KeyError", "no key 17")
    scene.advance_to(job.due_at)
    scene.now += 2 * SECOND
    scene.engine.renew(scene.lease("here"), scene.now + 600 * SECOND, scene.now)
    scene.now += 3 * SECOND
    scene.fail(job, "KeyError", "no key 18")
    failed = scene.events()[-1]
    assert (failed.repeat, failed.renewals, failed.wait) == (1, 1, 2 * SECOND)
    scene.engine.move(job, "there", scene.now, FAKTORY)
    scene.complete(scene.lease("there"))
    ended = scene.events()[-1]
    assert (ended.leases, ended.failures, ended.renewals) == (3, 2, 0)
    assert (ended.wait_total, ended.run_total) == (2 * SECOND, 4 * SECOND)
    assert (ended.first_queue, ended.queue) == ("here", "there")
    assert (ended.first_leased_at, ended.outcome, ended.ended_at) == (first, "completed", scene.now)
    assert ended.message == "no key 18"


def test_a_purge_repeats_how_and_when_the_job_ended():
    scene = Scene()
    job = scene.pushed_and_leased("job-1", retries=-1)
    scene.fail(job)
    died = scene.now
    scene.engine.kill(job, scene.now + SECOND)
    scene.engine.cancel(job, scene.now + 2 * SECOND)
    gone = scene.events()[-1]
    assert (gone.type, gone.outcome, gone.ended_at) == ("cancelled", "failed", died)


def test_totals_are_unknown_for_a_job_that_ran_before_they_were_recorded():
    scene = Scene()
    job = scene.pushed_and_leased("job-1")
    scene.engine.release(job, scene.now, counted=True)
    assert scene.lease() is job
    job.history.totals = None
    scene.complete(job)
    ended = scene.events()[-1]
    assert (ended.leases, ended.failures, ended.wait_total, ended.run_total) == (-1, -1, -1, -1)
    assert (ended.wait, ended.holder, ended.outcome) == (-1, FAKTORY, "completed")


@pytest.mark.parametrize("renewed", [False, True])
def test_a_job_that_ends_with_its_first_lease_has_totals(renewed):
    scene = Scene()
    scene.push("job-1")
    scene.now += 3 * SECOND
    leased_at = scene.now
    job = scene.lease()
    scene.now += 5 * SECOND
    if renewed:
        scene.engine.renew(job, scene.now + SECOND, scene.now)
    scene.complete(job)
    ended = scene.events()[-1]
    assert (ended.leases, ended.failures, ended.renewals) == (1, 0, int(renewed))
    assert (ended.wait, ended.wait_total, ended.run_total) == (3 * SECOND, 3 * SECOND, 5 * SECOND)
    assert (ended.first_leased_at, ended.first_queue) == (leased_at, "")
    assert (ended.outcome, ended.ended_at) == ("completed", scene.now)


def test_a_released_lease_counts_in_the_totals():
    scene = Scene()
    scene.push("job-1")
    scene.now += SECOND
    scene.engine.release(scene.lease(), scene.now)
    scene.now += SECOND
    scene.complete(scene.lease())
    ended = scene.events()[-1]
    assert (ended.attempt, ended.leases, ended.wait_total) == (1, 2, 2 * SECOND)


def test_totals_survive_a_restart():
    scene = Scene()
    job = scene.pushed_and_leased("job-1")
    scene.now += SECOND
    scene.fail(job)
    copy = decode_job(encode(job))
    blank = copy_of(copy, history=None)
    apply_state(blank, decode_any(encode(state_row(job))))
    assert values(copy) == values(blank) == values(job)
    apply_state(blank, decode_any(encode(state_row(job)[:-2])))
    assert (blank.totals, blank.outcome) == (None, "")


def test_every_event_has_the_tags():
    scene = Scene()
    scene.push(tags=["red", "blue"])
    scene.complete(scene.lease())
    assert [event.tags for event in scene.events()] == [("red", "blue")] * 3


def test_every_event_has_the_previous_state_and_the_push_time():
    """A reader can compute queue depths and job lifetimes from events alone, in any order of jobs."""
    scene = scene_with_every_cause()
    known: dict[int, int] = {}
    for event in scene.events():
        assert event.before == known.get(event.seq, NEW), event
        known[event.seq] = event.state
        assert event.created > 0


def test_the_event_of_a_move_has_the_source_queue():
    scene = Scene()
    job = scene.push("job-1", "here")
    scene.engine.move(job, "there", scene.now, FAKTORY)
    moved = scene.events()[-1]
    assert (moved.type, moved.queue, moved.source) == ("moved", "there", "here")
    assert [event.source for event in scene.events()[:-1]] == [""]


def test_events_of_one_change_set_are_in_order_of_occurrence():
    scene = Scene()
    scene.wait()
    scene.push()
    assert scene.causes() == ["pushed", "leased"]


def test_the_default_of_an_optional_field_is_empty():
    for name, default in Event._field_defaults.items():
        assert default in {0, "", ()}, name


def test_a_flush_is_one_event_with_the_last_seq():
    scene = Scene()
    scene.push("job-1")
    scene.push("job-2")
    scene.engine.flush(scene.now)
    event = scene.events()[-1]
    assert (event.type, event.seq, event.time) == ("flushed", 2, scene.now)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("no row 17", "no row 4"),
        ("at 0x7f00ab12", "at 0x55d0ff"),
        ("object deadbeefcafe0123 is gone", "object 0123456789abcdef is gone"),
        (
            "job 3f2504e0-4f89-41d3-9a0c-0305e82c3301 lost",
            "job 9b2c1de4-00aa-4bcd-8e1f-aabbccddeeff lost",
        ),
        ("no key 'colour'", "no key 'size'"),
        ('no key "colour"', 'no key "size"'),
        ("can't find 'colour' here", "can't find 'size' here"),
        ("took 1.5 s", "took 12.25 s"),
    ],
    ids=["number", "address", "hash", "uuid", "quoted", "double-quoted", "apostrophe", "decimal"],
)
def test_errors_that_differ_only_in_numbers_ids_or_quoted_text_are_the_same(one, other):
    assert fingerprint("Oops", one) == fingerprint("Oops", other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("Oops", "no row"), ("Oops", "no column")),
        (("Oops", "no row"), ("Other", "no row")),
        (("Oops", "n"), ("Oop", "sn")),
        (("Oops", "the face is bad"), ("Oops", "the cafe is bad")),
        (("Oops", ""), ("", "Oops")),
    ],
)
def test_errors_with_different_text_differ(one, other):
    assert fingerprint(*one) != fingerprint(*other)


def test_a_fingerprint_is_short_and_stable():
    """The journal contains it: a search must find old and new errors alike."""
    assert fingerprint("KeyError", "no key 17") == "af593ac9e536d040"


def test_any_text_has_a_fingerprint():
    for text in ("", "\x00", "é" * 5000, "\ud800 alone", "'", '"' * 999):
        assert len(fingerprint(text, text)) == 16


def test_only_the_start_of_a_long_message_counts():
    assert fingerprint("Oops", "x" * 1000 + "this") == fingerprint("Oops", "x" * 1000 + "that")
    assert fingerprint("Oops", "x" * 900 + "this") != fingerprint("Oops", "x" * 900 + "that")

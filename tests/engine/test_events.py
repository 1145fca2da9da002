"""Events: what the engine says of everything that happens, and how errors are told apart."""

import msgspec
import pytest

from millrace.engine.events import Event, fingerprint
from millrace.engine.job import FAKTORY, MASENKO, NO_PROTOCOL, Job, apply, changing
from millrace.engine.states import DEAD, GONE, LEASED, NEW, READY, SCHEDULED, TRANSITIONS
from scene import SECOND, START, Scene

#: Every event of a job says at least so much; what follows, few have.
USUAL = Event._fields.index("created") + 1


def scene_with_everything() -> Scene:
    """Every cause there is, once or more."""
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
    engine.requeue(engine.find("killed"), scene.now)
    engine.cancel(engine.find("killed"), scene.now)
    doomed = scene.push("doomed", origin=MASENKO, blockers=[scene.push("root").seq], dead_queue="x")
    engine.kill(engine.find("root"), scene.now)
    assert doomed.queue == "x"
    stepping = scene.pushed_and_leased("stepping", "steps")
    engine.advance(stepping, scene.now, FAKTORY)
    engine.move(stepping, "next", scene.now, FAKTORY)
    scene.push("evicted", expires=scene.now + SECOND)
    scene.advance(1)
    return scene


def test_the_scene_has_every_cause():
    assert set(scene_with_everything().causes()) == set(TRANSITIONS)


def test_every_event_is_a_beginning_of_the_event_s_fields():
    """So that a reader can fill in the rest with the defaults."""
    for row in scene_with_everything().engine.batch.events:
        assert type(row) is tuple
        assert USUAL <= len(row) <= len(Event._fields)
        for name, value in zip(Event._fields, row, strict=False):
            expected = Event.__annotations__[name]
            kind = tuple if name == "tags" else expected
            assert type(value) is kind, (name, value)


def test_each_value_stands_in_its_field():
    scene = Scene()
    scene.push("job-7", "mail", kind="SendMail", payload=b"[1,2]", rank=4, due=0)
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


def test_a_failure_has_its_words_and_its_shape():
    scene = Scene()
    job = scene.pushed_and_leased()
    scene.now += SECOND
    scene.fail(job, "KeyError", "no key 17")
    event = scene.events()[-1]
    assert (event.type, event.state, event.run) == ("failed", SCHEDULED, SECOND)
    assert (event.group, event.message) == ("KeyError", "no key 17")
    assert event.fingerprint == fingerprint("KeyError", "no key 17")
    assert event.due == job.due > scene.now


def test_an_expiry_is_a_failure_by_nobody_s_protocol():
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
    scene.advance_to(job.due)
    event = scene.events()[-1]
    assert event.type == "due"
    assert (event.group, event.message, event.fingerprint) == ("", "", "")


def test_the_end_of_a_job_carries_its_totals():
    scene = Scene()
    job = scene.pushed_and_leased("job-1", "here")
    first = job.leased_at
    scene.now += SECOND
    scene.fail(job, "KeyError", "no key 17")
    scene.advance_to(job.due)
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
    job.lifetime = None
    scene.complete(job)
    ended = scene.events()[-1]
    assert (ended.leases, ended.failures, ended.wait_total, ended.run_total) == (-1, -1, -1, -1)
    assert (ended.wait, ended.holder, ended.outcome) == (-1, FAKTORY, "completed")


def test_totals_survive_a_restart():
    scene = Scene()
    job = scene.pushed_and_leased("job-1")
    scene.now += SECOND
    scene.fail(job)
    copy = msgspec.msgpack.decode(msgspec.msgpack.encode(job), type=Job)
    blank = msgspec.structs.replace(copy, lifetime=None, outcome="", ended_at=0)
    apply(blank, msgspec.msgpack.decode(msgspec.msgpack.encode(changing(job))))
    assert copy == blank == job
    apply(blank, msgspec.msgpack.decode(msgspec.msgpack.encode(changing(job)[:-2])))
    assert (blank.lifetime, blank.outcome) == (None, "")


def test_tags_travel_with_every_event():
    scene = Scene()
    scene.push(tags=["red", "blue"])
    scene.complete(scene.lease())
    assert [event.tags for event in scene.events()] == [("red", "blue")] * 3


def test_every_event_says_what_the_job_was_before_and_when_it_was_pushed():
    """So that depths and whole lives can be told from events alone, in any order of jobs."""
    scene = scene_with_everything()
    known: dict[int, int] = {}
    for event in scene.events():
        assert event.before == known.get(event.seq, NEW), event
        known[event.seq] = event.state
        assert event.created > 0


def test_a_job_that_is_moved_says_where_it_came_from():
    scene = Scene()
    job = scene.push("job-1", "here")
    scene.engine.move(job, "there", scene.now, FAKTORY)
    moved = scene.events()[-1]
    assert (moved.type, moved.queue, moved.source) == ("moved", "there", "here")
    assert [event.source for event in scene.events()[:-1]] == [""]


def test_events_of_one_batch_are_in_the_order_in_which_things_happened():
    scene = Scene()
    scene.wait()
    scene.push()
    assert scene.causes() == ["pushed", "leased"]


def test_what_an_event_leaves_out_is_nothing():
    for name, default in Event._field_defaults.items():
        assert default in {0, "", ()}, name


def test_a_flush_is_one_event_that_says_how_far_it_reached():
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
def test_errors_that_differ_only_in_numbers_ids_or_quoted_words_are_the_same(one, other):
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
def test_errors_that_differ_in_words_are_not_the_same(one, other):
    assert fingerprint(*one) != fingerprint(*other)


def test_a_fingerprint_is_short_and_stays_the_same_for_good():
    """It is written to the journal: what was found yesterday must be found tomorrow."""
    assert fingerprint("KeyError", "no key 17") == "af593ac9e536d040"


def test_any_text_has_a_fingerprint():
    for text in ("", "\x00", "é" * 5000, "\ud800 alone", "'", '"' * 999):
        assert len(fingerprint(text, text)) == 16


def test_only_the_beginning_of_a_long_message_counts():
    assert fingerprint("Oops", "x" * 1000 + "this") == fingerprint("Oops", "x" * 1000 + "that")
    assert fingerprint("Oops", "x" * 900 + "this") != fingerprint("Oops", "x" * 900 + "that")

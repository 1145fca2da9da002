"""MILLRACE: loads that are released as one, and pages of jobs."""

from base64 import b64encode

import pytest
from conversation import START, Client, Conversation, World, compact, unit

from millrace.engine import bulk_loads, consistency
from millrace.engine.job import NewJob
from millrace.engine.reasons import sentence, why
from millrace.engine.states import BLOCKED, READY
from millrace.protocols.faktory import bulk
from millrace.protocols.registry import GOQUEUE, QLESS, WORKQ
from wires import SECOND


def asks(client: Client, **request) -> dict:
    return client.says(b"MILLRACE %b\r\n" % compact(request)).hears_json()


def stages(client: Client, load: str, *units: dict) -> dict:
    return asks(client, stage=load, jobs=list(units))


def numbered(count: int, first: int = 1, **fields) -> list[dict]:
    return [unit(f"job-{number:04}", **fields) for number in range(first, first + count)]


def opened(talk: Conversation, load: str = "L") -> Client:
    client = talk.client()
    assert asks(client, open=load)["state"] == "open"
    return client


# A load


def test_a_load_is_opened_staged_and_released(talk):
    client = talk.client()
    said = asks(client, open="import-1")
    assert said == {"load": "import-1", "state": "open", "at": START, "total": 0, "staged": 0}
    said = stages(client, "import-1", *numbered(3))
    assert said == {"new": 3, "known": 0, "invalid": {}}
    client.finds_nothing("default")
    assert asks(client, release="import-1") == {"done": 3, "left": 0}
    assert [client.fetches()["jid"] for _ in range(3)] == ["job-0001", "job-0002", "job-0003"]


def test_a_job_staged_again_is_staged_once(talk):
    client = opened(talk)
    stages(client, "L", *numbered(3))
    assert stages(client, "L", *numbered(4)) == {"new": 1, "known": 3, "invalid": {}}
    assert asks(client, open="L")["staged"] == 4
    assert asks(client, release="L") == {"done": 4, "left": 0}


def test_a_jid_of_another_load_or_of_no_load_is_another_job(talk):
    client = opened(talk)
    client.pushes(unit("job-0001"))
    asks(client, open="M")
    assert stages(client, "L", unit("job-0001"))["new"] == 1
    assert stages(client, "M", unit("job-0001"))["new"] == 1
    assert asks(client, release="M") == {"done": 1, "left": 0}
    assert asks(client, open="L")["staged"] == 1


def test_a_released_load_accepts_no_jobs(talk):
    """A late task must not stage a completed job again."""
    client = opened(talk)
    stages(client, "L", *numbered(2))
    asks(client, release="L")
    client.acks(client.fetches()["jid"])
    late = b"MILLRACE %b\r\n" % compact({"stage": "L", "jobs": numbered(2)})
    client.says(late).hears_error("the load L is released: nothing can be added to it")
    assert asks(client, open="L") | {"at": 0} == {
        "load": "L", "state": "released", "at": 0, "total": 2, "staged": 0,
    }  # fmt: skip
    assert asks(client, release="L") == {"done": 0, "left": 0}


def test_a_load_whose_release_has_started_accepts_no_jobs(talk):
    client = opened(talk)
    stages(client, "L", *numbered(5))
    assert asks(client, release="L", most=2) == {"done": 2, "left": 3}
    client.says(b"MILLRACE %b\r\n" % compact({"stage": "L", "jobs": numbered(2)}))
    client.hears_error("the load L is releasing: nothing can be added to it")
    client.says(b'MILLRACE {"discard":"L"}\r\n')
    client.hears_error("the load L is releasing: it cannot be discarded any more")
    assert asks(client, release="L", most=2) == {"done": 2, "left": 1}
    assert asks(client, release="L", most=2) == {"done": 1, "left": 0}
    assert client.sets()["enqueued"] == 5


def test_a_discarded_load_is_removed_and_can_be_opened_again(talk):
    client = opened(talk)
    stages(client, "L", *numbered(5))
    assert asks(client, discard="L", most=3) == {"done": 3, "left": 2}
    assert asks(client, discard="L") == {"done": 2, "left": 0}
    assert not talk.engine.jobs
    client.says(b"MILLRACE %b\r\n" % compact({"stage": "L", "jobs": numbered(1)}))
    client.hears_error("no such load: L")
    assert asks(client, discard="L") == {"done": 0, "left": 0}
    assert asks(client, open="L")["state"] == "open"
    assert stages(client, "L", *numbered(5))["new"] == 5


def test_an_unknown_load_is_not_released(talk):
    talk.client().says(b'MILLRACE {"release":"L"}\r\n').hears_error("no such load: L")


def test_an_empty_load_is_released_immediately(talk):
    client = opened(talk)
    assert asks(client, release="L") == {"done": 0, "left": 0}
    assert asks(client, open="L")["state"] == "released"


def test_a_waiting_worker_gets_a_job_when_it_is_released(talk):
    client, worker = opened(talk), talk.client(wid="worker-1")
    worker.says(b"FETCH\r\n").hears_nothing()
    stages(client, "L", *numbered(2))
    worker.hears_nothing()
    asks(client, release="L")
    assert worker.hears_json()["jid"] == "job-0001"


def test_all_fields_of_a_staged_job_are_applied(talk):
    client = opened(talk)
    later = "2026-11-15T20:43:51Z"  # in an hour
    stages(
        client,
        "L",
        unit("job-0001", at=later, retry=3, reserve_for=90, custom={"a": 1}),
        unit("job-0002", queue="other"),
        unit("job-0003", queue="other", priority=5),
    )
    asks(client, release="L")
    assert client.sets()["scheduled"] == 1
    assert [client.fetches("other")["jid"] for _ in range(2)] == ["job-0003", "job-0002"]
    talk.advance(3600)
    given = client.fetches()
    assert (given["jid"], given["retry"], given["custom"]) == ("job-0001", 3, {"a": 1})
    assert talk.engine.find("job-0001").deadline == talk.now + 90 * SECOND


def test_the_extensions_of_a_staged_job_are_applied_as_in_a_push(talk):
    client = opened(talk)
    own = {"tags": ["blue"], "keep_result": 60, "priority": 7, "depends_on": ["job-0001"]}
    stages(client, "L", unit("job-0001"), unit("job-0002", custom={"millrace": own}))
    job = talk.engine.find("job-0002")
    assert (job.extra.tags, job.extra.retention, job.rank) == (["blue"], 60 * SECOND, 7)
    asks(client, release="L")
    assert client.fetches()["jid"] == "job-0001"
    assert job.state == BLOCKED
    client.acks("job-0001")
    assert client.fetches()["jid"] == "job-0002"


def test_a_job_that_became_due_while_staged_is_ready(talk):
    client = opened(talk)
    stages(client, "L", unit("job-0001", at="2026-11-15T19:44:51Z"))
    talk.advance(120)
    asks(client, release="L")
    assert client.fetches()["jid"] == "job-0001"


def test_the_wait_of_a_released_job_starts_at_its_release(talk):
    client = opened(talk)
    stages(client, "L", unit("job-0001"))
    talk.advance(50)
    asks(client, release="L")
    talk.advance(1)
    client.fetches()
    job = talk.engine.find("job-0001")
    assert (job.ready_at - job.created, job.leased_at - job.ready_at) == (50 * SECOND, SECOND)
    assert job.extra is None, "it has no special state"


# Errors


def test_invalid_jobs_are_reported_and_the_others_staged(talk):
    said = stages(opened(talk), "L", unit("short"), unit("job-0002"), unit("job-0003", queue="a b"))
    assert said["new"] == 1
    assert said["invalid"]["short"] == "jobs must have a reasonable jid parameter"
    assert said["invalid"]["job-0003"].startswith('cannot get "a b" queue')


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b"{", "invalid MILLRACE: unexpected end of JSON input"),
        (b"{}", "invalid MILLRACE: expected one of open, stage, release, discard, loads, read"),
        (b'{"open":"a","loads":true}', "invalid MILLRACE: expected one of open, stage,"),
        (b'{"open":"a b"}', "invalid MILLRACE: the name of a load must match"),
        (b'{"open":"%b"}' % (b"a" * 201), "invalid MILLRACE: the name of a load must match"),
        (b'{"open":""}', "invalid MILLRACE: the name of a load must match"),
        (b'{"open":1}', "invalid MILLRACE: Expected str | null, got int"),
        (b'{"shut":"a"}', "invalid MILLRACE: Object contains unknown field shut"),
        (b'{"stage":"a"}', "invalid MILLRACE: jobs and stage must be given together"),
        (b'{"open":"a","jobs":[]}', "invalid MILLRACE: jobs and stage must be given together"),
        (b'{"release":"a","most":0}', "invalid MILLRACE: most must be from 1 to 10000"),
        (b'{"stage":"a","jobs":[]}', "no such load: a"),
        (b'{"open":"\xff"}', "invalid MILLRACE: the name of a load must match"),
        (b'{"read":{"state":"lost"}}', "invalid MILLRACE: state must be one of scheduled, "),
        (b'{"read":{"part":2,"parts":2}}', "invalid MILLRACE: part must be from 0 to 1"),
        (b'{"read":{"parts":0}}', "invalid MILLRACE: parts must be from 1 to 10000"),
        (b'{"read":{"most":5000}}', "invalid MILLRACE: most must be from 1 to 1000"),
        (b'{"read":{"cursor":5}}', "no such cursor on this connection: read from the beginning"),
    ],
)
def test_invalid_requests_are_refused(talk, line, error):
    client = talk.client().says(b"MILLRACE " + line + b"\r\n")
    assert client.hears_error_like(error)
    client.is_still_there()


def test_no_argument(talk):
    talk.client().says(b"MILLRACE\r\n").hears_error("internal error")


def test_too_many_jobs(talk):
    jobs = b",".join([b"1"] * (bulk.MAX_JOBS + 1))
    client = opened(talk).says(b'MILLRACE {"stage":"L","jobs":[%b]}\r\n' % jobs)
    client.hears_error("invalid MILLRACE: more than 10000 jobs")


def test_a_wrong_type_refuses_the_following_jobs(talk):
    client = opened(talk)
    jobs = [unit("job-0001"), unit("job-0002", retry="often")]
    client.says(b"MILLRACE %b\r\n" % compact({"stage": "L", "jobs": jobs}))
    client.hears_error("invalid JSON: retry must be an integer")
    client.says(b"MILLRACE %b\r\n" % compact({"stage": "L", "jobs": [unit(priority="high")]}))
    client.hears_error("invalid JSON: priority must be a number")


def test_changes_are_refused_while_the_store_fails(talk):
    client = opened(talk)
    talk.acts(lambda world: setattr(world.engine, "unavailable_reason", "disk full"))
    for request in ({"open": "M"}, {"stage": "L", "jobs": []}, {"release": "L"}, {"discard": "L"}):
        client.says(b"MILLRACE %b\r\n" % compact(request))
        client.hears_error("disk full: nothing was changed, try again later")
    assert asks(client, read={})["jobs"] == []
    assert [load["load"] for load in asks(client, loads=True)["loads"]] == ["L"]


def test_a_jid_of_more_jobs_than_the_limit_cannot_be_staged(monkeypatch, talk):
    monkeypatch.setattr(bulk_loads, "MAX_DUPLICATES", 3)
    client = opened(talk)
    for number in range(4):
        client.pushes(unit("job-0001", args=[number]))
    client.says(b"MILLRACE %b\r\n" % compact({"stage": "L", "jobs": [unit("job-0001")]}))
    client.hears_error("more than 3 jobs have the jid job-0001")


def test_loads_are_bounded(monkeypatch, talk):
    """The oldest load without jobs is forgotten; loads with jobs are kept."""
    monkeypatch.setattr(bulk_loads, "MAX_LOADS", 2)
    client = opened(talk, "first")
    stages(client, "first", unit("job-0001"))
    talk.advance(1)
    asks(client, open="second")
    talk.advance(1)
    asks(client, open="third")
    known = asks(client, loads=True)["loads"]
    assert [(each["load"], each["staged"]) for each in known] == [("first", 1), ("third", 0)]
    stages(client, "third", unit("job-0002"))
    client.says(b'MILLRACE {"open":"fourth"}\r\n')
    client.hears_error("too many loads: at most 2. Release or discard one")


def test_every_reply_about_a_change_waits_for_the_commit(talk):
    talk.acts(lambda world: world.hold_commits())
    client = opened(talk)
    stages(client, "L", unit("job-0001"))
    stages(client, "L", unit("job-0001"))
    asks(client, release="L")
    asks(client, release="L")
    asks(client, discard="M")
    asks(client, read={})
    said = len(client.wire.replies)
    assert client.wire.durable == list(range(2, said)), "all but the greeting and HELLO's OK"


# Other commands on staged jobs


def test_no_protocol_gets_a_staged_job(talk):
    client = opened(talk)
    stages(client, "L", *numbered(2))
    engine, now = talk.engine, talk.now
    for actor in (WORKQ, QLESS, GOQUEUE):
        assert engine.lease(["default"], "w", actor, now) is None
        assert engine.lease(["default"], "w", actor, now, random_queue=True) is None
    assert engine.reclaim_by_id("job-0001", "w", QLESS, now) is None


@pytest.mark.parametrize("command", [b"QUEUE PAUSE *", b"QUEUE RESUME *", b"QUEUE REMOVE *"])
def test_actions_on_a_queue_do_not_release_its_staged_jobs(talk, command):
    client = opened(talk)
    stages(client, "L", *numbered(2))
    client.says(command + b"\r\n").hears_ok()
    client.says(b"QUEUE RESUME *\r\n").hears_ok()
    client.finds_nothing("default")
    client.mutates("requeue", "scheduled").mutates("requeue", "dead")
    client.finds_nothing("default")
    assert asks(client, release="L") == {"done": 2, "left": 0}
    client.fetches()


def test_the_end_of_dependencies_releases_no_staged_job(talk):
    client = opened(talk)
    stages(client, "L", unit("job-0001"))
    talk.client().pushes(unit("blocker1"))

    def depends(world):
        job, blocker = world.engine.find("job-0001"), world.engine.find("blocker1")
        world.engine.block(job, [blocker.seq])
        world.engine.unblock(job, [blocker.seq], world.now)
        world.engine.block(job, [blocker.seq])
        world.engine.cancel(blocker, world.now)
        world.engine.move(job, "elsewhere", world.now, QLESS)

    talk.acts(depends)
    assert talk.engine.find("job-0001").state == BLOCKED
    assert not consistency.check_engine(talk.engine).total
    asks(client, release="L")
    assert client.fetches("elsewhere")["jid"] == "job-0001"


def test_a_released_job_still_waits_for_its_dependencies(talk):
    client = opened(talk)
    stages(client, "L", unit("job-0001"))
    client.pushes(unit("blocker1", queue="other"))
    talk.acts(lambda w: w.engine.block(w.engine.find("job-0001"), [w.engine.find("blocker1").seq]))
    assert asks(client, release="L") == {"done": 1, "left": 0}
    client.finds_nothing("default")
    client.acks(client.fetches("other")["jid"])
    assert client.fetches()["jid"] == "job-0001"


def test_a_killed_staged_job_leaves_its_load(talk):
    client = opened(talk)
    stages(client, "L", *numbered(2))
    talk.acts(lambda world: world.engine.kill(world.engine.find("job-0001"), world.now))
    assert asks(client, release="L") == {"done": 1, "left": 0}
    client.mutates("requeue", "dead")
    assert {client.fetches()["jid"] for _ in range(2)} == {"job-0001", "job-0002"}
    assert not consistency.check_engine(talk.engine).total


def test_flush_forgets_loads(talk):
    client = opened(talk)
    stages(client, "L", *numbered(2))
    client.says(b"FLUSH\r\n").hears_ok()
    assert asks(client, loads=True) == {"loads": []}
    assert not talk.engine.staged
    assert asks(client, open="L")["state"] == "open"


def test_why_names_the_load(talk):
    client = opened(talk, "import-1")
    stages(client, "import-1", unit("job-0001"))
    report = why(talk.engine, talk.engine.find("job-0001"), talk.now)
    assert [reason.code for reason in report.reasons] == ["staged"]
    assert sentence(report.reasons[0], report, talk.now) == (
        "Part of the load import-1, staged 2026-11-15 19:43:51 UTC, 0 s ago. The load is not "
        "released; release or discard it."
    )


def test_the_check_finds_and_repairs_problems_of_loads(talk):
    client = opened(talk)
    stages(client, "L", *numbered(2))
    engine = talk.engine
    assert not consistency.check_engine(engine).total
    engine.staged["M"] = engine.staged.pop("L")
    assert {problem.what for problem in consistency.check_engine(engine).problems} == {"load"}
    consistency.repair(engine, talk.now)
    assert not consistency.check_engine(engine).total
    assert list(engine.staged) == ["L"]
    assert all(job.state == BLOCKED for job in engine.jobs.values())


# Reading


def test_jobs_are_read_with_all_fields(talk):
    client = talk.client(wid="w1")
    client.pushes(unit("job-0001", args=["a", 2**60], queue="q1"))
    assert asks(client, read={"queue": "q1"}) == {
        "cursor": None,
        "jobs": [
            {
                "seq": 1, "jid": "job-0001", "queue": "q1", "kind": "SomeJob", "origin": "faktory",
                "state": "ready", "priority": 0.0, "created": START, "attempt": 0, "failures": 0,
                "retries": 25, "payload": f'["a",{2**60}]',
                "ready_at": START,
            }
        ],
    }  # fmt: skip


def test_a_dead_job_has_its_failure(talk):
    client = talk.client(wid="w1")
    client.pushes(unit("job-0001", retry=-1))
    client.fails(client.fetches()["jid"], errtype="E", message="broke", backtrace=["a", "b"])
    (report,) = asks(client, read={"state": "dead"})["jobs"]
    assert (report["error_group"], report["error_message"]) == ("E", "broke")
    assert (report["backtrace"], report["failed_at"]) == (["a", "b"], START)
    assert (report["worker"], report["protocol"], report["ended_at"]) == ("w1", "faktory", START)


def test_bytes_are_read_as_base64_with_results(talk):
    def push(world):
        engine = world.engine
        engine.push(
            NewJob(
                "job-0001", "k", b"\xff\x00", WORKQ, "q", 0, SECOND, expires_at=START + 9 * SECOND
            ),
            world.now,
        )
        job = engine.lease(["q"], "", WORKQ, world.now)
        engine.complete(job, world.now, WORKQ, result=b"\xfe")

    talk.acts(push)
    (report,) = asks(talk.client(), read={"state": "done"})["jobs"]
    assert (report["payload"], report["payload_encoding"]) == (
        b64encode(b"\xff\x00").decode(),
        "base64",
    )
    assert (report["result"], report["result_encoding"]) == (b64encode(b"\xfe").decode(), "base64")


def test_pages_follow_each_other_to_the_end(talk):
    client = talk.client()
    for each in numbered(5):
        client.pushes(each)
    read, cursor = [], None
    while True:
        page = asks(client, read={"most": 2, **({} if cursor is None else {"cursor": cursor})})
        read.append([job["jid"] for job in page["jobs"]])
        cursor = page["cursor"]
        if cursor is None:
            break
    assert read == [["job-0001", "job-0002"], ["job-0003", "job-0004"], ["job-0005"]]
    assert not len(talk.hub.read_cursors)


def test_parts_are_disjoint_and_complete(talk):
    client = talk.client()
    for each in numbered(10):
        client.pushes(each)
    parts = [asks(client, read={"part": part, "parts": 3})["jobs"] for part in range(3)]
    assert sorted(job["seq"] for part in parts for job in part) == list(range(1, 11))


def test_a_page_is_bounded_by_its_size(monkeypatch, talk):
    monkeypatch.setattr(bulk, "PAGE_BYTES", 1000)
    client = talk.client()
    for each in numbered(4, args=["x" * 600]):
        client.pushes(each)
    assert len(asks(client, read={})["jobs"]) == 2


def test_changed_jobs_are_read_in_their_current_state(talk):
    client = talk.client()
    for each in numbered(3):
        client.pushes(each)
    page = asks(client, read={"state": "ready", "most": 1})
    client.acks(client.fetches()["jid"])
    client.acks(client.fetches()["jid"])
    client.pushes(unit("job-0004"))
    rest = asks(client, read={"cursor": page["cursor"]})
    assert [job["jid"] for job in rest["jobs"]] == ["job-0003"], "completed, and pushed too late"


def test_readers_are_limited_and_idle_ones_are_dropped(monkeypatch, talk):
    monkeypatch.setattr(bulk, "MAX_READ_CURSORS", 2)
    for each in numbered(5):
        talk.client().pushes(each)
    readers = [talk.client() for _ in range(3)]
    first = asks(readers[0], read={"most": 1})
    talk.advance(1)
    asks(readers[1], read={"most": 1})
    readers[2].says(b'MILLRACE {"read":{"most":1}}\r\n')
    readers[2].hears_error("too many concurrent reads: at most 2, try again later")
    talk.advance(10)
    assert asks(readers[2], read={"most": 1})["jobs"]
    readers[0].says(b"MILLRACE %b\r\n" % compact({"read": {"cursor": first["cursor"]}}))
    readers[0].hears_error("no such cursor on this connection: read from the beginning")
    readers[1].hangs_up()
    readers[2].hangs_up()
    assert not len(talk.hub.read_cursors)


def test_950_jobs_are_staged_released_and_read_in_slices(talk):
    client = opened(talk)
    units = numbered(950)
    assert stages(client, "L", *units)["new"] == 950
    assert asks(client, release="L", most=900) == {"done": 900, "left": 50}
    assert asks(client, release="L", most=900) == {"done": 50, "left": 0}
    assert [job.jid for job in talk.engine.queues["default"].ready] == [u["jid"] for u in units]
    assert all(job.state == READY for job in talk.engine.jobs.values())
    page = asks(client, read={"most": 1000})
    assert (len(page["jobs"]), page["cursor"]) == (950, None)


def test_lone_surrogates_are_repaired(talk):
    client = opened(talk)
    raw = b'{"jid":"job-0001","jobtype":"k","args":["\\ud800"]}'
    client.says(b'MILLRACE {"stage":"L","jobs":[%b]}\r\n' % raw)
    assert client.hears_json()["new"] == 1


@pytest.mark.parametrize(
    ("line", "progress", "most"),
    [
        (
            b"MILLRACE %b\r\n" % compact({"stage": "L", "jobs": numbered(950, 1001)}),
            lambda world: len(world.engine.staged["L"]),
            bulk.BULK_BATCH_SIZE,
        ),
        (
            b'MILLRACE {"release":"L"}\r\n',
            lambda world: -len(world.engine.blocked),
            bulk.BULK_BATCH_SIZE,
        ),
        (
            b'MILLRACE {"discard":"L"}\r\n',
            lambda world: -len(world.engine.blocked),
            bulk.BULK_BATCH_SIZE,
        ),
    ],
)
def test_other_clients_are_served_between_slices(line, progress, most):
    world = World({})
    wire = world.connect()
    wire.receive(b'HELLO {"v":2}\r\nMILLRACE {"open":"L"}\r\n')
    wire.receive(b"MILLRACE %b\r\n" % compact({"stage": "L", "jobs": numbered(950)}))
    connection, steps = wire.connection, []
    connection.feed(line)
    more = True
    while more:
        before = progress(world)
        more = connection.run(world.now, 1)
        steps.append(progress(world) - before)
    assert max(steps) == most
    assert sum(steps) == 950


def test_a_reader_examines_jobs_in_batches(monkeypatch):
    monkeypatch.setattr(bulk, "SCAN_BATCH_SIZE", 50)
    world = World({})
    for number in range(500):
        push = NewJob(f"job-{number:04}", "k", b"[]", WORKQ, "q", 0, SECOND)
        world.engine.push(push, world.now)
    wire = world.connect()
    wire.receive(b'HELLO {"v":2}\r\n')
    wire.connection.feed(b'MILLRACE {"read":{"queue":"none"}}\r\n')
    turns = 1
    while wire.connection.run(world.now, 1):
        turns += 1
    assert turns > 500 / 50
    assert wire.connection.replies[-1].data == b'$25\r\n{"cursor":null,"jobs":[]}\r\n'

"""Every verb and view of the engine applies the queue rule of its caller."""

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from millrace.engine.caller import Caller
from millrace.engine.details import JobDetails
from millrace.engine.engine import Engine
from millrace.engine.errors import QueueRefused
from millrace.engine.job import NO_PROTOCOL, NewJob
from millrace.engine.limits import QUEUE_KEY_PREFIX, keys_of
from millrace.engine.queue_rules import QueueRule
from millrace.engine.recurring import RecurringJob
from millrace.engine.states import BLOCKED, LEASED, SCHEDULED
from millrace.engine.waiters import Waiter
from millrace.protocols.registry import MASENKO, WORKQ
from millrace.protocols.spec import protocol_rules

PACKAGE = Path(__file__).parents[2] / "src/millrace"
NOW = 1_700_000_000_000_000
OTHER, MINE = "billing", "signup"
LIMIT = QUEUE_KEY_PREFIX + OTHER
#: The jid of the first job, which is in `billing`.
SECRET = "6ba7b810-9dad-41d1-80b4-00000000000a"

#: The verbs and views that find a job or name a queue: a call that concerns `billing`. It must
#: raise QueueRefused, or return the same as for a job or queue that does not exist.
CHECKED: dict[str, tuple[Callable[[Engine], object], object]] = {
    "allows": (lambda engine: engine.allows(OTHER), False),
    "job": (lambda engine: engine.job(1), None),
    "find": (lambda engine: engine.find(SECRET), None),
    "find_all": (lambda engine: engine.find_all(SECRET), []),
    "find_below": (lambda engine: engine.find_below(SECRET, 100, 10), []),
    "find_leased": (lambda engine: engine.find_leased("leased", WORKQ), None),
    "count_of": (lambda engine: engine.count_of(SECRET), 0),
    "retrying": (lambda engine: engine.retrying, 0),
    "dependents": (lambda engine: engine.dependents(engine.jobs[1]), []),
    "first_dependents": (lambda engine: engine.first_dependents(engine.jobs[1], 10), ([], 0)),
    "next_dependent": (lambda engine: engine.next_dependent(engine.jobs[1], 0), 0),
    "queue": (lambda engine: engine.queue(OTHER), QueueRefused),
    "retention_of": (lambda engine: engine.retention_of(OTHER), QueueRefused),
    "queue_days": (lambda engine: [name for name, _ in engine.queue_days()], []),
    "tables": (lambda engine: [list(table) for table in _tables(engine)], [[]] * 11),
    "is_tracked": (lambda engine: engine.is_tracked(SECRET), False),
    "push": (lambda engine: engine.push(_new("new"), NOW), QueueRefused),
    "push_many": (lambda engine: engine.push_many([_new("new")], NOW), QueueRefused),
    "check_queue": (lambda engine: engine.check_queue(OTHER), QueueRefused),
    "check_queues": (lambda engine: engine.check_queues(_new("new")), QueueRefused),
    "check_limits": (lambda engine: engine.check_limits([LIMIT]), QueueRefused),
    "check_blockers": (lambda engine: engine.check_blockers([1]), QueueRefused),
    "lease": (lambda engine: engine.lease([OTHER], "w", WORKQ, NOW), QueueRefused),
    "reclaim_by_id": (lambda engine: engine.reclaim_by_id(SECRET, "w", WORKQ, NOW), None),
    "add_waiter": (
        lambda engine: engine.add_waiter(Waiter((OTHER,), "w", WORKQ, _Owner()), NOW + 1),
        QueueRefused,
    ),
    "move": (lambda engine: engine.move(engine.jobs[3], OTHER, NOW, WORKQ), QueueRefused),
    "open_queue": (lambda engine: engine.open_queue(OTHER), QueueRefused),
    "pause": (lambda engine: engine.pause(OTHER, paused=True, now=NOW), QueueRefused),
    "remove_queue": (lambda engine: engine.remove_queue(OTHER, NOW), QueueRefused),
    "remove_queue_in_slices": (
        lambda engine: list(engine.remove_queue_in_slices(OTHER, NOW)),
        QueueRefused,
    ),
    "forget_queue": (lambda engine: engine.forget_queue(OTHER), QueueRefused),
    "promote_due": (lambda engine: engine.promote_due(OTHER, NOW, 10), QueueRefused),
    "set_limit": (lambda engine: engine.set_limit(LIMIT, 1, 0, NOW), QueueRefused),
    "set_limit_keys": (lambda engine: engine.set_limit_keys(engine.jobs[4], [LIMIT]), QueueRefused),
    "track": (lambda engine: engine.track(SECRET, None), QueueRefused),
    "put_recurring": (lambda engine: engine.put_recurring(_recurring(MINE)), QueueRefused),
    "delete_recurring": (lambda engine: engine.delete_recurring("nightly"), False),
    "set_retention": (lambda engine: engine.set_retention(OTHER, 1), QueueRefused),
    "forget_statistics": (lambda engine: engine.forget_statistics(["billing-leased"]), None),
    "flush": (lambda engine: engine.flush(NOW), QueueRefused),
}
#: Verbs and views of a job that the caller has found through the engine.
OF_A_JOB = {
    *("payload", "payload_part", "time_of", "lease_job", "reclaim", "renew", "release"),
    *(
        "complete",
        "fail",
        "bury_damaged",
        "cancel",
        "kill",
        "retry_now",
        "update",
        "set_rank",
        "block",
    ),
    *("block_staged", "unblock", "remove_blockers", "set_tags", "log"),
}
#: Verbs and views that concern neither a job nor a queue, or only the connection of the caller.
WITHOUT_QUEUE = {
    *(
        "unavailable_reason",
        "push_refusal_reason",
        "durable",
        "rules",
        "random",
        "last_known_time",
        "next_seq",
    ),
    *("caller", "server_caller", "settings", "set_setting", "load_settings", "skip_seqs"),
    *("turn", "version", "revert_count", "flush_count", "commit_waiters", "set_alarm"),
    *("has_uncommitted", "is_setting_uncommitted", "is_turn_uncommitted"),
    *("cancel_wait", "stop_offering", "hold_queues", "totals", "timer_counts"),
    *("recent_durations", "dependents_left"),
}
#: Components that the protocols use for queues that they have checked and jobs that they have found.
#: The commands in test_queue_rules.py cover these uses.
COMPONENTS = {
    *("annotations", "deadlines", "due_timers", "leases", "limits", "payloads", "recurring"),
    "transactions",
}
#: Only the engine, the server and operators without a rule use these.
INTERNAL = {
    *("jobs", "by_jid", "queues", "scheduled", "blocked", "leased", "done", "dead", "staged"),
    *(
        "dead_untrimmed",
        "done_untrimmed",
        "all_tables",
        "table",
        "queue_set",
        "states",
        "retention",
    ),
    *("dependencies", "failure_groups", "statistics", "current_statistics", "timers", "waiters"),
    *("positions", "cascades", "alarms", "change_set", "committing", "record_components"),
    *("state_components", "components", "restoration", "transitions", "arrivals", "edits"),
    *("attempts", "assignments", "removal", "next_timer", "tick", "clock_moved", "take_changes"),
    *("restore", "revert", "resume", "records_transitions", "tallies"),
}
#: The uses of internal parts by protocols: the file, the attribute and the reason.
EXCEPTIONS = {
    ("qless/attempts.py", "retention"): "the number of completed jobs is limited over all queues",
    ("qless/dependencies.py", "dependencies"): "stages jobs that the caller has found",
    ("qless/state.py", "table"): "checks the queue of the job itself",
    ("qless/options.py", "statistics"): "sets the number of days that are kept",
}


class _Owner:
    """The owner of a waiter that gets no job."""


def _new(jid: str, queue: str = OTHER, **more: Any) -> NewJob:
    return NewJob(jid, "kind", b"{}", MASENKO, queue, 3, 1_800_000_000, **more)


def _recurring(queue: str, jid: str = "nightly", **more: Any) -> RecurringJob:
    return RecurringJob(jid, "kind", b"{}", queue, 60, 0, 0, 0, [], NOW, **more)


def _tables(engine: Engine) -> Iterator[Any]:
    tables = engine.tables
    for name in ("jobs", "by_jid", "queues", "scheduled", "blocked", "leased"):
        yield getattr(tables, name)
    for name in ("done", "dead", "done_untrimmed", "dead_untrimmed", "staged"):
        yield getattr(tables, name)


@pytest.fixture
def engine() -> Engine:
    """Jobs of every state in `billing`. The current caller may use only `signup`."""
    engine = Engine(Random(1), protocol_rules())
    engine.push(_new(SECRET), NOW)
    engine.push(_new("blocked", blockers=[1]), NOW)
    engine.push(_new("scheduled", due_at=NOW + 1_000_000), NOW)
    for jid in ("leased", "done", "dead", "retry"):
        engine.push(_new(jid, "billing-" + jid), NOW)
        job = engine.lease(["billing-" + jid], "w", WORKQ, NOW)
        assert job is not None
        if jid == "done":
            engine.complete(job, NOW, WORKQ, keep_until=NOW + 1_000_000)
        elif jid == "dead":
            engine.fail(job, NOW, WORKQ, "group", "message", [], final=True)
        elif jid == "retry":
            engine.fail(job, NOW, WORKQ, "group", "message", [], retry_at=NOW + 1_000_000)
    engine.track(SECRET, NOW)
    engine.put_recurring(_recurring(OTHER))
    engine.current_statistics()
    restoration = engine.restoration  # a worker may claim the ready jobs, as after a restart
    restoration.restored_seq = engine.next_seq
    restoration.ready_after_restore.clear()
    engine.caller = Caller(engine, NO_PROTOCOL, rule=QueueRule([MINE]))
    return engine


def test_the_table_of_this_test_has_every_verb_and_view(engine: Engine) -> None:
    groups = [CHECKED, OF_A_JOB, WITHOUT_QUEUE, COMPONENTS, INTERNAL]
    listed = [name for group in groups for name in group]
    assert sorted(listed) == sorted(set(listed))
    public = {name for name in dir(engine) if not name.startswith("_")}
    assert set(listed) == public


@pytest.mark.parametrize("name", CHECKED)
def test_a_verb_or_view_applies_the_rule(name: str, engine: Engine) -> None:
    call, expected = CHECKED[name]
    before = _observable(engine)
    if expected is QueueRefused:
        with pytest.raises(QueueRefused):
            call(engine)
    else:
        assert call(engine) == expected
    assert _observable(engine) == before


@pytest.mark.parametrize("name", CHECKED)
def test_without_a_rule_the_same_call_has_an_effect(name: str, engine: Engine) -> None:
    """Otherwise the other test would pass with a verb that ignores the rule."""
    engine.caller = engine.server_caller
    call, expected = CHECKED[name]
    before = _observable(engine)
    found = call(engine)
    if expected is not None and expected is not QueueRefused:
        assert found != expected
    elif not name.startswith(("check_", "promote_", "open_", "retention_")):
        assert found is not None or _observable(engine) != before


def _observable(engine: Engine) -> object:
    """Whatever a call of `CHECKED` can change."""
    jobs = [
        (job.seq, job.state, job.queue, job.attempt, keys_of(job)) for job in engine.jobs.values()
    ]
    queues = [(queue.name, queue.paused, queue.registered) for queue in engine.queues.values()]
    waiting = [name for name, queue in engine.queues.items() if queue.waiters]
    statistics = sorted(engine.statistics.days)
    limits = [key for key in engine.settings if OTHER in key]
    return jobs, queues, waiting, statistics, limits, dict(engine.settings)


def test_a_push_or_a_recurring_job_cannot_use_the_limit_of_another_queue(engine: Engine) -> None:
    push = _new("new", MINE, details=JobDetails(limits=[LIMIT]))
    for call in (
        lambda: engine.push(push, NOW),
        lambda: engine.put_recurring(_recurring(MINE, "mine", limits=[LIMIT])),
        lambda: engine.put_recurring(_recurring(OTHER, "mine")),
    ):
        before = _observable(engine)
        with pytest.raises(QueueRefused):
            call()
        assert _observable(engine) == before


def test_own_records_can_be_tracked_and_repeated(engine: Engine) -> None:
    engine.track("mine", NOW)
    assert engine.is_tracked("mine")
    engine.put_recurring(_recurring(MINE, "mine", limits=[QUEUE_KEY_PREFIX + MINE]))
    assert engine.delete_recurring("mine")
    assert not engine.delete_recurring("mine")


@pytest.mark.parametrize("state", [SCHEDULED, BLOCKED, LEASED])
def test_the_jobs_of_a_state_are_hidden(state: int, engine: Engine) -> None:
    assert engine.all_tables.by_state(state)
    assert not engine.tables.by_state(state)


def _used(package: str) -> Iterator[tuple[str, int, str]]:
    """Each attribute of an engine in the sources of a package: the file, the line, the name."""
    for path in sorted((PACKAGE / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and _is_engine(node.value):
                yield str(path.relative_to(PACKAGE / package)), node.lineno, node.attr


def _is_engine(node: ast.expr) -> bool:
    """Whether an expression is called `engine`; modules of that name are imported, not used."""
    names = {"engine", "_engine"}
    return (isinstance(node, ast.Name) and node.id in names) or (
        isinstance(node, ast.Attribute) and node.attr in names
    )


def test_protocols_use_only_methods_that_apply_the_rule() -> None:
    allowed = {*CHECKED, *OF_A_JOB, *WITHOUT_QUEUE, *COMPONENTS}
    found = {(path, name) for path, _, name in _used("protocols") if name not in allowed}
    assert found == set(EXCEPTIONS)


@pytest.mark.parametrize("package", ["protocols", "admin"])
def test_components_are_changed_through_verbs_that_apply_the_rule(package: str) -> None:
    """The verbs are `put_recurring`, `delete_recurring`, `track`, `set_limit`, `set_limit_keys`."""
    changes = {
        "recurring": {"put", "delete"},
        "annotations": {"track", "set_tags"},
        "limits": {"set", "delete", "set_keys"},
    }
    found = [
        (str(path), node.lineno)
        for path in sorted((PACKAGE / package).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Attribute)
        and _is_engine(node.value.value)
        and node.attr in changes.get(node.value.attr, ())
    ]
    assert found == []


def test_operators_use_no_index_of_all_jobs() -> None:
    """The web process passes on the rule of a token."""
    indexes = set(vars(Engine(Random(1), protocol_rules()).all_tables))
    assert "jobs" in indexes
    hidden = {*indexes, "all_tables", "queue_set", "table", "states", "statistics"}
    assert [use for use in _used("admin") if use[2] in hidden] == []


def test_components_call_no_verb_that_applies_the_rule() -> None:
    """The command of a limited client may change jobs in other queues, for example unblock them."""
    found = [use for use in _used("engine") if use[2] in CHECKED and use[0] != "engine.py"]
    assert found == []

"""What must hold: whatever anybody says, in any dialect, is answered by a reply or an error that a
script could have given; and the indexes are what would be made anew from the jobs.
"""

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from millrace.engine.engine import Engine
from millrace.engine.states import LEASED, SCHEDULED
from millrace.protocols.qless import QlessHub
from millrace.protocols.qless.api import COMMANDS, QlessApi
from millrace.protocols.qless.contract import ScriptError
from millrace.protocols.qless.dialects import SPEC_COMMANDS
from millrace.protocols.qless.resp import encode
from millrace.protocols.qless.state import Qless
from millrace.store import MemoryStore
from scene import Random, commit, durable_state, recover

NOW = 1_794_771_831_000_000

_JIDS = st.sampled_from(["a", "b", "c", "r", "r-1", ""])
_QUEUES = st.sampled_from(["q", "q2", ""])
_WORKERS = st.sampled_from(["w1", "w2"])
_NUMBERS = st.sampled_from(
    [
        "0",
        "1",
        "2",
        "-1",
        "2.5",
        "-0.5",
        "1e3",
        "0x10",
        "1e300",
        "-1e300",
        "99999999999999999999",
        "-0xffffffffffffffff",
        "1e-300",
    ]
)
_JSON = st.sampled_from(
    ["{}", "[]", '["a"]', '["a","b"]', "[1,2.5]", "[true]", "null", "3", '{"a":"b"}']
)
_WORDS = st.sampled_from(
    [
        "on",
        "off",
        "all",
        "add",
        "remove",
        "get",
        "top",
        "set",
        "unset",
        "update",
        "track",
        "untrack",
        "next",
        "delay",
        "depends",
        "priority",
        "tags",
        "retries",
        "interval",
        "backlog",
        "throttles",
        "running",
        "stalled",
        "scheduled",
        "recurring",
        "complete",
        "heartbeat",
        "grace-period",
        "q-max-concurrency",
        "max-job-history",
        "jobs-history-count",
        "jobs-history",
        "max-worker-age",
        "nonsense",
    ]
)
_ANYTHING = st.one_of(_JIDS, _QUEUES, _WORKERS, _NUMBERS, _JSON, _WORDS, st.text(max_size=3))
_ARGS = st.lists(_ANYTHING, max_size=8)

# Calls that mostly make sense, so that there is something for the others to meet.
_PUT = st.tuples(
    st.just("put"),
    st.tuples(st.just("w1"), _QUEUES, _JIDS, st.just("klass"), _JSON, _NUMBERS).map(list),
)
_PUT_WITH = st.tuples(
    _PUT, st.sampled_from(["priority", "tags", "retries", "depends"]), _JSON | _NUMBERS
).map(lambda parts: (parts[0][0], [*parts[0][1], parts[1], parts[2]]))
_POP = st.tuples(st.just("pop"), st.tuples(_QUEUES, _WORKERS, _NUMBERS).map(list))
_COMPLETE = st.tuples(st.just("complete"), st.tuples(_JIDS, _WORKERS, _QUEUES, _JSON).map(list))
_ADVANCE = st.tuples(
    _COMPLETE, _QUEUES, st.sampled_from(["delay", "depends"]), _NUMBERS | _JSON
).map(lambda parts: (parts[0][0], [*parts[0][1], "next", *parts[1:]]))
_RECUR = st.tuples(
    st.just("recur"),
    st.tuples(
        _QUEUES, st.just("r"), st.just("klass"), _JSON, st.just("interval"),
        st.sampled_from(["1", "0.001", "1e-300", "10", "1e300"]), _NUMBERS,
    ).map(list),
)  # fmt: skip
_LOOK = st.one_of(
    st.tuples(st.just("peek"), st.tuples(_QUEUES, _NUMBERS).map(list)),
    st.tuples(st.just("priority"), st.tuples(_JIDS, _NUMBERS).map(list)),
    st.tuples(st.just("heartbeat"), st.tuples(_JIDS, _WORKERS, _JSON).map(list)),
    st.tuples(st.just("retry"), st.tuples(_JIDS, _QUEUES, _WORKERS, _NUMBERS).map(list)),
    st.tuples(st.just("jobs"), st.tuples(_WORDS, _QUEUES, _NUMBERS, _NUMBERS).map(list)),
    st.tuples(st.just("config.set"), st.tuples(_WORDS, _NUMBERS).map(list)),
    st.tuples(st.just("unfail"), st.tuples(_QUEUES, st.just("g"), _NUMBERS).map(list)),
    st.tuples(st.just("fail"), st.tuples(_JIDS, _WORKERS, st.just("g"), _JSON, _JSON).map(list)),
    st.tuples(st.just("log"), st.tuples(_JIDS, st.just("message"), _JSON).map(list)),
)
_UNIFIED = st.one_of(
    _LOOK,
    _PUT, _PUT_WITH, _POP, _COMPLETE, _ADVANCE, _RECUR,
    st.tuples(st.sampled_from(sorted(COMMANDS)), _ARGS),
)  # fmt: skip
_CALLS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["B", "C"]), _UNIFIED, st.sampled_from(["1", "70", "5e3", "1.5"])
        ),
        st.tuples(
            st.sampled_from(["A", "spec"]),
            st.tuples(st.sampled_from(sorted(SPEC_COMMANDS - {"consistencycheck"})), _ARGS),
            st.just(""),
        ),
    ),
    max_size=15,
)


def call(api: QlessApi, dialect: str, command: str, args: list[str], now: str) -> None:
    words = [word.encode() for word in args]
    keys: list[bytes] = []
    if now:
        words.insert(0, now.encode())
    else:
        keys, words = words[:1], words[1:]
    try:
        reply = api.call(dialect, command, keys, words, NOW)
    except ScriptError as problem:
        assert str(problem)  # noqa: PT017
    else:
        encode(reply, 2)
        encode(reply, 3)


def indexes(qless: Qless) -> dict[str, Any]:
    """What can be found by them; entries that are out of date are found by nobody."""
    jobs = qless.engine.jobs
    locked = {name: [job.jid for job in qless.locked(name)] for name in qless.engine.queues}
    planned = {
        name: sorted({entry for entry in heap if qless._is_planned(name, *entry)})
        for name, heap in qless.schedule.items()
    }
    return {
        "locked": {name: found for name, found in locked.items() if found},
        "planned": {name: found for name, found in planned.items() if found},
        "tags": {
            tag: found
            for tag, seqs in qless.tags.items()
            if (found := {seq: when for seq, when in seqs.items() if seq in jobs})
        },
        "config": qless.config,
        "tracked": qless.tracked,
        "recurring": qless.recurring,
        "first seen": qless.first_seen,
    }


@given(_CALLS)
@settings(max_examples=300, deadline=None)
@example([("C", ("log", ["a", "m", '{"a":"b"}']), "1")])
def test_every_call_is_answered(calls: list[tuple[str, tuple[str, list[str]], str]]) -> None:
    api, store = QlessApi(QlessHub(Engine(Random(1)), started_at=NOW)), MemoryStore()
    for dialect, (command, args), now in calls:
        call(api, dialect, command, args, now)
        commit(api.engine, store)
    qless, engine = api.qless, api.engine
    before = indexes(qless)
    qless._build()
    assert indexes(qless) == before
    for queue in engine.queues.values():
        assert all(count >= 0 for count in queue.counts)
        assert queue.counts[LEASED] == len(
            [j for j in engine.leased.values() if j.queue == queue.name]
        )
        assert queue.counts[SCHEDULED] == len(
            [j for j in engine.scheduled.values() if j.queue == queue.name]
        )
    assert len(engine.by_jid) == len(engine.jobs), "no two jobs of one jid"
    again = QlessApi(QlessHub(recover(store), started_at=NOW))
    again.qless.refresh()
    assert indexes(again.qless) == before
    assert durable_state(again.engine) == durable_state(engine)

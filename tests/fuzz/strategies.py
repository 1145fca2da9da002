"""Inputs for Hypothesis, by target: mostly valid requests with a few mutated bytes, valid tokens in
any order, and random bytes.
"""

import vocabulary
from goqueue_conversation import add, delete, reserve
from hypothesis import strategies as st
from resp_conversation import SCRIPT_B, SCRIPT_C, SCRIPT_D, SCRIPT_PUT, SHA_C, request
from seeds import records
from workq_conversation import uid

from millrace.protocols.qless.connection import QlessConnection
from millrace.protocols.qless.script_catalog import sha_of

Bytes = st.SearchStrategy[bytes]


def one(*words: bytes) -> Bytes:
    return st.sampled_from(words)


def spaced(*parts: Bytes | bytes) -> Bytes:
    return joined(b" ", *parts)


def joined(between: bytes, *parts: Bytes | bytes) -> Bytes:
    found = (st.just(part) if isinstance(part, bytes) else part for part in parts)
    return st.tuples(*found).map(between.join)


def some(part: Bytes, most: int = 3, between: bytes = b" ") -> Bytes:
    return st.lists(part, max_size=most).map(between.join)


def jsons(*members: tuple[bytes, Bytes], required: int = 0) -> Bytes:
    """An object with the first `required` members, and some of the remaining ones."""
    written = [joined(b":", b'"%b"' % key, value) for key, value in members]
    others = some(st.one_of(written[required:] or written), 3, b",")
    if not required:
        return others.map(lambda found: b"{%b}" % found)
    both = st.tuples(joined(b",", *written[:required]), others)
    return both.map(lambda found: b"{%b}" % b",".join(filter(None, found)))


@st.composite
def mutated(draw: st.DrawFn, streams: Bytes, words: tuple[bytes, ...]) -> bytes:
    """A stream with a part removed, inserted or repeated."""
    stream = draw(streams)
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 1, 2]))):
        at = draw(st.integers(0, len(stream)))
        end = min(len(stream), at + draw(st.integers(0, 4)))
        what = draw(st.one_of(st.binary(max_size=3), one(*words), st.just(stream[at:end] * 2)))
        stream = stream[:at] + what + stream[end:]
    return stream


# Faktory

_numbers = one(*vocabulary.NUMBERS)
_moments = one(*(b'"%b"' % moment for moment in vocabulary.MOMENTS))
_jids = one(b'"job-0001"', b'"job-0002"', b'"short"', b"null", b"5", b'"\\ud800-surrogate"', b'"')
_values = st.one_of(_numbers, one(*vocabulary.JSON[:10], *vocabulary.TEXTS))
_unit = jsons(
    (b"jid", _jids),
    (b"jobtype", one(b'"T"', b'""', b"null")),
    (b"args", one(b"[]", b"[1e400]", b"[ 1 ]", b"{}", b"null")),
    (b"queue", one(b'"default"', b'"q"', b'"a b"', b'""')),
    (b"retry", _numbers),
    (b"reserve_for", _numbers),
    (b"at", _moments),
    (b"backtrace", _numbers),
    (b"custom", one(b"{}", b'{"a":1}', b"[]", b"null")),
    (b"created_at", st.one_of(_moments, _values)),
    (b"JID", _jids),
    (b"nobody", _values),
    (b"enqueued_at", _values),
    required=3,
)
_good_unit = one(
    b'{"jid":"job-0001","jobtype":"T","args":[1]}',
    b'{"jid":"job-0002","jobtype":"T","args":[],"queue":"q","retry":0}',
    b'{"jid":"job-0003","jobtype":"T","args":[],"at":"2030-01-01T00:00:00Z"}',
)
_failure = jsons(
    (b"jid", _jids),
    (b"errtype", _values),
    (b"message", _values),
    (b"backtrace", one(b'["a"]', b"[]", b"[1]")),
    required=1,
)
_operation = jsons(
    (b"cmd", one(b'"clear"', b'"kill"', b'"discard"', b'"requeue"', b'"x"')),
    (b"target", one(b'"scheduled"', b'"retries"', b'"dead"', b'"x"')),
    (b"filter", one(b'{"jids":["job-0001"]}', b'{"regexp":"*job*"}', b'{"regexp":"[^]*"}', b"{}")),
    required=2,
)
_loads = one(b'"L"', b'"M"', b'""')
_load = st.one_of(
    jsons((b"open", _loads), required=1),
    jsons((b"release", _loads), (b"most", one(b"1", b"2", b"0")), required=1),
    jsons((b"discard", _loads), (b"most", one(b"1", b"2", b"0")), required=1),
    jsons(
        (b"stage", _loads),
        (b"jobs", some(st.one_of(_unit, _good_unit), 3, b",").map(lambda found: b"[%b]" % found)),
        required=2,
    ),
    one(b'{"loads":true}', b'{"read":{}}', b'{"read":{"most":1}}', b'{"read":{"cursor":1}}', b"{}"),
)
faktory = st.one_of(
    spaced(b"PUSH", st.one_of(_unit, _good_unit, _good_unit, _values)),
    spaced(b"PUSHB", some(st.one_of(_unit, _good_unit), 3, b",").map(lambda found: b"[%b]" % found)),
    spaced(b"FETCH", some(one(b"default", b"q", b"\xff"))),
    spaced(b"ACK", jsons((b"jid", _jids), (b"n", _values), required=1)),
    spaced(b"FAIL", _failure),
    spaced(b"BEAT", jsons((b"wid", one(b'"w1"', b'"w2"')), (b"rss_kb", _numbers),
                          (b"current_state", one(b'"quiet"', b'"x"')), required=1)),
    spaced(b"HELLO", jsons((b"v", _numbers), (b"wid", _values), (b"pid", _numbers), (b"pwdhash", _values),
                           (b"labels", one(b"[]", b'["a"]', b"[1]")))),
    spaced(b"MUTATE", _operation),
    spaced(b"QUEUE", one(b"PAUSE", b"resume", b"REMOVE", b"LATENCY", b"x"), some(one(b"q", b"*", b"default"))),
    spaced(b"WORKER", one(b"QUIET", b"terminate", b"x"), one(b"w1", b"*", b"w9")),
    spaced(b"MILLRACE", _load),
    one(b"INFO", b"FLUSH", b"END", b"BATCH NEW", b"TRACK GET x", b"PUSH", b"", b"x" * 400),
)  # fmt: skip

# Workq

_ids = st.one_of(st.integers(1, 4).map(uid), one(b"bad", b"urn:uuid:", uid(1).upper()))
_names = one(b"a", b"a", b"b", b"ping", b"*", b"-x", b"n" * 256, b"")
_flags = some(
    one(b"-priority=1", b"-priority=-9", b"-max-fails=2", b"-max-attempts=1", b"-x=", b"-=", b"-z")
)
_times = st.one_of(one(b"100", b"1000", b"60000"), _numbers)
_payloads = st.one_of(
    one(b"", b"pong", b"\r\n", b"delete %b\r\n" % uid(1), b"x\r\nlease a 0"), st.binary(max_size=9)
)


@st.composite
def with_block(draw: st.DrawFn, *parts: Bytes | bytes) -> bytes:
    payload = draw(_payloads)
    size = draw(st.one_of(st.just(b"%d" % len(payload)), st.just(b"%d" % len(payload)), _numbers))
    line = draw(spaced(*parts, size, _flags))
    return line + draw(one(b"\r\n", b"\r\n", b"\r\n", b"\n")) + payload + b"\r\n"


blocks = st.one_of(
    with_block(b"add", _ids, _names, _times, _times),
    with_block(b"add", _ids, b"a", b"100", b"1000"),
    with_block(b"schedule", _ids, _names, _times, _times, one(*vocabulary.MOMENTS)),
    with_block(b"run", _ids, _names, _times, _times),
    with_block(b"complete", _ids),
    with_block(b"fail", _ids),
)
workq = st.one_of(
    blocks,
    blocks,
    joined(b"", spaced(b"lease", _names, _names, _numbers), b"\r\n"),
    joined(b"", spaced(b"result", _ids, _numbers), b"\r\n"),
    joined(b"", spaced(b"delete", _ids), b"\r\n"),
    joined(b"", spaced(b"inspect job", _ids, _flags), b"\r\n"),
    joined(b"", spaced(one(b"inspect jobs a", b"inspect scheduled-jobs b", b"inspect queues"), _numbers, _numbers), b"\r\n"),
    one(b"inspect server\r\n", b"inspect queue a\r\n", b"\r\n", b"\n", b"x" * 400),
)  # fmt: skip

# Masenko

_masenko_names = one(b'"a"', b'"b"', b'""', b'"!"', b"null", b"5", b'"\\ud800x"', b'"\xffx"', b'"%b"' % (b"n" * 256))  # fmt: skip
_task = jsons(
    (b"name", _masenko_names),
    (b"queue", _masenko_names),
    (b"deadqueue", _masenko_names),
    (b"payload", st.one_of(_values, one(b"[ 1 ]", b"{"))),
    (b"retry", _numbers),
    (b"execute_at", _moments),
    (b"blocked_by", some(_numbers, 3, b",").map(lambda found: b"[%b]" % found)),
    (b"NAME", _masenko_names),
    required=1,
)
_fetch = jsons(
    (b"queues", some(_masenko_names, 3, b", ").map(lambda found: b"[%b]" % found)),
    (b"timeout", st.one_of(one(*(b'"%b"' % span for span in vocabulary.SPANS)), _numbers)),
)
masenko = st.one_of(
    one(b'PUSH {"name":"a"}', b'PUSH {"name":"a","retry":0,"deadqueue":"b","queue":"a"}',
        b'PUSH {"name":"a","blocked_by":[-1]}', b'PUSH {"name":"a","blocked_by":[1]}'),
    one(b"ATOMIC", b"ATOMIC", b"DONE", b"DONE", b"PING", b"INFO", b"FETCH", b"\r", b"done\r", b"QUIT", b""),
    spaced(one(b"PUSH", b"push", b"ATOMIC"), st.one_of(_task, _values)),
    spaced(b"FETCH", st.one_of(_fetch, one(b'{"queues":["a","default"],"timeout":"1ms"}'))),
    spaced(one(b"ACK", b"NACK"), st.one_of(jsons((b"id", _numbers)), _values, one(b'{"id":1}', b'{"id":2}'))),
    one(b"x" * 400, b"\xff\xfe x", b"\xc5\xbf"),
)  # fmt: skip

# Go Job Queue

_uint = st.one_of(st.integers(0, 3), st.sampled_from([60, 255, 2**31, 2**32 - 1]))
_queues = one(b"a", b"a", b"b", b"", "ż".encode(), b"\xff", b"q" * 255, b"q" * 256)
_data = st.one_of(
    one(b"", b"\0", delete(1), b"ADD\0a\0", b"x" * 40, b"x" * 41), st.binary(max_size=9)
)
adds = st.one_of(
    st.builds(add, _data, _queues, _uint, _uint),
    st.builds(add, _data, st.just("a"), _uint, _uint),
    st.builds(add, _data, _queues, _uint, _uint, st.integers(0, 45)),
)
goqueue = st.one_of(
    adds,
    st.builds(reserve, _queues, _uint),
    st.builds(reserve, st.just("a"), _uint),
    st.builds(delete, st.integers(0, 6)),
    one(b"CONNECT\0", b"FOO\0", b"ADDED\0", b"add\0", b"\0", b"A", b"W" * 300, b"\xff\0", b"CON"),
)

# Qless

_jobs = one(b"a", b"b", b"c", b"r", b"r-1", b"", b"\xff")
_q = one(b"q", b"q", b"q2", b"")
_w = one(b"w1", b"w2")
_now = one(b"1", b"70", b"5e3", b"1.5", b"1e11", b"x")
_json = one(b"{}", b"[]", b'["a"]', b'["a","b"]', b"[1,2.5]", b"[true]", b"null", b"3", b'{"a":"b"}', b"[1e400]", b"{")  # fmt: skip
_options = one(
    b"on", b"off", b"all", b"add", b"remove", b"get", b"top", b"set", b"track", b"untrack", b"next", b"delay",
    b"depends", b"priority", b"tags", b"retries", b"interval", b"backlog", b"throttles", b"running", b"stalled",
    b"scheduled", b"recurring", b"complete", b"heartbeat", b"grace-period", b"q-max-concurrency",
    b"max-job-history", b"jobs-history-count", b"jobs-history", b"max-worker-age", b"nonsense",
)  # fmt: skip
_anything = st.one_of(_jobs, _q, _w, _numbers, _json, _options, st.binary(max_size=3))
_words = one(
    b"", b"0", b"1", b"-1", b"x", b"*", b"k", b"l", b"h", b"ql:list", b"ql:q:q-work", b"ql:j:a", b"ql:*", b"ql:tags",
    b"LOAD", b"EXISTS", b"FLUSH", b"GET", b"SETNAME", b"INFO", b"AUTH", b"default", b"sesame", b"WITHSCORES",
    b"0.5", b"9223372036854775807", b"\r\n", b"$1\r\na\r\n", b"*1\r\n", b"\x00\xff", b"NUMSUB", SCRIPT_B, SCRIPT_PUT, SHA_C,
)  # fmt: skip


def call(*parts: Bytes | bytes, more: int = 3) -> st.SearchStrategy[list[bytes]]:
    """The tokens of one command, possibly with additional ones."""
    found = (st.just(part) if isinstance(part, bytes) else part for part in parts)
    both = st.tuples(st.tuples(*found), st.lists(_anything, max_size=more))
    return both.map(lambda each: [*each[0], *each[1]])


def told(words: list[bytes]) -> bytes:
    return request(*words)


_SHAS = {name: sha_of(script).encode() for name, script in (("B", SCRIPT_B), ("C", SCRIPT_C), ("D", SCRIPT_D))}  # fmt: skip
_unified = st.one_of(
    call(b"put", _now, b"w1", _q, _jobs, b"klass", _json, _numbers, more=0),
    call(b"put", _now, b"w1", _q, _jobs, b"klass", _json, b"0", one(b"priority", b"tags", b"retries", b"depends"),
         st.one_of(_json, _numbers), more=0),
    call(b"put", b"1", b"w1", b"q", _jobs, b"klass", b"{}", b"0", more=0),
    call(b"pop", _now, _q, _w, one(b"1", b"2", b"9"), more=0),
    call(b"complete", _now, _jobs, _w, _q, _json, more=0),
    call(b"complete", _now, _jobs, _w, _q, _json, b"next", _q, one(b"delay", b"depends"), st.one_of(_numbers, _json), more=0),
    call(b"recur", _now, _q, b"r", b"klass", _json, b"interval", one(b"1", b"0.001", b"1e-300", b"1e300"), _numbers, more=0),
    call(b"fail", _now, _jobs, _w, b"g", _json, _json, more=0),
    call(b"retry", _now, _jobs, _q, _w, _numbers),
    call(b"log", _now, _jobs, b"message", _json, more=0),
    call(b"tag", _now, one(b"add", b"remove"), _jobs, _anything),
    call(b"config.set", _now, _options, _numbers, more=0),
    call(one(b"get", b"heartbeat", b"cancel", b"depends", b"priority", b"unfail", b"jobs", b"peek", b"queues",
             b"workers", b"stats", b"failed", b"track", b"timeout", b"requeue", b"multiget", b"unrecur",
             b"recur.update", b"recur.tag", b"pause", b"unpause", b"queue.forget", b"length"), _now, _anything),
)  # fmt: skip
_newer = call(one(b"queue.put", b"queue.pop", b"job.get", b"throttle.set", b"throttle.get", b"queue.counts",
                  b"job.complete", b"job.retry", b"queue.jobsByState", b"queuePriorityPatterns.setAll",
                  b"queueIdentifierPatterns.setAll", b"jobs.tagged", b"worker.jobs"), _now, _anything, more=6)  # fmt: skip
_spec = st.one_of(
    call(b"QLESS.PUT", b"1", _q, _jobs, b"klass", _json, _now, _numbers),
    call(b"QLESS.POP", b"1", _q, _w, b"2", _now),
    call(one(*(b"QLESS.%b" % name for name in (b"COMPLETE", b"FAIL", b"GET", b"HEARTBEAT", b"RETRY", b"STATS", b"JOBS",
             b"TRACK", b"RECUR", b"TAG", b"FAILED", b"CONFIG", b"CONSISTENCYCHECK"))), b"0", _anything, more=6),
)  # fmt: skip
resp = st.one_of(
    call(one(*QlessConnection.commands, b"nonsense", b""), more=5).map(told),
    st.lists(_words, max_size=5).map(lambda words: request(*words)),
    joined(b" ", one(*(name.lower() for name in QlessConnection.commands)), one(b"a", b'"x y"', b"'", b"1"), b"\r\n"),
    one(*vocabulary.RESP),
)  # fmt: skip
qless = st.one_of(
    *[
        _unified.map(lambda words, sha=sha: told([b"EVALSHA", sha, b"0", *words]))
        for sha in (_SHAS["B"], _SHAS["C"], _SHAS["C"])
    ],
    _newer.map(lambda words: told([b"EVALSHA", _SHAS["D"], b"0", *words])),
    _spec.map(told),
    resp,
    one(*(word for word in vocabulary.QLESS if word.endswith(b"\r\n"))),
)

# All targets


def ended(lines: Bytes, end: bytes) -> Bytes:
    return joined(b"", lines, end)


_SAID: dict[str, Bytes] = {
    "faktory": ended(faktory, b"\r\n"),
    "workq": workq,
    "masenko": ended(masenko, b"\n"),
    "goqueue": goqueue,
    "qless": qless,
}


def streams(name: str, most: int = 12) -> Bytes:
    words = vocabulary.of(name)
    said = st.lists(_SAID[name], max_size=most).map(b"".join)
    return st.one_of(mutated(said, words), mutated(said, words), some(one(*words), 9, b""), st.binary(max_size=40))  # fmt: skip


_choices = st.binary(min_size=4, max_size=4)


def step(who: int, said: bytes) -> bytes:
    return bytes([who, min(len(said), 255)]) + said[:255]


_steps = st.one_of(
    *[
        st.builds(step, st.sampled_from([number, number + 8]), _SAID[name])
        for number, name in enumerate(("faktory", "workq", "masenko", "goqueue", "qless"))
    ],
    st.builds(lambda what, much: bytes([what, much]), st.sampled_from([5, 5, 6, 7]), st.integers(0, 255)),
)  # fmt: skip


def inputs(name: str) -> Bytes:
    """The inputs of a target."""
    if name in _SAID:
        return joined(b"", _choices, streams(name))
    if name == "crossing":
        return joined(b"", _choices, st.lists(_steps, max_size=25).map(b"".join))
    if name == "resp":
        return joined(
            b"", _choices, mutated(st.lists(resp, max_size=8).map(b"".join), vocabulary.RESP)
        )
    if name == "workq-blocks":
        return joined(b"", _choices, blocks)
    if name == "goqueue-blocks":
        return joined(b"", _choices, adds)
    if name == "changes":
        return mutated(one(*records()), vocabulary.of(name))
    words = vocabulary.of(name)
    shapes = st.recursive(
        one(*words),
        lambda inner: st.one_of(
            some(inner, 3, b",").map(lambda found: b"[%b]" % found),
            some(inner, 3, b",").map(lambda found: b'{"jid":%b}' % found),
            some(inner, 3, b""),
        ),
        max_leaves=6,
    )
    return st.one_of(
        mutated(shapes, words), st.text(max_size=12).map(str.encode), st.binary(max_size=12)
    )

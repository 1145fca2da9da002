"""Ports with a rule for queues: other queues and their jobs can neither be used nor seen."""

import json
from hashlib import sha1
from random import Random

import pytest
from goqueue_conversation import add, delete, reserve
from resp_conversation import SCRIPT_C, SCRIPT_D, SHA_C

from millrace.config import Config
from millrace.engine.caller import Caller
from millrace.engine.engine import Engine
from millrace.engine.job import NO_PROTOCOL, NewJob
from millrace.engine.queue_rules import QueueRule, rule_for
from millrace.protocols.connection import Connection
from millrace.protocols.faktory.connection import COMMANDS as FAKTORY_COMMANDS
from millrace.protocols.masenko.connection import COMMANDS as MASENKO_COMMANDS
from millrace.protocols.qless.calls import COMMANDS
from millrace.protocols.qless.connection import QlessConnection
from millrace.protocols.registry import FAKTORY, MASENKO, PROTOCOLS, QLESS, WORKQ, Protocol
from millrace.protocols.spec import HubContext, load_spec, protocol_rules
from millrace.store.records import decode_any, encode
from support.plain import values
from wires import data_of

NOW = 1_700_000_000_000_000
JID = "6ba7b810-9dad-41d1-80b4-00000000000a"
VISIBLE = "6ba7b810-9dad-41d1-80b4-00000000000b"


def connect(protocol: str, engine: Engine, *patterns: str) -> Connection:
    """A client of a port with this rule."""
    spec = load_spec(next(row for row in PROTOCOLS if row.name == protocol))
    assert spec.make_hub is not None
    assert spec.make_connection is not None
    context = HubContext(engine, NOW, 10_000, 64 << 20, lambda: 1, lambda _: 1, rule_for(patterns))
    hub = spec.make_hub(Config().sections[protocol], context)
    connection = spec.make_connection(hub)
    if protocol == "faktory":
        exchange(connection, b'HELLO {"v":2,"wid":"w"}\r\n')
    return connection


def exchange(connection: Connection, data: bytes) -> bytes:
    more = connection.receive(data, NOW, 10_000)
    while more:
        more = connection.run(NOW, 10_000)
    replies, connection.replies = data_of(connection), []
    return b"".join(replies)


def resp(*words: str | bytes) -> bytes:
    found = [word.encode() if isinstance(word, str) else word for word in words]
    return b"*%d\r\n" % len(found) + b"".join(b"$%d\r\n%b\r\n" % (len(w), w) for w in found)


@pytest.fixture
def engine() -> Engine:
    """One job in `billing`, and one in `signup-mail`."""
    engine = Engine(Random(1), protocol_rules())
    for jid, queue in ((JID, "billing"), (VISIBLE, "signup-mail")):
        engine.push(NewJob(jid, "kind", b'["secret"]', MASENKO, queue, 3, 1_800_000_000), NOW)
    return engine


def limited(protocol: str, engine: Engine) -> Connection:
    return connect(protocol, engine, "signup*")


SHA_D = sha1(SCRIPT_D).hexdigest()
DENIED = "the queue billing is not allowed on this port"

#: protocol, command, start of the reply.
REFUSED: list[tuple[str, bytes, bytes]] = [
    (
        "faktory",
        b'PUSH {"jid":"abcdefgh1","jobtype":"x","args":[],"queue":"billing"}\r\n',
        b"-ERR ",
    ),
    ("faktory", b"FETCH billing\r\n", b"-ERR "),
    ("faktory", b"FETCH signup-mail billing\r\n", b"-ERR "),
    ("faktory", b"QUEUE PAUSE billing\r\n", b"-ERR "),
    ("faktory", b"QUEUE REMOVE billing\r\n", b"-ERR "),
    ("faktory", b"QUEUE LATENCY billing\r\n", b"-ERR "),
    ("workq", b"add %b billing 1000 60000 0\r\n\r\n" % JID.encode(), b"-CLIENT-ERROR "),
    ("workq", b"lease billing 0\r\n", b"-CLIENT-ERROR "),
    ("workq", b"inspect queue billing\r\n", b"-CLIENT-ERROR "),
    ("workq", b"inspect jobs billing 0 10\r\n", b"-CLIENT-ERROR "),
    ("masenko", b'PUSH {"name":"x","queue":"billing"}\n', b"ERR "),
    ("masenko", b'PUSH {"name":"x","queue":"signup-a","deadqueue":"billing"}\n', b"ERR "),
    ("masenko", b'FETCH {"queues":["billing"],"timeout":"1s"}\n', b"ERR "),
    ("masenko", b'ATOMIC\nPUSH {"name":"x","queue":"billing"}\nDONE\n', b"ERR "),
    ("goqueue", add(b"x", "billing"), b"ERROR\0"),
    ("goqueue", reserve("billing"), b"ERROR\0"),
    ("qless", resp("QLESS.PUT", "1", "billing", "j1", "k", "{}", "1700000000", "0"), b"-NOPERM "),
    ("qless", resp("QLESS.POP", "1", "billing", "w", "1", "1700000000"), b"-NOPERM "),
    ("qless", resp("QLESS.PEEK", "1", "billing", "1", "1700000000"), b"-NOPERM "),
    ("qless", resp("QLESS.QUEUES", "0", "1700000000", "billing"), b"-NOPERM "),
    ("qless", resp("QLESS.STATS", "0", "billing", "1700000000"), b"-NOPERM "),
    ("qless", resp("ZCARD", "ql:q:billing-work"), b"-NOPERM "),
    ("qless", resp("QLESS.CONFIG", "0", "set", "billing-heartbeat", "9"), b"-NOPERM "),
    ("qless", resp("QLESS.CONFIG", "0", "set", "billing-max-concurrency", "1"), b"-NOPERM "),
    ("qless", resp("QLESS.CONFIG", "0", "unset", "billing-heartbeat"), b"-NOPERM "),
    ("qless", resp("HSET", "ql:th:ql:q:billing", "maximum", "1"), b"-NOPERM "),
]


@pytest.mark.parametrize(("protocol", "command", "start"), REFUSED)
def test_a_command_on_another_queue_is_refused_in_the_form_of_the_protocol(
    protocol: str, command: bytes, start: bytes, engine: Engine
) -> None:
    before = values(engine.jobs), list(engine.queues), dict(engine.settings)
    reply = exchange(limited(protocol, engine), command)
    assert reply.startswith(start), reply
    assert DENIED.encode() in reply
    assert (values(engine.jobs), list(engine.queues), dict(engine.settings)) == before


@pytest.mark.parametrize("protocol", ["faktory", "workq", "masenko", "goqueue", "qless"])
def test_allowed_queues_are_served(protocol: str, engine: Engine) -> None:
    commands = {
        "faktory": b"FETCH signup-mail\r\n",
        "workq": b"lease signup-mail 0\r\n",
        "masenko": b'FETCH {"queues":["signup-mail"],"timeout":"1s"}\n',
        "goqueue": reserve("signup-mail"),
        "qless": resp("QLESS.POP", "1", "signup-mail", "w", "1", "1700000000"),
    }
    assert b"secret" in exchange(limited(protocol, engine), commands[protocol])
    assert engine.queues["signup-mail"].counts[3] == 1


#: Commands with the id of a job in `billing`, and the reply for an unknown id.
FOREIGN_IDS: list[tuple[str, bytes, bytes]] = [
    ("faktory", b'FAIL {"jid":"%b"}\r\n' % JID.encode(), b"-ERR Job not found"),
    ("faktory", b'ACK {"jid":"%b"}\r\n' % JID.encode(), b"+OK"),
    ("faktory", b'MUTATE {"cmd":"kill","target":"scheduled","filter":{"jids":["%b"]}}\r\n'
     % JID.encode(), b"+OK"),
    ("workq", b"complete %b 0\r\n\r\n" % JID.encode(), b"-NOT-FOUND"),
    ("workq", b"fail %b 0\r\n\r\n" % JID.encode(), b"-NOT-FOUND"),
    ("workq", b"delete %b\r\n" % JID.encode(), b"-NOT-FOUND"),
    ("workq", b"result %b 0\r\n" % JID.encode(), b"-NOT-FOUND"),
    ("workq", b"inspect job %b\r\n" % JID.encode(), b"-NOT-FOUND"),
    ("workq", b"delete 00000000-0000-4000-8000-000000000001\r\n", b"-NOT-FOUND"),
    ("masenko", b'PUSH {"name":"x","queue":"signup-a","blocked_by":[1]}\n', b"ERR "),
    ("masenko", b'ACK {"id":1}\n', b"ERR "),
    ("goqueue", delete(1), b"ERROR\0Job 1 already deleted"),
    ("qless", resp("QLESS.GET", "0", JID), b"$-1"),
    ("qless", resp("QLESS.CANCEL", "0", JID), b""),
    ("qless", resp("EXISTS", f"ql:j:{JID}"), b":0"),
    ("qless", resp("HGETALL", f"ql:j:{JID}"), b"*0"),
]  # fmt: skip


@pytest.mark.parametrize(("protocol", "command", "start"), FOREIGN_IDS)
def test_the_id_of_a_job_in_another_queue_is_unknown(
    protocol: str, command: bytes, start: bytes, engine: Engine
) -> None:
    assert engine.lease(["billing"], "w", WORKQ, NOW) is not None
    reply = exchange(limited(protocol, engine), command)
    assert reply.startswith(start), reply
    assert b"secret" not in reply
    job = engine.find(JID)
    assert job is not None
    assert job.state == 3


#: Commands that list jobs or queues.
LISTS: list[tuple[str, bytes]] = [
    ("faktory", b"INFO\r\n"),
    ("faktory", b'MILLRACE {"read":{}}\r\n'),
    ("workq", b"inspect queues 0 100\r\n"),
    ("masenko", b"INFO\n"),
    ("qless", resp("KEYS", "*")),
    ("qless", resp("SCAN", "0", "COUNT", "1000")),
    ("qless", resp("QLESS.QUEUES", "0", "1700000000")),
    ("qless", resp("ZRANGE", "ql:queues", "0", "-1")),
    ("qless", resp("QLESS.FAILED", "0")),
    ("qless", resp("QLESS.FAILED", "0", "failed")),
    ("qless", resp("QLESS.TAG", "0", "get", "tagged", "0", "10")),
    ("qless", resp("QLESS.WORKERS", "0", "1700000000")),
]  # fmt: skip


@pytest.mark.parametrize(("protocol", "command"), LISTS)
def test_lists_show_only_allowed_queues(protocol: str, command: bytes, engine: Engine) -> None:
    open_port = connect("qless", engine)
    for queue in ("billing", "signup-q"):
        put = resp("QLESS.PUT", "1", queue, f"{queue}-j", "k", "{}", "1700000000", "0", "tags",
                   '["tagged"]')  # fmt: skip
        assert not exchange(open_port, put).startswith(b"-")
    port = limited(protocol, engine)
    reply = exchange(port, command)
    assert reply
    assert b"billing" not in reply
    assert JID.encode() not in reply


def test_pausing_all_queues_pauses_the_allowed_ones(engine: Engine) -> None:
    assert exchange(limited("faktory", engine), b"QUEUE PAUSE *\r\n") == b"+OK\r\n"
    assert {name: queue.paused for name, queue in engine.queues.items()} == {
        "billing": False,
        "signup-mail": True,
    }


@pytest.mark.parametrize(
    ("protocol", "command"),
    [
        ("faktory", b"FLUSH\r\n"),
        ("faktory", b'MILLRACE {"open":"a"}\r\n'),
        ("faktory", b'MILLRACE {"loads":true}\r\n'),
        ("qless", resp("QLESS.CONSISTENCYCHECK", "0")),
    ],
)
def test_commands_for_all_queues_are_refused(protocol: str, command: bytes, engine: Engine) -> None:
    reply = exchange(limited(protocol, engine), command)
    assert reply.startswith(b"-"), reply
    assert b"rule for queues" in reply
    assert len(engine.jobs) == 2


def test_flushing_a_database_keeps_the_jobs_of_other_queues(engine: Engine) -> None:
    for queue in ("billing", "signup-q"):
        put = resp("QLESS.PUT", "1", queue, f"{queue}-j", "k", "{}", "1700000000", "0")
        exchange(connect("qless", engine), put)
    exchange(limited("qless", engine), resp("FLUSHDB"))
    assert engine.find("billing-j") is not None
    assert engine.find("signup-q-j") is None


def test_flushing_a_database_while_another_client_removes_recurring_jobs(engine: Engine) -> None:
    client = limited("qless", engine)
    assert isinstance(client, QlessConnection)
    other = QlessConnection(client.hub)
    exchange(other, resp("SCRIPT", "LOAD", SCRIPT_C))
    script = "EVALSHA", SHA_C, "0"
    for number in range(450):
        recur = (*script, "recur", "1700000000", "signup-q", f"r{number}")
        exchange(other, resp(*recur, "k", "{}", "interval", "60", "0"))
    client.receive(resp("FLUSHDB"), NOW, 1)
    exchange(other, resp(*script, "unrecur", "1700000000", "r440"))
    while client.run(NOW, 1):
        pass
    assert data_of(client) == [b"+OK\r\n"]
    assert not engine.recurring.by_id


def test_a_bulk_push_reports_the_refused_jobs(engine: Engine) -> None:
    units = [
        {"jid": f"abcdefgh-{queue}", "jobtype": "x", "args": [], "queue": queue}
        for queue in ("billing", "signup-a")
    ]
    reply = exchange(limited("faktory", engine), b"PUSHB %b\r\n" % json.dumps(units).encode())
    assert json.loads(reply.split(b"\r\n")[1]) == {"abcdefgh-billing": DENIED}
    assert engine.find("abcdefgh-billing") is None
    assert engine.find("abcdefgh-signup-a") is not None


def test_a_refused_transaction_changes_nothing(engine: Engine) -> None:
    lines = (
        b'ATOMIC\nPUSH {"name":"a","queue":"signup-a"}\nPUSH {"name":"b","queue":"billing"}\nDONE\n'
    )
    assert DENIED.encode() in exchange(limited("masenko", engine), lines)
    assert len(engine.jobs) == 2


@pytest.mark.parametrize("pushes", [1, 200])
def test_a_transaction_with_a_blocker_in_another_queue_changes_nothing(
    pushes: int, engine: Engine
) -> None:
    """A small transaction, and a large one that is staged over several turns."""
    port = limited("masenko", engine)
    reply = exchange(port, b'FETCH {"queues":["signup-mail"],"timeout":"1s"}\n')
    assert reply.startswith(b'OK {"id":2,')
    push = b'PUSH {"name":"x","queue":"signup-a"}\n' * pushes
    blocked = b'PUSH {"name":"y","queue":"signup-a","blocked_by":[1]}\n'
    reply = exchange(port, b'ATOMIC\nACK {"id":2}\n%b%bDONE\n' % (push, blocked))
    assert reply.count(b"ERR ") == 1
    assert b"a queue that is not allowed here" in reply
    assert [job.state for job in engine.jobs.values()] == [2, 3]


@pytest.mark.parametrize("pushes", [1, 200])
def test_a_blocker_that_moves_during_a_transaction_refuses_it(pushes: int, engine: Engine) -> None:
    port = limited("masenko", engine)
    push = b'PUSH {"name":"x","queue":"signup-a"}\n' * pushes
    blocked = b'PUSH {"name":"y","queue":"signup-a","blocked_by":[2]}\n'
    assert exchange(port, b"ATOMIC\n" + push + blocked) == b""
    engine.move(engine.jobs[2], "billing", NOW, QLESS)
    reply = exchange(port, b"DONE\n")
    assert b"a queue that is not allowed here" in reply
    while engine.timers and len(engine.jobs) > 2:
        engine.tick(NOW + 1)  # discard the staged tasks
    assert list(engine.jobs) == [1, 2]


def test_the_visible_job_of_a_jid_is_found(engine: Engine) -> None:
    """Even if an older job in another queue has the same jid."""
    engine.push(NewJob(JID, "kind", b"", MASENKO, "signup-a", 3, 1_000_000), NOW)
    engine.caller = Caller(engine, NO_PROTOCOL, rule=QueueRule(["signup*"]))
    found, tables = engine.find(JID), engine.tables
    assert found is not None
    assert [job.queue for job in engine.find_all(JID)] == ["signup-a"]
    assert tables.by_jid[JID].queue == found.queue == "signup-a"
    assert len(tables.jobs) == 2
    assert sorted(job.queue for job in tables.jobs.values()) == ["signup-a", "signup-mail"]


@pytest.mark.parametrize(
    ("patterns", "name", "allowed"),
    [
        (["mail"], "mail", True),
        (["mail"], "mails", False),
        (["mail*"], "mails", True),
        (["a", "b-?"], "b-1", True),
        (["a", "b-?"], "xa", False),
        (["*"], "", True),
    ],
)
def test_patterns(patterns: list[str], name: str, allowed: bool) -> None:
    assert QueueRule(patterns).allows(name) is allowed


def _call(*words: str) -> bytes:
    """A call of a command in dialect C."""
    return resp("EVALSHA", SHA_C, "0", *words)


def test_a_refused_queue_of_qless_changes_and_publishes_nothing(engine: Engine) -> None:
    port = limited("qless", engine)
    hub = port.hub
    listener = QlessConnection(hub)
    exchange(port, resp("SCRIPT", "LOAD", SCRIPT_C))
    exchange(listener, resp("PSUBSCRIBE", "*"))
    assert b"signup-j" in exchange(
        port, _call("put", "1", "w", "signup-q", "signup-j", "k", "{}", "0")
    )
    assert b"signup-j" in exchange(port, _call("pop", "2", "signup-q", "w", "1"))
    exchange(port, _call("track", "3", "track", "signup-j"))
    exchange(listener, b"")
    listener.replies = []
    job = engine.find("signup-j")
    assert job is not None
    before = decode_any(encode(job))
    for words in (
        ("put", "4", "w", "billing", "signup-j", "k", '{"new":1}', "0", "throttles", '["t"]'),
        ("put", "4", "w", "billing", "other", "k", '{"new":1}', "0"),
        ("complete", "4", "signup-j", "w", "signup-q", '{"new":1}', "next", "billing"),
    ):
        assert exchange(port, _call(*words)).startswith(b"-NOPERM "), words
        assert data_of(listener) == []
        assert decode_any(encode(job)) == before


def test_retries_of_other_queues_are_not_counted(engine: Engine) -> None:
    port, whole = limited("faktory", engine), connect("faktory", engine)
    unit = b'PUSH {"jid":"job-%d-%b","jobtype":"x","args":[],"queue":"%b"%b}\r\n'
    for number in range(3):
        exchange(whole, unit % (number, b"late", b"signup-a", b',"at":"2100-01-01T00:00:00Z"'))
        exchange(whole, unit % (number, b"fails", b"other", b""))
        exchange(whole, b"FETCH other\r\n")
        exchange(whole, b'FAIL {"jid":"job-%d-fails"}\r\n' % number)
    found = json.loads(exchange(port, b"INFO\r\n").split(b"\r\n")[1])["faktory"]["tasks"]
    assert (found["Retries"]["size"], found["Scheduled"]["size"]) == (0, 3)
    found = json.loads(exchange(whole, b"INFO\r\n").split(b"\r\n")[1])["faktory"]["tasks"]
    assert (found["Retries"]["size"], found["Scheduled"]["size"]) == (3, 3)


def test_a_hub_has_its_rule_before_it_reads_the_settings(engine: Engine) -> None:
    """Qless reads the known queues when its hub is made."""
    open_port = connect("qless", engine)
    for queue in ("billing", "signup-q"):
        put = resp("QLESS.PUT", "1", queue, f"{queue}-j", "k", "{}", "1700000000", "0")
        assert not exchange(open_port, put).startswith(b"-")
    port = limited("qless", engine)
    assert isinstance(port, QlessConnection)
    port.hub.api.qless.refresh()
    assert list(port.hub.api.qless.first_seen) == ["signup-q"]


@pytest.mark.parametrize("row", [row for row in PROTOCOLS if row.listens])
def test_every_protocol_passes_the_rule_to_its_callers(row: Protocol, engine: Engine) -> None:
    connection = limited(row.name, engine)
    assert connection.caller.rule is not None
    assert not connection.caller.rule.allows("billing")


def test_a_long_transaction_of_qless_applies_the_rule_in_each_step(engine: Engine) -> None:
    """The hub runs its steps outside of the commands of the client."""
    port = limited("qless", engine)
    assert isinstance(port, QlessConnection)
    exchange(port, resp("MULTI"))
    for number in range(300):
        queue = "signup-q" if number < 299 else "billing"
        exchange(port, resp("QLESS.PUT", "1", queue, f"j{number}", "k", "{}", "1700000000", "0"))
    port.receive(resp("EXEC"), NOW, 10)
    turns = 0
    while port.long_command is not None and turns < 1000:
        turns += 1
        port.hub.handle_alarm("", NOW)
        port.run(NOW, 10)
    reply = b"".join(data_of(port))
    assert turns > 1
    assert reply.count(b"-NOPERM ") == 1
    assert engine.queues["billing"].counts[2] == 1
    assert len(engine.jobs) == 2 + 299


#: Arguments of random commands. The jobs `foreign-1` and `foreign-2` are in `billing`.
_WORDS = [
    *("billing", "foreign-1", "foreign-2", "signup-q", "mine-1", "w", "0", "1", "25", "1700000000"),
    *("{}", "[]", '["tag"]', "next", "add", "on", "track", "get", "top", "running", "failed", "*"),
    *("ql:q:billing-work", "ql:j:foreign-1", "ql:t:tag", "ql:queues", "ql:th:ql:q:billing"),
    *("billing-heartbeat", "ql:q:billing", "group", "depends", '["foreign-1"]', '["billing"]'),
]


def _with_hidden_jobs() -> Engine:
    """Jobs with hidden data in `billing`: one is leased, one ready, one failed; and two others."""
    engine = Engine(Random(1), protocol_rules())
    open_port = connect("qless", engine)
    for jid, queue in (
        *(("foreign-1", "billing"), ("foreign-2", "billing"), ("foreign-3", "billing")),
        *(("mine-1", "signup-q"), ("mine-2", "signup-q")),
    ):
        data = '{"a":"hidden"}' if queue == "billing" else '{"a":"shown"}'
        put = ("QLESS.PUT", "1", queue, jid, "k", data, "1700000000", "0", "tags", '["tag"]')
        assert not exchange(open_port, resp(*put)).startswith(b"-")
    for jid in ("foreign-1", "foreign-3"):
        job = engine.find(jid)
        assert job is not None
        engine.lease_job(job, "w", QLESS, NOW)
    engine.fail(job, NOW, QLESS, "group", "message", [], final=True)
    return engine


def _foreign(engine: Engine) -> list[bytes]:
    """The jobs in `billing`, and everything that belongs to the queue."""
    jobs = [encode(job) for job in engine.jobs.values() if job.queue == "billing"]
    queue = engine.queues["billing"]
    own = {"billing", "billing-heartbeat", "ql:q:billing"}
    settings = [
        f"{key}={value!r}"
        for key, value in engine.settings.items()
        if key[key.rfind("/") + 1 :] in own
    ]
    return [*jobs, repr((queue.paused, queue.registered, list(queue.counts), settings)).encode()]


def _random_command(protocol: str, random: Random) -> bytes:
    words = random.choices(_WORDS, k=random.randrange(8))
    if protocol == "qless":
        name = random.choice([*COMMANDS, *QlessConnection.commands])
        if isinstance(name, bytes):
            return resp(name, *words)
        return resp("EVALSHA", SHA_C, "0", name, "1700000000", *words)
    members = ("queue", "jid", "jobtype", "name", "deadqueue", "cmd", "target", "filter", "read")
    queues = {"queues": ["billing"], "filter": {"jids": ["foreign-1"]}, "read": {}, "id": 1}
    body = {key: random.choice([*_WORDS, 1, 3]) for key in random.sample(members, 5)}
    body |= {key: queues[key] for key in random.sample(list(queues), 2)}
    if protocol == "faktory":
        name = random.choice(list(FAKTORY_COMMANDS))
        argument = " ".join(words) if random.random() < 0.3 else json.dumps(body)
        return b"%b %b\r\n" % (name, argument.encode())
    return b"%b %b\n" % (random.choice(list(MASENKO_COMMANDS)), json.dumps(body).encode())


@pytest.mark.parametrize("protocol", ["faktory", "masenko", "qless"])
def test_no_command_reaches_another_queue(protocol: str) -> None:
    """Random commands of each protocol, with names of other queues and jobs as arguments."""
    random, engine = Random(7), _with_hidden_jobs()
    before = _foreign(engine)
    for _ in range(2500):
        command = _random_command(protocol, random)
        port = limited(protocol, engine)
        exchange(port, resp("SCRIPT", "LOAD", SCRIPT_C) if protocol == "qless" else b"")
        port.receive(command, NOW, 10_000)
        for _ in range(10):
            if port.long_command is None:
                break
            port.run(NOW, 10_000)
        reply = b"".join(data_of(port))
        port.connection_lost(NOW)
        assert b"hidden" not in reply, command
        assert _foreign(engine) == before, command


# Recurring jobs, limits and tracked ids


@pytest.fixture
def with_records() -> Engine:
    """Jobs of `billing` and `signup-q`. In `billing`: a recurring job, a limit and a tracked id."""
    engine = _with_hidden_jobs()
    open_port = connect("qless", engine)
    exchange(open_port, resp("SCRIPT", "LOAD", SCRIPT_C))
    for words in (
        ("recur", "1", "billing", "nightly", "k", "{}", "interval", "60", "0"),
        ("track", "1", "track", "foreign-1"),
    ):
        assert not exchange(open_port, _call(*words)).startswith(b"-")
    exchange(open_port, resp("HSET", "ql:th:ql:q:billing", "maximum", "5"))
    return engine


NOT_ALLOWED = b"-NOPERM the "

#: A command, and the start of the reply.
OTHER_RECORDS: list[tuple[bytes, bytes]] = [
    (_call("unrecur", "1", "nightly"), b":1"),
    (_call("recur", "1", "signup-q", "nightly", "k", "{}", "interval", "60", "0"), NOT_ALLOWED),
    (_call("recur", "1", "signup-new", "nightly", "k", "{}", "interval", "60", "0"), NOT_ALLOWED),
    (_call("recur.update", "1", "nightly", "klass", "k2"), b"-"),
    (_call("recur.tag", "1", "nightly", "t"), b"-"),
    (_call("recur", "1", "signup-q", "mine", "k", "{}", "interval", "60", "0", "throttles",
           '["ql:q:billing"]'), NOT_ALLOWED),
    (_call("put", "1", "w", "signup-q", "new", "k", "{}", "0", "throttles", '["ql:q:billing"]'),
     NOT_ALLOWED),
    (_call("put", "1", "w", "signup-q", "mine-1", "k", '{"new":1}', "0", "throttles",
           '["t","ql:q:billing"]'), NOT_ALLOWED),
    (resp("DEL", "ql:th:ql:q:billing"), NOT_ALLOWED),
    (resp("HSET", "ql:th:ql:q:billing", "maximum", "1"), NOT_ALLOWED),
    (_call("track", "1", "untrack", "foreign-1"), b"$1\r\n0"),
    (_call("track", "1", "track", "foreign-2"), b"-"),
    (resp("QLESS.TRACK", "0", "untrack", "foreign-1"), b":0"),
    (resp("QLESS.TRACK", "0", "track", "foreign-1", "1700000000"), NOT_ALLOWED),
    (resp("QLESS.TRACK", "0", "track", "foreign-2", "1700000000"), NOT_ALLOWED),
]  # fmt: skip


def _all_records(engine: Engine) -> object:
    return (
        [decode_any(encode(job)) for job in engine.jobs.values()],
        list(engine.queues),
        {name: value for name, value in engine.settings.items() if "script" not in name},
        dict(engine.annotations.tracked),
        {jid: record.fields() for jid, record in engine.recurring.by_id.items()},
        {key: limit.fields() for key, limit in engine.limits.by_key.items()},
    )


@pytest.mark.parametrize(("command", "start"), OTHER_RECORDS)
def test_records_of_other_queues_cannot_be_changed(
    command: bytes, start: bytes, with_records: Engine
) -> None:
    engine, port = with_records, limited("qless", with_records)
    exchange(port, resp("SCRIPT", "LOAD", SCRIPT_C))
    listener = QlessConnection(port.hub)  # type: ignore[arg-type]
    exchange(listener, resp("PSUBSCRIBE", "*"))
    before = _all_records(engine)
    reply = exchange(port, command)
    assert reply.startswith(start), reply
    assert _all_records(engine) == before
    assert data_of(listener) == []


def test_records_of_allowed_queues_can_be_changed(with_records: Engine) -> None:
    engine, port = with_records, limited("qless", with_records)
    exchange(port, resp("SCRIPT", "LOAD", SCRIPT_C))
    limits = '["named","ql:q:signup-q"]'
    for words in (
        ("put", "1", "w", "signup-q", "mine-1", "k", "{}", "0", "throttles", limits),
        ("recur", "1", "signup-q", "mine", "k", "{}", "interval", "60", "0", "throttles", limits),
        ("recur.update", "1", "mine", "queue", "signup-new"),
        ("track", "1", "track", "mine-1"),
        ("track", "1", "untrack", "mine-1"),
    ):
        assert not exchange(port, _call(*words)).startswith(b"-"), words
    assert engine.recurring.by_id["mine"].queue == "signup-new"
    assert exchange(port, _call("unrecur", "1", "mine")) == b":1\r\n"
    assert list(engine.recurring.by_id) == ["nightly"]
    assert list(engine.annotations.tracked) == ["foreign-1"]


@pytest.mark.parametrize("actor", [FAKTORY, MASENKO])
def test_a_leased_job_is_found_although_a_hidden_one_has_its_jid(actor: int) -> None:
    engine = Engine(Random(1), protocol_rules())
    for queue in ("billing", "signup"):
        engine.push(NewJob("same", "kind", b"[]", FAKTORY, queue, 3, 1_800_000_000), NOW)
        engine.lease([queue], f"worker of {queue}", actor, NOW)
    engine.caller = Caller(engine, actor, rule=rule_for(("signup*",)))
    found = engine.find_leased("same", actor)
    assert found is not None
    assert found.queue == "signup"
    engine.caller = Caller(engine, actor, rule=rule_for(("other*",)))
    assert engine.find_leased("same", actor) is None


#: Reads that must not show `billing`, its jobs or its options.
RECORD_LISTS: list[bytes] = [
    _call("track", "1"),
    resp("QLESS.TRACK", "0"),
    resp("ZRANGE", "ql:tracked", "0", "-1"),
    resp("KEYS", "*"),
    resp("SCAN", "0", "COUNT", "1000"),
    resp("HGETALL", "ql:config"),
    resp("HGET", "ql:config", "billing-heartbeat"),
    resp("QLESS.CONFIG", "0", "get"),
    _call("config.get", "1"),
    resp("EVALSHA", SHA_D, "0", "config.getAll", "1"),
    resp("EVALSHA", SHA_D, "0", "jobs.tracked", "1"),
]


@pytest.mark.parametrize("command", RECORD_LISTS)
def test_lists_show_no_records_of_other_queues(command: bytes, with_records: Engine) -> None:
    engine, open_port = with_records, connect("qless", with_records)
    for script in (SCRIPT_C, SCRIPT_D):
        exchange(open_port, resp("SCRIPT", "LOAD", script))
    exchange(open_port, _call("config.set", "1", "billing-heartbeat", "77"))
    exchange(open_port, _call("config.set", "1", "heartbeat-billing", "78"))
    for jid in ("mine-1", "foreign-gone"):
        exchange(open_port, _call("put", "1", "w", "billing", "foreign-gone", "k", "{}", "0"))
        exchange(open_port, _call("track", "1", "track", jid))
    exchange(open_port, _call("cancel", "1", "foreign-gone"))
    exchange(open_port, resp("HSET", "ql:th:ql:q:signup-q", "maximum", "5"))
    port = limited("qless", engine)
    for script in (SCRIPT_C, SCRIPT_D):
        exchange(port, resp("SCRIPT", "LOAD", script))
    whole = exchange(open_port, command)
    assert b"billing" in whole or b"foreign" in whole or b"77" in whole
    reply = exchange(port, command)
    assert b"billing" not in reply, reply
    assert b"foreign" not in reply
    assert b"77" not in reply
    if b"track" in command:
        assert b"mine-1" in reply
    if b"KEYS" in command:
        assert b"ql:th:ql:q:signup-q" in reply


@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize(
    "command",
    [
        resp("HGETALL", "ql:th:ql:q:billing"),
        resp("EXISTS", "ql:th:ql:q:billing"),
        resp("TTL", "ql:th:ql:q:billing"),
        resp("ZRANGE", "ql:th:ql:q:billing-locks", "0", "-1"),
        resp("DEL", "ql:th:ql:q:billing"),
        resp("EVALSHA", SHA_D, "0", "throttle.get", "1", "ql:q:billing"),
        resp("EVALSHA", SHA_D, "0", "throttle.locks", "1", "ql:q:billing"),
        resp("EVALSHA", SHA_D, "0", "throttle.ttl", "1", "ql:q:billing"),
        resp("EVALSHA", SHA_D, "0", "queue.throttle.get", "1", "billing"),
        resp("EVALSHA", SHA_D, "0", "config.get", "1", "billing-heartbeat"),
        resp("QLESS.CONFIG", "0", "get", "billing-heartbeat"),
    ],
)
def test_the_limit_of_another_queue_cannot_be_read(
    command: bytes, exists: bool, engine: Engine
) -> None:
    """The reply does not depend on whether the limit exists."""
    open_port = connect("qless", engine)
    if exists:
        exchange(open_port, resp("HSET", "ql:th:ql:q:billing", "maximum", "5"))
        exchange(open_port, resp("QLESS.CONFIG", "0", "set", "billing-heartbeat", "5"))
    port = limited("qless", engine)
    exchange(port, resp("SCRIPT", "LOAD", SCRIPT_D))
    reply = exchange(port, command)
    assert reply.startswith(b"-NOPERM the queue billing"), reply


@pytest.mark.parametrize(("pattern", "found"), [("mail", b"zset"), ("mail-locks", b"hash")])
def test_the_name_of_a_queue_may_end_like_a_set_of_a_throttle(
    pattern: str, found: bytes, engine: Engine
) -> None:
    open_port = connect("qless", engine)
    for queue in ("mail", "mail-locks"):
        put = resp("QLESS.PUT", "1", queue, "j", "k", "{}", "1700000000", "0")
        assert not exchange(open_port, put).startswith(b"-")
        exchange(open_port, resp("HSET", f"ql:th:ql:q:{queue}", "maximum", "5"))
    exchange(open_port, resp("QLESS.PUT", "1", "mail", "j", "k", "{}", "1700000000", "0"))
    exchange(open_port, resp("QLESS.POP", "1", "mail", "w", "1", "1700000000"))
    port = connect("qless", engine, pattern)
    assert exchange(port, resp("TYPE", "ql:th:ql:q:mail-locks")) == b"+%b\r\n" % found
    assert exchange(port, resp("TTL", "ql:th:ql:q:mail-locks")) == b":-1\r\n"
    keys = exchange(port, resp("KEYS", "ql:th:*"))
    assert (b"ql:th:ql:q:mail\r\n" in keys) == (pattern == "mail")


#: Changes of settings that apply to all queues.
GLOBAL_SETTINGS: list[bytes] = [
    _call("config.set", "1", "heartbeat", "1"),
    _call("config.unset", "1", "heartbeat"),
    resp("QLESS.CONFIG", "0", "set", "jobs-history", "0"),
    resp("EVALSHA", SHA_D, "0", "queueIdentifierPatterns.setAll", "1", "default", '["*"]'),
    resp("EVALSHA", SHA_D, "0", "queuePriorityPatterns.setAll", "1", '{"pattern":["a"]}'),
    resp("HSET", "ql:qp:identifiers", "default", '["*"]'),
    resp("RPUSH", "ql:qp:priorities", '{"pattern":["a"]}'),
    resp("DEL", "ql:qp:identifiers"),
]


@pytest.mark.parametrize("command", GLOBAL_SETTINGS)
def test_settings_of_all_queues_cannot_be_changed(command: bytes, engine: Engine) -> None:
    open_port, port = connect("qless", engine), limited("qless", engine)
    for each in (open_port, port):
        exchange(each, resp("SCRIPT", "LOAD", SCRIPT_C))
        exchange(each, resp("SCRIPT", "LOAD", SCRIPT_D))
    exchange(open_port, _call("config.set", "1", "heartbeat", "50"))
    exchange(open_port, resp("HSET", "ql:qp:identifiers", "mine", '["a"]'))
    before = dict(engine.settings)
    reply = exchange(port, command)
    assert reply.startswith(b"-NOPERM "), reply
    assert b"it has a rule for queues" in reply
    assert dict(engine.settings) == before
    assert not exchange(open_port, command).startswith(b"-")


def test_named_throttles_and_options_of_allowed_queues_can_be_changed(engine: Engine) -> None:
    port = limited("qless", engine)
    exchange(port, resp("SCRIPT", "LOAD", SCRIPT_D))
    for command in (
        resp("EVALSHA", SHA_D, "0", "throttle.set", "1", "named", "3"),
        resp("EVALSHA", SHA_D, "0", "throttle.set", "1", "ql:q:signup-a", "3"),
        resp("EVALSHA", SHA_D, "0", "config.set", "1", "signup-a-heartbeat", "9"),
    ):
        assert not exchange(port, command).startswith(b"-"), command
    assert sorted(engine.limits.by_key) == ["named", "ql:q:signup-a"]
    assert b"signup-a-heartbeat" in exchange(port, resp("HGETALL", "ql:config"))


# Commands with several queues: all are checked before the first change


def _many(last: str) -> list[str]:
    return [*(f"signup-{number}" for number in range(250)), last]


#: Commands with allowed queues, followed by `billing`.
SEVERAL_QUEUES: list[tuple[str, bytes]] = [
    ("qless", _call("pause", "1", "signup-q", "billing")),
    ("qless", _call("pause", "1", "signup-q", *_many("billing"))),
    ("qless", _call("unpause", "1", "signup-p", "billing")),
    ("qless", _call("unpause", "1", "signup-p", *_many("billing"))),
    ("qless", _call("queue.forget", "1", "signup-q", "billing")),
    ("qless", _call("queue.forget", "1", "signup-q", *_many("billing"))),
    ("qless", resp("QLESS.PAUSE", "0", "signup-q", "billing")),
    ("faktory", b"QUEUE PAUSE signup-q billing\r\n"),
    ("faktory", b"QUEUE RESUME signup-p billing\r\n"),
    ("faktory", b"QUEUE REMOVE signup-q billing\r\n"),
    ("faktory", b"FETCH signup-new billing\r\n"),
    ("workq", b"lease signup-new billing 0\r\n"),
    ("workq", b"lease %b 0\r\n" % " ".join(_many("billing")).encode()),
    ("masenko", b'FETCH {"queues":["signup-new","billing"],"timeout":"1s"}\n'),
]


@pytest.mark.parametrize(("protocol", "command"), SEVERAL_QUEUES)
def test_a_command_with_a_refused_queue_changes_no_other_queue(
    protocol: str, command: bytes
) -> None:
    engine = _with_hidden_jobs()
    put = resp("QLESS.PUT", "1", "signup-p", "paused", "k", "{}", "1700000000", "0")
    for each in (put, resp("QLESS.PAUSE", "0", "signup-p")):
        assert not exchange(connect("qless", engine), each).startswith(b"-")
    port = limited(protocol, engine)
    if protocol == "qless":
        exchange(port, resp("SCRIPT", "LOAD", SCRIPT_C))
    before = [(queue.name, queue.paused, queue.registered) for queue in engine.queues.values()]
    settings = {key: value for key, value in engine.settings.items() if "script" not in key}
    reply = exchange(port, command)
    assert reply.startswith((b"-", b"ERR ")), reply
    assert DENIED.encode() in reply
    after = [(queue.name, queue.paused, queue.registered) for queue in engine.queues.values()]
    assert after == before
    assert settings == {key: value for key, value in engine.settings.items() if "script" not in key}

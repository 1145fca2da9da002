"""Tests of the speakers: the server understands their commands, and they decode its replies in
pieces of any size.
"""

import pytest

from house import Client, House
from speakers import (
    SPEAKERS,
    Accepted,
    Closed,
    FaktorySpeaker,
    Held,
    Leased,
    MasenkoSpeaker,
    Nothing,
    Refused,
    Result,
    Speaker,
    Work,
)
from wires import START, data_of


def jid(number: int) -> str:
    return f"6ba7b810-9dad-41d1-80b4-{number:012x}"


def work(number: int = 1, **fields) -> Work:
    return Work(**{"id": jid(number), "queue": "q", "payload": b"[1]", **fields})


@pytest.fixture
def house() -> House:
    return House()


@pytest.fixture(params=SPEAKERS)
def client(request, house) -> Client:
    return house.client(request.param)


#: The feature that each method requires.
NEEDS = {
    "fail": "fail",
    "bury": "bury",
    "renew": "renew",
    "release": "release",
    "cancel": "cancel",
    "result": "result",
    "run": "result",
}


def test_every_feature_has_a_method(client):
    kind = type(client.speaker)
    for method, need in NEEDS.items():
        has = getattr(kind, method) is not getattr(Speaker, method)
        assert has == (need in kind.can), method


def test_a_job_is_pushed_leased_and_completed(client):
    job = client.push(work())
    held = client.lease("q")
    assert (held.id, held.queue, held.payload) == (job, "q", b"[1]")
    if "id" in client.speaker.can:
        assert job == jid(1)
    if "kind" in client.speaker.can:
        assert held.kind == "kind"
    client.complete(held)
    client.finds_nothing("q")
    assert client.speaker.unanswered == 0


def test_commands_can_be_pipelined(client):
    """The answers arrive complete and in the order of the commands."""
    speaker, now = client.speaker, client.now
    requests = b"".join(speaker.push(work(n), now) for n in range(3))
    requests += b"".join(speaker.lease("q", now) for _ in range(4))
    assert speaker.unanswered == 7
    client.says(requests)
    client.house.pass_time(speaker.least_wait)
    heard = client.hears()
    assert [type(answer) for answer in heard] == [*[Accepted] * 3, *[Leased] * 3, Nothing]
    assert [answer.id for answer in heard[:3]] == [answer.id for answer in heard[3:6]]


def test_replies_can_arrive_in_any_pieces(client):
    """Another speaker decodes all replies of a session byte by byte."""
    speaker = client.speaker
    again = SPEAKERS[speaker.protocol](speaker.name)
    held = Held(id="1" if "id" not in speaker.can else jid(1), queue="q", kind="", payload=b"[1]")
    wrong = Held(id="9" if "id" not in speaker.can else jid(9), queue="q", kind="", payload=b"[1]")
    for each in (speaker, again):
        if each is again:
            again.hello()
        requests = each.push(work(), START) + each.lease("q", START)
        requests += each.complete(held, START) + each.complete(wrong, START)
        if each is speaker:
            client.says(requests)
    wire = bytes(client.wire.heard)
    pieces = [again.receive(wire[at : at + 1]) for at in range(len(wire))]
    bytewise = [answer for piece in pieces for answer in piece]
    whole = client.hears()
    assert bytewise[-len(whole) :] == whole
    assert len(whole) == 4


def test_a_job_of_higher_priority_is_first(house):
    for protocol, kind in SPEAKERS.items():
        if "priority" in kind.can:
            client = house.client(protocol)
            ids = [client.push(work(n, queue=protocol, rank=-n)) for n in (3, 1, 2)]
            order = [client.lease(protocol).id for _ in ids]
            assert order == [ids[1], ids[2], ids[0]], protocol


def test_a_due_time(house):
    for number, (protocol, kind) in enumerate(SPEAKERS.items()):
        if "schedule" in kind.can:
            client = house.client(protocol)
            client.push(work(number, queue=protocol, due=house.now + 10_000_000))
            client.finds_nothing(protocol)
    house.pass_time(10.000_001)
    for protocol, kind in SPEAKERS.items():
        if "schedule" in kind.can:
            client = house.client(protocol)
            client.complete(client.lease(protocol))


def test_a_dependency(house):
    for protocol, kind in SPEAKERS.items():
        if "dependency" in kind.can:
            client = house.client(protocol)
            first = client.push(work(1, queue=protocol))
            second = client.push(work(2, queue=protocol, after=(first,)))
            held = client.lease(protocol)
            client.finds_nothing(protocol)
            client.complete(held)
            assert client.lease(protocol).id == second


def test_an_error_reply(house):
    requested = {
        "workq": lambda s: s.cancel(jid(7), START),
        "masenko": lambda s: s.fail(Held(id="7", queue="", kind="", payload=b""), START),
        "faktory": lambda s: s.push(work(payload=b"{}"), START),
        "qless": lambda s: s.renew(Held(id="7", queue="", kind="", payload=b""), START),
        "goqueue": lambda s: s.cancel("7", START),
    }
    for protocol, command in requested.items():
        client = house.client(protocol)
        client.says(command(client.speaker))
        assert isinstance(client.hears_one(), Refused)


def test_results(house):
    client, worker = house.client("workq"), house.client("workq")
    client.push(work())
    assert client.asks("result", jid(1)) == Nothing("result", jid(1))
    client.says(client.speaker.result(jid(1), house.now, 5))
    worker.complete(worker.lease("q"), b"\r\n")
    assert client.hears() == [Result("result", jid(1), True, b"\r\n")]
    client.says(client.speaker.run(work(2), house.now, 5))
    worker.fail(worker.lease("q"), "no")
    assert client.hears() == [Result("run", jid(2), False, b"no")]


def test_failures_are_counted_as_the_protocol_shows_them(house):
    for number, protocol in enumerate(("masenko", "faktory", "qless")):
        client = house.client(protocol)
        client.push(work(number, queue=protocol))
        held = client.lease(protocol)
        assert held.failures == 0
        client.fail(held)
        house.pass_time(60)
        assert client.lease(protocol).failures == 1


def test_unanswered_commands_when_the_connection_ends(client):
    client.speaker.push(work(), START)
    client.speaker.lease("q", START)
    assert [type(answer) for answer in client.speaker.close()] == [Closed, Closed]
    assert client.speaker.unanswered == 0


def test_an_unrequested_message_is_an_answer_too():
    speaker = MasenkoSpeaker()
    assert speaker.receive(b'ERR {"msg":"no heartbeat"}\n') == [Refused("", "", "no heartbeat")]
    speaker.lease("q", START)
    assert speaker.receive(b'ERR {"msg":"no heartbeat"}\n') == [Refused("", "", "no heartbeat")]
    assert speaker.close() == [Closed("lease", "")]


def test_a_ping(client):
    ping = client.speaker.ping()
    if ping:
        client.says(ping)
        assert client.hears_one() == Accepted("ping", "")


def test_a_password():
    house = House(faktory={"password": "secret"})
    house.listeners["faktory"].hub.challenge = lambda: (3, "aa")
    wire = house.listeners["faktory"].connect()
    speaker = FaktorySpeaker(password="secret")
    assert speaker.receive(b"".join(data_of(wire))) == []
    wire.replies.clear()
    while wire.receive(speaker.hello(), START, 64) or not wire.replies:
        wire.run(START, 64)
    assert speaker.receive(b"".join(data_of(wire))) == [Accepted("hello", "")]

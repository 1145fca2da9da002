"""Payload and id in both directions: the form for a worker of any other protocol, and the unchanged
original in the pusher's own protocol afterwards.
"""

import pytest
from pairs import PROTOCOLS, fail_attempt, pairs, uid, work
from samples import SAMPLES, Sample, assert_shown

from house import House
from millrace.engine.job import id_from_seq
from speakers import Leased

CROSSINGS = [
    pytest.param(sample, pusher, id=f"{sample.name}-{pusher}")
    for sample in SAMPLES
    for pusher in sample.pushers
]


@pytest.mark.parametrize("worker", PROTOCOLS)
@pytest.mark.parametrize(("sample", "pusher"), CROSSINGS)
def test_a_payload_in_both_directions(house: House, sample: Sample, pusher: str, worker: str):
    house.client(pusher).push(work(payload=sample.payload, retries=3))
    client = house.client(worker)
    held = client.lease("q")
    assert_shown(worker, sample, held)
    assert house.engine.payload(house.job()) == sample.payload
    fail_attempt(client, held)
    house.pass_time(7200)
    home = house.client(pusher)
    again = home.lease("q")
    assert_shown(pusher, sample, again)
    home.complete(again)


@pytest.mark.parametrize("worker", PROTOCOLS)
@pytest.mark.parametrize("worked", PROTOCOLS)
def test_a_task_without_a_payload(house, worked, worker):
    """Only Masenko has tasks without a payload."""
    house.client("masenko").push(work(payload=b""))
    client = house.client(worker)
    held = client.lease("q")
    none = {"faktory": b"[]", "qless": b'""'}
    assert (held.payload, held.encoding) == (none.get(worker, b""), "")
    fail_attempt(client, held)
    house.pass_time(7200)
    assert house.client("masenko").lease("q").payload == b""


# Ids


@pairs()
def test_an_id_in_both_directions(pair):
    pushed = pair.pusher.push(work())
    held = pair.worker.lease("q")
    jid = uid(1) if "id" in pair.pusher.speaker.can else id_from_seq(1)
    shows = {"workq": jid, "faktory": jid, "qless": jid, "http": jid}
    shows |= {"masenko": "1", "goqueue": "1"}
    assert held.id == shows[pair.worker.speaker.protocol]
    assert pushed == shows[pair.pusher.speaker.protocol]
    pair.worker.complete(held)


@pytest.mark.parametrize("jid", ["job-0001", "UPPER-6BA7B810", uid(10).upper(), "x" * 300, "ż" * 8])
@pytest.mark.parametrize("pusher", ["faktory", "qless"])
def test_an_id_that_is_not_a_uuid_has_an_alias_in_workq(house, pusher, jid):
    house.client(pusher).push(work(id=jid))
    for protocol in ("faktory", "qless", "workq"):
        client = house.client(protocol)
        answer = client.asks("lease", "q")
        assert isinstance(answer, Leased)
        assert answer.held.id == (id_from_seq(1) if protocol == "workq" else jid)
        if protocol == "workq":
            client.complete(answer.held)
        else:
            fail_attempt(client, answer.held)
            house.pass_time(7200)


@pytest.mark.parametrize("pusher", ["masenko", "goqueue"])
def test_an_alias_is_accepted_in_all_commands(house, pusher):
    """A job without a client id can be cancelled, awaited and completed by its assigned id."""
    house.client(pusher).push(work())
    workq, qless = house.client("workq"), house.client("qless")
    qless.push(work(2, queue="later", after=(id_from_seq(1),)))
    workq.says(workq.speaker.result(id_from_seq(1), house.now, 60))
    worker = house.client("faktory")
    worker.complete(worker.lease("q"))
    assert workq.hears_one().succeeded
    assert qless.lease("later").id == uid(2)


# Kinds


@pairs()
def test_the_kind_of_a_job(pair):
    """Workq and Go Job Queue have no kinds: the queue replaces the kind of their jobs. HTTP shows
    that the kind is missing.
    """
    held = pair.push_and_lease(kind="resize")
    known = "resize" if "kind" in pair.pusher.speaker.can else "q"
    shows = {"workq": "q", "goqueue": ""}
    if pair.pusher.speaker.protocol == "goqueue":
        shows["http"] = ""
    assert held.kind == shows.get(pair.worker.speaker.protocol, known)

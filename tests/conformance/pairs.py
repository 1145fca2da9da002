"""Pairs of pushing and working protocols, and what is the same in every test of them.

A test names what both sides must be able to do (speaker.can); where one of them cannot, there is no
such pair. What each can is asserted against the documentation, in test_abilities.py, so that no
pair is missing by mistake.
"""

from dataclasses import dataclass
from typing import Any

import pytest

from house import Client, House
from millrace.engine.job import Job, alias
from speakers import EVERYBODY, Held, Nothing, Work
from wires import SECOND

PROTOCOLS = tuple(EVERYBODY)
#: Longer than any lease, and than the first waits before a retry.
LONG = 2 * 3600.0
#: How long a Qless worker may be silent, and then once more before somebody else gets the job.
HEARTBEAT, GRACE = 60.0, 10.0


def uid(number: int) -> str:
    return f"6ba7b810-9dad-41d1-80b4-{number:012x}"


def work(number: int = 1, **fields: Any) -> Work:
    """A job that every protocol can push."""
    return Work(**{"id": uid(number), "queue": "q", "payload": b'["x",1]', **fields})


@dataclass
class Pair:
    """A house with somebody who pushes and somebody who works."""

    house: House
    pusher: Client
    worker: Client

    @property
    def job(self) -> Job:
        """The one that was pushed first."""
        return self.house.job()

    def push_and_lease(self, number: int = 1, **fields: Any) -> Held:
        self.pusher.push(work(number, **fields))
        return self.worker.lease("q")

    def colleague(self) -> Client:
        """Somebody else who works over the worker's protocol."""
        return self.house.client(self.worker.speaker.protocol, "colleague")

    def comes_back(self) -> Held:
        """Whatever delay there was is over, and a worker of the pusher's protocol gets the job."""
        self.house.pass_time(LONG)
        return self.house.client(self.pusher.speaker.protocol, "at-home").lease("q")


def able(*needs: str) -> list[str]:
    return [name for name, kind in EVERYBODY.items() if kind.can >= set(needs)]


def pairs(push: tuple[str, ...] = (), work: tuple[str, ...] = ()) -> pytest.MarkDecorator:
    """Parametrizes `pair` by all pairs whose two sides can do these."""
    found = [(pusher, worker) for pusher in able(*push) for worker in able(*work)]
    assert found, "no protocol can do this"
    ids = [f"{pusher}-{worker}" for pusher, worker in found]
    return pytest.mark.parametrize("pair", found, ids=ids, indirect=True)


def shown_id(protocol: str, job: Job) -> str:
    """The design's table: a job's id towards a worker of that protocol."""
    if protocol in {"masenko", "goqueue"}:
        return str(job.seq)
    if protocol == "workq" and not job.jid.startswith(("6ba7b810-", alias(0)[:24])):
        return alias(job.seq)
    return job.jid


# How a worker's attempt ends without success, each by its own protocol


def lose(client: Client, held: Held) -> None:
    """The worker falls silent; the job is nobody's any more when this is over."""
    house = client.house
    if client.speaker.protocol == "masenko":
        client.hangs_up()
    elif client.speaker.protocol == "qless":
        outlive_lock(house, held.queue)
    else:
        (job,) = [job for job in house.engine.jobs.values() if shown(client, job) == held.id]
        house.pass_time(job.lease_for / SECOND)


def outlive_lock(house: House, queue: str) -> None:
    """A lock of Qless ends when somebody pops: once to warn its holder, and once after the grace.
    Whoever pops then has the job; he goes away at once, by giving it back.
    """
    other = house.client("qless", "popper")
    house.pass_time(HEARTBEAT)
    assert isinstance(other.asks("lease", queue), Nothing)
    house.pass_time(GRACE)
    other.says(other.speaker.lease(queue, house.now))
    (answer,) = other.hears()
    if not isinstance(answer, Nothing):
        other.asks("release", answer.held)


def shown(client: Client, job: Job) -> str:
    return shown_id(client.speaker.protocol, job)


def end_badly(client: Client, held: Held, message: str = "no luck") -> None:
    """The attempt fails, in the worker's words; where it has none, it is lost."""
    if "fail" in client.speaker.can:
        client.fail(held, message)
    else:
        lose(client, held)

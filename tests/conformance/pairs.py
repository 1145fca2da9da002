"""Pairs of pushing and working protocols, and common parts of their tests.

A test names the features that each side needs (speaker.can); pairs without them are left out.
test_abilities.py compares the features of each protocol with the documentation, so that no pair is
missing by mistake.
"""

from dataclasses import dataclass
from typing import Any

import pytest

from house import Client, House
from millrace.engine.job import Job, id_from_seq
from speakers import ALL_SPEAKERS, Held, Nothing, Work
from wires import SECOND

PROTOCOLS = tuple(ALL_SPEAKERS)
#: Longer than any lease, and than the first waits before a retry.
LONG = 2 * 3600.0
#: Maximum silence of a Qless worker, and the grace period before another worker gets the job.
HEARTBEAT, GRACE = 60.0, 10.0


def uid(number: int) -> str:
    return f"6ba7b810-9dad-41d1-80b4-{number:012x}"


def work(number: int = 1, **fields: Any) -> Work:
    """A job that every protocol can push."""
    return Work(**{"id": uid(number), "queue": "q", "payload": b'["x",1]', **fields})


@dataclass
class Pair:
    """A shared server with a producer and a worker."""

    house: House
    pusher: Client
    worker: Client

    @property
    def job(self) -> Job:
        """The first pushed job."""
        return self.house.job()

    def push_and_lease(self, number: int = 1, **fields: Any) -> Held:
        self.pusher.push(work(number, **fields))
        return self.worker.lease("q")

    def colleague(self) -> Client:
        """Another worker of the same protocol."""
        return self.house.client(self.worker.speaker.protocol, "colleague")

    def lease_again(self) -> Held:
        """Wait until any delay is over, and lease the job over the pusher's protocol."""
        self.house.pass_time(LONG)
        return self.house.client(self.pusher.speaker.protocol, "at-home").lease("q")


def able(*needs: str) -> list[str]:
    return [name for name, kind in ALL_SPEAKERS.items() if kind.can >= set(needs)]


def pairs(push: tuple[str, ...] = (), work: tuple[str, ...] = ()) -> pytest.MarkDecorator:
    """Parametrizes `pair` by all pairs whose sides have these features."""
    found = [(pusher, worker) for pusher in able(*push) for worker in able(*work)]
    assert found, "no protocol can do this"
    ids = [f"{pusher}-{worker}" for pusher, worker in found]
    return pytest.mark.parametrize("pair", found, ids=ids, indirect=True)


def shown_id(protocol: str, job: Job) -> str:
    """The design's table: the id of a job for a worker of that protocol."""
    if protocol in {"masenko", "goqueue"}:
        return str(job.seq)
    if protocol == "workq" and not job.jid.startswith(("6ba7b810-", id_from_seq(0)[:24])):
        return id_from_seq(job.seq)
    return job.jid


# Attempts that end without success, by protocol


def lose(client: Client, held: Held) -> None:
    """The worker becomes silent; afterwards the job is not leased any more."""
    house = client.house
    if client.speaker.protocol == "masenko":
        client.hangs_up()
    elif client.speaker.protocol == "qless":
        outlive_lock(house, held.queue)
    else:
        (job,) = [job for job in house.engine.jobs.values() if shown(client, job) == held.id]
        house.pass_time(job.lease_duration / SECOND)


def outlive_lock(house: House, queue: str) -> None:
    """A Qless lock ends when jobs are popped: the first one warns its holder, and one after the
    grace period takes the job. The popping worker then releases the job immediately.
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


def fail_attempt(client: Client, held: Held, message: str = "no luck") -> None:
    """The attempt fails; if the worker's protocol has no failures, the lease is lost."""
    if "fail" in client.speaker.can:
        client.fail(held, message)
    else:
        lose(client, held)

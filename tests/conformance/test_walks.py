"""Random walks of clients of all protocols over two queues: whatever commands they send for each
other's jobs, all indexes match the jobs, no payload changes, and at the end every job has ended or
depends on a permanently failed job.
"""

from random import Random

import pytest
from pairs import PROTOCOLS, work

from house import Client, House
from millrace.engine.states import BLOCKED, DEAD, DONE
from millrace.protocols.qless.consistency import check
from speakers import Held, Leased, Work
from wires import SECOND

STEPS = 250
QUEUES = ("q", "r")


class Walk:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.house = House(goqueue={"max_deliveries": 20})
        self.pushed = 0
        self.payloads: dict[int, bytes] = {}
        self.clients: list[Client] = []
        self.held: dict[Client, list[Held]] = {}
        self.connect_all()

    def connect_all(self) -> None:
        """Connect two new clients of each protocol."""
        names = [(protocol, f"{protocol}-{n}") for protocol in PROTOCOLS for n in (1, 2)]
        self.clients = [self.house.client(*name) for name in names]
        self.held = {client: [] for client in self.clients}

    def step(self) -> None:
        client = self.random.choice(self.clients)
        if client.wire.closed:
            self.replace(client)
            return
        acts = (self.push, self.push, self.lease, self.lease, self.lease, self.end, self.end)
        act = self.random.choice((*acts, self.interfere, self.wait, self.leave, self.crash))
        act(client)
        for each in self.clients:
            answers = each.hears()
            self.held[each] += [a.held for a in answers if isinstance(a, Leased)]
        engine = self.house.engine
        for seq, job in engine.jobs.items():
            assert engine.payload(job) == self.payloads.setdefault(seq, engine.payload(job))

    def push(self, client: Client) -> None:
        self.pushed += 1
        jobs = list(self.house.engine.jobs.values())
        after: tuple[str, ...] = ()
        if jobs and "dependency" in client.speaker.can and self.random.random() < 0.3:
            chosen = self.random.choice(jobs)
            after = (chosen.jid if client.speaker.protocol == "qless" else str(chosen.seq),)
        job = work(
            self.pushed,
            queue=self.random.choice(QUEUES),
            payload=b"[%d]" % self.pushed,
            rank=-self.random.randrange(3),
            due=self.house.now + self.random.randrange(60 * SECOND) * (self.random.random() < 0.3),
            retries=self.random.choice((0, 1, 3)),
            most_attempts=self.random.choice((0, 3)),
            after=after,
            dead_queue=self.random.choice(("", "r")),
        )
        self.say(client, "push", job)

    def lease(self, client: Client) -> None:
        self.say(client, "lease", self.random.choice(QUEUES))

    def end(self, client: Client) -> None:
        """A worker sends a command for a job that it has or has had."""
        if self.held[client]:
            held = self.random.choice(self.held[client])
            words = {"complete", "fail", "bury", "renew", "release"} & {
                *client.speaker.can,
                "complete",
            }
            self.say(client, self.random.choice(sorted(words)), held)

    def interfere(self, client: Client) -> None:
        """A client sends a command for another client's job."""
        jobs = list(self.house.engine.jobs.values())
        if not jobs:
            return
        job = self.random.choice(jobs)
        id_ = str(job.seq) if client.speaker.protocol in {"masenko", "goqueue"} else job.jid
        if "cancel" in client.speaker.can and self.random.random() < 0.3:
            self.say(client, "cancel", id_)
        else:
            theirs = Held(id=id_, queue=job.queue, kind="", payload=self.house.engine.payload(job))
            words = {"complete", "fail", "renew", "release"} & {*client.speaker.can, "complete"}
            self.say(client, self.random.choice(sorted(words)), theirs)

    def say(self, client: Client, command: str, about: Work | Held | str) -> None:
        client.says(getattr(client.speaker, command)(about, self.house.now))

    def wait(self, _: Client) -> None:
        self.house.advance(self.random.randrange(40 * SECOND))

    def leave(self, client: Client) -> None:
        if self.random.random() < 0.3:
            client.hangs_up()

    def crash(self, _: Client) -> None:
        if self.random.random() < 0.1:
            self.house.crash()
            self.connect_all()

    def replace(self, client: Client) -> None:
        new = self.house.client(client.speaker.protocol, client.speaker.name)
        self.clients[self.clients.index(client)] = new
        self.held[new] = self.held.pop(client)

    def drain(self) -> None:
        """All clients disconnect; one worker after another completes the remaining jobs."""
        for client in self.clients:
            client.hangs_up()
        for turn in range(400):
            self.house.pass_time(600)
            worker = self.house.client(PROTOCOLS[turn % 6], f"last-{turn}")
            for queue in QUEUES:
                while True:
                    worker.says(worker.speaker.lease(queue, self.house.now))
                    if not (answers := worker.hears()):
                        self.house.pass_time(worker.speaker.least_wait)
                        answers = worker.hears()
                    if not isinstance(answers[-1], Leased):
                        break
                    worker.says(worker.speaker.complete(answers[-1].held, self.house.now))
                    worker.hears()
            if self.over():
                return

    def over(self) -> bool:
        return all(job.state in {DONE, DEAD} for job in self.house.engine.jobs.values())


@pytest.mark.parametrize("seed", range(8))
def test_a_walk(seed):
    walk = Walk(seed)
    for number in range(STEPS):
        walk.step()
        if number % 10 == 0:
            qless = walk.house.listeners["qless"].hub.api.qless
            qless.refresh()
            assert check(qless).problems == []
    walk.drain()
    left = [job for job in walk.house.engine.jobs.values() if job.state not in {DONE, DEAD}]
    assert [job for job in left if job.state != BLOCKED] == []

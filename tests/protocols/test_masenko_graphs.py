"""Graphs of tasks under failures, disconnects, crashes, restarts and full disks.
Hypothesis generates the graphs and the steps. In every case: no task is delivered before all of its
blockers are acknowledged, none after its acknowledgement, and all tasks end. MILLRACE_EXAMPLES sets
the number of sequences (default 60).
"""

import copy
import os

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from masenko_conversation import EMPTY, MasenkoClient, error
from masenko_house import FailingMasenkoServer

from millrace.engine.states import BLOCKED, DEAD, LEASED

QUEUES = ("a", "b")
GRAVES = ("grave-1", "grave-2")
MOST_CLIENTS = 3
SECOND = 1_000_000
NOT_ACQUIRED = error("task not acquired")

positions = st.lists(st.integers(1, 6), max_size=3)
anyone = st.integers(0, 100)
queues = st.sampled_from(QUEUES)
graves = st.sampled_from(["", "", *GRAVES])
retries = st.sampled_from([0, 0, 1, 2])


class Known:
    """The clients' view of the tasks."""

    def __init__(self) -> None:
        #: Every pushed task with its blockers.
        self.tasks: dict[int, frozenset[int]] = {}
        self.acked: set[int] = set()


class Graphs(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.house = FailingMasenkoServer(heartbeat=10**12)
        self.known = Known()
        self.durable = Known()
        self.clients: list[MasenkoClient] = []
        self.holds: dict[int, list[int]] = {}

    # Helpers

    def alive(self, task: int) -> bool:
        job = self.house.engine.jobs.get(task)
        return job is not None and job.state != DEAD

    def client(self, number: int) -> MasenkoClient:
        """An open client, or a new one."""
        number %= MOST_CLIENTS
        if number >= len(self.clients):
            self.clients.append(self.house.client())
            return self.clients[-1]
        return self.clients[number]

    def held(self, client: MasenkoClient) -> list[int]:
        return self.holds.setdefault(id(client), [])

    def reply(self, client: MasenkoClient) -> bytes:
        return client._line() + b"\n"

    # Pushing

    @rule(who=anyone, back=positions, queue=queues, grave=graves, retry=retries)
    def push(self, who, back, queue, grave, retry):
        next_seq = self.house.engine.next_seq
        blockers = [next_seq - n for n in back if next_seq > n]
        task = self.client(who).pushes(
            queue=queue, deadqueue=grave, retry=retry, blocked_by=blockers
        )
        self.known.tasks[task] = frozenset(filter(self.alive, blockers))

    @rule(
        who=anyone,
        nodes=st.lists(st.tuples(positions, queues, graves, retries), min_size=1, max_size=5),
    )
    def push_a_graph(self, who, nodes):
        first = self.house.engine.next_seq
        lines, waits = [], []
        for number, (back, queue, grave, retry) in enumerate(nodes):
            inside = [-n for n in back if n <= number]
            outside = [first - n for n in back if n > number and first > n]
            waits.append(
                {first + number + n for n in inside} | {n for n in outside if self.alive(n)}
            )
            lines.append(
                f'PUSH {{"name":"a","queue":"{queue}","deadqueue":"{grave}","retry":{retry},'
                f'"blocked_by":{inside + outside}}}'
            )
        client = self.client(who).commits(*lines)
        ids = [first + number for number in range(len(nodes))]
        client.hears(b'OK {"ids":[%b]}\n' % ",".join(map(str, ids)).encode())
        self.known.tasks |= dict(zip(ids, map(frozenset, waits), strict=True))

    # Working

    @rule(who=anyone, order=st.permutations((*QUEUES, *GRAVES)))
    def fetch(self, who, order):
        client = self.client(who)
        client.asks(*order, timeout=1)
        self.house.advance(1)
        if bytes(client.wire.heard[client._taken :]) == EMPTY:
            client.hears_empty()
            return
        task = client.hears_task()
        number = task["id"]
        assert number in self.known.tasks, "the task was never pushed"
        assert number not in self.known.acked, "the task was acknowledged before"
        if task["queue"] in QUEUES:
            assert self.known.tasks[number] <= self.known.acked, "the task is still blocked"
        self.held(client).append(number)

    @rule(who=anyone, which=anyone, verb=st.sampled_from(["ACK", "ACK", "NACK"]))
    def end(self, who, which, verb):
        client = self.client(who)
        held = self.held(client)
        if not held:
            return
        task = held.pop(which % len(held))
        client.says(f'{verb} {{"id":{task}}}')
        if self.reply(client) == NOT_ACQUIRED:
            job = self.house.engine.jobs.get(task)
            assert (
                job is None or job.state != LEASED or job.holder != client.connection.caller.holder
            )
        elif verb == "ACK":
            self.known.acked.add(task)

    @rule(who=anyone, which=anyone)
    def end_in_a_transaction(self, who, which):
        client = self.client(who)
        held = self.held(client)
        if not held:
            return
        task = held.pop(which % len(held))
        number = self.house.engine.next_seq
        client.commits(
            f'ACK {{"id":{task}}}', f'PUSH {{"name":"a","queue":"a","blocked_by":[{task}]}}'
        )
        if self.reply(client).startswith(b"OK"):
            self.known.acked.add(task)
            self.known.tasks[number] = frozenset()
        else:
            assert number not in self.house.engine.jobs

    # Ends of connections and of the server

    @rule(who=anyone)
    def hang_up(self, who):
        client = self.client(who)
        client.hangs_up()
        self.clients.remove(client)
        self.holds.pop(id(client), None)

    @rule()
    def sync(self):
        self.house.sync()
        self.durable = copy.deepcopy(self.known)

    @rule()
    def crash(self):
        self.house.crash()
        self.known = copy.deepcopy(self.durable)
        self.clients, self.holds = [], {}

    @rule()
    def restart(self):
        self.house.restart()
        self.durable = copy.deepcopy(self.known)
        self.clients, self.holds = [], {}

    @rule(seconds=st.sampled_from([0, 1, 3]))
    def fill_the_disk(self, seconds):
        self.house.fail()
        self.known = copy.deepcopy(self.durable)
        self.house.advance(seconds * SECOND)
        self.house.resume()

    @precondition(lambda self: self.clients)
    @rule(who=anyone, seconds=st.sampled_from([0, 2]))
    def fill_the_disk_and_hang_up(self, who, seconds):
        self.house.fail()
        self.known = copy.deepcopy(self.durable)
        client = self.clients.pop(who % len(self.clients))
        client.hangs_up()
        self.holds.pop(id(client), None)
        self.house.advance(seconds * SECOND)
        self.house.resume()

    @rule(seconds=st.sampled_from([0.3, 1, 20]))
    def pass_time(self, seconds):
        self.house.advance(round(seconds * SECOND))

    # Invariants

    @invariant()
    def every_task_is_somewhere(self):
        jobs = self.house.engine.jobs
        assert {task for task in self.known.tasks if task not in jobs} == self.known.acked

    @invariant()
    def every_lease_has_a_holder(self):
        engine = self.house.engine
        for job in engine.jobs.values():
            if job.state == LEASED and job.holder not in engine.leases.holders:
                assert engine.timers.when(job.seq) is not None, "it would be leased for ever"

    @invariant()
    def no_task_waits_for_an_ended_one(self):
        jobs = self.house.engine.jobs
        for job in jobs.values():
            if job.state == BLOCKED:
                assert job.extra.blockers
                assert all(jobs[b].state != DEAD for b in job.extra.blockers)

    def teardown(self):
        """Work through all tasks: all of them end."""
        for client in self.clients:
            client.hangs_up()
        self.clients, self.holds = [self.house.client()], {}
        for _ in range(20 * (len(self.known.tasks) + 1)):
            if not any(self.alive(task) for task in self.known.tasks):
                break
            self.fetch(0, (*QUEUES, *GRAVES))
            self.end(0, 0, "ACK")
            self.house.advance(SECOND)
        assert [task for task in self.known.tasks if self.alive(task)] == []
        self.every_task_is_somewhere()


TestGraphs = Graphs.TestCase
TestGraphs.settings = settings(
    max_examples=int(os.environ.get("MILLRACE_EXAMPLES", "60")),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

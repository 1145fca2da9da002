"""Producers and workers of a workload for all five protocols. Each is a thread with its own
connection and records its observations.

The counts must be exact for every job, so an actor never takes an action with an unknown outcome.
It never disconnects while it waits for a reply. The replies to Faktory's ACK and Go Job Queue's
DELETE do not show that the lease had expired, so workers of these protocols do not finish a job
with a short lease.
"""

import json
import socket
import threading
from collections.abc import Sequence
from hashlib import blake2s
from uuid import UUID

from observations import ALIAS, Attempt, Pushed, Recorder, WallClock
from plans import DEAD_LETTERS, QUEUES, Action, Plan
from raw_faktory import line
from speakers import SPEAKERS, Accepted, Answer, Held, Leased, Refused, Speaker, Work
from speakers.faktory import FaktorySpeaker
from speakers.masenko import MasenkoSpeaker
from speakers.qless import QlessSpeaker

SECOND = 1_000_000
REPLY_TIMEOUT = 60.0
#: Protocols whose replies do not report an expired lease.
SILENT_EXPIRY = frozenset({"faktory", "goqueue"})
#: Protocols that lease from several queues with one command. Workers of the other protocols poll
#: one queue after the other.
MULTI_QUEUE = frozenset({"faktory", "workq", "masenko"})
ENDS = {"complete": "completed", "fail": "failed", "bury": "buried", "release": "released"}
#: The replacement for an action that a protocol does not have.
FALLBACK: dict[Action, Action] = {"bury": "fail", "fail": "leave", "release": "complete"}
IDLE = 0.02


class Masenko(MasenkoSpeaker):
    """Leases from several queues with one command; the names are separated by spaces."""

    def lease(self, queue: str, now: int, wait: float = 0) -> bytes:
        timeout = round(max(wait, self.least_wait) * 1_000_000_000)
        fields = {"queues": queue.split(), "timeout": timeout}
        return self._ask("lease", "", b"FETCH %b\n" % json.dumps(fields).encode())


class Faktory(FaktorySpeaker):
    """Sends the part of the message before the colon as the error type."""

    def fail(self, held: Held, now: int, message: str = "failed") -> bytes:
        group, _, words = message.partition(": ")
        fields = {"jid": held.id, "errtype": group, "message": words, "backtrace": ["main.py:1"]}
        return self._ask("fail", held.id, line("FAIL", fields))

    def retry_all(self) -> bytes:
        """Requeue all jobs that wait for a retry."""
        return self._ask("retry", "", line("MUTATE", {"cmd": "requeue", "target": "retries"}))


class Qless(QlessSpeaker):
    """Passes the error type as well, and can change a setting."""

    def set(self, name: str, value: int) -> bytes:
        return self._call("set", "", "config.set", now(), name, value)

    def fail(self, held: Held, now: int, message: str = "failed") -> bytes:
        group, _, words = message.partition(": ")
        given = (held.id, held.queue, self.name, 0, group, words)
        return self._call("fail", held.id, "retry", now, *given)

    def bury(self, held: Held, now: int, message: str = "failed") -> bytes:
        group, _, words = message.partition(": ")
        return self._call("bury", held.id, "fail", now, held.id, self.name, group, words)


SPOKEN: dict[str, type[Speaker]] = {
    **SPEAKERS,
    "masenko": Masenko,
    "faktory": Faktory,
    "qless": Qless,
}


#: The clock of every observation of this process.
CLOCK = WallClock()
now = CLOCK.now


class Session:
    """A connection and its protocol encoder."""

    def __init__(self, host: str, port: int, speaker: Speaker) -> None:
        self.speaker = speaker
        self._socket = socket.create_connection((host, port), REPLY_TIMEOUT)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answers: list[Answer] = []
        hello = speaker.hello()
        if hello:
            assert isinstance(self.request(hello), Accepted)

    def request(self, data: bytes) -> Answer:
        self._socket.sendall(data)
        while not self._answers:
            piece = self._socket.recv(1 << 16)
            if not piece:
                raise ConnectionError("the server closed the connection")
            self._answers += self.speaker.receive(piece)
        return self._answers.pop(0)

    def close(self) -> None:
        self._socket.close()


class Context:
    """The server's address, the recorder, and the end of the workload."""

    def __init__(self, host: str, ports: dict[str, int], plans: Sequence[Plan], seed: int) -> None:
        self.host = host
        self.ports = ports
        self.plans = {plan.number: plan for plan in plans}
        self.began = now()
        #: The start time of the plans.
        self.started = self.began
        self.run = f"run-{self.began}"
        self.recorder = Recorder(seed, self.began)
        self.over = threading.Event()

    def session(self, protocol: str, name: str) -> Session:
        return Session(self.host, self.ports[protocol], SPOKEN[protocol](name))

    def id(self, number: int) -> str:
        """An id that is unique to this run."""
        digest = blake2s(f"{self.run} {number}".encode(), digest_size=16).digest()
        return str(UUID(bytes=digest, version=4))


class Producer:
    """Pushes the jobs of one protocol at their planned times."""

    def __init__(self, context: Context, protocol: str) -> None:
        self._context = context
        self._session = context.session(protocol, f"{protocol}-producer")
        self._protocol = protocol
        #: The previous job: its number, and its id in this protocol.
        self._last = (0, "")

    def work(self) -> None:
        for plan in self._context.plans.values():
            if plan.protocol == self._protocol and not plan.worker:
                ahead = self._context.started + plan.at * SECOND - now()
                if self._context.over.wait(max(0.0, ahead / SECOND)):
                    break
                self.push(plan)
        self.close()

    def close(self) -> None:
        self._session.close()

    def push(self, plan: Plan) -> None:
        context, speaker = self._context, self._session.speaker
        said = now()
        payload = json.dumps([plan.number, context.run, "x" * plan.size]).encode()
        due = said + round(plan.delay * SECOND) if plan.delay else 0
        after, blocker = self._last if plan.follows else (0, "")
        work = Work(
            id=context.id(plan.number),
            queue=plan.queue,
            payload=payload,
            kind=plan.kind,
            rank=plan.rank,
            due=due,
            ttr=plan.ttr,
            retries=plan.retries,
            after=(blocker,) if blocker else (),
            dead_queue=plan.dead_queue,
        )
        answer = self._ask(speaker.push(work, said))
        heard = now()
        can = speaker.can
        self._last = (plan.number, answer.id)
        pushed = Pushed(
            plan.number,
            self._protocol,
            answer.id if "id" in can else ALIAS.format(int(answer.id)),
            plan.queue,
            plan.kind if "kind" in can else self._default_kind(plan),
            said,
            heard,
            due,
            after,
        )
        if plan.withdrawn:
            self._ask(speaker.cancel(answer.id, now()))
            pushed.withdrawn = True
            self._last = (0, "")
        context.recorder.pushed(pushed)

    def _default_kind(self, plan: Plan) -> str:
        """In Workq the queue is also the kind; Go Job Queue has no kinds."""
        return plan.queue if self._protocol == "workq" else ""

    def _ask(self, data: bytes) -> Answer:
        answer = self._session.request(data)
        assert isinstance(answer, Accepted), f"{self._protocol}: {answer}"
        return answer


class Worker:
    """Processes the jobs of its queues. Some plans disconnect it; it then connects again."""

    def __init__(self, context: Context, protocol: str, name: str, queues: Sequence[str]) -> None:
        self._context = context
        self._protocol = protocol
        self.name = name
        self._queues = [" ".join(queues)] if protocol in MULTI_QUEUE else list(queues)
        self._session = context.session(protocol, name)
        self._turn = 0

    def work(self) -> None:
        while not self._context.over.is_set():
            found = [self._poll() for _ in self._queues]
            if not any(found):
                self._context.over.wait(IDLE)
        self.close()

    def close(self) -> None:
        self._session.close()

    def work_on(self, number: int) -> None:
        """Process jobs until this job, which must be ready, has had an attempt."""
        while not self._context.recorder.attempted(number):
            assert self._poll(), f"{self.name} was not given job {number}"

    def _poll(self) -> bool:
        speaker = self._session.speaker
        self._turn += 1
        queue = self._queues[self._turn % len(self._queues)]
        wait = 0.0 if len(self._queues) > 1 or "wait" not in speaker.can else 0.2
        asked = now()
        answer = self._session.request(speaker.lease(queue, asked, wait))
        assert not isinstance(answer, Refused), f"{self.name}: {answer}"
        if isinstance(answer, Leased):
            self._do(answer.held, asked)
        return isinstance(answer, Leased)

    def _do(self, held: Held, asked: int) -> None:
        number, run, _ = json.loads(held.payload)
        if run != self._context.run:
            self._session.request(self._session.speaker.complete(held, now()))
            self._context.recorder.count_foreign_job()
            return
        attempt = Attempt(self.name, self._protocol, held.queue, asked, now())
        plan = self._context.plans[number]
        count = self._context.recorder.leased(number, attempt)
        action = "complete" if held.queue == DEAD_LETTERS else plan.action(count)
        action = self._supported(action, plan)
        self._context.over.wait(plan.takes)
        if plan.takes > 0.05 and "renew" in self._session.speaker.can:
            renewed = self._session.request(self._session.speaker.renew(held, now()))
            attempt.renewals = int(isinstance(renewed, Accepted))
        if action == "leave":
            self._reconnect()
        else:
            self._end(action, held, attempt, plan)

    def _supported(self, action: Action, plan: Plan) -> Action:
        if plan.short and self._protocol in SILENT_EXPIRY:
            return "leave"
        while action not in {"complete", "leave"} and action not in self._session.speaker.can:
            action = FALLBACK[action]
        return action

    def _end(self, action: Action, held: Held, attempt: Attempt, plan: Plan) -> None:
        speaker = self._session.speaker
        attempt.said = now()
        if action in {"fail", "bury"}:
            attempt.group, attempt.message = plan.error.group, plan.message
            words = f"{attempt.group}: {attempt.message}"
            data = getattr(speaker, action)(held, attempt.said, words)
        else:
            data = getattr(speaker, action)(held, attempt.said)
        answer = self._session.request(data)
        attempt.heard = now()
        attempt.end = ENDS[action] if isinstance(answer, Accepted) else "refused"

    def _reconnect(self) -> None:
        self._session.close()
        self._session = self._context.session(self._protocol, self.name)


class Operator:
    """Shortens the leases of Qless before the workers start, so that they expire during the run,
    and requeues all waiting retries twice.
    """

    def __init__(self, context: Context, seconds: float) -> None:
        self._context = context
        self._moments = (0.5 * seconds, seconds)
        session = context.session("qless", "operator")
        assert isinstance(session.speaker, Qless)
        for name, value in (("grace-period", 1), ("imports-heartbeat", 2)):
            assert isinstance(session.request(session.speaker.set(name, value)), Accepted)
        session.close()

    def work(self) -> None:
        for moment in self._moments:
            ahead = self._context.started + moment * SECOND - now()
            if self._context.over.wait(max(0.0, ahead / SECOND)):
                return
            session = self._context.session("faktory", "")
            assert isinstance(session.speaker, Faktory)
            assert isinstance(session.request(session.speaker.retry_all()), Accepted)
            session.close()


def perform_script(context: Context) -> None:
    """Push each scripted job and let the planned worker lease it."""
    for plan in context.plans.values():
        if plan.worker:
            producer = Producer(context, plan.protocol)
            producer.push(plan)
            producer.close()
            worker = Worker(context, plan.worker, f"{plan.worker}-script", [plan.queue])
            worker.work_on(plan.number)
            worker.close()
    context.started = now()


def workers(context: Context, each: int) -> list[Worker]:
    """Create `each` workers per protocol. A Go Job Queue worker polls one queue, because its
    command waits for a second; other workers poll all queues.
    """
    found = []
    for protocol in SPEAKERS:
        for number in range(each):
            queues = [*QUEUES[number % len(QUEUES) :], *QUEUES[: number % len(QUEUES)]]
            if protocol == "goqueue":
                queues = queues[:1]
            if protocol == "masenko":
                queues.append(DEAD_LETTERS)
            found.append(Worker(context, protocol, f"{protocol}-{number + 1}", queues))
    return found

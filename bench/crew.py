"""The people of a workload: producers and workers of all five protocols, each a thread with a
connection of its own, who write down what they saw.

What they count must hold to the job, so nobody does what he could not know the end of. Nobody hangs
up while he waits for an answer. Faktory's ACK and Go Job Queue's DELETE do not say whether a lease
had run out before, so a job with little time is only ended by workers who would be told.
"""

import json
import socket
import threading
import time
from collections.abc import Sequence
from hashlib import blake2s
from uuid import UUID

from plans import LETTERS, QUEUES, Deed, Plan
from raw_faktory import line
from speakers import SPEAKERS, Accepted, Answer, Held, Leased, Refused, Speaker, Work
from speakers.faktory import FaktorySpeaker
from speakers.masenko import MasenkoSpeaker
from speakers.qless import QlessSpeaker
from witness import ALIAS, Attempt, Notebook, Pushed

SECOND = 1_000_000
PATIENCE = 60.0
#: Who would not be told that a lease is over.
UNTOLD = frozenset({"faktory", "goqueue"})
#: Who names several queues at once; the others ask for one after the other.
TOGETHER = frozenset({"faktory", "workq", "masenko"})
ENDS = {"complete": "completed", "fail": "failed", "bury": "buried", "release": "released"}
#: What those do instead who have no word for it.
INSTEAD: dict[Deed, Deed] = {"bury": "fail", "fail": "leave", "release": "complete"}
IDLE = 0.02


class Masenko(MasenkoSpeaker):
    """Asks for several queues at once, which are separated by spaces."""

    def lease(self, queue: str, now: int, wait: float = 0) -> bytes:
        timeout = round(max(wait, self.least_wait) * 1_000_000_000)
        fields = {"queues": queue.split(), "timeout": timeout}
        return self._ask("lease", "", b"FETCH %b\n" % json.dumps(fields).encode())


class Faktory(FaktorySpeaker):
    """Says of what class a failure is, which stands before the colon."""

    def fail(self, held: Held, now: int, message: str = "failed") -> bytes:
        group, _, words = message.partition(": ")
        fields = {"jid": held.id, "errtype": group, "message": words, "backtrace": ["main.py:1"]}
        return self._ask("fail", held.id, line("FAIL", fields))

    def retry_all(self) -> bytes:
        """Now, instead of when their time has come."""
        return self._ask("retry", "", line("MUTATE", {"cmd": "requeue", "target": "retries"}))


class Qless(QlessSpeaker):
    """The same, and it can change a setting."""

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


def now() -> int:
    return time.time_ns() // 1000


class Talk:
    """A connection, and who speaks on it."""

    def __init__(self, host: str, port: int, speaker: Speaker) -> None:
        self.speaker = speaker
        self._socket = socket.create_connection((host, port), PATIENCE)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answers: list[Answer] = []
        hello = speaker.hello()
        if hello:
            assert isinstance(self.ask(hello), Accepted)

    def ask(self, data: bytes) -> Answer:
        self._socket.sendall(data)
        while not self._answers:
            piece = self._socket.recv(1 << 16)
            if not piece:
                raise ConnectionError("the server closed the connection")
            self._answers += self.speaker.receive(piece)
        return self._answers.pop(0)

    def close(self) -> None:
        self._socket.close()


class Place:
    """Where the server is, who writes down what happens, and until when there is work."""

    def __init__(self, host: str, ports: dict[str, int], plans: Sequence[Plan], seed: int) -> None:
        self.host = host
        self.ports = ports
        self.plans = {plan.number: plan for plan in plans}
        self.began = now()
        #: The moment from which the times of the plans count.
        self.started = self.began
        self.run = f"run-{self.began}"
        self.notebook = Notebook(seed, self.began)
        self.over = threading.Event()

    def talk(self, protocol: str, name: str) -> Talk:
        return Talk(self.host, self.ports[protocol], SPOKEN[protocol](name))

    def id(self, number: int) -> str:
        """An id that no other run has."""
        digest = blake2s(f"{self.run} {number}".encode(), digest_size=16).digest()
        return str(UUID(bytes=digest, version=4))


class Producer:
    """Pushes the jobs of one protocol, each when its time has come."""

    def __init__(self, place: Place, protocol: str) -> None:
        self._place = place
        self._talk = place.talk(protocol, f"{protocol}-producer")
        self._protocol = protocol
        #: The job before: its number, and the id that this protocol shows.
        self._last = (0, "")

    def work(self) -> None:
        for plan in self._place.plans.values():
            if plan.protocol == self._protocol and not plan.worker:
                ahead = self._place.started + plan.at * SECOND - now()
                if self._place.over.wait(max(0.0, ahead / SECOND)):
                    break
                self.push(plan)
        self.close()

    def close(self) -> None:
        self._talk.close()

    def push(self, plan: Plan) -> None:
        place, speaker = self._place, self._talk.speaker
        said = now()
        payload = json.dumps([plan.number, place.run, "x" * plan.size]).encode()
        due = said + round(plan.delay * SECOND) if plan.delay else 0
        after, blocker = self._last if plan.follows else (0, "")
        work = Work(
            id=place.id(plan.number),
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
            plan.kind if "kind" in can else self._unsaid(plan),
            said,
            heard,
            due,
            after,
        )
        if plan.withdrawn:
            self._ask(speaker.cancel(answer.id, now()))
            pushed.withdrawn = True
            self._last = (0, "")
        place.notebook.pushed(pushed)

    def _unsaid(self, plan: Plan) -> str:
        """Workq's names are both; Go Job Queue has none."""
        return plan.queue if self._protocol == "workq" else ""

    def _ask(self, data: bytes) -> Answer:
        answer = self._talk.ask(data)
        assert isinstance(answer, Accepted), f"{self._protocol}: {answer}"
        return answer


class Worker:
    """Does what there is in its queues, and at times dies, and is back with a new connection."""

    def __init__(self, place: Place, protocol: str, name: str, queues: Sequence[str]) -> None:
        self._place = place
        self._protocol = protocol
        self.name = name
        self._queues = [" ".join(queues)] if protocol in TOGETHER else list(queues)
        self._talk = place.talk(protocol, name)
        self._turn = 0

    def work(self) -> None:
        while not self._place.over.is_set():
            found = [self._look() for _ in self._queues]
            if not any(found):
                self._place.over.wait(IDLE)
        self.close()

    def close(self) -> None:
        self._talk.close()

    def work_on(self, number: int) -> None:
        """Work until this job, which must be ready, has had an attempt."""
        while not self._place.notebook.attempted(number):
            assert self._look(), f"{self.name} was not given job {number}"

    def _look(self) -> bool:
        speaker = self._talk.speaker
        self._turn += 1
        queue = self._queues[self._turn % len(self._queues)]
        wait = 0.0 if len(self._queues) > 1 or "wait" not in speaker.can else 0.2
        asked = now()
        answer = self._talk.ask(speaker.lease(queue, asked, wait))
        assert not isinstance(answer, Refused), f"{self.name}: {answer}"
        if isinstance(answer, Leased):
            self._do(answer.held, asked)
        return isinstance(answer, Leased)

    def _do(self, held: Held, asked: int) -> None:
        number, run, _ = json.loads(held.payload)
        if run != self._place.run:
            self._talk.ask(self._talk.speaker.complete(held, now()))
            self._place.notebook.stranger()
            return
        attempt = Attempt(self.name, self._protocol, held.queue, asked, now())
        plan = self._place.plans[number]
        count = self._place.notebook.leased(number, attempt)
        deed = "complete" if held.queue == LETTERS else plan.deed(count)
        deed = self._able(deed, plan)
        self._place.over.wait(plan.takes)
        if plan.takes > 0.05 and "renew" in self._talk.speaker.can:
            renewed = self._talk.ask(self._talk.speaker.renew(held, now()))
            attempt.renewals = int(isinstance(renewed, Accepted))
        if deed == "leave":
            self._die()
        else:
            self._end(deed, held, attempt, plan)

    def _able(self, deed: Deed, plan: Plan) -> Deed:
        if plan.short and self._protocol in UNTOLD:
            return "leave"
        while deed not in {"complete", "leave"} and deed not in self._talk.speaker.can:
            deed = INSTEAD[deed]
        return deed

    def _end(self, deed: Deed, held: Held, attempt: Attempt, plan: Plan) -> None:
        speaker = self._talk.speaker
        attempt.said = now()
        if deed in {"fail", "bury"}:
            attempt.group, attempt.message = plan.trouble.group, plan.message
            words = f"{attempt.group}: {attempt.message}"
            data = getattr(speaker, deed)(held, attempt.said, words)
        else:
            data = getattr(speaker, deed)(held, attempt.said)
        answer = self._talk.ask(data)
        attempt.heard = now()
        attempt.end = ENDS[deed] if isinstance(answer, Accepted) else "refused"

    def _die(self) -> None:
        self._talk.close()
        self._talk = self._place.talk(self._protocol, self.name)


class Operator:
    """Sees before anybody works that leases of Qless end while somebody is there to see it, and
    twice lets everything that waits for its next try be tried at once.
    """

    def __init__(self, place: Place, seconds: float) -> None:
        self._place = place
        self._moments = (0.5 * seconds, seconds)
        talk = place.talk("qless", "operator")
        assert isinstance(talk.speaker, Qless)
        for name, value in (("grace-period", 1), ("imports-heartbeat", 2)):
            assert isinstance(talk.ask(talk.speaker.set(name, value)), Accepted)
        talk.close()

    def work(self) -> None:
        for moment in self._moments:
            ahead = self._place.started + moment * SECOND - now()
            if self._place.over.wait(max(0.0, ahead / SECOND)):
                return
            talk = self._place.talk("faktory", "")
            assert isinstance(talk.speaker, Faktory)
            assert isinstance(talk.ask(talk.speaker.retry_all()), Accepted)
            talk.close()


def perform_script(place: Place) -> None:
    """Push each scripted job and let the worker that the script names take it."""
    for plan in place.plans.values():
        if plan.worker:
            producer = Producer(place, plan.protocol)
            producer.push(plan)
            producer.close()
            worker = Worker(place, plan.worker, f"{plan.worker}-script", [plan.queue])
            worker.work_on(plan.number)
            worker.close()
    place.started = now()


def workers(place: Place, each: int) -> list[Worker]:
    """So many of every protocol. Go Job Queue's ask for one queue each, as they wait for a second;
    the others share all queues between them.
    """
    found = []
    for protocol in SPEAKERS:
        for number in range(each):
            queues = [*QUEUES[number % len(QUEUES) :], *QUEUES[: number % len(QUEUES)]]
            if protocol == "goqueue":
                queues = queues[:1]
            if protocol == "masenko":
                queues.append(LETTERS)
            found.append(Worker(place, protocol, f"{protocol}-{number + 1}", queues))
    return found

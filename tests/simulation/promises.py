"""What the clients of a simulation were told, and what must therefore be true.

It knows nothing of the engine: only what was sent, and what the server said, in the order in which
it said it. A command that was sent and not answered may have been done or not. What was answered
must hold for ever, through crashes, full disks and wrong clocks:

    a push was accepted             the job is there until somebody may have ended it
    a push was refused              the job is never seen
    the end of a job was accepted   it is never handed out again
    a lease was given               nobody else is given the job before the lease has run out
    it is handed out                somebody pushed it; its payload is what was pushed; and those
                                    that it waits for may have ended
    an id was given                 no other job ever gets it
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from simulated_network import Wire

from speakers import Accepted, Answer, Leased, Refused, Result, Work

NUMBER = re.compile(rb"job-(\d+)-")
#: A reply may be so late, because a commit or the client's own earlier replies took so long.
SLACK = 30.0
#: What a change that could not be written is answered with, in all protocols.
UNCHANGED = "nothing was changed"
#: What Workq says of a job that would be gone before its time, as the server's clock has it.
TOO_LATE = "Invalid Time"
#: What Masenko says, without being asked, to a client that was silent for too long.
NO_HEARTBEAT = "no heartbeat"
REFUSALS = (UNCHANGED, TOO_LATE, NO_HEARTBEAT)


class BrokenPromise(BaseException):
    """The server did what it must not, or did not do what it must; nobody there may catch this."""


@dataclass(eq=False)
class Lease:
    """A job in the hands of a worker, as the worker knows it."""

    job: "Booked"
    protocol: str
    wire: Wire
    told: int
    life: int
    #: Who it is, where that counts: a name, or the connection.
    holder: object
    #: By the server's clock, or for Qless by the clients'; it cannot end before.
    until: float
    #: It is on the disk: a crash does not end it.
    durable: bool = False
    #: It may have ended for some reason that its holder cannot know.
    loose: bool = False


@dataclass(eq=False)
class Request:
    """A command that was sent."""

    command: str
    wire: Wire
    sent: int
    sent_at: float
    sent_wall: float
    life: int
    job: "Booked | None" = None
    lease: Lease | None = None
    wait: float = 0.0
    queue: str = ""
    #: Jobs that are pushed as one.
    jobs: list["Booked"] = field(default_factory=list)
    #: It is the first that ends its lease.
    ends: bool = False
    text: bytes = b""
    answer: Answer | None = None


@dataclass(eq=False)
class Booked:
    """A job that somebody pushed, or tried to."""

    number: int
    protocol: str
    work: Work
    #: As the protocol that pushed it shows it.
    shown: str = ""
    sent: int = 0
    #: When its push was first sent, and first accepted, among all that was sent and said.
    sent_first: int = 0
    accepted: int = 0
    #: Pushes that were neither refused nor accepted.
    unsure: int = 0
    #: Commands that end it, unless they are refused: by whom.
    ending: set[Request] = field(default_factory=set)
    #: When the end was said, at what time, and which command it was.
    ended: int = 0
    ended_by: str = ""
    ended_at: float = 0.0
    #: Whether it may come again after its end: its push was sent twice.
    again: bool = False
    #: It goes with the client that pushed it.
    fleeting: bool = False
    booked_at: float = 0.0
    fails: int = 0
    #: Failures that were not answered, and when the last one was.
    fails_open: int = 0
    failed: int = 0
    leases: list[Lease] = field(default_factory=list)
    told_leases: int = 0
    #: How often it was leased, whether or not anybody was told.
    times_leased: int = 0
    results: set[bytes] = field(default_factory=set)
    #: The moment at which it goes by itself, by the server's clock.
    expires: float = float("inf")
    after: list["Booked"] = field(default_factory=list)

    @property
    def may_be_gone(self) -> bool:
        discarded = self.protocol == "faktory" and self.work.retries == 0 and self.times_leased
        return bool(self.ending or self.ended or self.fleeting or discarded)


class Promises:
    def __init__(self, now: Callable[[], float], wall: Callable[[], float]) -> None:
        self._now = now
        self._wall = wall
        self.stamp = 0
        #: Counts the server's starts.
        self.life = 0
        self.jobs: list[Booked] = []
        self.counts: Counter[str] = Counter()
        #: How long a Qless worker has a job at least, by its own clock.
        self.heartbeat = 60.0
        #: How far the server's clock has ever been.
        self.latest_wall = 0.0
        #: Jobs that were pushed as one.
        self.groups: list[list[Booked]] = []
        #: Queues that are stopped, and since when.
        self.paused: dict[str, int] = {}
        #: What was last said about whether a queue is stopped.
        self._arranged: dict[str, Request] = {}
        self.jumped_at = 0
        #: When the server's clock was set, and its value before.
        self.jumps: list[float] = []
        self._walls_before_jumps: list[float] = []
        self._ids: dict[tuple[str, str], Booked] = {}
        self._open: dict[Lease, None] = {}

    # What clients write down

    def book(self, protocol: str, work: Callable[[int], Work], *, fleeting: bool = False) -> Booked:
        number = len(self.jobs)
        job = Booked(number, protocol, work(number), fleeting=fleeting, booked_at=self._now())
        if protocol in {"workq", "faktory", "qless"}:
            job.shown = job.work.id
        job.after = [self._ids[protocol, shown] for shown in job.work.after]
        self.jobs.append(job)
        return job

    def sending(self, command: str, wire: Wire, **more: Any) -> Request:
        self.stamp += 1
        self.counts["commands"] += 1
        request = Request(command, wire, self.stamp, self._now(), self._wall(), self.life, **more)
        job = request.job
        if command in {"pause", "resume"}:
            self.paused.pop(request.queue, None)
            self._arranged[request.queue] = request
        for each in request.jobs:
            self._sends(each)
        if request.jobs:
            self.groups.append(request.jobs)
        if job is None:
            return request
        if command in {"push", "run"}:
            self._sends(job)
        elif command in {"complete", "cancel"}:
            job.ending.add(request)
            job.results.add(request.text)
        elif command in {"fail", "bury", "release"}:
            job.fails += 1
            job.fails_open += 1
        if request.lease is not None and command != "renew":
            request.ends = request.lease in self._open
            self._open.pop(request.lease, None)
        if command == "cancel":
            self._loosen(job)
        return request

    def _sends(self, job: Booked) -> None:
        job.again = job.again or job.sent > 0
        job.sent += 1
        job.unsure += 1
        job.sent_first = job.sent_first or self.stamp
        self._lives_from(job, self._wall())

    def _lives_from(self, job: Booked, moment: float) -> None:
        """It was pushed then, or later; its life begins when it is due."""
        begun = min(moment, job.work.due / 1_000_000) if job.work.due else moment
        job.expires = min(job.expires, begun + job.work.ttl - 1)

    # What the server says

    def said(self, request: Request, answer: Answer) -> None:
        self.stamp += 1
        self.latest_wall = max(self.latest_wall, self._wall())
        request.answer = answer
        self.counts[type(answer).__name__.lower()] += 1
        command, job = request.command, request.job
        if job is not None and command in {"fail", "bury", "release"}:
            job.fails_open -= 1
            job.failed = self.stamp
        if isinstance(answer, Leased):
            self._leased(request, answer)
        elif command == "atomic":
            for each in request.jobs:
                self._pushed(request, each, answer)
        elif command == "pause" and isinstance(answer, Accepted):
            if self._arranged[request.queue] is request:  # nobody has said otherwise since
                self.paused[request.queue] = self.stamp
        elif job is None:
            return
        elif command == "push":
            self._pushed(request, job, answer)
        elif command == "run":
            self._ran(request, job, answer)
        elif command in {"complete", "cancel"} or (command == "bury" and job.protocol == "qless"):
            self._ended(request, job, answer)
        elif command == "renew" and isinstance(answer, Accepted) and request.lease is not None:
            lease = request.lease
            lease.until = max(lease.until, request.sent_at + self.heartbeat)
        elif command == "result" and isinstance(answer, Result):
            self._resulted(job, answer)

    def _pushed(self, request: Request, job: Booked, answer: Answer) -> None:
        if isinstance(answer, Refused) and "Duplicate" not in answer.text:
            job.unsure -= 1
            if not any(text in answer.text for text in REFUSALS):
                raise BrokenPromise(f"the push of {name(job)} was refused: {answer.text}")
            return
        job.unsure -= 1
        job.accepted = job.accepted or self.stamp
        # The clock may have been set back before the server looked at it.
        self._lives_from(job, self._wall() - (self._now() - request.sent_at))
        if isinstance(answer, Accepted) and answer.id:
            job.shown = answer.id
            known = self._ids.setdefault((job.protocol, answer.id), job)
            if known is not job:
                raise BrokenPromise(f"{name(job)} and {name(known)} have the same id {answer.id}")

    def _leased(self, request: Request, answer: Leased) -> None:
        held = answer.held
        job = self.find(held.payload)
        if job is None:
            raise BrokenPromise(f"nobody ever pushed what was handed out: {held}")
        if held.payload != job.work.payload or held.encoding:
            raise BrokenPromise(f"{name(job)} came with another payload: {held}")
        if held.queue not in {job.work.queue, job.work.dead_queue}:
            raise BrokenPromise(f"{name(job)} came from another queue: {held}")
        if self.paused.get(held.queue, self.stamp) < request.sent:
            raise BrokenPromise(f"{name(job)} was handed out although its queue is paused")
        if not (job.accepted or job.unsure):
            raise BrokenPromise(f"{name(job)} was handed out although its push was refused")
        # Qless jobs are due by the clocks of its clients; Workq's `run` takes no due time.
        due = 0 if job.protocol == "qless" or job.fleeting else job.work.due / 1_000_000
        if due > self._farthest_since(job.booked_at):
            raise BrokenPromise(f"{name(job)} was handed out before it was due")
        for other in job.after:
            if not (other.may_be_gone or _may_have_failed(other)):
                raise BrokenPromise(f"{name(job)} was handed out before {name(other)} had ended")
        late = self._now() - job.ended_at > SLACK and request.wire.healthy
        if job.ended and not job.again and (request.sent > job.ended or late):
            raise BrokenPromise(f"{name(job)} was handed out again after its end was acknowledged")
        if not request.wire.was_ill:  # or it may be told of a lease that was over long ago
            self._alone(job, request)
        wire = request.wire
        holder = wire.client.name if wire.protocol == "qless" else wire
        until = self._until(request, job)
        lease = Lease(job, wire.protocol, wire, self.stamp, self.life, holder, until)
        # Nobody can say by which clock it began, or whether it was heard of, or of which of two.
        jumped = self.jumped_at > request.sent
        lease.loose = jumped or not wire.healthy or job.again
        job.leases.append(lease)
        job.told_leases += 1
        if job.told_leases > job.times_leased:
            raise BrokenPromise(f"one lease of {name(job)} was given to two")
        self._open[lease] = None
        request.lease = lease
        request.job = job

    def _until(self, request: Request, job: Booked) -> float:
        if request.wire.protocol == "qless":
            return request.sent_at + self.heartbeat
        if request.wire.protocol == "masenko":
            return float("inf")
        begun = min(request.sent_wall, self._wall())
        return begun + (1800 if job.protocol in {"masenko", "qless"} else job.work.ttr)

    def _alone(self, job: Booked, request: Request) -> None:
        """Is there nobody else who has the job?"""
        for lease in job.leases:
            if lease not in self._open or lease.loose or job.again:
                continue
            if lease.life != self.life and not lease.durable:
                continue
            if not self.expired(lease):
                raise BrokenPromise(
                    f"{name(job)} was handed out to {request.wire} while {lease.wire} has it"
                )

    def expired(self, lease: Lease) -> bool:
        if lease.protocol == "masenko":
            return lease.wire.transport is None
        clock = self._now() if lease.protocol == "qless" else self._wall()
        return clock >= lease.until

    def _ended(self, request: Request, job: Booked, answer: Answer) -> None:
        if isinstance(answer, Refused):
            job.ending.discard(request)
            return
        lease = request.lease
        if request.wire.protocol == "faktory" and (
            lease is None
            or not request.ends
            or job.fails_open
            or job.failed > lease.told
            or lease.loose
            or lease.life != self.life
            or self.expired(lease)
        ):
            return  # it is told OK, but it may not have been its any more
        if request.command == "complete" and request.wire.protocol in {"qless", "masenko"}:
            self._its_own(request, job)
        job.ended, job.ended_at, job.ended_by = self.stamp, self._now(), request.command
        if request.wire.protocol == "goqueue":
            job.ended_by = "complete"  # which is what DELETE is, if somebody has the job
        self._loosen(job)

    def _its_own(self, request: Request, job: Booked) -> None:
        """Where it counts who has a job, nobody else can end it."""
        lease, last = request.lease, job.leases[-1]
        if lease is None or job.again or last.told > request.sent or last.loose:
            return
        if last.holder != lease.holder and last.life == self.life and last in self._open:
            raise BrokenPromise(f"{name(job)} was ended by {request.wire}, {last.wire} has it")

    def _ran(self, request: Request, job: Booked, answer: Answer) -> None:
        job.unsure -= 1
        if isinstance(answer, Refused):
            return
        job.accepted = job.accepted or self.stamp
        job.ended, job.ended_at, job.ended_by = self.stamp, self._now(), "run"
        if isinstance(answer, Result):
            self._resulted(job, answer)

    def _resulted(self, job: Booked, answer: Result) -> None:
        if answer.succeeded and answer.content not in job.results:
            raise BrokenPromise(f"{name(job)} has a result that nobody gave it: {answer}")

    def _loosen(self, job: Booked) -> None:
        for lease in job.leases:
            lease.loose = True

    # What happens to the server

    def committed(self, begun: int) -> None:
        """What was said before that is on the disk, whether or not it had to be."""
        for lease in self._open:
            lease.durable = lease.durable or (lease.life == self.life and lease.told < begun)

    def undone(self) -> None:
        """What was not on the disk is undone."""
        for lease in self._open:
            lease.loose = lease.loose or not lease.durable

    def clock_jumped(self, wall_before: float) -> None:
        self.jumped_at = self.stamp
        self.jumps.append(self._now())
        self._walls_before_jumps.append(wall_before)
        for lease in self._open:
            lease.loose = lease.loose or lease.protocol not in {"qless", "masenko"}

    # What follows from it

    def _farthest_since(self, at: float) -> float:
        """The furthest that the server's clock has been since that time."""
        jumps = zip(self.jumps, self._walls_before_jumps, strict=True)
        return max([self._wall(), *(wall for jump, wall in jumps if jump >= at)])

    def find(self, payload: bytes) -> Booked | None:
        found = NUMBER.search(payload)
        number = int(found[1]) if found else len(self.jobs)
        return self.jobs[number] if number < len(self.jobs) else None

    def must_be_there(self) -> Iterator[Booked]:
        """All that are, unless something was lost."""
        latest = self.latest_wall = max(self.latest_wall, self._wall())
        for job in self.jobs:
            if job.accepted and not job.may_be_gone and latest < job.expires:
                yield job

    def must_be_leased(self) -> Iterator[Lease]:
        """Leases that must have survived a crash: nobody can have ended them."""
        for lease in self._open:
            job = lease.job
            unsure = lease.loose or not lease.durable or job.may_be_gone or job.again
            bound = lease.protocol == "masenko" or self.latest_wall >= job.expires
            if not (unsure or bound or self.expired(lease)) and lease is job.leases[-1]:
                yield lease


def name(job: Booked) -> str:
    return f"job {job.number} of {job.protocol} in {job.work.queue} ({job.shown or 'no id'})"


def _may_have_failed(job: Booked) -> bool:
    """Also with one that it waited for: then who waits for it later need not."""
    if job.fails or job.times_leased > 1 or job.work.retries == 0:
        return True
    return any(_may_have_failed(other) for other in job.after)

"""The replies that the clients of a simulation received, and the promises that follow from them.

It does not know the engine: only the requests, and the server's replies in the order in which they
were sent. An unanswered command may or may not have been executed. A reply is a promise that holds
across crashes, full disks and wrong clocks:

    a push was accepted             the job exists until a client may have ended it
    a push was refused              the job is never seen
    the end of a job was accepted   it is never leased again
    a lease was granted             no other worker gets the job before the lease expires
    a job is leased                 a client pushed it; its payload is unchanged; and its
                                    dependencies may have ended
    an id was assigned              no other job ever gets it
    a flush was accepted            the jobs before it are never seen again
    a setting was accepted          it holds: a limit, a tag, a pause, a recurring job
    a load was not released         none of its jobs is leased
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
from certain_settings import CertainSettings
from simulated_network import Wire

from speakers import Accepted, Answer, Leased, Refused, Reported, Result, Work

NUMBER = re.compile(rb"job-(\d+)-")
RECURRING_NUMBER = re.compile(rb"recurring-(\d+)-")
#: The protocol of jobs that a recurring job creates.
RECURRING = "recurring"
#: Maximum delay of a reply, because of a slow commit or the client's own earlier replies.
SLACK = 30.0
#: Minimum retention of ended jobs.
KEPT = 7 * 86_400.0
#: The reply to a change that could not be written, in all protocols.
UNCHANGED = "nothing was changed"
#: Workq's reply to a job that would expire before it is due, by the server's clock.
TOO_LATE = "Invalid Time"
#: The message that Masenko sends to a client that was silent for too long.
NO_HEARTBEAT = "no heartbeat"
#: Protocols in which any client with the id of a job can fail it.
FAILS_BY_ID = {"workq", "faktory"}
REFUSALS = (UNCHANGED, TOO_LATE, NO_HEARTBEAT)
#: The reply to a command with several jobs that could not be completed.
PARTLY_DONE = "only part of the command was executed"
#: The error while the server is above its memory limit, and the commands that get it.
NO_MEMORY = "memory limit"
PUSHING = {"push", "run", "atomic", "push many", "millrace stage", "complete", "recur"}
#: Commands that change a setting, and the kind of the setting.
SETTINGS = {
    "pause": "paused",
    "resume": "paused",
    "limit": "limit",
    "millrace limit": "limit",
    "tag": "tag",
    "untag": "tag",
    "recur": "recurring",
    "millrace recur": "recurring",
    "unrecur": "recurring",
    "millrace unrecur": "recurring",
}


class BrokenPromise(BaseException):
    """The server broke a promise. It derives from BaseException, so that the server cannot catch
    it.
    """


@dataclass(eq=False)
class Lease:
    """A lease, as its worker knows it."""

    job: "TrackedJob"
    protocol: str
    wire: Wire
    granted: int
    life: int
    #: The holder: a worker name, or the connection.
    holder: object
    #: The earliest end, by the server's clock, or for Qless by the clients' clocks.
    until: float
    #: It is on the disk: a crash does not end it.
    durable: bool = False
    #: It may have ended for a reason that its holder cannot know.
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
    job: "TrackedJob | None" = None
    lease: Lease | None = None
    wait: float = 0.0
    #: The setting that it changes, and the new value.
    subject: Any = None
    value: Any = None
    #: Jobs that are pushed as one transaction.
    jobs: list["TrackedJob"] = field(default_factory=list)
    load: "Load | None" = None
    #: The first request that ends its lease.
    ends: bool = False
    text: bytes = b""
    answer: Answer | None = None

    @property
    def may_arrive(self) -> bool:
        """Whether the server may still execute it."""
        wire = self.wire
        return self.answer is None and (wire.transport is not None or not wire.over)


@dataclass(eq=False)
class Load:
    """A bulk load: its jobs, and the requests of its client."""

    name: str
    jobs: list["TrackedJob"]
    requests: list[Request] = field(default_factory=list)
    released: bool = False
    over: bool = False


@dataclass(eq=False)
class Recurring:
    """A recurring job that a client has created or tried to create."""

    number: int
    id: str
    queue: str
    interval: float
    limits: tuple[str, ...]
    begun_at: float

    @property
    def payload(self) -> bytes:
        return b'["recurring-%d-"]' % self.number


@dataclass(eq=False)
class TrackedJob:
    """A job that a client has pushed or tried to push."""

    number: int
    protocol: str
    work: Work
    #: Its id in the protocol of its producer.
    shown: str = ""
    sent: int = 0
    #: The stamps of the first send and the first accepted reply of its push.
    sent_first: int = 0
    accepted: int = 0
    #: Pushes that were neither refused nor accepted.
    unsure: int = 0
    #: Pending requests that would end it.
    ending: set[Request] = field(default_factory=set)
    #: A client has sent a request to remove it, which also removes the result of a completed job.
    removal_sent: bool = False
    #: The stamp and time of its end, and the command that ended it.
    ended: int = 0
    ended_by: str = ""
    ended_at: float = 0.0
    #: Whether it may be leased again after its end: its push was sent twice.
    again: bool = False
    #: It ends with the connection of its producer.
    fleeting: bool = False
    tracked_at: float = 0.0
    fails: int = 0
    #: Unanswered failure reports, and the time of the last one.
    fails_open: int = 0
    failed: int = 0
    leases: list[Lease] = field(default_factory=list)
    granted_leases: int = 0
    #: Number of leases, including unacknowledged ones.
    times_leased: int = 0
    results: set[bytes] = field(default_factory=set)
    #: Its expiry, by the server's clock.
    expires: float = float("inf")
    after: list["TrackedJob"] = field(default_factory=list)
    load: Load | None = None
    #: The clock was far enough ahead to remove an ended or failed job.
    purged: bool = False

    @property
    def limit_keys(self) -> set[str]:
        return {*self.work.limits, f"ql:q:{self.work.queue}"}

    @property
    def may_be_gone(self) -> bool:
        discarded = self.protocol == "faktory" and self.work.retries == 0 and self.times_leased
        purged = self.purged and (self.times_leased or self.after)
        return bool(self.ending or self.ended or self.fleeting or discarded or purged)


class Promises:
    def __init__(self, now: Callable[[], float], wall: Callable[[], float]) -> None:
        self._now = now
        self._wall = wall
        self.stamp = 0
        #: Number of server starts.
        self.life = 0
        self.jobs: list[TrackedJob] = []
        self.counts: Counter[str] = Counter()
        #: Minimum lease duration of a Qless worker, by its own clock.
        self.heartbeat = 60.0
        #: Maximum of the server's clock so far.
        self.latest_wall = 0.0
        #: Jobs that were pushed as one transaction.
        self.groups: list[list[TrackedJob]] = []
        self.settings = CertainSettings()
        self.recurring: list[Recurring] = []
        self.loads: list[Load] = []
        #: The time since which new jobs are refused because of the memory limit, if they are.
        self.refusing_since: float | None = None
        #: The sum of all changes of the server's clock.
        self.jumped_by = 0.0
        self._flushes: list[Request] = []
        self._flushed_at = 0
        self._spawned: dict[str, TrackedJob] = {}
        self.jumped_at = self.undone_at = 0
        #: When the server's clock was set, and its value before.
        self.jumps: list[float] = []
        self._walls_before_jumps: list[float] = []
        self._ids: dict[tuple[str, str], TrackedJob] = {}
        self._open: dict[Lease, None] = {}

    # Recorded by clients

    def track(
        self, protocol: str, work: Callable[[int], Work], *, fleeting: bool = False
    ) -> TrackedJob:
        number = len(self.jobs)
        job = TrackedJob(number, protocol, work(number), fleeting=fleeting, tracked_at=self._now())
        if protocol in {"workq", "faktory", "qless"}:
            job.shown = job.work.id
        job.after = [self._ids[protocol, shown] for shown in job.work.after]
        self.jobs.append(job)
        return job

    def track_recurring(self, queue: str, interval: float, limits: tuple[str, ...]) -> Recurring:
        number = len(self.recurring)
        made = Recurring(number, f"again-{number}", queue, interval, limits, self._now())
        self.recurring.append(made)
        return made

    def track_load(self, works: list[Callable[[int], Work]]) -> Load:
        load = Load(f"load-{len(self.loads)}", [self.track("faktory", work) for work in works])
        for job in load.jobs:
            job.load = load
        self.loads.append(load)
        return load

    def sending(self, command: str, wire: Wire, **more: Any) -> Request:
        self.stamp += 1
        self.counts["commands"] += 1
        request = Request(command, wire, self.stamp, self._now(), self._wall(), self.life, **more)
        job = request.job
        if command in SETTINGS:
            self.settings.sending((SETTINGS[command], request.subject), request)
        elif command == "flush":
            self._flushing(request)
        elif request.load is not None:
            self._sending_load(request, request.load)
        if command in {"atomic", "push many", "complete"}:
            for each in request.jobs:
                self._sends(each, request)
        if request.jobs and command in {"atomic", "complete"}:
            self.groups.append(request.jobs)
        if job is None:
            return request
        if command in {"push", "run"}:
            self._sends(job, request)
        elif command in {"complete", "cancel", "millrace cancel"}:
            job.ending.add(request)
            job.results.add(request.text)
        elif command in {"fail", "bury", "release"}:
            job.fails += 1
            job.fails_open += 1
            # Also the job of another client; a Qless timeout names no worker.
            if wire.protocol in FAILS_BY_ID or command == "release":
                self._loosen(job)
        if request.lease is not None and command != "renew":
            request.ends = request.lease in self._open
            self._open.pop(request.lease, None)
        if command in {"cancel", "millrace cancel"}:
            job.removal_sent = True
            self._loosen(job)
        return request

    def _sends(self, job: TrackedJob, request: Request) -> None:
        self._flushes = [each for each in self._flushes if each.may_arrive]
        job.ending.update(self._flushes)
        for tag in job.work.tags:
            self.settings.sending(("tag", (job.number, tag)), request)
        job.again = job.again or job.sent > 0
        job.sent += 1
        job.unsure += 1
        job.sent_first = job.sent_first or self.stamp
        self._lives_from(job, self._wall())

    def _lives_from(self, job: TrackedJob, moment: float) -> None:
        """It was pushed at that time or later; its TTL starts when it is due."""
        begun = min(moment, job.work.due / 1_000_000) if job.work.due else moment
        job.expires = min(job.expires, begun + job.work.ttl - 1)

    def _flushing(self, request: Request) -> None:
        """From now on all jobs and settings may have been removed."""
        self._flushes.append(request)
        self.settings.clear()
        for job in self.jobs:
            job.ending.add(request)
            self._loosen(job)

    def _sending_load(self, request: Request, load: Load) -> None:
        load.requests.append(request)
        load.released = load.released or request.command == "millrace release"
        for job in load.jobs:
            if request.command == "millrace discard":
                job.ending.add(request)
            elif request.command == "millrace stage" and not job.sent:
                self._sends(job, request)

    # Replies of the server

    def server_sent(self, request: Request, answer: Answer) -> None:
        self.stamp += 1
        self.latest_wall = max(self.latest_wall, self._wall())
        request.answer = answer
        self.counts[type(answer).__name__.lower()] += 1
        command, job = request.command, request.job
        if isinstance(answer, Refused) and NO_MEMORY in answer.text and command not in PUSHING:
            raise BrokenPromise(f"a {command} is refused for want of memory: {answer.text}")
        if job is not None and command in {"fail", "bury", "release"}:
            job.fails_open -= 1
            job.failed = self.stamp
        if isinstance(answer, Leased):
            self._leased(request, answer)
        elif command == "atomic":
            for each in request.jobs:
                self._pushed(request, each, answer)
        elif command == "push many":
            self._pushed_many(request, answer)
        elif command in SETTINGS:
            self._set(request, answer)
        elif command == "flush":
            self._flushed(request, answer)
        elif request.load is not None:
            self._load_changed(request, request.load, answer)
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
        elif command == "millrace result" and isinstance(answer, Reported):
            self._reported(job, msgspec.json.decode(answer.content))
        elif command == "millrace cancel":
            self._cancelled(request, job, answer)

    def _set(self, request: Request, answer: Answer) -> None:
        self._flushes = [each for each in self._flushes if each.may_arrive]
        unsure = self._flushes or request.sent < self._flushed_at
        # A queue that a flush has removed is not paused.
        unsure = unsure or (request.command == "pause" and self._flushed_at)
        if isinstance(answer, Accepted) and not unsure:
            key = SETTINGS[request.command], request.subject
            self.settings.accepted(key, request, request.value, self.stamp)

    def _flushed(self, request: Request, answer: Answer) -> None:
        self.settings.clear()
        self._flushed_at = self.stamp
        for job in self.jobs:
            if isinstance(answer, Refused):
                job.ending.discard(request)
            elif 0 < job.accepted < request.sent and not (job.unsure or job.again or job.fleeting):
                job.ended, job.ended_at, job.ended_by = self.stamp, self._now(), "flush"

    def _load_changed(self, request: Request, load: Load, answer: Answer) -> None:
        if not isinstance(answer, Reported):
            return
        reply = msgspec.json.decode(answer.content)
        if request.command == "millrace stage":
            if reply["invalid"] or reply["new"] + reply["known"] != len(request.jobs):
                raise BrokenPromise(f"jobs of {load.name} were not staged: {reply}")
            for job in request.jobs:
                job.unsure, job.accepted = 0, job.accepted or self.stamp
        elif reply.get("left") == 0:
            load.over = True
            if request.command == "millrace discard" and not any(
                each.may_arrive for each in load.requests
            ):
                for job in load.jobs:
                    job.ended, job.ended_at, job.ended_by = self.stamp, self._now(), "cancel"

    def _pushed_many(self, request: Request, answer: Answer) -> None:
        if isinstance(answer, Refused) and PARTLY_DONE in answer.text:
            return  # the executed part is unknown
        if isinstance(answer, Reported) and answer.content != b"{}":
            raise BrokenPromise(f"jobs of a PUSHB were refused: {answer.content!r}")
        for job in request.jobs:
            self._pushed(request, job, answer)

    def _cancelled(self, request: Request, job: TrackedJob, answer: Answer) -> None:
        """The reply lists the cancelled jobs."""
        reply = msgspec.json.decode(answer.content) if isinstance(answer, Reported) else {}
        if job.shown in reply.get("cancelled", ()):
            self._ended(request, job, answer)
        else:
            job.ending.discard(request)

    def _reported(self, job: TrackedJob, reply: dict[str, Any]) -> None:
        state, result = reply["state"], reply.get("result")
        if result is not None and result.encode() not in job.results:
            raise BrokenPromise(f"{name(job)} has a result that no worker sent: {reply}")
        unsure = job.again or job.removal_sent or not job.work.keep_result
        unsure = unsure or job.ended_by != "complete"
        if state != "done" and not (unsure or self.jumps):
            raise BrokenPromise(f"{name(job)} was completed, but its result is missing: {reply}")

    def _pushed(self, request: Request, job: TrackedJob, answer: Answer) -> None:
        if isinstance(answer, Refused) and "Duplicate" not in answer.text:
            job.unsure -= 1
            if not any(text in answer.text for text in REFUSALS):
                raise BrokenPromise(f"the push of {name(job)} was refused: {answer.text}")
            return
        refusing = self.refusing_since
        if request.command == "push" and refusing is not None and request.sent_at > refusing + 1:
            raise BrokenPromise(f"{name(job)} was accepted although new jobs are refused")
        job.unsure -= 1
        job.accepted = job.accepted or self.stamp
        for tag in job.work.tags:
            if not self._flushes and request.sent > self._flushed_at:
                self.settings.accepted(("tag", (job.number, tag)), request, True, self.stamp)
        # The clock may have been set back before the server read it.
        self._lives_from(job, self._wall() - (self._now() - request.sent_at))
        if isinstance(answer, Accepted) and answer.id and request.command == "push":
            job.shown = answer.id
            known = self._ids.setdefault((job.protocol, answer.id), job)
            if known is not job:
                raise BrokenPromise(f"{name(job)} and {name(known)} have the same id {answer.id}")

    def _leased(self, request: Request, answer: Leased) -> None:
        held = answer.held
        job = self.find(held.payload, held.id)
        if job is None:
            raise BrokenPromise(f"a leased job was never pushed: {held}")
        if held.payload != job.work.payload or held.encoding:
            raise BrokenPromise(f"{name(job)} was leased with another payload: {held}")
        if held.queue not in {job.work.queue, job.work.dead_queue}:
            raise BrokenPromise(f"{name(job)} was leased from another queue: {held}")
        if job.protocol == RECURRING:
            job.accepted = job.accepted or self.stamp  # a lease implies that the push was accepted
        if job.load is not None and not job.load.released:
            raise BrokenPromise(f"{name(job)} was handed out before its load was released")
        if self.settings.value(("paused", held.queue), request.sent):
            raise BrokenPromise(f"{name(job)} was handed out although its queue is paused")
        if not (job.accepted or job.unsure):
            raise BrokenPromise(f"{name(job)} was handed out although its push was refused")
        # Qless jobs are due by the clocks of its clients; Workq's `run` takes no due time.
        due = 0 if job.protocol == "qless" or job.fleeting else job.work.due / 1_000_000
        if due > self._farthest_since(job.tracked_at):
            raise BrokenPromise(f"{name(job)} was handed out before it was due")
        for other in job.after:
            if not (other.may_be_gone or _may_have_failed(other)):
                raise BrokenPromise(f"{name(job)} was handed out before {name(other)} had ended")
        sound = request.wire.healthy and not request.wire.was_impaired
        late = self._now() - job.ended_at > SLACK and sound
        # While the store fails, the job of a run remains although the run has ended.
        stays = job.ended_by == "run" and self.undone_at > job.sent_first
        if job.ended and not (job.again or stays) and (request.sent > job.ended or late):
            raise BrokenPromise(f"{name(job)} was handed out again after its end was acknowledged")
        wire = request.wire
        holder = wire.client.name if wire.protocol == "qless" else wire
        until = self._until(request, job)
        lease = Lease(job, wire.protocol, wire, self.stamp, self.life, holder, until)
        # A reply that waits for a slow commit can arrive after the end of its lease, and after the
        # reply to the next worker.
        is_late = wire.was_impaired or self.expired(lease)
        if not is_late:
            self._check_exclusive(job, request)
        # The start of the lease, its acknowledgement, or the job itself is uncertain.
        jumped = self.jumped_at > request.sent
        # A report on an earlier lease can be in flight, or this reply was delayed.
        late = bool(job.fails_open or job.ending)
        lease.loose = jumped or not wire.healthy or is_late or job.again or late
        job.leases.append(lease)
        job.granted_leases += 1
        if job.granted_leases > job.times_leased:
            raise BrokenPromise(f"one lease of {name(job)} was given to two")
        self._open[lease] = None
        request.lease = lease
        request.job = job
        self._within_limits(lease, request)

    def _within_limits(self, lease: Lease, request: Request) -> None:
        """A limit never has more leases than it permits."""
        if lease.protocol == "qless" and lease.job.times_leased > 1:
            return  # another worker may just have lost it, and then it already used the limit
        for key in sorted(lease.job.limit_keys):
            maximum = self.settings.value(("limit", key), request.sent)
            if not maximum or lease.loose:
                continue
            having = [
                each
                for each in self._open
                if key in each.job.limit_keys
                and each.life == self.life
                and not (each.loose or self.expired(each) or each.job.may_be_gone)
                and self.latest_wall < each.job.expires
                and not each.job.again  # a Qless put takes the job from its worker
            ]
            if len(having) > maximum:
                raise BrokenPromise(
                    f"{len(having)} jobs of {key} are leased, {name(lease.job)} is the last; "
                    f"the limit is {maximum}"
                )

    def _until(self, request: Request, job: TrackedJob) -> float:
        if request.wire.protocol == "qless":
            return request.sent_at + self.heartbeat
        if request.wire.protocol == "masenko":
            return float("inf")
        begun = min(request.sent_wall, self._wall())
        fixed = job.protocol in {"masenko", "qless", RECURRING}
        return begun + (1800 if fixed else job.work.ttr)

    def _check_exclusive(self, job: TrackedJob, request: Request) -> None:
        """No other worker has the job."""
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

    def _ended(self, request: Request, job: TrackedJob, answer: Answer) -> None:
        for each in request.jobs:  # of the same transaction
            if isinstance(answer, Refused):
                each.unsure -= 1
            else:
                self._pushed(request, each, answer)
        if isinstance(answer, Refused):
            job.ending.discard(request)
            return
        lease = request.lease
        if (
            request.wire.protocol == "faktory"
            and request.command == "complete"
            and (
                lease is None
                or not request.ends
                or job.fails_open
                or job.failed > lease.granted
                or lease.loose
                or lease.life != self.life
                or self.jumped_at > request.sent
                or self.expired(lease)
            )
        ):
            return  # the reply is OK, but the worker may have lost the job before
        if request.command == "complete" and request.wire.protocol in {"qless", "masenko"}:
            self._check_holder(request, job)
        command = request.command.removeprefix("millrace ")
        job.ended, job.ended_at, job.ended_by = self.stamp, self._now(), command
        if request.wire.protocol == "goqueue":
            job.ended_by = "complete"  # DELETE has this effect on a leased job
        self._loosen(job)

    def _check_holder(self, request: Request, job: TrackedJob) -> None:
        """In protocols with a holder, only the holder can end its job."""
        lease, last = request.lease, job.leases[-1]
        if lease is None or job.again or last.granted > request.sent or last.loose:
            return
        if last.holder != lease.holder and last.life == self.life and last in self._open:
            raise BrokenPromise(f"{name(job)} was ended by {request.wire}, {last.wire} has it")

    def _ran(self, request: Request, job: TrackedJob, answer: Answer) -> None:
        job.unsure -= 1
        if isinstance(answer, Refused):
            return
        job.accepted = job.accepted or self.stamp
        job.ended, job.ended_at, job.ended_by = self.stamp, self._now(), "run"
        if isinstance(answer, Result):
            self._resulted(job, answer)

    def _resulted(self, job: TrackedJob, answer: Result) -> None:
        if answer.succeeded and answer.content not in job.results:
            raise BrokenPromise(f"{name(job)} has a result that no worker sent: {answer}")

    def _loosen(self, job: TrackedJob) -> None:
        for lease in job.leases:
            lease.loose = True

    # Events of the server

    def committed(self, begun: int) -> None:
        """All replies before this stamp are on the disk, even if they did not have to be."""
        for lease in self._open:
            lease.durable = lease.durable or (lease.life == self.life and lease.granted < begun)

    def undone(self) -> None:
        """Changes that were not on the disk are undone."""
        self.undone_at = self.stamp
        for lease in self._open:
            lease.loose = lease.loose or not lease.durable

    def clock_jumped(self, wall_before: float) -> None:
        self.stamp += 1  # a request that was sent just before is older than the jump
        self.jumped_at = self.stamp
        self.latest_wall = max(self.latest_wall, wall_before)
        self.jumped_by += abs(self._wall() - wall_before)
        if self._wall() - wall_before > KEPT:
            for job in self.jobs:
                job.purged = True
        self.jumps.append(self._now())
        self._walls_before_jumps.append(wall_before)
        for lease in self._open:
            lease.loose = lease.loose or lease.protocol not in {"qless", "masenko"}

    # Conclusions

    def _farthest_since(self, at: float) -> float:
        """The maximum of the server's clock since that time."""
        jumps = zip(self.jumps, self._walls_before_jumps, strict=True)
        return max([self._wall(), *(wall for jump, wall in jumps if jump >= at)])

    def find(self, payload: bytes, jid: str) -> TrackedJob | None:
        """The job with this payload. The jobs of a recurring job differ in their ids."""
        repeated = RECURRING_NUMBER.search(payload)
        if repeated is not None and int(repeated[1]) < len(self.recurring):
            return self._spawned.get(jid) or self._spawn(self.recurring[int(repeated[1])], jid)
        found = NUMBER.search(payload)
        number = int(found[1]) if found else len(self.jobs)
        return self.jobs[number] if number < len(self.jobs) else None

    def _spawn(self, recurring: Recurring, jid: str) -> TrackedJob | None:
        """A job of a recurring job that is seen for the first time."""
        begin, _, count = jid.rpartition("-")
        if begin != recurring.id:
            return None
        passed = self._now() - recurring.begun_at + self.jumped_by
        if int(count) > passed / recurring.interval + 2:
            raise BrokenPromise(f"{jid} was created after {passed} s, every {recurring.interval} s")
        work = Work(
            id=jid, queue=recurring.queue, payload=recurring.payload, limits=recurring.limits
        )
        job = TrackedJob(
            len(self.jobs), RECURRING, work, jid, tracked_at=self._now(), sent=1, unsure=1
        )
        job.ending.update(self._flushes)
        self.jobs.append(job)
        self._spawned[jid] = job
        return job

    def must_be_there(self) -> Iterator[TrackedJob]:
        """All jobs that must exist unless the server lost one."""
        latest = self.latest_wall = max(self.latest_wall, self._wall())
        for job in self.jobs:
            if job.accepted and not job.may_be_gone and latest < job.expires:
                yield job

    def must_be_leased(self) -> Iterator[Lease]:
        """Leases that must have survived a crash, because no client can have ended them."""
        for lease in self._open:
            job = lease.job
            unsure = lease.loose or not lease.durable or job.may_be_gone or job.again
            bound = lease.protocol == "masenko" or self.latest_wall >= job.expires
            if not (unsure or bound or self.expired(lease)) and lease is job.leases[-1]:
                yield lease


def name(job: TrackedJob) -> str:
    return f"job {job.number} of {job.protocol} in {job.work.queue} ({job.shown or 'no id'})"


def _may_have_failed(job: TrackedJob) -> bool:
    """It or one of its dependencies may have failed; then later dependents need not wait."""
    if job.fails or job.times_leased > 1 or job.work.retries == 0:
        return True
    return any(_may_have_failed(other) for other in job.after)

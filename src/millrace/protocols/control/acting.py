"""`act`: what people do to jobs, to some or to all that a query means.

Which jobs are meant is settled before the first is touched, and each is done at most once, however
it moves: what a retry makes ready is not found again. If it takes long, others have their turns in
between; whoever asked and goes away stops it where it is.
"""

import math
from collections.abc import Iterable, Iterator
from typing import Final

from millrace.engine.engine import Engine
from millrace.engine.errors import EngineError
from millrace.engine.job import Job
from millrace.engine.states import BLOCKED

from .answering import Answering, Telling
from .doing import ACTIONS, IS, is_tracked, need_qless, untrack_this
from .errors import NotFound, Refused, Unfit, need_durable
from .hub import LONGEST_NAME, ControlHub, meant
from .matching import Meaning
from .messages import Act, Acted, Query, Refusal
from .searching import candidates

#: So many jobs may be named in one request.
MOST_JOBS: Final = 1000
#: So many are changed before others have their turn.
AT_ONCE: Final = 50
#: If more than so many wait for a job, they are let go before it is deleted.
MANY: Final = 500
#: So many of those who wait for jobs are passed before others have their turn.
PASSED: Final = 500
#: While jobs are looked for, that is told after so many.
TELL_LOOKED: Final = 10_000
#: After so many it is told how far it is.
TOLD_EVERY: Final = 500
#: So many refusals are told one by one.
MOST_REFUSED: Final = 100
MOST_TAGS: Final = 100
LONGEST_TAG: Final = 255
#: The longest name that a queue can be given here; Go Job Queue knows none that is longer.
LONGEST_QUEUE: Final = 255


def act(hub: ControlHub, asked: Act, now: int) -> Iterator[Acted | None]:
    need_durable(hub.engine)
    _check(hub, asked)
    if asked.query is None:
        return _act_on_some(hub, asked)
    return _act_on_all(hub, asked, asked.query)


def _act_on_some(hub: ControlHub, asked: Act) -> Iterator[Acted | None]:
    engine, acted = hub.engine, Acted(0, [], over=False)
    only = None if asked.only is None else Meaning(hub, asked.only)
    jobs: dict[int, Job] = {}
    for name in asked.jobs:
        found = meant(engine, name)
        if found:
            job = next((each for each in found if only is None or only.admits(each)), found[0])
            jobs[job.seq] = job
        elif asked.action == "untrack" and is_tracked(hub, name):
            untrack_this(hub, name)  # somebody waits to hear of it, but it is gone
            acted.done += 1
        else:
            _refuse(acted, name, "there is no such job")
    for seq in asked.seqs:
        if seq in engine.jobs:
            jobs[seq] = engine.jobs[seq]
        else:
            _refuse(acted, str(seq), "there is no such job")
    names = list(dict.fromkeys([*asked.jobs, *map(str, asked.seqs)]))
    acted.of = acted.done + len(jobs)
    ordered = _in_order(engine, asked, jobs.values(), set(jobs))
    for _ in _do_all(hub, asked, ordered, acted, ", ".join(names[:MOST_REFUSED]), only):
        yield None
    yield acted


def _act_on_all(hub: ControlHub, asked: Act, query: Query) -> Iterator[Acted | None]:
    engine, meaning, acted = hub.engine, Meaning(hub, query), Acted(0, [], over=False)
    undone, jobs, seqs = engine.reverts, list[Job](), set[int]()
    found = candidates(hub, query)
    for job in found:
        if job is not None:
            jobs.append(job)
            if asked.action == "cancel":
                seqs.add(job.seq)
        elif found.looked - acted.looked >= TELL_LOOKED:
            acted.looked, acted.of = found.looked, found.of
            yield acted
        else:
            yield None
    go_on(engine, undone, acted)
    acted.looked, acted.of = 0, len(jobs)
    ordered = _in_order(engine, asked, jobs, seqs)
    told = 0
    for _ in _do_all(hub, asked, ordered, acted, in_words(query), meaning):
        tell = acted.looked - told >= TOLD_EVERY
        told = acted.looked if tell else told
        yield acted if tell else None
    yield acted


def _do_all(
    hub: ControlHub,
    asked: Act,
    jobs: Iterable[Job | None],
    acted: Acted,
    target: str,
    meaning: Meaning | None = None,
) -> Iterator[None]:
    """Do it to all of these, pausing now and then, and note it. Meanwhile others may do something
    to them: then it may be gone, or meant no longer.
    """
    engine = hub.engine
    undone = engine.reverts
    number = hub.audit.add(hub.now, asked.by, asked.action, target + _how(asked))
    try:
        for job in jobs:
            if job is None:
                yield
                go_on(engine, undone, acted)
                continue
            if asked.action == "delete":
                for _ in _let_go(hub, job, meaning):
                    yield
                    go_on(engine, undone, acted)
            acted.looked += 1
            if engine.jobs.get(job.seq) is not job:
                if asked.query is None:
                    _refuse(acted, job.jid, "it is gone")
            elif meaning is None or meaning.admits(job):
                _do(hub, job, asked, acted)
            elif asked.only is not None:
                _refuse(acted, job.jid, f"it is not where it was seen: {IS[job.state]}")
            if acted.looked % AT_ONCE == 0:
                yield
                go_on(engine, undone, acted)
    finally:
        if not engine.halted and engine.reverts == undone:
            hub.audit.count(number, acted.done)
    acted.looked, acted.over = acted.of, True


def go_on(engine: Engine, undone: int, acted: Acted) -> None:
    """What was done may have been undone meanwhile: then nobody knows what more to do."""
    if engine.reverts != undone or engine.halted:
        reason = engine.halted or "the store failed"
        some = f"only some of {acted.done} were changed" if acted.done else "nothing was changed"
        raise Refused(f"{reason}: {some}, try again later", "unavailable")


def _do(hub: ControlHub, job: Job, asked: Act, acted: Acted) -> None:
    try:
        ACTIONS[asked.action](hub, job, asked, hub.now)
    except (Unfit, EngineError) as reason:
        _refuse(acted, job.jid, str(reason) or str(type(reason).__doc__))
    else:
        acted.done += 1


def _refuse(acted: Acted, name: str, reason: str) -> None:
    acted.refused_count += 1
    if len(acted.refused) < MOST_REFUSED:
        acted.refused.append(Refusal(name, reason))


def _let_go(hub: ControlHub, job: Job, meaning: Meaning | None) -> Iterator[None]:
    """If very many wait for a job that is about to be deleted, they are let go some at a time."""
    engine, last, passed = hub.engine, 0, 0
    if engine.some_dependents(job, 0)[1] <= MANY or (meaning and not meaning.admits(job)):
        return
    while last := engine.next_dependent(job, last):
        waiting = engine.jobs.get(last)
        if waiting is not None and waiting.state == BLOCKED:
            engine.unblock(waiting, [job.seq], hub.now)
        passed += 1
        if passed % AT_ONCE == 0:
            yield
            if meaning and not meaning.admits(job):
                return  # it will not be deleted: the others wait on


def _in_order(
    engine: Engine, asked: Act, jobs: Iterable[Job], seqs: set[int]
) -> Iterable[Job | None]:
    """Jobs that are cancelled go before those that they wait for: so nobody is let go for a moment,
    and nothing is refused for the sake of one that goes as well.
    """
    if asked.action != "cancel" or not engine.blocked:
        return jobs
    return _dependents_first(engine, jobs, seqs)


def _dependents_first(engine: Engine, jobs: Iterable[Job], seqs: set[int]) -> Iterator[Job | None]:
    """None lets others have their turn: very many may wait for one job."""
    seen: set[int] = set()
    passed = 0
    for first in jobs:
        # Each with the last of those who wait for it that was looked at.
        path = [(first, 0)] if first.seq not in seen else []
        seen.add(first.seq)
        while path:
            job, last = path.pop()
            last = engine.next_dependent(job, last)
            if not last:
                yield job
                continue
            path.append((job, last))
            if last in seqs and last not in seen and last in engine.jobs:
                seen.add(last)
                path.append((engine.jobs[last], 0))
            passed += 1
            if passed % PASSED == 0:
                yield None


# What was asked


def _check(hub: ControlHub, asked: Act) -> None:
    some = asked.jobs or asked.seqs
    if bool(some) == (asked.query is not None):
        raise Refused("say which jobs are meant: some, or a query")
    if len(asked.jobs) + len(asked.seqs) > MOST_JOBS:
        raise Refused(f"more than {MOST_JOBS} jobs are named: use a query", "too large")
    if any(len(name) > LONGEST_NAME for name in (*asked.jobs, *asked.blockers)):
        raise Refused(f"a name is longer than {LONGEST_NAME} characters", "too large")
    if asked.only is not None and (asked.query is not None or asked.only.words):
        raise Refused("`only` is for jobs that are named, and knows no words")
    if asked.action == "move":
        check_queue(asked.queue)
    elif asked.action == "priority":
        check_priority(asked.priority)
    elif asked.action in {"tag", "untag"}:
        check_tags(asked.tags)
        if not asked.tags:
            raise Refused("say which tags")
    elif asked.action in {"track", "untrack"}:
        try:
            need_qless(hub)
        except Unfit as reason:
            raise NotFound(str(reason)) from None


def check_queue(name: str) -> None:
    if not name or len(name.encode()) > LONGEST_QUEUE:
        raise Refused(f"a queue's name has 1 to {LONGEST_QUEUE} bytes")


def check_priority(number: float) -> None:
    if not math.isfinite(number) or abs(number) > 1 << 53:
        raise Refused("a priority is a number between -(2^53) and 2^53")


def check_tags(tags: list[str]) -> None:
    if len(tags) > MOST_TAGS or any(not 0 < len(tag) <= LONGEST_TAG for tag in tags):
        raise Refused(f"at most {MOST_TAGS} tags, each of 1 to {LONGEST_TAG} characters")


def in_words(query: Query) -> str:
    """A query for the audit log, as one would type it."""
    said = [
        f"{name}:{quoted(value)}"
        for name in Query.__struct_fields__
        if name != "words" and (value := getattr(query, name)) is not None
    ]
    return " ".join([*said, *map(quoted, query.words)]) or "all jobs"


def quoted(value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    plain = text and not any(char.isspace() or char in '":' for char in text)
    return text if plain else '"' + text.replace('"', '\\"') + '"'


def _how(asked: Act) -> str:
    match asked.action:
        case "move":
            return f" to the queue {quoted(asked.queue)}"
        case "priority":
            return f" to {asked.priority:g}"
        case "tag" | "untag":
            return " with " + ", ".join(map(quoted, asked.tags))
        case "undepend" if asked.blockers:
            return " of " + ", ".join(asked.blockers)
    return ""


ANSWERS: Final[dict[str, Answering]] = {}
LONG: Final[dict[str, Telling]] = {"act": act}

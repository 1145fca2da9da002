"""`failures`: jobs that are dead or wait for another try, by what they failed of."""

from collections.abc import Iterator
from heapq import nlargest
from itertools import islice
from typing import Final

from millrace.engine.failing import FailingGroup

from .answering import Answering, Telling
from .hub import ControlHub
from .messages import Asked, FailureGroup, Failures
from .rows import MOST_MESSAGE, text

#: So many groups are told of, the largest.
MOST_GROUPS: Final = 500
#: So many are looked at before others have their turn.
AT_ONCE: Final = 1000
#: So many of the queues of a group's jobs are named, of so many jobs.
MOST_QUEUES: Final = 5
LOOKED_AT: Final = 50


def failures(hub: ControlHub, asked: Asked, _: int) -> Iterator[Failures | None]:
    failing = hub.engine.failing
    yield from failing.complete()
    most = max(1, min(asked.most, MOST_GROUPS))
    keys, found = list(failing), list[FailingGroup]()
    for first in range(0, len(keys), AT_ONCE):
        some = [failing.get(key) for key in keys[first : first + AT_ONCE]]
        found += [group for group in some if group is not None]
        found = nlargest(most, found, key=lambda group: len(group.jobs))
        yield None
    groups: list[FailureGroup] = []
    for group in found:
        if group.jobs:  # or all of it went meanwhile
            groups.append(_told(group))
        if len(groups) % 20 == 0:
            yield None
    yield Failures(groups, len(failing), failing.count)


def _told(group: FailingGroup) -> FailureGroup:
    newest = group.newest
    failure = newest.failure
    some = islice(group.jobs.values(), LOOKED_AT)
    names = dict.fromkeys([newest.queue, *(job.queue for job in some)])
    return FailureGroup(
        fingerprint=group.fingerprint,
        group=text(group.group),
        message="" if failure is None else failure.message[:MOST_MESSAGE],
        dead=group.dead,
        retrying=group.retrying,
        newest_at=0 if failure is None else failure.last_at,
        newest_jid=text(newest.jid),
        newest_seq=newest.seq,
        queues=[text(name) for name in names][:MOST_QUEUES],
    )


ANSWERS: Final[dict[str, Answering]] = {}
LONG: Final[dict[str, Telling]] = {"failures": failures}

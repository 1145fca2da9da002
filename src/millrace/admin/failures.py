"""`failures`: jobs that are dead or wait for another try, by what they failed of."""

from collections.abc import Iterator
from heapq import nlargest
from itertools import islice
from typing import Final

from millrace.engine.failure_groups import ErrorGroup
from millrace.records import FailureGroup, FailurePage, PageRequest

from .answering import Answering, Telling
from .jobs import MESSAGE_EXCERPT_SIZE, text
from .service import AdminService

#: So many groups are told of, the largest.
MAX_FAILURE_GROUPS: Final = 500
#: So many are looked at before others have their turn.
GROUP_SLICE_SIZE: Final = 1000
#: So many of the queues of a group's jobs are named, of so many jobs.
MAX_GROUP_QUEUES: Final = 5
GROUP_SAMPLE_SIZE: Final = 50


def failures(hub: AdminService, asked: PageRequest, _: int) -> Iterator[FailurePage | None]:
    failing = hub.engine.failing
    yield from failing.complete()
    most = max(1, min(asked.most, MAX_FAILURE_GROUPS))
    keys, found = list(failing), list[ErrorGroup]()
    for first in range(0, len(keys), GROUP_SLICE_SIZE):
        some = [failing.get(key) for key in keys[first : first + GROUP_SLICE_SIZE]]
        found += [group for group in some if group is not None]
        found = nlargest(most, found, key=lambda group: len(group.jobs))
        yield None
    groups: list[FailureGroup] = []
    for group in found:
        if group.jobs:  # or all of it went meanwhile
            groups.append(_told(group))
        if len(groups) % 20 == 0:
            yield None
    yield FailurePage(groups, len(failing), failing.count)


def _told(group: ErrorGroup) -> FailureGroup:
    newest = group.newest
    failure = newest.failure
    some = islice(group.jobs.values(), GROUP_SAMPLE_SIZE)
    names = dict.fromkeys([newest.queue, *(job.queue for job in some)])
    return FailureGroup(
        fingerprint=group.fingerprint,
        group=text(group.group),
        message="" if failure is None else failure.message[:MESSAGE_EXCERPT_SIZE],
        dead=group.dead,
        retrying=group.retrying,
        newest_at=0 if failure is None else failure.last_at,
        newest_jid=text(newest.jid),
        newest_seq=newest.seq,
        queues=[text(name) for name in names][:MAX_GROUP_QUEUES],
    )


ANSWERS: Final[dict[str, Answering]] = {}
LONG: Final[dict[str, Telling]] = {"failures": failures}

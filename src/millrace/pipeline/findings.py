"""What an audit is given, and what it finds; ops/audit.json has what the last one found."""

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

if TYPE_CHECKING:
    import pyarrow as pa

#: So many rows of a kind are told; the tables have them all.
MOST_TOLD: Final = 100


class Live(NamedTuple):
    """What a server knows; see journal.snapshot."""

    server: str
    #: The last event that its `jobs` know of.
    event: int
    jobs: "pa.Table"
    #: Its statistics, and the jobs in its queues if it was asked; each row is of an event.
    days: "pa.Table"
    queues: "pa.Table | None"
    #: What it did not name is as of this event.
    asked: int
    #: The first day of which it has all statistics, in days since 1970.
    since: int


class Gap(msgspec.Struct, array_like=True):
    first: int
    last: int


class Numbers(msgspec.Struct):
    """Are all events of a server there? A row of audit_seq."""

    server: str
    first_event: int
    last_event: int
    events: int
    missing: int
    duplicates: int
    gaps: list[Gap]


class Problem(msgspec.Struct):
    """A row of audit_jobs."""

    server: str
    seq: int
    jid: str
    problem: str
    event_id: int
    detail: str


class Difference(msgspec.Struct):
    """Something that the server counted, and the lake counts otherwise."""

    #: A column of queue_day, or a state.
    what: str
    queue: str
    #: Null for the number of jobs in a state.
    day: str | None
    live: str
    lake: str


class Compared(msgspec.Struct):
    """What was compared with a server, and what differs."""

    server: str
    #: Its jobs, as they were after this event.
    event: int
    jobs: int
    #: Queues whose jobs were counted, and their days of statistics.
    queues: int
    days: int
    #: With the table queue_day as it is; else with what the events say, up to the same one.
    stored: bool
    differing: int
    differences: list[Difference]
    #: What could not be compared, and why.
    left_out: list[str]


class Findings(msgspec.Struct):
    servers: list[Numbers]
    #: How often each problem was found, and the first of each.
    problems: dict[str, int]
    told: list[Problem]
    #: Jobs that were pushed before the first event that the lake has of their server.
    older: int
    #: Rows that are no events, and files of which nothing was taken.
    quarantined: int
    refused: int
    compared: Compared | None = None

    @property
    def ok(self) -> bool:
        whole = all(each.missing == each.duplicates == 0 for each in self.servers)
        same = self.compared is None or not self.compared.differing
        return whole and same and not self.problems

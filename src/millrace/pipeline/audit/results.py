"""Input and results of an audit. ops/audit.json has the results of the last audit."""

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

if TYPE_CHECKING:
    import pyarrow as pa

#: The file with the results of the last audit, in the folder ops of the lake.
RECORD: Final = "audit.json"
#: Maximum number of reported rows of each kind; the tables have all rows.
MAX_RESULTS: Final = 100


class Live(NamedTuple):
    """The state of a server; see journal.snapshot."""

    server: str
    #: The last event that `jobs` includes.
    event: int
    jobs: "pa.Table"
    #: The server's statistics, and the job counts of its queues if they were requested. Each row
    #: has the number of the event up to which it is valid.
    days: "pa.Table"
    queues: "pa.Table | None"
    #: The number of the event up to which days and queues that are not listed are valid.
    as_of: int
    #: The first day with complete statistics, in days since 1970.
    since: int


class Gap(msgspec.Struct, array_like=True):
    first: int
    last: int


class Numbers(msgspec.Struct):
    """The completeness of the events of one server."""

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
    """A value that differs between the server and the lake."""

    #: A column of queue_day, or a job state.
    what: str
    queue: str
    #: Null for the number of jobs in a state.
    day: str | None
    live: str
    lake: str


class Compared(msgspec.Struct):
    """The result of the comparison with a server."""

    server: str
    #: The jobs were compared as of this event.
    event: int
    jobs: int
    #: Number of queues with compared job counts, and number of compared days of statistics.
    queues: int
    days: int
    #: Whether the stored table queue_day was used. Otherwise the values were computed from the
    #: events up to the same event number.
    stored: bool
    differing: int
    differences: list[Difference]
    #: The items that could not be compared, with the reasons.
    left_out: list[str]


class Findings(msgspec.Struct):
    servers: list[Numbers]
    #: The number of problems of each kind, and the first problems of each kind.
    problems: dict[str, int]
    examples: list[Problem] = msgspec.field(name="told")
    #: Number of jobs that were pushed before the first event of their server in the lake.
    older: int
    compared: Compared | None = None

    @property
    def ok(self) -> bool:
        complete = all(each.missing == each.duplicates == 0 for each in self.servers)
        equal = self.compared is None or not self.compared.differing
        return complete and equal and not self.problems

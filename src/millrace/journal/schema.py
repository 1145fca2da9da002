"""What an event is in the lake: one list of fields, from which everything else is made.

The Arrow schema of the files, the Spark DDL of those who read them and the reference page all come
from FIELDS; tests/journal keeps a copy of what was shipped before, so that no change makes old
files unreadable. Changing it: add a field at the end, nullable, raise engine.events.EVENT_VERSION
if the engine has to tell more than before, and let `columns` fill the field for older versions.
"""

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from millrace.engine import events
from millrace.engine.job import PROTOCOLS
from millrace.engine.states import STATE_NAMES, TRANSITIONS

if TYPE_CHECKING:
    import pyarrow as pa

EVENT_VERSION: Final = events.EVENT_VERSION

Kind = Literal["string", "long", "int", "double", "boolean", "timestamp", "strings"]


class Field(NamedTuple):
    """A column of the journal. Whatever is not `required` is null where it means nothing."""

    name: str
    kind: Kind
    required: bool
    about: str


FIELDS: Final = (
    Field("server", "string", True, "Which server: an id that its data folder got once."),
    Field("event_id", "long", True, "The event's number: from 1, without gaps, per server."),
    Field("time", "timestamp", True, "When it happened; to Qless clients, by their own clock."),
    Field("type", "string", True, "What happened: a cause of the state machine, or `flushed`."),
    Field("seq", "long", True, "The job's number, per server; of `flushed`, the last job's."),
    Field("jid", "string", True, "The job's id."),
    Field("queue", "string", True, "The queue that the job is in, after the event."),
    Field("kind", "string", True, "What to run; empty for Go Job Queue."),
    Field("origin", "string", True, "The protocol that pushed the job."),
    Field("actor", "string", False, "The protocol of whoever acted; null: the server by itself."),
    Field("worker", "string", False, "Who has the job, or had it last."),
    Field("attempt", "long", True, "How often the job was leased."),
    Field("before", "string", False, "The state before the event; null only in version 1."),
    Field("state", "string", True, "The state after the event."),
    Field("priority", "double", True, "The rank in its queue: a higher one goes first."),
    Field("created", "timestamp", False, "When the job was pushed."),
    Field("ready_at", "timestamp", False, "When it last became ready."),
    Field("leased_at", "timestamp", False, "When it was last leased."),
    Field("wait_us", "long", False, "Of a lease and its end: its wait, in microseconds."),
    Field("run_us", "long", False, "Of the end of an attempt: how long it was leased."),
    Field("due", "timestamp", False, "When it falls due: to run, to be tried again, to be purged."),
    Field("payload_bytes", "long", True, "The size of its payload."),
    Field("error_group", "string", False, "The class of the failure; at a job's end, of the last."),
    Field("error_message", "string", False, "Its message, at most 4,096 characters."),
    Field("fingerprint", "string", False, "The same for errors that differ in numbers and names."),
    Field("source", "string", False, "Of `moved`: the queue that the job came from."),
    Field("tags", "strings", False, "The job's tags."),
    Field("version", "int", True, "The version of the event, engine.events.EVENT_VERSION."),
    Field("holder", "string", False, "Of the end of a lease: the protocol that leased."),
    Field("renewals", "long", False, "Of the end of a lease: how often it was renewed."),
    Field("repeat", "boolean", False, "Of a failure: the job failed the same way before."),
    Field("leases", "long", False, "At a job's end: the number of its leases."),
    Field("failures", "long", False, "At a job's end: the number of its failures."),
    Field("wait_total_us", "long", False, "At a job's end: the sum of its waits."),
    Field("run_total_us", "long", False, "At a job's end: the sum of its runs."),
    Field("first_leased_at", "timestamp", False, "At a job's end: its first lease."),
    Field("first_queue", "string", False, "At a job's end: the queue of its push."),
    Field("outcome", "string", False, "The type of the event that ended the job."),
    Field("ended_at", "timestamp", False, "The time of that event."),
)  # fmt: skip
NAMES: Final = tuple(field.name for field in FIELDS)

_SPARK: Final = {
    "string": "STRING",
    "long": "BIGINT",
    "int": "INT",
    "double": "DOUBLE",
    "boolean": "BOOLEAN",
    "timestamp": "TIMESTAMP",
    "strings": "ARRAY<STRING>",
}

#: What an event's type may be, and which states it may lead from and to, by their names.
FLUSHED: Final = "flushed"
TYPES: Final = (*TRANSITIONS, FLUSHED)
STATES: Final = STATE_NAMES
#: Protocols by their names; an event of the server's own has none.
ORIGINS: Final = PROTOCOLS[1:]
LEGAL: Final = frozenset(
    (cause, STATE_NAMES[before], STATE_NAMES[after])
    for cause, moves in TRANSITIONS.items()
    for before, afters in moves.items()
    for after in afters
)


def ddl() -> str:
    """The columns for Spark."""
    return ", ".join(f"{field.name} {_SPARK[field.kind]}" for field in FIELDS)


def arrow() -> "pa.Schema":
    """The schema of the files."""
    import pyarrow as pa  # noqa: PLC0415 - loaded where files are written, not by whoever looks here

    kinds = {
        "string": pa.string(),
        "long": pa.int64(),
        "int": pa.int32(),
        "double": pa.float64(),
        "boolean": pa.bool_(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "strings": pa.list_(pa.string()),
    }
    return pa.schema([pa.field(f.name, kinds[f.kind], nullable=not f.required) for f in FIELDS])


def reference() -> str:
    """The fields as a table for the documentation."""
    lines = ["| column | type | | |", "|---|---|---|---|"]
    lines += [
        f"| `{field.name}` | {_SPARK[field.kind].lower()} | "
        f"{'' if field.required else 'nullable'} | {field.about} |"
        for field in FIELDS
    ]
    return "\n".join(lines) + "\n"

"""The schema of an event in the lake: one list of fields, which defines all other forms.

FIELDS defines the Arrow schema of the files, the Spark DDL for readers and the reference page.
tests/journal contains a copy of the shipped schema, so that no change makes old files unreadable.
To change the schema, add a nullable field at the end, increment engine.events.EVENT_VERSION if the
engine must record more data, and let `columns` fill the field for older versions.
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
    """A column of the journal. A column that is not `required` is null where it does not apply."""

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

#: The types of events, and their legal transitions between states, by name.
FLUSHED: Final = "flushed"
TYPES: Final = (*TRANSITIONS, FLUSHED)
STATES: Final = STATE_NAMES
#: The names of the protocols. Events of the server itself have no protocol.
ORIGINS: Final = PROTOCOLS[1:]
LEGAL: Final = frozenset(
    (cause, STATE_NAMES[before], STATE_NAMES[after])
    for cause, moves in TRANSITIONS.items()
    for before, afters in moves.items()
    for after in afters
)


def ddl() -> str:
    """Return the columns as Spark DDL."""
    return ", ".join(f"{field.name} {_SPARK[field.kind]}" for field in FIELDS)


def arrow() -> "pa.Schema":
    """Return the Arrow schema of the files."""
    import pyarrow as pa  # noqa: PLC0415 - only writers of files need pyarrow

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
    """Return the fields as a table for the documentation."""
    lines = ["| column | type | | |", "|---|---|---|---|"]
    lines += [
        f"| `{field.name}` | {_SPARK[field.kind].lower()} | "
        f"{'' if field.required else 'nullable'} | {field.about} |"
        for field in FIELDS
    ]
    return "\n".join(lines) + "\n"

"""The schema of an event in the lake: one list of fields, which defines all other forms.

FIELDS defines the Arrow schema of the files, the Spark DDL for readers and the reference page.
tests/journal contains a copy of the shipped schema, so that no change makes old files unreadable.
To change the schema, add a nullable field at the end, increment engine.events.EVENT_VERSION if the
engine must record more data, and let `columns` fill the field for older versions.
"""

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from millrace.engine import events
from millrace.engine.states import STATE_NAMES, TRANSITIONS
from millrace.protocols.registry import PROTOCOL_LABELS, PROTOCOL_NAMES

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
    Field("server", "string", True, "ID of the server: the file `journal-id` of its data folder."),
    Field("event_id", "long", True, "Number of the event: from 1 without gaps, per server."),
    Field("time", "timestamp", True, "Time of the event; for Qless clients, by their own clock."),
    Field("type", "string", True, "Cause of the state change, or `flushed`."),
    Field("seq", "long", True, "Number of the job, per server; for `flushed`, of the last job."),
    Field("jid", "string", True, "ID of the job."),
    Field("queue", "string", True, "Queue of the job after the event."),
    Field("kind", "string", True, "Code to run; empty for Go Job Queue."),
    Field("origin", "string", True, "Protocol that pushed the job."),
    Field("actor", "string", False, "Protocol of the acting client; null for the server itself."),
    Field("worker", "string", False, "Current or last worker of the job."),
    Field("attempt", "long", True, "Number of the current or last attempt."),
    Field("before", "string", False, "State before the event; null only in version 1."),
    Field("state", "string", True, "State after the event."),
    Field("priority", "double", True, "Rank in the queue; higher ranks are leased first."),
    Field("created", "timestamp", False, "Time of the push."),
    Field("ready_at", "timestamp", False, "Time at which the job last became ready."),
    Field("leased_at", "timestamp", False, "Time of the last lease."),
    Field("wait_us", "long", False, "For a lease and its end: wait in microseconds."),
    Field("run_us", "long", False, "For the end of an attempt: duration of the lease."),
    Field("due", "timestamp", False, "Time at which the job runs, is retried, or is purged."),
    Field("payload_bytes", "long", True, "Size of the payload."),
    Field("error_group", "string", False, "Class of the error; for an ended job, of the last one."),
    Field("error_message", "string", False, "Error message, at most 4,096 characters."),
    Field("fingerprint", "string", False, "Equal if errors differ only in numbers and names."),
    Field("source", "string", False, "For `moved`: the queue that the job left."),
    Field("tags", "strings", False, "Tags of the job."),
    Field("version", "int", True, "Version of the event, engine.events.EVENT_VERSION."),
    Field("holder", "string", False, "For the end of a lease: the protocol that leased the job."),
    Field("renewals", "long", False, "For the end of a lease: the number of renewals."),
    Field("repeat", "boolean", False, "For a failure: true if the job failed the same way before."),
    Field("leases", "long", False, "For the end of a job: the number of its leases."),
    Field("failures", "long", False, "For the end of a job: the number of its failures."),
    Field("wait_total_us", "long", False, "For the end of a job: the sum of its waits."),
    Field("run_total_us", "long", False, "For the end of a job: the sum of its runs."),
    Field("first_leased_at", "timestamp", False, "For the end of a job: its first lease."),
    Field("first_queue", "string", False, "For the end of a job: the queue of its push."),
    Field("outcome", "string", False, "Type of the event that ended the job."),
    Field("ended_at", "timestamp", False, "Time of the event that ended the job."),
)  # fmt: skip
NAMES: Final = tuple(field.name for field in FIELDS)

SPARK: Final = {
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
ORIGINS: Final = tuple(PROTOCOL_NAMES[1:])
#: Their names in texts for people. Changes over the control socket have the protocol "control".
ORIGIN_LABELS: Final = {**PROTOCOL_LABELS, "control": "control"}
LEGAL: Final = frozenset(
    (cause, STATE_NAMES[before], STATE_NAMES[after])
    for cause, moves in TRANSITIONS.items()
    for before, afters in moves.items()
    for after in afters
)


def ddl() -> str:
    """Return the columns as Spark DDL."""
    return ", ".join(f"{field.name} {SPARK[field.kind]}" for field in FIELDS)


def arrow() -> "pa.Schema":
    """Return the Arrow schema of the events."""
    import pyarrow as pa  # noqa: PLC0415 - only writers of files need pyarrow

    from .columns import SCHEMA  # noqa: PLC0415 - loads arro3

    return pa.schema(SCHEMA)


def reference() -> str:
    """Return the fields as a table for the documentation."""
    lines = ["| column | type | | |", "|---|---|---|---|"]
    lines += [
        f"| `{field.name}` | {SPARK[field.kind].lower()} | "
        f"{'' if field.required else 'nullable'} | {field.about} |"
        for field in FIELDS
    ]
    return "\n".join(lines) + "\n"

"""The tables of the database, and the migrations from older formats.

To change the schema, increment SCHEMA, add a function to MIGRATIONS that migrates from the previous
version, and keep the entries of TABLE_NAMES for the previous versions.
"""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from millrace.store.errors import ChecksumError, StoreDamaged

from . import checksums
from .checksums import TurnSummary
from .error_translation import ADVICE, damage_error

SCHEMA: Final = 4

#: The checksum precedes long columns, so that SQLite reads it without them.
TABLES: Final = {
    "turns": "CREATE TABLE turns (id INTEGER PRIMARY KEY, sum INTEGER NOT NULL,"
    " tally BLOB NOT NULL, changes BLOB NOT NULL)",
    "jobs": "CREATE TABLE jobs (seq INTEGER PRIMARY KEY, sum INTEGER NOT NULL,"
    " record BLOB NOT NULL)",
    "states": "CREATE TABLE states (seq INTEGER PRIMARY KEY, sum INTEGER NOT NULL,"
    " record BLOB NOT NULL)",
    "queues": "CREATE TABLE queues (place INTEGER PRIMARY KEY, sum INTEGER NOT NULL,"
    " name TEXT NOT NULL, paused INTEGER NOT NULL)",
    "notes": "CREATE TABLE notes (key TEXT PRIMARY KEY, sum INTEGER NOT NULL,"
    " value BLOB NOT NULL) WITHOUT ROWID",
    "stats": "CREATE TABLE stats (queue TEXT NOT NULL, day INTEGER NOT NULL,"
    " sum INTEGER NOT NULL, record BLOB NOT NULL, PRIMARY KEY (queue, day)) WITHOUT ROWID",
    "outbox": "CREATE TABLE outbox (first INTEGER PRIMARY KEY, count INTEGER NOT NULL,"
    " version INTEGER NOT NULL, sum INTEGER NOT NULL, events BLOB NOT NULL)",
    "payloads": "CREATE TABLE payloads (seq INTEGER PRIMARY KEY, sum INTEGER NOT NULL,"
    " payload BLOB NOT NULL)",
}
_VERSION_1_TABLES: Final = frozenset(
    {"turns", "jobs", "states", "queues", "stats", "outbox", "meta"}
)
#: The tables of each version. `check_schema` compares these names with the tables, so a damaged
#: version number starts no migration.
TABLE_NAMES: Final = {
    1: _VERSION_1_TABLES,
    2: _VERSION_1_TABLES | {"notes"},
    3: (_VERSION_1_TABLES | {"notes"}) - {"meta"},
    4: frozenset(TABLES),
}


def version_of(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def check_schema(db: sqlite3.Connection, path: Path) -> int:
    """Return the version of the database, which must be a known one; 0 if the database is empty."""
    version = version_of(db)
    if version > SCHEMA:
        raise StoreDamaged(
            f"{path} was written by a newer version of Millrace (format {version}, this one reads "
            f"{SCHEMA}), or is damaged. Start that version again. If you have not used a newer "
            f"version: {ADVICE}"
        )
    found = dict(db.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"))
    if version == 0 and not found:
        return 0
    expected = version in TABLE_NAMES and found.keys() == TABLE_NAMES[version]
    if not expected or (version == SCHEMA and found != TABLES):
        raise damage_error(
            path,
            "the file is damaged or is not a Millrace database: it does not have the tables of "
            f"format {version}",
        )
    return version


def create(db: sqlite3.Connection) -> None:
    for statement in TABLES.values():
        db.execute(statement)


def _add_notes_and_order(db: sqlite3.Connection) -> None:
    """Migrate from 1 to 2: add notes, which protocols store in addition to jobs, and store queues
    in the order of their creation. Existing queues are sorted by name.
    """
    db.execute("CREATE TABLE notes (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID")
    db.execute("ALTER TABLE queues RENAME TO old_queues")
    db.execute("CREATE TABLE queues (name TEXT PRIMARY KEY, paused INTEGER NOT NULL)")
    db.execute("INSERT INTO queues SELECT name, paused FROM old_queues ORDER BY name")
    db.execute("DROP TABLE old_queues")


#: Queries that convert rows of format 2 to format 3, except turns.
_CHECKSUM_QUERIES: Final = {
    "jobs": "SELECT seq, job_sum(seq, record), record FROM old_jobs",
    "states": "SELECT seq, state_sum(seq, record), record FROM old_states",
    "queues": "SELECT rowid, queue_sum(rowid, name, paused), name, paused FROM old_queues",
    "notes": "SELECT key, note_sum(key, value), value FROM old_notes",
    "stats": "SELECT queue, day, day_sum(queue, day, record), record FROM old_stats",
    "outbox": "SELECT first, count, version, events_sum(first, count, version, events), events"
    " FROM old_outbox",
}


def _add_sums(db: sqlite3.Connection) -> None:
    """Migrate from 2 to 3: add a checksum to each row, and to each turn a summary that replaces
    `meta`.
    """
    for function in (
        checksums.job_sum,
        checksums.state_sum,
        checksums.queue_sum,
        checksums.note_sum,
        checksums.day_sum,
        checksums.events_sum,
    ):
        arguments = function.__code__.co_argcount
        db.create_function(function.__name__, arguments, function, deterministic=True)
    tables = sorted(TABLE_NAMES[3])
    for table in tables:
        db.execute(f"ALTER TABLE {table} RENAME TO old_{table}")
        db.execute(TABLES[table])
    for table, rows in _CHECKSUM_QUERIES.items():
        db.execute(f"INSERT INTO {table} {rows}")
    _add_summaries(db)
    for table in tables:
        db.execute(f"DROP TABLE old_{table}")
    db.execute("DROP TABLE meta")


def _add_summaries(db: sqlite3.Connection) -> None:
    """Add a summary to each turn. Readers use only the summary of the last turn; earlier turns
    get their own counters.
    """

    def one(query: str) -> Any:
        return db.execute(query).fetchone()[0]

    last = one("SELECT max(id) FROM old_turns")
    summary = TurnSummary(
        first_turn=one("SELECT coalesce(min(id), 1) FROM old_turns"),
        stats_event=one("SELECT coalesce(max(value), 1) FROM meta WHERE key = 'stats_event'"),
        jobs=one("SELECT coalesce(sum(sum), 0) FROM jobs"),
        states=one("SELECT coalesce(sum(sum), 0) FROM states"),
        outbox_bytes=one("SELECT coalesce(sum(length(events)), 0) FROM outbox"),
        others=sum(
            one(f"SELECT coalesce(sum(sum), 0) FROM {table}")  # noqa: S608 - constant table names
            for table in ("queues", "notes", "stats")
        ),
    )
    if last is None and (summary.jobs or summary.states or summary.others):
        raise ChecksumError("there are rows, but no turn that wrote them")
    rows = db.execute(
        "SELECT id, next_seq, next_event, processed, failures, changes FROM old_turns ORDER BY id"
    )
    for turn, next_seq, next_event, processed, failures, changes in rows:
        summary.next_seq, summary.next_event = next_seq, next_event
        summary.processed, summary.failures = processed, failures
        summary.first_event = one(f"SELECT coalesce(min(first), {next_event}) FROM outbox")  # noqa: S608
        packed = checksums.encode_summary(summary)
        checksum = checksums.turn_sum(turn, packed, changes)
        db.execute("INSERT INTO turns VALUES (?, ?, ?, ?)", (turn, checksum, packed, changes))


def _add_payloads(db: sqlite3.Connection) -> None:
    """Migrate from 3 to 4: add a table for large payloads. Existing jobs keep theirs in `jobs`, and
    in memory.
    """
    db.execute(TABLES["payloads"])


MIGRATIONS: Final[dict[int, Callable[[sqlite3.Connection], None]]] = {
    1: _add_notes_and_order,
    2: _add_sums,
    3: _add_payloads,
}


def migrate(db: sqlite3.Connection, version: int) -> None:
    """Migrate the tables to this format in one transaction."""
    try:
        db.execute("BEGIN IMMEDIATE")
        if version == 0:
            create(db)
        for step in range(version or SCHEMA, SCHEMA):
            MIGRATIONS[step](db)
        db.execute(f"PRAGMA user_version = {SCHEMA}")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.rollback()
        raise

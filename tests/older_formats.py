"""Converts a data folder to the format of an earlier version."""

import sqlite3
from pathlib import Path

from millrace.store.sqlite.reader import DatabaseContent

#: The tables of format 2. In format 1, notes are missing and queues have no order.
SECOND = """
CREATE TABLE turns (
    id INTEGER PRIMARY KEY, next_seq INTEGER NOT NULL, next_event INTEGER NOT NULL,
    processed INTEGER NOT NULL, failures INTEGER NOT NULL, changes BLOB NOT NULL);
CREATE TABLE jobs (seq INTEGER PRIMARY KEY, record BLOB NOT NULL);
CREATE TABLE states (seq INTEGER PRIMARY KEY, record BLOB NOT NULL);
CREATE TABLE stats (
    queue TEXT NOT NULL, day INTEGER NOT NULL, record BLOB NOT NULL,
    PRIMARY KEY (queue, day)) WITHOUT ROWID;
CREATE TABLE outbox (
    first INTEGER PRIMARY KEY, count INTEGER NOT NULL, version INTEGER NOT NULL,
    events BLOB NOT NULL);
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE queues (name TEXT PRIMARY KEY, paused INTEGER NOT NULL);
CREATE TABLE notes (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
"""
COPIED = {
    "jobs": "seq, record",
    "states": "seq, record",
    "stats": "queue, day, record",
    "outbox": "first, count, version, events",
    "notes": "key, value",
}


def downgrade(folder: Path, version: int) -> None:
    """The same content in an older format; without a mark, which formats 1 and 2 do not have."""
    if version == 3:
        _make_third(folder)
        return
    (folder / "mark").unlink(missing_ok=True)
    db = sqlite3.connect(folder / "millrace.db", isolation_level=None)
    content = DatabaseContent(db)
    content.read()
    tally = content.summary
    tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master")]
    for name in tables:
        db.execute(f"ALTER TABLE {name} RENAME TO new_{name}")
    db.executescript(SECOND)
    for table, columns in COPIED.items():
        db.execute(f"INSERT INTO {table} SELECT {columns} FROM new_{table}")
    db.execute("INSERT INTO queues SELECT name, paused FROM new_queues ORDER BY place")
    numbers = (tally.next_seq, tally.next_event, tally.processed, tally.failures)
    db.execute("INSERT INTO turns SELECT id, ?, ?, ?, ?, changes FROM new_turns", numbers)
    for key, value in {"stats_event": tally.stats_event, "outbox_bytes": 0}.items():
        db.execute("INSERT INTO meta VALUES (?, ?)", (key, value))
    for name in tables:
        db.execute(f"DROP TABLE new_{name}")
    if version == 1:
        _make_first(db)
    db.execute(f"PRAGMA user_version = {version}")
    db.execute("VACUUM")
    db.close()


def _make_third(folder: Path) -> None:
    db = sqlite3.connect(folder / "millrace.db", isolation_level=None)
    assert db.execute("SELECT count(*) FROM payloads").fetchone() == (0,)
    db.execute("DROP TABLE payloads")
    db.execute("PRAGMA user_version = 3")
    db.execute("VACUUM")
    db.close()


def _make_first(db: sqlite3.Connection) -> None:
    db.execute("DROP TABLE notes")
    db.execute("ALTER TABLE queues RENAME TO new_queues")
    db.execute("CREATE TABLE queues (name TEXT PRIMARY KEY, paused INTEGER NOT NULL) WITHOUT ROWID")
    db.execute("INSERT INTO queues SELECT * FROM new_queues")
    db.execute("DROP TABLE new_queues")

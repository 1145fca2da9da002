"""The newest events of a data folder that are not shipped yet, for people and scripts."""

from itertools import islice
from pathlib import Path

from millrace.engine.events import Event, EventTuple
from millrace.engine.states import STATE_NAMES
from millrace.protocols.registry import PROTOCOL_NAMES
from millrace.records import JournalEvent, JournalPage
from millrace.store.errors import StoreError
from millrace.store.folders import has_store, outbox_reader


class JournalUnreadable(Exception):
    """The journal cannot be read; the message gives the reason."""


def has_journal(folder: Path) -> bool:
    return has_store(folder)


def read_page(folder: Path, start: int, limit: int) -> JournalPage:
    """Up to `limit` events from number `start` on; 0: the newest ones."""
    try:
        return _read_page(folder, start, limit)
    except (StoreError, OSError) as error:
        raise JournalUnreadable(f"Cannot read the journal: {error}") from error


def _read_page(folder: Path, start: int, limit: int) -> JournalPage:
    outbox = outbox_reader(folder)
    if not start:
        start = max(1, outbox.range().next_event - limit)
    rows = (
        (number, row)
        for events in outbox.read(start)
        for number, row in enumerate(events.rows, events.first)
    )
    page = [_event(number, row) for number, row in islice(rows, limit)]
    return JournalPage(page, page[-1].event + 1 if page else start)


def _event(number: int, row: EventTuple) -> JournalEvent:
    event = Event(*row)
    return JournalEvent(
        number,
        event.time,
        event.type,
        event.seq,
        event.jid,
        event.queue,
        event.kind,
        PROTOCOL_NAMES[event.origin],
        PROTOCOL_NAMES[event.actor],
        event.worker,
        event.attempt,
        STATE_NAMES[event.state],
        event.group,
        event.message,
    )

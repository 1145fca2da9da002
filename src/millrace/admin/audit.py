"""The audit log: the user, action, target and time of each change. The engine's settings store the
entries, so that an entry is exactly as durable as the change that it describes.
"""

from bisect import bisect_left
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from millrace.engine.engine import Engine
from millrace.records import LOGIN_REFUSED, AuditEntry, AuditNote, AuditPage, ListAudit, Ok

from .errors import require_writable

if TYPE_CHECKING:
    from .service import AdminService

ENTRY_KEY: Final = "audit/"
LOGIN_FAILURE_KEY: Final = "audit-refused/"
#: Maximum entries; the log removes the oldest entries beyond this number.
MAX_ENTRIES: Final = 20_000
#: Maximum entries for refused logins. Any client can cause these entries, so they have their own
#: limit and do not displace other entries.
MAX_LOGIN_FAILURES: Final = 1000
#: Maximum stored length of users, actions and targets. Clients choose these names.
MAX_USER_LENGTH: Final = 100
MAX_TARGET_LENGTH: Final = 500
#: Actions of one kind by one user within this interval share one entry. Otherwise a busy script
#: would displace all other entries.
GROUPING_WINDOW: Final = 3_600_000_000

_decode = msgspec.msgpack.Decoder(AuditEntry).decode
_encode = msgspec.msgpack.Encoder().encode


class AuditLog:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._read_for = -1
        self._next = 1
        #: Key prefix of the settings -> entry numbers in ascending order.
        self._kept: dict[str, list[int]] = {ENTRY_KEY: [], LOGIN_FAILURE_KEY: []}
        #: (user, action) -> number of the entry that counts further actions of this kind.
        self._open: dict[tuple[str, str], int] = {}
        #: Called with each new entry, for the server log.
        self.heard: Callable[[AuditEntry], None] = _nobody

    def add(self, now: int, by: str, action: str, target: str, count: int = 0) -> int:
        """Record an action in the same transaction as its changes. Return the entry number."""
        return self._add(ENTRY_KEY, now, by, action, target, count)

    def add_work(self, now: int, by: str, action: str, target: str, count: int) -> None:
        """Record a frequent action; similar actions share an entry."""
        self._add_to(ENTRY_KEY, now, by, action, target, count)

    def add_refused(self, now: int, by: str, action: str, target: str) -> None:
        """Record a refused login; refused logins from one user or address share an entry."""
        self._add_to(LOGIN_FAILURE_KEY, now, by, action, target, 1)

    def _add(self, kind: str, now: int, by: str, action: str, target: str, count: int) -> int:
        self._refresh()
        number = self._next
        self._next += 1
        entry = AuditEntry(
            number,
            now,
            by[:MAX_USER_LENGTH],
            action[:MAX_USER_LENGTH],
            truncate(target, MAX_TARGET_LENGTH),
            count,
        )
        self._engine.set_setting(f"{kind}{number}", _encode(entry))
        numbers = self._kept[kind]
        numbers.append(number)
        while len(numbers) > (MAX_ENTRIES if kind == ENTRY_KEY else MAX_LOGIN_FAILURES):
            self._engine.set_setting(f"{kind}{numbers.pop(0)}", None)
        self.heard(entry)
        return number

    def _add_to(self, kind: str, now: int, by: str, action: str, target: str, count: int) -> None:
        self._refresh()
        number = self._open.get((by, action), 0)
        known = self.find(number)
        if known is None or not now - GROUPING_WINDOW < known.at <= now:
            if len(self._open) >= MAX_LOGIN_FAILURES:
                self._open.clear()
            self._open[by, action] = self._add(kind, now, by, action, target, count)
        else:
            known.count += count
            self._keep(known)

    def find(self, number: int) -> AuditEntry | None:
        key = self._key(number)
        return None if key is None else _decode(self._engine.settings[key])

    def count(self, number: int, count: int) -> None:
        """Set the job count of an entry. A removed entry is ignored."""
        self._refresh()
        known = self.find(number)
        if known is not None and known.count != count:
            known.count = count
            self._keep(known)

    def before(self, number: int, most: int) -> list[AuditEntry]:
        """Return the newest entries before a number; 0 means no limit."""
        self._refresh()
        found: list[int] = []
        for numbers in self._kept.values():
            end = bisect_left(numbers, number or self._next)
            found += numbers[max(0, end - most) : end]
        newest = sorted(found, reverse=True)[:most]
        return [entry for each in newest if (entry := self.find(each)) is not None]

    def has_before(self, number: int) -> bool:
        return any(numbers and numbers[0] < number for numbers in self._kept.values())

    def _key(self, number: int) -> str | None:
        """Return the key of the note that stores an entry, or None."""
        keys = (f"{kind}{number}" for kind in self._kept)
        return next((key for key in keys if key in self._engine.settings), None)

    def _keep(self, entry: AuditEntry) -> None:
        key = self._key(entry.number)
        assert key is not None
        self._engine.set_setting(key, _encode(entry))

    def _refresh(self) -> None:
        """Read the entry numbers from the settings, at the start and after a revert."""
        if self._read_for == self._engine.revert_count:
            return
        self._read_for = self._engine.revert_count
        self._open.clear()
        for kind, numbers in self._kept.items():
            keys = (key for key in self._engine.settings if key.startswith(kind))
            numbers[:] = sorted(int(key[len(kind) :]) for key in keys)
        self._next = 1 + max((numbers[-1] for numbers in self._kept.values() if numbers), default=0)


def _nobody(entry: AuditEntry) -> None:
    """Ignore the entry: the default if there is no server log."""


def truncate(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


# Operations


def list_audit(hub: "AdminService", request: ListAudit, now: int) -> AuditPage:
    found = hub.audit.before(request.cursor, request.limit)
    more = found[-1].number if found and hub.audit.has_before(found[-1].number) else 0
    return AuditPage(found, more)


def add_note(hub: "AdminService", request: AuditNote, now: int) -> Ok:
    require_writable(hub.engine)
    if request.action == LOGIN_REFUSED:
        hub.audit.add_refused(now, request.by, request.action, request.target)
    else:
        hub.audit.add(now, request.by, request.action, request.target)
    return Ok()

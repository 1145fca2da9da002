"""The audit log: who changed what, and when. It is kept in the engine's notes, so that an entry is
exactly as durable as the change that it tells of.
"""

from typing import Final

import msgspec

from millrace.engine.engine import Engine

from .messages import Audited

NOTE: Final = "audit/"
#: So many are kept; then the oldest go.
MOST_KEPT: Final = 2000
#: How much of each is kept: anybody may have thought of the names.
MOST_NAME: Final = 100
MOST_TARGET: Final = 500
#: Work of one caller within so long is one entry, or a busy script would leave no room for others.
TOGETHER: Final = 3_600_000_000

_decode = msgspec.msgpack.Decoder(Audited).decode
_encode = msgspec.msgpack.Encoder().encode


class AuditLog:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._read_for = -1
        #: The entries' numbers are from the first up to before the next.
        self._first = self._next = 1
        #: By whom and what -> the entry that more of the same is added to.
        self._open: dict[tuple[str, str], int] = {}

    def add(self, now: int, by: str, action: str, target: str, count: int = 0) -> int:
        """Note an action, together with what it changes; the entry's number."""
        self._refresh()
        number = self._next
        self._next += 1
        self._keep(
            Audited(
                number, now, by[:MOST_NAME], action[:MOST_NAME], cut(target, MOST_TARGET), count
            )
        )
        while self._next - self._first > MOST_KEPT:
            self._engine.note(_key(self._first), None)
            self._first += 1
        return number

    def add_work(self, now: int, by: str, action: str, target: str, count: int) -> None:
        """Note one of very many actions, with others like it."""
        self._refresh()
        number = self._open.get((by, action), 0)
        known = self.find(number)
        if known is None or not now - TOGETHER < known.at <= now:
            if len(self._open) >= MOST_KEPT:
                self._open.clear()
            self._open[by, action] = self.add(now, by, action, target, count)
        else:
            known.count += count
            self._keep(known)

    def find(self, number: int) -> Audited | None:
        kept = self._engine.notes.get(_key(number))
        return None if kept is None else _decode(kept)

    def count(self, number: int, count: int) -> None:
        """Tell how many jobs it was, now that it is known. The entry may be gone meanwhile."""
        self._refresh()
        known = self.find(number)
        if known is not None and known.count != count:
            known.count = count
            self._keep(known)

    def before(self, number: int, most: int) -> list[Audited]:
        """The newest before a number; 0 is any."""
        self._refresh()
        last = min(number or self._next, self._next) - 1
        numbers = range(last, max(self._first - 1, last - most), -1)
        return [found for each in numbers if (found := self.find(each)) is not None]

    def has_before(self, number: int) -> bool:
        return number > self._first

    def _keep(self, entry: Audited) -> None:
        self._engine.note(_key(entry.number), _encode(entry))

    def _refresh(self) -> None:
        """Find out what there is, at the start and when something was undone."""
        if self._read_for == self._engine.reverts:
            return
        self._read_for = self._engine.reverts
        self._open.clear()
        numbers = [int(key[len(NOTE) :]) for key in self._engine.notes if key.startswith(NOTE)]
        self._first = min(numbers, default=1)
        self._next = max(numbers, default=0) + 1


def _key(number: int) -> str:
    return f"{NOTE}{number}"


def cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"

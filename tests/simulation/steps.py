"""The steps of a run: the last steps to print, and a hash of all of them."""

from collections import Counter, deque
from collections.abc import Callable
from hashlib import blake2b
from typing import Any


class Steps:
    def __init__(self, time: Callable[[], float], kept: int) -> None:
        self._time = time
        self._hash = blake2b(digest_size=8)
        self._last: deque[tuple[float, str, tuple[Any, ...]]] = deque(maxlen=kept)
        #: How often each kind of step was taken.
        self.counts: Counter[str] = Counter()

    def note(self, kind: str, *details: Any) -> None:
        """Details must be equal for equal seeds: no object ids, paths or pids."""
        now = self._time()
        self.counts[kind] += 1
        self._last.append((now, kind, details))
        self._hash.update(f"{now:.6f} {kind} {details!r}\n".encode())

    @property
    def hash(self) -> str:
        return self._hash.hexdigest()

    def last(self) -> list[str]:
        return [
            f"{now:12.6f}  {kind:<12} {' '.join(_shown(detail) for detail in details)}"
            for now, kind, details in self._last
        ]


def _shown(detail: Any) -> str:
    text = detail if isinstance(detail, str) else repr(detail)
    return text if len(text) <= 240 else text[:240] + "..."

"""Settings that clients change. A value is certain once its change was acknowledged.

It becomes uncertain when another change of the same setting is sent, because the server may execute
that change at any time.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from promises import Request

#: The kind of the setting, and its subject.
Key = tuple[str, object]


class CertainSettings:
    def __init__(self) -> None:
        #: The value of each certain setting, and when it was acknowledged.
        self._values: dict[Key, tuple[Any, int]] = {}
        self._changes: dict[Key, list[Request]] = {}

    def sending(self, key: Key, request: "Request") -> None:
        self._values.pop(key, None)
        self._changes.setdefault(key, []).append(request)

    def accepted(self, key: Key, request: "Request", value: Any, stamp: int) -> None:
        others = [each for each in self._changes.get(key, ()) if each is not request]
        if not any(each.may_arrive or each.sent > request.sent for each in others):
            self._values[key] = value, stamp
        self._changes[key] = [request, *(each for each in others if each.may_arrive)]

    def clear(self) -> None:
        """No value is certain any more."""
        self._values.clear()

    def value(self, key: Key, before: int) -> Any:
        """The value that has been certain since before this stamp, or None."""
        value, stamp = self._values.get(key, (None, 0))
        return value if stamp < before else None

    def of_kind(self, kind: str) -> Iterator[tuple[Any, Any]]:
        """All certain settings of a kind, with their values."""
        for (each, subject), (value, _) in self._values.items():
            if each == kind:
                yield subject, value

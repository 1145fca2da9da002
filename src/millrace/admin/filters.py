r"""Test whether a job matches a query.

The matcher tests cheap conditions first. It searches text in payloads; it searches a large payload
in chunks, see `FilterMatcher.through`. The search ignores case, and also finds a term that JSON
escapes: `ü` as `\u00fc`, and `a/b` as `a\/b`.
"""

import re
from collections.abc import Iterator
from typing import Final

from millrace.engine.job import Job, payload_size
from millrace.engine.states import DEAD, SCHEDULED, STATE_NAMES
from millrace.protocols.errors import PayloadDamaged
from millrace.protocols.registry import PROTOCOL_NAMES
from millrace.records import MAX_TERM, MAX_TERMS, JobFilter

from .errors import AdminError
from .service import AdminService

#: Bytes searched at once; chunks are smaller if the term may be escaped or is not ASCII.
CHUNK_SIZE: Final = 256 << 10
UNICODE_CHUNK_SIZE: Final = 32 << 10
#: Fixed cost of searching one job, in bytes.
BASE_COST: Final = 200

_ESCAPED: Final = re.compile(rb"(?:\\u[0-9a-fA-F]{4})+")

#: ASCII characters that some JSON encoders escape.
_RISKY: Final = frozenset("\"\\/<>&'+`\x7f") | {chr(code) for code in range(32)}
_SHORT: Final = {
    "\n": "n",
    "\t": "t",
    "\r": "r",
    "\b": "b",
    "\f": "f",
    '"': '"',
    "/": "/",
    "\\": "\\",  # must be last: the other escapes start with it
}


class TextPattern:
    """A search term."""

    __slots__ = ("_ascii", "_escapes", "_folded", "_lower", "margin", "piece")

    def __init__(self, word: str) -> None:
        self._folded = word.casefold()
        self._lower = word.lower().encode() if word.isascii() else b""
        self._ascii = self._folded.encode() if self._folded.isascii() else b""
        self._escapes = _escapes(word.lower()) if self._lower else []
        self.piece = CHUNK_SIZE if self._lower and not self._escapes else UNICODE_CHUNK_SIZE
        #: Overlap of chunks in bytes, so that a term across a boundary is found.
        self.margin = 12 * len(word) + 12

    def is_in(self, text: str) -> bool:
        return self._folded in text.casefold()

    def is_within(self, piece: bytes) -> bool:
        if self._lower:
            piece = piece.lower()
            if self._escapes and self._lower not in piece and b"\\" in piece:
                for escaped, char in self._escapes:
                    piece = piece.replace(escaped, char)
            return self._lower in piece
        if b"\\u" in piece:
            piece = _ESCAPED.sub(_unescaped, piece)
        if piece.isascii():
            return bool(self._ascii) and self._ascii in piece.lower()
        return self._folded in piece.decode("utf-8", "replace").casefold()


def _escapes(word: str) -> list[tuple[bytes, bytes]]:
    """Return pairs of a JSON escape, in lower case, and its character, for an ASCII term."""
    found = [(rf"\u{ord(char):04x}", char) for char in sorted(_RISKY & set(word))]
    found += [("\\" + short, char) for char, short in _SHORT.items() if char in word]
    return [(escaped.encode(), char.encode()) for escaped, char in found]


def _unescaped(match: re.Match[bytes]) -> bytes:
    units = bytes.fromhex(match[0].replace(b"\\u", b"").decode())
    return units.decode("utf-16-be", "replace").encode()


class FilterMatcher:
    """A compiled query."""

    def __init__(self, hub: AdminService, query: JobFilter) -> None:
        if len(query.terms) > MAX_TERMS:
            raise AdminError(f"A search has at most {MAX_TERMS} text terms.")
        texts = [*query.terms, query.error or ""]
        if any(len(text) > MAX_TERM for text in texts):
            raise AdminError(f"A text term has at most {MAX_TERM} characters.")
        self._hub = hub
        self._query = query
        self.state = None if query.state is None else STATE_NAMES.index(query.state)
        self._origin = None if query.protocol is None else _protocol(query.protocol)
        self.terms = [TextPattern(word) for word in query.terms if word]
        self._weight = sum(CHUNK_SIZE // word.piece for word in self.terms)
        self._error = TextPattern(query.error) if query.error else None
        self._about_failures = any(
            each is not None for each in (query.group, query.fingerprint, self._error)
        )

    def admits(self, job: Job) -> bool:
        """Return whether the job satisfies all conditions except the search terms."""
        query = self._query
        if not self._hub.engine.allows(job.queue):
            return False
        if self.state is not None and job.state != self.state:
            return False
        if query.queue is not None and job.queue != query.queue:
            return False
        if query.kind is not None and job.kind != query.kind:
            return False
        if self._origin is not None and job.origin != self._origin:
            return False
        if query.worker is not None and job.history.holder != query.worker:
            return False
        if query.tag is not None and (job.extra is None or query.tag not in job.extra.tags):
            return False
        if query.retrying is not None and (
            job.state != SCHEDULED or bool(job.history.failures) != query.retrying
        ):
            return False
        if query.failing is not None and is_failing(job) != query.failing:
            return False
        if query.tracked is not None and self._is_tracked(job) != query.tracked:
            return False
        return not self._about_failures or self._failed_so(job)

    def _is_tracked(self, job: Job) -> bool:
        return job.jid in self._hub.engine.annotations.tracked

    def _failed_so(self, job: Job) -> bool:
        failure, query = job.history.failure, self._query
        if failure is None:
            return False
        if query.group is not None and failure.group != query.group:
            return False
        if self._error is not None and not (
            self._error.is_in(failure.group) or self._error.is_in(failure.message)
        ):
            return False
        if query.fingerprint is None:
            return True
        alike = self._hub.engine.failure_groups.get(query.fingerprint)
        return alike is not None and job.seq in alike.jobs

    def cost(self, job: Job) -> int:
        """Return the approximate number of bytes to search."""
        failure = job.history.failure
        size = BASE_COST + payload_size(job) + (0 if failure is None else len(failure.message))
        return size * self._weight

    def has_words(self, job: Job) -> bool:
        """Return whether the job contains all search terms. Use it for jobs with a low `cost`."""
        for word in self.terms:
            if not self._is_in_payload(word, job) and not _names(word, job):
                return False
        return True

    def _is_in_payload(self, word: TextPattern, job: Job) -> bool:
        try:
            return word.is_within(self._hub.engine.payload(job))
        except PayloadDamaged:
            return False

    def through(self, job: Job) -> Iterator[bool | None]:
        """Search a job of any size in chunks. Yield None after each chunk, and finally the result
        of `has_words`.
        """
        for word in self.terms:
            if _names(word, job):
                continue
            step = word.piece - word.margin
            for at in range(0, max(1, payload_size(job)), step):
                try:
                    found = word.is_within(self._hub.engine.payload_part(job, at, word.piece))
                except PayloadDamaged:
                    found = False
                yield None
                if found:
                    break
            else:
                yield False
                return
        yield True


def _names(word: TextPattern, job: Job) -> bool:
    """Return whether the id, the kind or the error of the job contains the term."""
    if word.is_in(job.jid) or word.is_in(job.kind):
        return True
    failure = job.history.failure
    return failure is not None and (word.is_in(failure.group) or word.is_in(failure.message))


def is_failing(job: Job) -> bool:
    """Return whether the job has failed and is dead or waits for a retry."""
    waits = job.state == SCHEDULED and bool(job.history.failures)
    return job.history.failure is not None and (waits or job.state == DEAD)


def _protocol(name: str) -> int:
    if name not in PROTOCOL_NAMES[1:]:
        known = ", ".join(PROTOCOL_NAMES[1:])
        raise AdminError(f"Unknown protocol {name[:100]!r}. Use one of {known}.")
    return PROTOCOL_NAMES.index(name)

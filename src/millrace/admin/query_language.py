r"""The query language of the search: `queue:mail state:dead tag:x "connection refused"`

Spaces separate terms, and a job must match all terms. A term is `key:value`, or text to search in
the payload, id, kind and error of a job. Double quotes enclose text that contains spaces or that
would otherwise have another meaning; within them, \" and \\ are a quote and a backslash.
"""

import re
from difflib import get_close_matches
from typing import Any, Final, NoReturn, cast, get_type_hints

from msgspec import structs

from millrace.protocols.registry import PROTOCOL_NAMES
from millrace.records import MAX_TERMS, STATES, JobFilter, State

PROTOCOLS: Final = tuple(PROTOCOL_NAMES[1:])
#: Maximum length of a query.
MAX_QUERY_LENGTH: Final = 4000

_HINTS: Final = get_type_hints(JobFilter, include_extras=True)
#: The conditions of a filter, except the text terms.
_CONDITIONS: Final = tuple(name for name in _HINTS if name != "terms")
#: Conditions that are true or false: `is:retrying`.
_FLAGS: Final = tuple(name for name in _CONDITIONS if _HINTS[name].__origin__ == bool | None)
#: Keys with a literal value, and their aliases -> field of JobFilter.
_PLAIN: Final = {
    key: name
    for name in _CONDITIONS
    if name not in {*_FLAGS, "state", "protocol"}
    for key in (name, *_HINTS[name].__metadata__[0].extra.get("keys", ()))
}
_KEYS: Final = (*_PLAIN, "state", "protocol", "is", "not")
#: Names of states in the protocols -> state.
_SAME_STATE: Final = {
    "running": "leased",
    "busy": "leased",
    "waiting": "ready",
    "enqueued": "ready",
    "depends": "blocked",
    "complete": "done",
    "completed": "done",
    "failed": "dead",
}
_SAME_PROTOCOL: Final = {"go": "goqueue", "gojobqueue": "goqueue", "reqless": "qless"}

#: A key at the start of a term. A Ruby name such as `Mail::Send` has no key.
_KEY: Final = re.compile(r"([a-z_]+):(?!:)")
_QUOTED: Final = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_BARE: Final = re.compile(r"\S+")
_ESCAPED: Final = re.compile(r'\\(["\\])')
_PLAIN_VALUE: Final = re.compile(r'[^\s"]\S*')


class QueryError(ValueError):
    """The search cannot be understood."""


def parse(text: str) -> JobFilter:
    """Parse a query."""
    if len(text) > MAX_QUERY_LENGTH:
        raise QueryError(f"The search is longer than {MAX_QUERY_LENGTH:,} characters.")
    found: dict[str, Any] = {}
    words: list[str] = []
    place = 0
    while place < len(text):
        if text[place].isspace():
            place += 1
            continue
        key, value, place = _term(text, place)
        if key:
            _put(found, key, value)
        elif value:
            words.append(value)
    if len(words) > MAX_TERMS:
        raise QueryError(f"The search has more than {MAX_TERMS} text terms. Remove some.")
    return _checked(JobFilter(**found, terms=words))


def write(query: JobFilter) -> str:
    """Return the query as text."""
    terms = []
    for name in _CONDITIONS:
        value = getattr(query, name)
        if value is None or (name == "state" and value == "scheduled" and query.retrying):
            continue
        if name in _FLAGS:
            terms.append(f"{'is' if value else 'not'}:{name}")
        else:
            terms.append(f"{name}:{quoted(value)}")
    terms += [quoted(word, is_word=True) for word in query.terms]
    return " ".join(terms)


def key_texts() -> list[tuple[str, str]]:
    """Each condition as a term without its value, and its description."""
    choices = {"state": STATES, "protocol": PROTOCOLS}
    found = []
    for name in _CONDITIONS:
        about = _HINTS[name].__metadata__[0].description
        if name in choices:
            *others, last = choices[name]
            about = f"{about[:-1]}: {', '.join(others)} or {last}."
        found.append((f"is:{name}, not:{name}" if name in _FLAGS else f"{name}:", about))
    return found


def is_all(query: JobFilter) -> bool:
    """Return whether the query matches every job. Empty text matches all jobs."""
    words = [word for word in query.terms if word]
    return structs.replace(query, error=query.error or None, terms=words) == JobFilter()


def quoted(value: str, *, is_word: bool = False) -> str:
    """Quote a value after its key, or a text term, if necessary."""
    is_plain = _PLAIN_VALUE.fullmatch(value) and not value.startswith(":")
    if is_plain and not (is_word and _KEY.match(value)):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _term(text: str, place: int) -> tuple[str, str, int]:
    """Return the key, the value and the end position of one term."""
    key = ""
    if match := _KEY.match(text, place):
        key, place = match[1], match.end()
        if key not in _KEYS:
            bare = _BARE.match(text, match.start())
            _unknown_key(key, bare[0] if bare else key)
    if text.startswith('"', place):
        match = _QUOTED.match(text, place)
        if match is None:
            raise QueryError("A quotation mark is not closed.")
        if match.end() < len(text) and not text[match.end()].isspace():
            raise QueryError(f"A space is missing after {match[0]}.")
        return key, _ESCAPED.sub(r"\1", match[1]), match.end()
    match = _BARE.match(text, place)
    if match is None:
        raise QueryError(f'A value is missing after {key}: (write {key}:"" for an empty one).')
    return key, match[0], match.end()


def _put(found: dict[str, Any], key: str, value: str) -> None:
    if key in _PLAIN:
        _once(found, _PLAIN[key], value, key)
    elif key == "state":
        _put_state(found, value.lower())
    elif key == "protocol":
        name = value.lower().replace(" ", "")
        name = _SAME_PROTOCOL.get(name, name)
        _known("protocol", name, PROTOCOLS)
        _once(found, "protocol", name, key)
    elif key == "is" and value.lower() not in _FLAGS:
        _put_state(found, value.lower())
    else:
        flag = value.lower()
        _known(key, flag, _FLAGS)
        _once(found, flag, key == "is", f"is:{flag}")


def _put_state(found: dict[str, Any], name: str) -> None:
    if name == "retrying":
        _once(found, "retrying", True, "state")
        return
    if name in _FLAGS:
        raise QueryError(f"{name} is not a state. Did you mean is:{name}?")
    name = _SAME_STATE.get(name, name)
    _known("state", name, (*STATES, *_FLAGS))
    _once(found, "state", cast("State", name), "state")


def _once(found: dict[str, Any], key: str, value: object, called: str) -> None:
    if found.get(key, value) != value:
        raise QueryError(f"{called} is given twice. A job has only one, so no job can match both.")
    found[key] = value


def _checked(query: JobFilter) -> JobFilter:
    if query.retrying:
        if query.state not in {None, "scheduled"}:
            raise QueryError(
                f"A job that is {query.state} is not retrying. Remove one of the conditions."
            )
        query.state = "scheduled"
    return query


def _known(key: str, name: str, names: tuple[str, ...]) -> None:
    if name in names:
        return
    close = get_close_matches(name, names, 1)
    hint = f"Did you mean {close[0]}?" if close else f"Use one of {', '.join(names)}."
    raise QueryError(f"Unknown {key} {quoted(name)}. {hint}")


def _unknown_key(key: str, term: str) -> NoReturn:
    close = get_close_matches(key, _KEYS, 1)
    hint = f'Did you mean "{close[0]}:"?' if close else f"Keys: {', '.join(sorted(set(_KEYS)))}."
    raise QueryError(
        f'Unknown search key "{key}:". {hint} To search for this text, put it in quotes: '
        f"{quoted(term, is_word=True)}"
    )

r"""The query language of the search: `queue:mail state:dead tag:x "connection refused"`

Spaces separate terms, and a job must match all terms. A term is `key:value`, or text to search in
the payload, id, kind and error of a job. Double quotes enclose text that contains spaces or that
would otherwise have another meaning; within them, \" and \\ are a quote and a backslash.
"""

import re
from difflib import get_close_matches
from typing import Any, Final, NoReturn, cast

from msgspec import structs

from millrace.records import JobFilter, State

STATES: Final = ("scheduled", "blocked", "ready", "leased", "done", "dead")
PROTOCOLS: Final = ("workq", "masenko", "faktory", "qless", "goqueue", "http")
#: Maximum text terms of a query, and maximum length of a query.
MOST_WORDS: Final = 20
MOST_TEXT: Final = 4000

#: Keys with a literal value, and their aliases -> field of JobFilter.
_PLAIN: Final = {
    "id": "id",
    "jid": "id",
    "seq": "id",
    "queue": "queue",
    "kind": "kind",
    "class": "kind",
    "klass": "kind",
    "type": "kind",
    "jobtype": "kind",
    "tag": "tag",
    "worker": "worker",
    "error": "error",
    "group": "group",
    "fingerprint": "fingerprint",
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
_FLAGS: Final = ("retrying", "failing", "tracked")

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
    if len(text) > MOST_TEXT:
        raise QueryError(f"the search is longer than {MOST_TEXT:,} characters")
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
    if len(words) > MOST_WORDS:
        raise QueryError(f"more than {MOST_WORDS} words are looked for: leave some out")
    return _checked(JobFilter(**found, words=words))


def write(query: JobFilter) -> str:
    """Return the query as text."""
    terms = []
    for key in ("id", "queue", "kind"):
        terms += _written(key, getattr(query, key))
    retrying = query.retrying
    if query.state is not None and not (query.state == "scheduled" and retrying):
        terms.append(f"state:{query.state}")
    if retrying is not None:
        terms.append("is:retrying" if retrying else "not:retrying")
    for key in ("protocol", "tag", "worker", "group", "fingerprint", "error"):
        terms += _written(key, getattr(query, key))
    for flag in ("failing", "tracked"):
        value = getattr(query, flag)
        if value is not None:
            terms.append(f"{'is' if value else 'not'}:{flag}")
    terms += [quoted(word, is_word=True) for word in query.words]
    return " ".join(terms)


def is_all(query: JobFilter) -> bool:
    """Return whether the query matches every job. Empty text matches all jobs."""
    words = [word for word in query.words if word]
    return structs.replace(query, error=query.error or None, words=words) == JobFilter()


def quoted(value: str, *, is_word: bool = False) -> str:
    """Quote a value after its key, or a text term, if necessary."""
    is_plain = _PLAIN_VALUE.fullmatch(value) and not value.startswith(":")
    if is_plain and not (is_word and _KEY.match(value)):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _written(key: str, value: str | None) -> list[str]:
    return [] if value is None else [f"{key}:{quoted(value)}"]


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
            raise QueryError("a quotation mark is not closed")
        if match.end() < len(text) and not text[match.end()].isspace():
            raise QueryError(f"a space is missing behind {match[0]}")
        return key, _ESCAPED.sub(r"\1", match[1]), match.end()
    match = _BARE.match(text, place)
    if match is None:
        raise QueryError(f'nothing stands behind {key}: (an empty one is {key}:"")')
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
        raise QueryError(f"{name} is no state: did you mean is:{name}?")
    name = _SAME_STATE.get(name, name)
    _known("state", name, (*STATES, *_FLAGS))
    _once(found, "state", cast("State", name), "state")


def _once(found: dict[str, Any], key: str, value: object, called: str) -> None:
    if found.get(key, value) != value:
        raise QueryError(f"{called} is given twice: a job has only one, so nothing can match both")
    found[key] = value


def _checked(query: JobFilter) -> JobFilter:
    if query.retrying:
        if query.state not in {None, "scheduled"}:
            raise QueryError(f"a job that is {query.state} is not retrying: leave one of them out")
        query.state = "scheduled"
    return query


def _known(key: str, name: str, names: tuple[str, ...]) -> None:
    if name in names:
        return
    close = get_close_matches(name, names, 1)
    hint = f"did you mean {close[0]}?" if close else f"it is one of {', '.join(names)}"
    raise QueryError(f"there is no {key} {quoted(name)}: {hint}")


def _unknown_key(key: str, term: str) -> NoReturn:
    close = get_close_matches(key, _KEYS, 1)
    hint = f"did you mean {close[0]}:?" if close else f"keys are {', '.join(sorted(set(_KEYS)))}."
    raise QueryError(
        f"there is no key {key}: {hint} To look for the text itself, put it in quotes: "
        f"{quoted(term, is_word=True)}"
    )

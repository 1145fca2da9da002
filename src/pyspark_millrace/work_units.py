"""Convert rows to work units: map columns to fields, and encode them as JSON.

The columns `jid`, `kind`, `queue`, `at`, `priority`, `retry` and `reserve_for` set the fields of
the job with these names. The options `kind` and `queue` replace these columns. `args` (or
`payload`) is an array column or JSON text; a JSON value other than an array becomes an array of one
element. If the option `args` lists columns, these columns are the arguments instead. Without both,
all remaining columns together form one object, which is the only argument.
"""

import json
import re
from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from hashlib import blake2b
from json.encoder import encode_basestring
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from .options import Options

#: The columns that set numeric fields of a job.
_NUMBERS: Final = ("retry", "reserve_for", "priority")
_OWN: Final = frozenset({"jid", "kind", "queue", "at", *_NUMBERS})
_WHOLE: Final = ("args", "payload")
_BREAKS: Final = re.compile(r"[\r\n]+")
_UTC_MOMENT: Final = "%Y-%m-%dT%H:%M:%SZ"


class Shape(NamedTuple):
    """The mapping of columns to fields. An empty name means that there is no such column."""

    jid: str
    kind: str
    queue: str
    #: Values for all rows, if there is no column.
    every_kind: str
    every_queue: str
    #: Column with JSON text or an array. If empty, the columns in `args` are used: as separate
    #: arguments or, with `as_object`, as one object.
    whole: str
    args: tuple[str, ...]
    as_object: bool
    #: The existing columns of `at`, `priority`, `retry` and `reserve_for`.
    others: tuple[str, ...]


def shape(kinds: dict[str, str], given: Options) -> Shape:
    """Map the columns by name and options. Errors are raised here, before any task starts."""
    jid = given.get("jid", "jid" if "jid" in kinds else "")
    listed = [name.strip() for name in given.get("args").split(",") if name.strip()]
    for name in (jid, *listed):
        if name and name not in kinds:
            raise ValueError(f"There is no column {name!r}. Columns: {', '.join(kinds)}.")
    every_kind = given.get("kind")
    kind = "" if every_kind else "kind"
    if kind and kind not in kinds:
        raise ValueError("The jobs have no kind. Add a column `kind`, or set the option `kind`.")
    every_queue = given.get("queue")
    queue = "queue" if "queue" in kinds and not every_queue else ""
    whole = "" if listed else next((name for name in _WHOLE if name in kinds), "")
    if whole and kinds[whole] not in {"string", "array", "varchar", "char"}:
        raise ValueError(f"Column {whole!r} must be JSON text or an array, not {kinds[whole]}.")
    rest = tuple(name for name in kinds if name not in _OWN and name not in {jid, whole})
    others = tuple(name for name in ("at", *_NUMBERS) if name in kinds and name not in listed)
    return Shape(
        jid,
        kind,
        queue,
        every_kind,
        every_queue,
        whole,
        tuple(listed) if listed else () if whole else rest,
        not listed and not whole,
        others,
    )


class Units:
    """Builds the work units of one partition."""

    def __init__(self, shape: Shape, load: str, partition: int) -> None:
        self._shape = shape
        self._seed = f"{load}\0{partition}\0".encode()
        #: Digests of previous rows, if ids are generated from rows.
        self._seen: set[bytes] = set()
        self._again: dict[bytes, int] = {}

    def of(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        """Return the work units of a batch of rows."""
        given = self._shape
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        size = batch.num_rows
        bodies = [
            f'"jobtype":{kind},"args":{args}{tail}'.encode()
            for kind, args, tail in zip(
                _texts(columns, given.kind, given.every_kind, size),
                self._args(columns, size),
                self._tails(columns, size),
                strict=True,
            )
        ]
        if given.jid:
            jids = [_jid(value) for value in columns[given.jid].to_pylist()]
            return (b'{"jid":%b,%b}' % (jid, body) for jid, body in zip(jids, bodies, strict=True))
        return (b'{"jid":"%b",%b}' % (self._made(body), body) for body in bodies)

    def _made(self, body: bytes) -> bytes:
        """Generate the id of a row: a UUID that is the same in each attempt and order of rows."""
        digest = blake2b(self._seed + body, digest_size=16).digest()
        if digest in self._seen:
            number = self._again[digest] = self._again.get(digest, 0) + 1
            digest = blake2b(digest + b"%d" % number, digest_size=16).digest()
        else:
            self._seen.add(digest)
        text = digest.hex()
        return f"{text[:8]}-{text[8:12]}-8{text[13:16]}-a{text[17:20]}-{text[20:]}".encode()

    def _args(self, columns: dict[str, Any], size: int) -> list[str]:
        given = self._shape
        if given.whole:
            column = columns[given.whole]
            if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
                return [_json([] if value is None else value) for value in _values(column)]
            return [_array(text) for text in column.to_pylist()]
        if not given.args:
            return ["[]"] * size
        parts = [_pieces(columns[name]) for name in given.args]
        if not given.as_object:
            return [f"[{','.join(row)}]" for row in zip(*parts, strict=True)]
        keys = [encode_basestring(name) + ":" for name in given.args]
        return [
            "[{" + ",".join([key + part for key, part in zip(keys, row, strict=True)]) + "}]"
            for row in zip(*parts, strict=True)
        ]

    def _tails(self, columns: dict[str, Any], size: int) -> list[str]:
        given = self._shape
        tails = [""] * size
        if given.queue or given.every_queue:
            queues = _texts(columns, given.queue, given.every_queue, size)
            tails = [f',"queue":{queue}' if queue != '""' else "" for queue in queues]
        for name in given.others:
            column = columns[name]
            if name == "at":
                texts = [None if at is None else encode_basestring(at) for at in _moments(column)]
            else:
                texts = [None if value is None else _json(value) for value in _values(column)]
            tails = [
                tail if text is None else f'{tail},"{name}":{text}'
                for tail, text in zip(tails, texts, strict=True)
            ]
        return tails


def _texts(columns: dict[str, Any], name: str, every: str, size: int) -> list[str]:
    """Encode a text column as JSON; null becomes "". Without the column, use `every`."""
    if not name:
        return [encode_basestring(every)] * size
    return [encode_basestring("" if text is None else str(text)) for text in _values(columns[name])]


def _pieces(column: Any) -> list[str]:
    """Encode the values of a column as JSON, with a fast path for text and integers."""
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return ["null" if v is None else encode_basestring(v) for v in column.to_pylist()]
    if pa.types.is_integer(column.type):
        return ["null" if v is None else str(v) for v in column.to_pylist()]
    return [_json(value) for value in _values(column)]


def _values(column: Any) -> list[Any]:
    values: list[Any] = column.to_pylist(maps_as_pydicts="strict")
    return values


def _moments(column: Any) -> list[str | None]:
    """Convert timestamps to RFC 3339; text is passed unchanged."""
    if not pa.types.is_timestamp(column.type):
        return [None if value is None else str(value) for value in column.to_pylist()]
    # Spark timestamps have a time zone. Timestamps without a time zone are interpreted as UTC.
    if column.type.tz:
        column = pc.cast(column, pa.timestamp("us", "UTC"))
    found: list[str | None] = pc.strftime(column, format=_UTC_MOMENT).to_pylist()
    return found


def _jid(value: object) -> bytes:
    if value is None:
        raise ValueError("A row has no jid. Set it in every row, or remove the column.")
    return encode_basestring(str(value)).encode()


def _array(text: str | None) -> str:
    """Return JSON text as an array without line breaks. Numbers are not re-encoded."""
    if text is None:
        return "[]"
    try:
        json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"args must be JSON: {error}: {text[:200]!r}") from None
    text = _BREAKS.sub(" ", text).strip()
    return text if text[0] == "[" else f"[{text}]"


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not valid JSON")


def _plain(value: object) -> object:
    """Convert values without a JSON equivalent: durations to seconds, other types to text."""
    if isinstance(value, datetime):
        moment = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
        return moment.isoformat().replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, timedelta):
        return value.total_seconds()
    raise TypeError(f"{type(value).__name__} has no JSON form")


_json: Final = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain
).encode

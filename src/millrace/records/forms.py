"""The HTTP form and the export form of a record, derived from its fields.

`http(JobRecord)` returns a form with a second struct, `Job`, and a function that converts one into
the other. `export("ExportedJob", JobRecord)` returns a flat struct for bulk reads. The annotations
of a field define both: see records.types.
"""

from collections.abc import Callable
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Final, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from millrace.protocols.times import format_rfc3339

from .queues import HISTOGRAM_SLOTS
from .types import SECOND, STATES, Record, Time

_DAY: Final = 86_400 * SECOND
#: RFC 3339 has the years 1 to 9999.
_FIRST_TIME: Final = -62_135_596_800 * SECOND
_LAST_TIME: Final = 253_402_300_799 * SECOND

_DateTime = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
_Date = Annotated[str, Meta(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$")]
_Base64 = Annotated[str, Meta(extra_json_schema={"contentEncoding": "base64"})]


class StateTotals(msgspec.Struct):
    """Number of jobs by state."""

    scheduled: Annotated[int, Meta(description="Scheduled jobs.")]
    blocked: Annotated[int, Meta(description="Blocked jobs.")]
    ready: Annotated[int, Meta(description="Ready jobs.")]
    leased: Annotated[int, Meta(description="Leased jobs.")]
    done: Annotated[int, Meta(description="Done jobs that are retained.")]
    dead: Annotated[int, Meta(description="Dead jobs.")]


# Values


def to_rfc3339(at: int) -> str | None:
    """A time in microseconds as text; None for 0."""
    return format_rfc3339(min(max(at, _FIRST_TIME), _LAST_TIME)) if at else None


def to_date(day: int) -> str:
    return format_rfc3339(min(max(day * _DAY, _FIRST_TIME), _LAST_TIME))[:10]


def as_json(data: bytes) -> Raw | None:
    """The bytes as raw JSON, if they are valid JSON."""
    try:
        data.decode()
        msgspec.json.decode(data, type=Raw)
    except (ValueError, RecursionError):  # DecodeError is a ValueError
        return None
    return Raw(data)


def to_base64(data: bytes) -> str:
    text: str = msgspec.to_builtins(data)
    return text


# Forms

Convert = Callable[[Any], Any]


class HttpForm(NamedTuple):
    type: type[msgspec.Struct]
    convert: Callable[[Any], Any]


class _Member(NamedTuple):
    """A member of the HTTP form: its name and type, and its value for a record."""

    name: str
    type: Any
    default: Any
    value: Convert


@cache
def http(record: type[Record]) -> HttpForm:
    """The HTTP form of a record type."""
    hints = get_type_hints(record, include_extras=True)
    members = [
        member
        for field in msgspec.structs.fields(record)
        for member in _members(field.name, hints[field.name])
    ]
    form = msgspec.defstruct(
        record.__name__.removesuffix("Record"),
        [(each.name, each.type, each.default) for each in members],
        namespace={"__doc__": record.__doc__},
        module=__name__,
        kw_only=True,
    )
    values = [(each.name, each.value) for each in members]

    def convert(value: Any) -> Any:
        return form(**{name: each(value) for name, each in values})

    return HttpForm(form, convert)


def to_http(record: Record) -> Any:
    """The HTTP form of a record."""
    return http(type(record)).convert(record)


def _members(attribute: str, hint: Any) -> list[_Member]:
    inner, metas = _split(hint)
    extra = _merged(metas)
    if extra.get("internal"):
        return []
    described = [meta for meta in metas if meta.description is not None]
    doc = described[-1] if described else Meta(description=attribute)
    doc = Meta(title=doc.title, description=doc.description)
    name = extra.get("name", attribute)
    get: Convert = lambda record: getattr(record, attribute)  # noqa: E731 - one of many
    if extra.get("form") == "payload":
        return _either(name, doc, lambda record: _complete(record, attribute))
    if extra.get("form") == "result":
        return _either(name, doc, get)
    type_, convert = _converted(inner, extra)
    value = get if convert is None else _chained(get, convert)
    if extra.get("form") == "deviation":
        value = lambda record: record.variance**0.5  # noqa: E731
    names = [name, *([extra["also"]] if "also" in extra else [])]
    return [_Member(each, Annotated[type_, doc], msgspec.NODEFAULT, value) for each in names]


def field_docs(record: type[Record]) -> dict[str, tuple[str, str]]:
    """The title and the form of each field; a field without a form is shown as it is."""
    found = {}
    for name, hint in get_type_hints(record, include_extras=True).items():
        _, metas = _split(hint)
        titles = [meta.title for meta in metas if meta.title]
        found[name] = (titles[-1] if titles else name, _merged(metas).get("form", ""))
    return found


def _chained(get: Convert, convert: Convert) -> Convert:
    return lambda record: convert(get(record))


def _split(hint: Any) -> tuple[Any, list[Meta]]:
    """A type without its annotations, and the annotations."""
    metas: list[Meta] = []
    while get_origin(hint) is Annotated:
        hint, *more = get_args(hint)
        metas = [meta for meta in more if isinstance(meta, Meta)] + metas
    return hint, metas


def _merged(metas: list[Meta]) -> dict[str, Any]:
    """The extra data of all annotations."""
    return {key: value for meta in metas for key, value in (meta.extra or {}).items()}


def _complete(record: Any, attribute: str) -> bytes | None:
    """The payload, unless the record has only a part of it."""
    data: bytes = getattr(record, attribute)
    return data if len(data) == record.size else None


def _either(name: str, doc: Meta, data_of: Callable[[Any], bytes | None]) -> list[_Member]:
    """JSON as it is, or bytes in base64; neither without data."""

    def as_raw(record: Any) -> Any:
        data = data_of(record)
        found = None if data is None else as_json(data)
        return UNSET if found is None else found

    def as_base64(record: Any) -> Any:
        data = data_of(record)
        return UNSET if data is None or as_json(data) is not None else to_base64(data)

    encoded = Meta(title=doc.title, description=f"{doc.title} in base64, if it is not JSON.")
    return [
        _Member(name, Annotated[Raw | UnsetType, doc], UNSET, as_raw),
        _Member(f"{name}_base64", Annotated[_Base64 | UnsetType, encoded], UNSET, as_base64),
    ]


def _converted(inner: Any, extra: dict[str, Any]) -> tuple[Any, Convert | None]:
    """The HTTP type of a field, and its conversion; None if the value stays as it is."""
    simple = _SIMPLE.get(extra.get("form", ""))
    if simple is not None:
        return simple
    if "null" in extra:
        null = extra["null"]
        plain = _without_none(inner)
        return plain | None, lambda value: None if value is None or value == null else value
    return _nested(inner)


def _nested(inner: Any) -> tuple[Any, Convert | None]:
    plain, metas = _split(inner)
    form = _merged(metas).get("form")
    if form in _SIMPLE:
        return _SIMPLE[form]
    if isinstance(plain, type) and issubclass(plain, Record):
        form = http(plain)
        return form.type, form.convert
    if get_origin(plain) in {Union, UnionType}:
        type_, convert = _nested(_without_none(plain))
        if convert is None:
            return plain, None
        return type_ | None, lambda value: None if value is None else convert(value)
    if get_origin(plain) is list:
        (item,) = get_args(plain)
        type_, convert = _nested(item)
        if convert is None:
            return plain, None
        return list[type_], lambda values: [convert(value) for value in values]  # type: ignore[valid-type]
    return plain, None


def _without_none(inner: Any) -> Any:
    if get_origin(inner) not in {Union, UnionType}:
        return inner
    (plain,) = (each for each in get_args(inner) if each is not NoneType)
    return plain


def _history(entries: Any) -> list[dict[str, Any]]:
    return [{"at": at, "what": what, **(more or {})} for at, what, more in entries]


_SIMPLE: Final[dict[str, tuple[Any, Convert | None]]] = {
    "time": (_DateTime | None, to_rfc3339),
    "duration": (float, lambda span: span / SECOND),
    "day": (_Date, to_date),
    "counts": (StateTotals, lambda counts: StateTotals(*counts[: len(STATES)])),
    "cursor": (str | None, lambda number: str(number) if number else None),
    "histogram": (list[int], lambda slots: [slots.get(slot, 0) for slot in range(HISTOGRAM_SLOTS)]),
    "history": (list[dict[str, Any]], _history),
    "deviation": (float, None),
}


# The export form

_Column = tuple[str, Any, Any]


def export(name: str, record: type[Record], *more: tuple[type[Record], str]) -> Any:
    """A flat struct with a column per field of the record, and of `more` fields of other records.

    Times are microseconds since 1970. Bytes are text with a second column for their encoding. A
    column without a value is absent from the JSON.
    """
    hints = get_type_hints(record, include_extras=True)
    fields = [(each.name, hints[each.name]) for each in msgspec.structs.fields(record)]
    fields += [(each, get_type_hints(other, include_extras=True)[each]) for other, each in more]
    return msgspec.defstruct(
        name,
        [column for attribute, hint in fields for column in _columns(attribute, hint)],
        namespace={"__doc__": record.__doc__},
        module=__name__,
        omit_defaults=True,
        kw_only=True,
    )


def _columns(attribute: str, hint: Any) -> list[_Column]:
    inner, metas = _split(hint)
    extra = _merged(metas)
    name, plain = extra.get("column", attribute), _without_none(inner)
    if name is None:
        return []
    match extra.get("form"):
        case "payload":
            return [(name, str, msgspec.NODEFAULT), (f"{name}_encoding", str, "")]
        case "result":
            return [(name, str | None, None), (f"{name}_encoding", str, "")]
        case "time":
            return [(name, Time, 0)]
    if isinstance(plain, type) and issubclass(plain, Record):
        nested = get_type_hints(plain, include_extras=True)
        columns = [column for each, hint in nested.items() for column in _columns(each, hint)]
        return [(name, type_, 0 if type_ is Time else "") for name, type_, _ in columns]
    if get_origin(plain) is list:
        return [(name, plain, msgspec.field(default_factory=list))]
    type_ = plain if isinstance(plain, type) else str  # a Literal has text values
    return [(name, type_, "" if extra.get("optional") else msgspec.NODEFAULT)]

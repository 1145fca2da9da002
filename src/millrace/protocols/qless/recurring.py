"""Commands on recurring jobs. The engine pushes their jobs, see engine/recurring.py."""

from typing import Final

from millrace.engine.recurring import RecurringJob
from millrace.protocols.registry import QLESS

from . import lua_values as lua
from .arguments import (
    Args,
    argument_or_none,
    check_tag_count,
    option_number,
    options,
    parse_number,
    tags,
    text,
    texts,
)
from .errors import ScriptError
from .names import decode_name, encode_name
from .state import QlessState


def recur(q: QlessState, now: int, args: Args) -> bytes:
    """Create or replace a recurring job, and return its jid. Arguments: queue, jid, klass, data,
    "interval", seconds, offset, options.
    """
    queue = text(args, 0, "Queue(): no queue name provided")
    jid = text(args, 1, 'RecurringJob On(): Arg "jid" missing')
    klass = text(args, 2, 'RecurringJob On(): Arg "klass" missing')
    spec = text(args, 4, 'RecurringJob On(): Arg "spec" missing')
    data = lua.check_json(argument_or_none(args, 3))
    if spec != "interval":
        raise ScriptError(f'Recur(): schedule type "{spec}" unknown')
    interval = parse_number(args, 5, 'Recur(): Arg "interval" not a number: ')
    offset = parse_number(args, 6, 'Recur(): Arg "offset" not a number: ')
    if interval <= 0:
        raise ScriptError('Recur(): Arg "interval" must be greater than 0')
    chosen = options(args, 7)
    known = q.recurring.get(q.engine_name(jid))
    queue = q.queue_name(queue)
    recurring = RecurringJob(
        q.engine_name(jid),
        klass,
        data,
        queue,
        interval,
        _option(chosen, "priority"),
        lua.to_int64(_option(chosen, "retries")),
        _option(chosen, "backlog"),
        tags(chosen.get("tags", b"[]")),
        max(0, now + lua.to_microseconds(offset)),
        0 if known is None else known.count,
        _throttles(q, chosen.get("throttles", b"[]")),
        q.lower_first,
        origin=QLESS,
        prefix=q.hub.prefix,
    )
    q.put_recurring(recurring)
    q.engine.open_queue(queue)
    q.register_queue(queue, now)
    return encode_name(jid)


def _throttles(q: QlessState, value: bytes) -> list[str]:
    return [q.throttle_name(str(item)) for item in lua.decode_list(value)]


def _option(chosen: dict[str, bytes], name: str) -> lua.Number:
    if name not in chosen:
        return 0
    return option_number(chosen[name], f'Recur(): Arg "{name}" not a number: ')


def unrecur(q: QlessState, now: int, args: Args) -> int:
    """Delete a recurring job, and return 1. Arguments: jid."""
    q.delete_recurring(q.engine_name(text(args, 0, "Recurring(): no jid provided")))
    return 1


def get(q: QlessState, now: int, args: Args, *, decoded: bool = False) -> bytes | None:
    """Return a recurring job, or None if it does not exist. With `decoded`, the data is JSON, not a
    string. Arguments: jid.
    """
    recurring = q.recurring.get(q.engine_name(text(args, 0, "Recurring(): no jid provided")))
    return None if recurring is None else recurring_json(q, recurring, decoded=decoded)


def recurring_json(q: QlessState, recurring: RecurringJob, *, decoded: bool = False) -> bytes:
    """Encode a recurring job as in `recur.get`."""
    return (
        b'{"tags":%b,"jid":%b,"retries":%d,"data":%b,"queue":%b,"state":"recur","count":%d,'
        b'"interval":%b,"klass":%b,"backlog":%b,"priority":%b}'
    ) % (
        lua.encode(recurring.tags) if recurring.tags else lua.EMPTY_LIST,
        lua.encode_string(q.client_name(recurring.jid)),
        recurring.retries,
        recurring.payload if decoded else lua.encode_string(decode_name(recurring.payload)),
        lua.encode_string(q.client_name(recurring.queue)),
        recurring.count,
        lua.format_number(recurring.interval),
        lua.encode_string(recurring.kind),
        lua.format_number(recurring.backlog),
        lua.format_number(recurring.priority),
    )


def update(q: QlessState, now: int, args: Args) -> int:
    """Change options of a recurring job, and return 1. Arguments: jid, (name, value)..."""
    jid = text(args, 0, "Recurring(): no jid provided")
    known = q.recurring.get(q.engine_name(jid))
    if known is None:
        raise ScriptError(f"Recur(): No recurring job {jid}")
    changed = RecurringJob(*known.fields())
    for at in range(1, len(args), 2):
        name = text(args, at, "")
        if at + 1 >= len(args):
            raise ScriptError(f"No value provided for {name}")
        _set(q, changed, name, args[at + 1])
        if name == "priority":
            changed.lower_first = q.lower_first
    q.put_recurring(changed)
    if changed.queue != known.queue:
        q.engine.open_queue(changed.queue)
        q.register_queue(changed.queue, now)
    return 1


def _set(q: QlessState, recurring: RecurringJob, name: str, value: bytes) -> None:
    if name in {"priority", "interval", "retries"}:
        found = option_number(value, f'Recur(): Arg "{name}" must be a number: ')
        if name == "interval":
            if found <= 0:
                raise ScriptError('Recur(): Arg "interval" must be greater than 0')
            shift = lua.to_microseconds(found) - lua.to_microseconds(recurring.interval)
            recurring.next = max(0, recurring.next + shift)
        setattr(recurring, name, lua.to_int64(found) if name == "retries" else found)
    elif name == "backlog":
        recurring.backlog = option_number(value, 'Recur(): Arg "backlog" not a number: ')
    elif name == "data":
        recurring.payload = lua.check_json(value)
    elif name == "klass":
        recurring.kind = decode_name(value)
    elif name == "queue":
        recurring.queue = q.queue_name(decode_name(value))
    elif name == "throttles":
        recurring.limits, recurring.has_queue_limit = _throttles(q, value), False
    else:
        raise ScriptError(f'Recur(): Unrecognized option "{name}"')


def tag(q: QlessState, now: int, args: Args) -> bytes:
    """Add tags to a recurring job, and return its tags. Arguments: jid, tags."""
    recurring = _find_recurring(q, args, "Tag")
    tagged = list(dict.fromkeys([*recurring.tags, *texts(args, 1)]))
    check_tag_count(len(tagged))
    recurring.tags = tagged
    q.put_recurring(recurring)
    return lua.encode(recurring.tags) if recurring.tags else lua.EMPTY_LIST


def untag(q: QlessState, now: int, args: Args) -> bytes:
    """Remove tags from a recurring job, and return the remaining tags. Arguments: jid, tags."""
    recurring = _find_recurring(q, args, "Untag")
    removed = set(texts(args, 1))
    recurring.tags = [tag for tag in recurring.tags if tag not in removed]
    q.put_recurring(recurring)
    return lua.encode(recurring.tags) if recurring.tags else lua.EMPTY_LIST


def _find_recurring(q: QlessState, args: Args, command: str) -> RecurringJob:
    jid = text(args, 0, "Recurring(): no jid provided")
    recurring = q.recurring.get(q.engine_name(jid))
    if recurring is None:
        raise ScriptError(f"{command}(): Job {jid} does not exist")
    return recurring


COMMANDS: Final = {
    "recur": recur,
    "unrecur": unrecur,
    "recur.get": get,
    "recur.update": update,
    "recur.tag": tag,
    "recur.untag": untag,
}

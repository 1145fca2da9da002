"""Recurring jobs: commands on them, and spawning, which happens when a client pops or peeks."""

import math
from typing import Final

from millrace.engine.job import QLESS, Push

from . import lua_values as lua
from .arguments import Args, number, option_number, options, raw, tags, text, texts
from .contract import ScriptError
from .job_view import Part
from .names import decode_name, encode_name
from .state import Qless, Recurring

LEASE_FOR: Final = 1800 * 1_000_000
#: Maximum number of jobs that one call creates. The next call creates the remaining due jobs.
MAX_SPAWNED: Final = 10_000


def recur(q: Qless, now: int, args: Args) -> bytes:
    """queue, jid, klass, data, "interval", seconds, offset, options"""
    queue = text(args, 0, "Queue(): no queue name provided")
    jid = text(args, 1, 'RecurringJob On(): Arg "jid" missing')
    klass = text(args, 2, 'RecurringJob On(): Arg "klass" missing')
    spec = text(args, 4, 'RecurringJob On(): Arg "spec" missing')
    data = lua.check(raw(args, 3))
    if spec != "interval":
        raise ScriptError(f'Recur(): schedule type "{spec}" unknown')
    interval = number(args, 5, 'Recur(): Arg "interval" not a number: ')
    offset = number(args, 6, 'Recur(): Arg "offset" not a number: ')
    if interval <= 0:
        raise ScriptError('Recur(): Arg "interval" must be greater than 0')
    chosen = options(args, 7)
    known = q.recurring.get(q.scoped(jid))
    queue = q.scoped(queue)
    recurring = Recurring(
        q.scoped(jid),
        klass,
        data,
        queue,
        interval,
        _option(chosen, "priority"),
        lua.whole(_option(chosen, "retries")),
        _option(chosen, "backlog"),
        tags(chosen.get("tags", b"[]")),
        max(0, now + lua.moment(offset)),
        0 if known is None else known.count,
        _throttles(q, chosen.get("throttles", b"[]")),
        q.lower_first,
    )
    q.engine.open_queue(queue)
    q.see(queue, now)
    q.keep(recurring)
    return encode_name(jid)


def _throttles(q: Qless, value: bytes) -> list[str]:
    return [q.scoped_throttle(str(item)) for item in lua.decode_list(value)]


def _option(chosen: dict[str, bytes], name: str) -> lua.Number:
    if name not in chosen:
        return 0
    return option_number(chosen[name], f'Recur(): Arg "{name}" not a number: ')


def unrecur(q: Qless, now: int, args: Args) -> int:
    """jid"""
    q.unkeep(q.scoped(text(args, 0, "Recurring(): no jid provided")))
    return 1


def get(q: Qless, now: int, args: Args, *, decoded: bool = False) -> bytes | None:
    """jid; `decoded`: the data as JSON, not as a string"""
    recurring = q.recurring.get(q.scoped(text(args, 0, "Recurring(): no jid provided")))
    return None if recurring is None else shown(q, recurring, decoded=decoded)


def shown(q: Qless, recurring: Recurring, *, decoded: bool = False) -> bytes:
    """Encode a recurring job as in `recur.get`."""
    return (
        b'{"tags":%b,"jid":%b,"retries":%d,"data":%b,"queue":%b,"state":"recur","count":%d,'
        b'"interval":%b,"klass":%b,"backlog":%b,"priority":%b}'
    ) % (
        lua.encode(recurring.tags) if recurring.tags else lua.NOTHING,
        lua.string(q.local(recurring.jid)),
        recurring.retries,
        recurring.data if decoded else lua.string(decode_name(recurring.data)),
        lua.string(q.local(recurring.queue)),
        recurring.count,
        lua.number(recurring.interval),
        lua.string(recurring.klass),
        lua.number(recurring.backlog),
        lua.number(recurring.priority),
    )


def update(q: Qless, now: int, args: Args) -> int:
    """jid, (name, value)..."""
    jid = text(args, 0, "Recurring(): no jid provided")
    known = q.recurring.get(q.scoped(jid))
    if known is None:
        raise ScriptError(f"Recur(): No recurring job {jid}")
    changed = Recurring(*(getattr(known, name) for name in Recurring.__struct_fields__))
    for at in range(1, len(args), 2):
        name = text(args, at, "")
        if at + 1 >= len(args):
            raise ScriptError(f"No value provided for {name}")
        _set(q, changed, name, args[at + 1])
        if name == "priority":
            changed.lower_first = q.lower_first
    if changed.queue != known.queue:
        q.engine.open_queue(changed.queue)
        q.see(changed.queue, now)
    q.keep(changed)
    return 1


def _set(q: Qless, recurring: Recurring, name: str, value: bytes) -> None:
    if name in {"priority", "interval", "retries"}:
        found = option_number(value, f'Recur(): Arg "{name}" must be a number: ')
        if name == "interval":
            if found <= 0:
                raise ScriptError('Recur(): Arg "interval" must be greater than 0')
            later = lua.moment(found) - lua.moment(recurring.interval)
            recurring.next = max(0, recurring.next + later)
        setattr(recurring, name, lua.whole(found) if name == "retries" else found)
    elif name == "backlog":
        recurring.backlog = option_number(value, 'Recur(): Arg "backlog" not a number: ')
    elif name == "data":
        recurring.data = lua.check(value)
    elif name == "klass":
        recurring.klass = decode_name(value)
    elif name == "queue":
        recurring.queue = q.scoped(decode_name(value))
    elif name == "throttles":
        recurring.throttles, recurring.own_throttle = _throttles(q, value), False
    else:
        raise ScriptError(f'Recur(): Unrecognized option "{name}"')


def tag(q: Qless, now: int, args: Args) -> bytes:
    """jid, tags"""
    recurring = _known(q, args, "Tag")
    recurring.tags = list(dict.fromkeys([*recurring.tags, *texts(args, 1)]))
    q.keep(recurring)
    return lua.encode(recurring.tags) if recurring.tags else lua.NOTHING


def untag(q: Qless, now: int, args: Args) -> bytes:
    """jid, tags"""
    recurring = _known(q, args, "Untag")
    away = set(texts(args, 1))
    recurring.tags = [tag for tag in recurring.tags if tag not in away]
    q.keep(recurring)
    return lua.encode(recurring.tags) if recurring.tags else lua.NOTHING


def _known(q: Qless, args: Args, who: str) -> Recurring:
    jid = text(args, 0, "Recurring(): no jid provided")
    recurring = q.recurring.get(q.scoped(jid))
    if recurring is None:
        raise ScriptError(f"{who}(): Job {jid} does not exist")
    return recurring


def spawn(q: Qless, queue: str, now: int, most: float) -> None:
    """Put the due jobs of a queue's recurring jobs, at most `most` of them."""
    if not q.recurring or most <= 0 or q.engine.halted:
        return
    most = min(most, MAX_SPAWNED)
    due = [r for r in q.recurring.values() if r.queue == queue and r.next <= now]
    for recurring in sorted(due, key=lambda each: (each.next, each.jid)):
        interval = max(1, lua.moment(recurring.interval))
        moment = recurring.next // 1_000_000 * 1_000_000
        if recurring.backlog:
            missed = (now - moment) / interval
            if missed > recurring.backlog:
                moment += math.ceil(missed - recurring.backlog) * interval
        before = recurring.next
        while moment <= now and most > 0:
            _spawn(q, recurring, moment, now)
            most -= 1
            moment += interval
            recurring.next = moment
        if recurring.next != before:
            q.keep(recurring)


def _spawn(q: Qless, recurring: Recurring, moment: int, now: int) -> None:
    """Put one job of a recurring job, with the time at which it was due."""
    recurring.count += 1
    while q.engine.find(f"{recurring.jid}-{recurring.count}") is not None:
        recurring.count += 1  # an earlier recurring job of the same name left this jid
    part = Part(
        recurring.priority,
        [(moment // 1_000_000, "put", {"q": q.local(recurring.queue)})],
        spawned_from=q.local(recurring.jid),
        throttles=list(recurring.throttles),
        since=moment,
        lower_first=recurring.lower_first,
    )
    push = Push(
        f"{recurring.jid}-{recurring.count}",
        recurring.klass,
        recurring.data,
        QLESS,
        recurring.queue,
        recurring.retries,
        LEASE_FOR,
        rank=part.rank,
        place=moment,
        own=part,
    )
    job = q.engine.push(push, moment)
    q.set_tags(job, part, [(tag, now) for tag in recurring.tags])


COMMANDS: Final = {
    "recur": recur,
    "unrecur": unrecur,
    "recur.get": get,
    "recur.update": update,
    "recur.tag": tag,
    "recur.untag": untag,
}

"""Commands on the values of keys: strings, lists, hashes, sets and sorted sets."""

from collections.abc import Generator
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from millrace.engine.discarded import drain
from millrace.engine.job import FOREVER, SECOND
from millrace.protocols.errors import ClientError
from millrace.protocols.slices import (
    SLICE_SIZE,
    filter_in_slices,
    keep_range_in_slices,
    replace_in_slices,
)

from .commands import (
    ANY,
    MAX_REPLY_BYTES,
    NEVER_WAITS,
    NO_REPLY,
    READ_ONLY,
    SYNTAX,
    TOO_LARGE,
    Answer,
    Command,
    Slices,
    parse_decimal,
    parse_integer,
    wrong_count,
)
from .key_access import (
    QLESS_PREFIX,
    exists_as,
    is_writable,
    require_scratch_keys,
    scratch_name,
    slice_range,
)
from .resp import NO_LIST, OK, Map, Reply, Set, size_of

if TYPE_CHECKING:
    from .connection import QlessConnection

BAD_TIMEOUT: Final = "ERR timeout is not a float or out of range"
#: Keys of one command that a slice examines.
KEYS_BATCH_SIZE: Final = 100


# Strings


def _get(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    if not exists_as(connection, args[0], "string", now):
        return None
    return connection.hub.scratch.string_at(scratch_name(connection, args[0]), now)


def _set(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    """Set a string, and return OK, or with GET the old value. Arguments: key, value, [NX | XX] [EX
    seconds | PX milliseconds] [GET].
    """
    require_scratch_keys(args[0])
    scratch, key, words = connection.hub.scratch, scratch_name(connection, args[0]), args[2:]
    expires, condition, wants_old = 0, b"", False
    while words:
        option = words.pop(0).upper()
        if option in {b"NX", b"XX"} and not condition:
            condition = option
        elif option == b"GET":
            wants_old = True
        elif option in {b"EX", b"PX"} and words and not expires:
            duration = parse_integer(words.pop(0))
            expires = _expiry_time(
                duration, SECOND if option == b"EX" else SECOND // 1000, now, "set"
            )
        else:
            raise ClientError(SYNTAX)
    old = scratch.string_at(key, now) if wants_old else None
    if condition and (scratch.get(key, now) is None) != (condition == b"NX"):
        return old
    scratch.set_string(key, args[1], now, expires)
    return old if wants_old else OK


def _expiry_time(duration: int, unit: int, now: int, command: str) -> int:
    if not 0 < duration <= (FOREVER - now) // unit - 1:
        raise ClientError(f"ERR invalid expire time in '{command}' command")
    return now + duration * unit


def _setex(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    require_scratch_keys(args[0])
    expires = _expiry_time(parse_integer(args[1]), SECOND, now, "setex")
    connection.hub.scratch.set_string(scratch_name(connection, args[0]), args[2], now, expires)
    return OK


def _incr(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    return _increment(connection, args[0], 1, now)


def _decr(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    return _increment(connection, args[0], -1, now)


def _incrby(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    return _increment(connection, args[0], parse_integer(args[1]), now)


def _decrby(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    return _increment(connection, args[0], -parse_integer(args[1]), now)


def _increment(connection: "QlessConnection", key: bytes, by: int, now: int) -> int:
    require_scratch_keys(key)
    return connection.hub.scratch.increment(scratch_name(connection, key), by, now)


# Lists


def _rpush(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    return _push(connection, args[0], args[1:], now, left=False)


def _lpush(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    return _push(connection, args[0], args[1:], now, left=True)


def _push(
    connection: "QlessConnection", key: bytes, items: list[bytes], now: int, *, left: bool
) -> int:
    if is_writable(key, "list"):
        return connection.hub.redis_view.writable.push(key, items, left=left)
    require_scratch_keys(key)
    return connection.hub.scratch.push(scratch_name(connection, key), items, now, left=left)


def _lpop(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    return _pop(connection, args, now, left=True)


def _rpop(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    return _pop(connection, args, now, left=False)


def _pop(connection: "QlessConnection", args: list[bytes], now: int, *, left: bool) -> Answer:
    """Remove and return one item, or a list of up to `count` items."""
    require_scratch_keys(args[0])
    scratch, key = connection.hub.scratch, scratch_name(connection, args[0])
    if len(args) == 1:
        return scratch.pop(key, now, left=left)
    count = parse_integer(args[1], "ERR value is out of range, must be positive")
    if count < 0:
        raise ClientError("ERR value is out of range, must be positive")
    items = scratch.pop_many(key, count, now, left=left)
    return NO_LIST if items is None else list(items)


def _llen(connection: "QlessConnection", args: list[bytes], now: int) -> Slices:
    if not exists_as(connection, args[0], "list", now):
        return 0
    if args[0].startswith(QLESS_PREFIX):
        return (yield from connection.hub.redis_view.length(args[0]))
    return len(connection.hub.scratch.list_at(scratch_name(connection, args[0]), now) or ())


def _lrange(connection: "QlessConnection", args: list[bytes], now: int) -> Slices:
    parse_integer(args[1]), parse_integer(args[2])
    if not exists_as(connection, args[0], "list", now):
        return []
    if args[0].startswith(QLESS_PREFIX):
        read = yield from connection.hub.redis_view.read(args[0])
        page = slice_range(len(read), args[1], args[2])
        return (yield from keep_range_in_slices(read, page.start, page.stop))
    items = connection.hub.scratch.list_at(scratch_name(connection, args[0]), now) or []
    return list(items[slice_range(len(items), args[1], args[2])])


def _brpop(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    """Remove the last item of the first list that is not empty, or wait. 0 means no timeout."""
    *keys, seconds = args
    timeout = parse_decimal(seconds, BAD_TIMEOUT)
    if timeout < 0:
        raise ClientError("ERR timeout is negative")
    require_scratch_keys(*keys)
    names = [scratch_name(connection, key) for key in keys]
    for key, name in zip(keys, names, strict=True):
        item = connection.hub.scratch.pop(name, now)
        if item is not None:
            return [key, item]
    if connection.in_exec:
        return NO_LIST
    until = now + int(timeout * SECOND) if timeout else FOREVER
    connection.wait_for_item(names, min(max(until, now + 1), FOREVER))
    return NO_REPLY


# Hashes


def _hset(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    if len(args) % 2 == 0:
        raise ClientError(wrong_count("hset"))
    fields = dict(zip(args[1::2], args[2::2], strict=True))
    if is_writable(args[0], "hash"):
        return connection.hub.redis_view.writable.set_fields(args[0], fields, now)
    require_scratch_keys(args[0])
    return connection.hub.scratch.set_fields(scratch_name(connection, args[0]), fields, now)


def _hash(
    connection: "QlessConnection", key: bytes, now: int
) -> Generator[None, None, dict[bytes, bytes]]:
    if not exists_as(connection, key, "hash", now):
        return {}
    if key.startswith(QLESS_PREFIX):
        return dict((yield from connection.hub.redis_view.read(key)))
    return connection.hub.scratch.hash_at(scratch_name(connection, key), now) or {}


def _hget(connection: "QlessConnection", args: list[bytes], now: int) -> Slices:
    return (yield from _hash(connection, args[0], now)).get(args[1])


def _hgetall(connection: "QlessConnection", args: list[bytes], now: int) -> Slices:
    return Map((yield from _hash(connection, args[0], now)).items())


def _hmget(connection: "QlessConnection", args: list[bytes], now: int) -> Slices:
    fields = yield from _hash(connection, args[0], now)
    if len(args) > KEYS_BATCH_SIZE:
        fields = fields.copy()  # other clients may change it between two slices
    answer: list[Reply] = []
    room = MAX_REPLY_BYTES - size_of([])
    for field in args[1:]:
        answer.append(fields.get(field))
        room -= size_of(answer[-1])
        if room < 0:
            raise ClientError(TOO_LARGE)
        if len(answer) % KEYS_BATCH_SIZE == 0:
            yield
    return answer


# Sets


def _members(connection: "QlessConnection", key: bytes, now: int) -> list[bytes]:
    if not exists_as(connection, key, "set", now):
        return []
    if key.startswith(QLESS_PREFIX):
        return connection.hub.redis_view.members(key)
    return sorted(connection.hub.scratch.set_at(scratch_name(connection, key), now) or ())


def _smembers(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    if exists_as(connection, args[0], "set", now) and args[0].startswith(QLESS_PREFIX):
        return _members_in_slices(connection, args[0])
    return Set(_members(connection, args[0], now))


def _members_in_slices(connection: "QlessConnection", key: bytes) -> Slices:
    return Set((yield from connection.hub.redis_view.read(key)))


def _sismember(connection: "QlessConnection", args: list[bytes], now: int) -> Slices:
    if exists_as(connection, args[0], "set", now) and args[0].startswith(QLESS_PREFIX):
        members = drain((yield from connection.hub.redis_view.read(args[0])))
        return len((yield from filter_in_slices(members, lambda member: member == args[1])))
    return int(args[1] in _members(connection, args[0], now))


def _sadd(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    require_scratch_keys(args[0])
    return connection.hub.scratch.add_members(scratch_name(connection, args[0]), args[1:], now)


def _srem(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    require_scratch_keys(args[0])
    return connection.hub.scratch.remove_members(scratch_name(connection, args[0]), args[1:], now)


# Sorted sets


def _zadd(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    """Set scores in a sorted set, and return the number of new members. Arguments: key, (score,
    member)...
    """
    if len(args) % 2 == 0:
        raise ClientError(SYNTAX)
    require_scratch_keys(args[0])
    scores = [parse_decimal(word, "ERR value is not a valid float") for word in args[1::2]]
    members = dict(zip(args[2::2], scores, strict=True))
    return connection.hub.scratch.set_scores(scratch_name(connection, args[0]), members, now)


def _zrem(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    require_scratch_keys(args[0])
    return connection.hub.scratch.remove_scores(scratch_name(connection, args[0]), args[1:], now)


def _zscore(connection: "QlessConnection", args: list[bytes], now: int) -> Slices:
    if not exists_as(connection, args[0], "zset", now):
        return None
    if args[0].startswith(QLESS_PREFIX):
        return (yield from connection.hub.redis_view.score(args[0], args[1]))
    found = connection.hub.scratch.sorted_set_at(scratch_name(connection, args[0]), now)
    return None if found is None else found.scores.get(args[1])


def _zcard(connection: "QlessConnection", args: list[bytes], now: int) -> Slices:
    if not exists_as(connection, args[0], "zset", now):
        return 0
    if args[0].startswith(QLESS_PREFIX):
        return (yield from connection.hub.redis_view.length(args[0]))
    found = connection.hub.scratch.sorted_set_at(scratch_name(connection, args[0]), now)
    return 0 if found is None else len(found.scores)


def _zrange(connection: "QlessConnection", args: list[bytes], now: int) -> Slices:
    if len(args) == 4 and args[3].upper() != b"WITHSCORES":
        raise ClientError(SYNTAX)
    first, last = parse_integer(args[1]), parse_integer(args[2])
    if not exists_as(connection, args[0], "zset", now):
        return []
    if args[0].startswith(QLESS_PREFIX):
        found = yield from connection.hub.redis_view.range(args[0], first, last)
    else:
        value = connection.hub.scratch.sorted_set_at(scratch_name(connection, args[0]), now)
        found = [] if value is None else value.ordered()
        found = found[slice_range(len(found), args[1], args[2])]
    if len(args) == 3:
        return (yield from replace_in_slices(found, itemgetter(0)))
    if connection.resp_version == 3:
        return (yield from replace_in_slices(found, lambda row: [row[0], float(row[1])]))
    found.reverse()
    pairs: list[Reply] = []
    while found:
        member, score = found.pop()
        pairs += member, float(score)
        if len(pairs) % SLICE_SIZE == 0:
            yield
    return pairs


COMMANDS: Final = {
    b"GET": Command(_get, 1, 1, READ_ONLY),
    b"SET": Command(_set, 2, 6),
    b"SETEX": Command(_setex, 3, 3),
    b"INCR": Command(_incr, 1, 1),
    b"DECR": Command(_decr, 1, 1),
    b"INCRBY": Command(_incrby, 2, 2),
    b"DECRBY": Command(_decrby, 2, 2),
    b"RPUSH": Command(_rpush, 2, ANY),
    b"LPUSH": Command(_lpush, 2, ANY),
    b"LPOP": Command(_lpop, 1, 2),
    b"RPOP": Command(_rpop, 1, 2),
    b"LLEN": Command(_llen, 1, 1, READ_ONLY),
    b"LRANGE": Command(_lrange, 3, 3, READ_ONLY),
    b"BRPOP": Command(_brpop, 2, ANY, NEVER_WAITS),
    b"HSET": Command(_hset, 3, ANY),
    b"HGET": Command(_hget, 2, 2, READ_ONLY),
    b"HGETALL": Command(_hgetall, 1, 1, READ_ONLY),
    b"HMGET": Command(_hmget, 2, ANY, READ_ONLY),
    b"SMEMBERS": Command(_smembers, 1, 1, READ_ONLY),
    b"SISMEMBER": Command(_sismember, 2, 2, READ_ONLY),
    b"SADD": Command(_sadd, 2, ANY),
    b"SREM": Command(_srem, 2, ANY),
    b"ZADD": Command(_zadd, 3, ANY),
    b"ZREM": Command(_zrem, 2, ANY),
    b"ZSCORE": Command(_zscore, 2, 2, READ_ONLY),
    b"ZCARD": Command(_zcard, 1, 1, READ_ONLY),
    b"ZRANGE": Command(_zrange, 3, 4, READ_ONLY),
}

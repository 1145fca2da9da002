"""Commands on keys. Keys under `ql:` belong to Qless and can be read; clients of reqless also write
patterns and throttles there. All other keys are scratch keys.
"""

from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING, Final

from millrace.engine.job import FOREVER, SECOND
from millrace.protocols.errors import ClientError
from millrace.protocols.globs import check_pattern, matcher

from .commands import (
    ANY,
    MAX_REPLY_BYTES,
    NEVER_WAITS,
    NO_REPLY,
    READS,
    SYNTAX,
    TOO_LARGE,
    WRONG_TYPE,
    Answer,
    Command,
    Slices,
    parse_decimal,
    parse_integer,
    quote_argument,
    wrong_count,
)
from .resp import NO_LIST, OK, Map, Reply, Set, Simple, size_of
from .scratch import key_type_of
from .writable_keys import writable_key_type

if TYPE_CHECKING:
    from .connection import QlessConnection

QLESS_PREFIX: Final = b"ql:"
#: Maximum number of names that KEYS lists, and of jobs that one SCAN examines.
MAX_KEYS_LISTED: Final = 100_000
MAX_SCAN_COUNT: Final = 1000
#: Bytes of names that one slice of KEYS examines, and the additional cost of each name.
SLICE_BYTES: Final = 16_384
NAME_COST: Final = 32
#: The cost of a step that finds no name, such as a queue without jobs.
EXAMINED_COST: Final = 512
NAMES_BATCH_SIZE: Final = 50
#: Keys of one command that a slice examines or deletes.
KEYS_BATCH_SIZE: Final = 100
BAD_TIMEOUT: Final = "ERR timeout is not a float or out of range"


def _key_type(connection: "QlessConnection", key: bytes, now: int) -> str:
    if key.startswith(QLESS_PREFIX):
        return connection.hub.redis_view.key_type(key)
    value = connection.hub.scratch.get(_scratch_name(connection, key), now)
    return "" if value is None else key_type_of(value)


def _scratch_name(connection: "QlessConnection", key: bytes) -> bytes:
    """Return the name of a scratch key in the current database."""
    return connection.scratch_prefix + key


def _exists_as(connection: "QlessConnection", key: bytes, key_type: str, now: int) -> bool:
    """Return whether the key exists. Reject a key of a different type."""
    found = _key_type(connection, key, now)
    if found not in {"", key_type}:
        raise ClientError(WRONG_TYPE)
    return bool(found)


def _writable(key: bytes, key_type: str) -> bool:
    """Return whether this is a writable key of Qless. Reject a key of a different type."""
    found = writable_key_type(key)
    if found not in {"", key_type}:
        raise ClientError(WRONG_TYPE)
    return bool(found)


def _require_scratch_keys(*keys: bytes) -> None:
    for key in keys:
        if key.startswith(QLESS_PREFIX):
            raise ClientError(
                f"ERR '{quote_argument(key)}' belongs to Qless: only Qless commands can change it"
            )


def _slice_range(length: int, first: bytes, last: bytes) -> slice:
    """Return the range from `first` to `last` inclusive. Negative values count from the end."""
    start, stop = parse_integer(first), parse_integer(last)
    start = max(0, start + length) if start < 0 else start
    stop = stop + length if stop < 0 else stop
    return slice(start, max(start, stop + 1))


# Any key


def _keys(connection: "QlessConnection", args: list[bytes], now: int) -> Slices:
    matches = matcher(check_pattern(args[0]))
    scratch = connection.hub.scratch.names(now, connection.scratch_prefix)
    found: list[Reply] = [name for name in scratch if matches(name)]
    jobs_to_examine = 0
    for name in connection.hub.redis_view.names():
        if name and matches(name):
            found.append(name)
            if len(found) > MAX_KEYS_LISTED:
                raise ClientError(f"ERR more than {MAX_KEYS_LISTED} keys match")
        jobs_to_examine += NAME_COST + (len(name) or EXAMINED_COST)
        if jobs_to_examine > SLICE_BYTES:
            jobs_to_examine = 0
            yield
    return found


def _scan(connection: "QlessConnection", args: list[bytes], now: int) -> Slices:
    """Return some keys and the cursor of the next call, which is the number of a job. Cursor 0
    marks the start and the end. The first call also returns the keys that do not belong to jobs.
    """
    start = parse_integer(args[0], "ERR invalid cursor")
    pattern, count = b"*", 10
    for at in range(1, len(args), 2):
        option, value = args[at].upper(), args[at + 1 : at + 2]
        if not value or option not in {b"MATCH", b"COUNT"}:
            raise ClientError(SYNTAX)
        if option == b"MATCH":
            pattern = check_pattern(value[0])
        else:
            count = parse_integer(value[0])
    if count < 1:
        raise ClientError(SYNTAX)
    hub = connection.hub
    names = hub.scratch.names(now, connection.scratch_prefix) if start == 0 else []
    following, job_keys = yield from hub.redis_view.scan(max(0, start), min(count, MAX_SCAN_COUNT))
    matches = matcher(pattern)
    found: list[Reply] = [name for name in (*names, *job_keys) if matches(name)]
    return [b"%d" % following, found]


def _dbsize(connection: "QlessConnection", _args: list[bytes], now: int) -> Slices:
    count = len(connection.hub.scratch.names(now, connection.scratch_prefix))
    for number, name in enumerate(connection.hub.redis_view.names(), 1):
        count += bool(name)
        if number % NAMES_BATCH_SIZE == 0:
            yield
    return count


def _exists(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    if len(args) <= KEYS_BATCH_SIZE:
        return sum(1 for key in args if _key_type(connection, key, now))
    return _count_in_slices(args, lambda key: bool(_key_type(connection, key, now)))


def _type(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    return Simple(_key_type(connection, args[0], now) or "none")


def _del(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    _require_scratch_keys(
        *(key for key in args if key.startswith(QLESS_PREFIX) and not writable_key_type(key))
    )
    if len(args) <= KEYS_BATCH_SIZE:
        return sum(_delete(connection, key, now) for key in args)
    return _count_in_slices(args, lambda key: _delete(connection, key, now))


def _count_in_slices(keys: list[bytes], act: Callable[[bytes], bool]) -> Slices:
    """Return the number of keys for which `act` returns true."""
    count = 0
    for number, key in enumerate(keys, 1):
        count += act(key)
        if number % KEYS_BATCH_SIZE == 0:
            yield
    return count


def _delete(connection: "QlessConnection", key: bytes, now: int) -> bool:
    if writable_key_type(key):
        return connection.hub.redis_view.writable.delete(key, now)
    scratch, name = connection.hub.scratch, _scratch_name(connection, key)
    return scratch.get(name, now) is not None and scratch.delete(name, now)


def _ttl(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    """Return the seconds to live, -1 if the key does not expire, -2 if it does not exist."""
    if not _key_type(connection, args[0], now):
        return -2
    if args[0].startswith(QLESS_PREFIX):
        return connection.hub.redis_view.ttl(args[0], now)
    when = connection.hub.scratch.expiry_time(_scratch_name(connection, args[0]))
    return -1 if when is None else (when - now + SECOND // 2) // SECOND


def _expire(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    seconds = parse_integer(args[1])
    _require_scratch_keys(args[0])
    when = _expiry(seconds, now, "expire")
    return int(connection.hub.scratch.expire(_scratch_name(connection, args[0]), when, now))


def _expiry(seconds: int, now: int, command: str) -> int:
    if abs(seconds) > FOREVER // SECOND - now // SECOND - 1:
        raise ClientError(f"ERR invalid expire time in '{command}' command")
    return now + seconds * SECOND


def _flushdb(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    return _flush(connection, args, now, all_databases=False)


def _flushall(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    return _flush(connection, args, now, all_databases=True)


def _flush(
    connection: "QlessConnection", args: list[bytes], now: int, *, all_databases: bool
) -> Answer:
    """Remove the data pushed over Qless."""
    if args and args[0].upper() not in {b"SYNC", b"ASYNC"}:
        raise ClientError(SYNTAX)
    return _with_ok(
        connection.hub.flush(now, connection.scratch_prefix, all_databases=all_databases)
    )


def _with_ok(work: Iterable[None]) -> Slices:
    yield from work
    return OK


# Strings


def _get(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    if not _exists_as(connection, args[0], "string", now):
        return None
    return connection.hub.scratch.string_at(_scratch_name(connection, args[0]), now)


def _set(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    """Set a string, and return OK, or with GET the old value. Arguments: key, value, [NX | XX] [EX
    seconds | PX milliseconds] [GET].
    """
    _require_scratch_keys(args[0])
    scratch, key, words = connection.hub.scratch, _scratch_name(connection, args[0]), args[2:]
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
    _require_scratch_keys(args[0])
    expires = _expiry_time(parse_integer(args[1]), SECOND, now, "setex")
    connection.hub.scratch.set_string(_scratch_name(connection, args[0]), args[2], now, expires)
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
    _require_scratch_keys(key)
    return connection.hub.scratch.increment(_scratch_name(connection, key), by, now)


# Lists


def _rpush(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    return _push(connection, args[0], args[1:], now, left=False)


def _lpush(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    return _push(connection, args[0], args[1:], now, left=True)


def _push(
    connection: "QlessConnection", key: bytes, items: list[bytes], now: int, *, left: bool
) -> int:
    if _writable(key, "list"):
        return connection.hub.redis_view.writable.push(key, items, left=left)
    _require_scratch_keys(key)
    return connection.hub.scratch.push(_scratch_name(connection, key), items, now, left=left)


def _lpop(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    return _pop(connection, args, now, left=True)


def _rpop(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    return _pop(connection, args, now, left=False)


def _pop(connection: "QlessConnection", args: list[bytes], now: int, *, left: bool) -> Answer:
    """Remove and return one item, or a list of up to `count` items."""
    _require_scratch_keys(args[0])
    scratch, key = connection.hub.scratch, _scratch_name(connection, args[0])
    if len(args) == 1:
        return scratch.pop(key, now, left=left)
    count = parse_integer(args[1], "ERR value is out of range, must be positive")
    if count < 0:
        raise ClientError("ERR value is out of range, must be positive")
    items = scratch.pop_many(key, count, now, left=left)
    return NO_LIST if items is None else list(items)


def _llen(connection: "QlessConnection", args: list[bytes], now: int) -> Slices:
    if not _exists_as(connection, args[0], "list", now):
        return 0
    if args[0].startswith(QLESS_PREFIX):
        return (yield from connection.hub.redis_view.length(args[0]))
    return len(connection.hub.scratch.list_at(_scratch_name(connection, args[0]), now) or ())


def _lrange(connection: "QlessConnection", args: list[bytes], now: int) -> Slices:
    parse_integer(args[1]), parse_integer(args[2])
    if not _exists_as(connection, args[0], "list", now):
        return []
    if args[0].startswith(QLESS_PREFIX):
        items = yield from connection.hub.redis_view.read(args[0])
    else:
        items = connection.hub.scratch.list_at(_scratch_name(connection, args[0]), now) or []
    return list(items[_slice_range(len(items), args[1], args[2])])


def _brpop(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    """Remove the last item of the first list that is not empty, or wait. 0 means no timeout."""
    *keys, seconds = args
    timeout = parse_decimal(seconds, BAD_TIMEOUT)
    if timeout < 0:
        raise ClientError("ERR timeout is negative")
    _require_scratch_keys(*keys)
    names = [_scratch_name(connection, key) for key in keys]
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
    if _writable(args[0], "hash"):
        return connection.hub.redis_view.writable.set_fields(args[0], fields, now)
    _require_scratch_keys(args[0])
    return connection.hub.scratch.set_fields(_scratch_name(connection, args[0]), fields, now)


def _hash(
    connection: "QlessConnection", key: bytes, now: int
) -> Generator[None, None, dict[bytes, bytes]]:
    if not _exists_as(connection, key, "hash", now):
        return {}
    if key.startswith(QLESS_PREFIX):
        return dict((yield from connection.hub.redis_view.read(key)))
    return connection.hub.scratch.hash_at(_scratch_name(connection, key), now) or {}


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
    if not _exists_as(connection, key, "set", now):
        return []
    if key.startswith(QLESS_PREFIX):
        return connection.hub.redis_view.members(key)
    return sorted(connection.hub.scratch.set_at(_scratch_name(connection, key), now) or ())


def _smembers(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    if _exists_as(connection, args[0], "set", now) and args[0].startswith(QLESS_PREFIX):
        return _members_in_slices(connection, args[0])
    return Set(_members(connection, args[0], now))


def _members_in_slices(connection: "QlessConnection", key: bytes) -> Slices:
    return Set((yield from connection.hub.redis_view.read(key)))


def _sismember(connection: "QlessConnection", args: list[bytes], now: int) -> Slices:
    if _exists_as(connection, args[0], "set", now) and args[0].startswith(QLESS_PREFIX):
        return int(args[1] in (yield from connection.hub.redis_view.read(args[0])))
    return int(args[1] in _members(connection, args[0], now))


def _sadd(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    _require_scratch_keys(args[0])
    return connection.hub.scratch.add_members(_scratch_name(connection, args[0]), args[1:], now)


def _srem(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    _require_scratch_keys(args[0])
    return connection.hub.scratch.remove_members(_scratch_name(connection, args[0]), args[1:], now)


# Sorted sets


def _zadd(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    """Set scores in a sorted set, and return the number of new members. Arguments: key, (score,
    member)...
    """
    if len(args) % 2 == 0:
        raise ClientError(SYNTAX)
    _require_scratch_keys(args[0])
    scores = [parse_decimal(word, "ERR value is not a valid float") for word in args[1::2]]
    members = dict(zip(args[2::2], scores, strict=True))
    return connection.hub.scratch.set_scores(_scratch_name(connection, args[0]), members, now)


def _zrem(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    _require_scratch_keys(args[0])
    return connection.hub.scratch.remove_scores(_scratch_name(connection, args[0]), args[1:], now)


def _zscore(connection: "QlessConnection", args: list[bytes], now: int) -> Slices:
    if not _exists_as(connection, args[0], "zset", now):
        return None
    if args[0].startswith(QLESS_PREFIX):
        return (yield from connection.hub.redis_view.score(args[0], args[1]))
    found = connection.hub.scratch.sorted_set_at(_scratch_name(connection, args[0]), now)
    return None if found is None else found.scores.get(args[1])


def _zcard(connection: "QlessConnection", args: list[bytes], now: int) -> Slices:
    if not _exists_as(connection, args[0], "zset", now):
        return 0
    if args[0].startswith(QLESS_PREFIX):
        return (yield from connection.hub.redis_view.length(args[0]))
    found = connection.hub.scratch.sorted_set_at(_scratch_name(connection, args[0]), now)
    return 0 if found is None else len(found.scores)


def _zrange(connection: "QlessConnection", args: list[bytes], now: int) -> Slices:
    if len(args) == 4 and args[3].upper() != b"WITHSCORES":
        raise ClientError(SYNTAX)
    first, last = parse_integer(args[1]), parse_integer(args[2])
    if not _exists_as(connection, args[0], "zset", now):
        return []
    if args[0].startswith(QLESS_PREFIX):
        found = yield from connection.hub.redis_view.range(args[0], first, last)
    else:
        value = connection.hub.scratch.sorted_set_at(_scratch_name(connection, args[0]), now)
        found = [] if value is None else value.ordered()
        found = found[_slice_range(len(found), args[1], args[2])]
    if len(args) == 3:
        return [member for member, _ in found]
    if connection.resp_version == 3:
        return [[member, float(score)] for member, score in found]
    return [each for member, score in found for each in (member, float(score))]


COMMANDS: Final = {
    b"KEYS": Command(_keys, 1, 1, READS),
    b"DBSIZE": Command(_dbsize, 0, 0, READS),
    b"EXISTS": Command(_exists, 1, ANY, READS),
    b"TYPE": Command(_type, 1, 1, READS),
    b"DEL": Command(_del, 1, ANY),
    b"TTL": Command(_ttl, 1, 1, READS),
    b"EXPIRE": Command(_expire, 2, 2, NEVER_WAITS),
    b"FLUSHDB": Command(_flushdb, 0, 1),
    b"FLUSHALL": Command(_flushall, 0, 1),
    b"SCAN": Command(_scan, 1, 5, READS),
    b"GET": Command(_get, 1, 1, READS),
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
    b"LLEN": Command(_llen, 1, 1, READS),
    b"LRANGE": Command(_lrange, 3, 3, READS),
    b"BRPOP": Command(_brpop, 2, ANY, NEVER_WAITS),
    b"HSET": Command(_hset, 3, ANY),
    b"HGET": Command(_hget, 2, 2, READS),
    b"HGETALL": Command(_hgetall, 1, 1, READS),
    b"HMGET": Command(_hmget, 2, ANY, READS),
    b"SMEMBERS": Command(_smembers, 1, 1, READS),
    b"SISMEMBER": Command(_sismember, 2, 2, READS),
    b"SADD": Command(_sadd, 2, ANY),
    b"SREM": Command(_srem, 2, ANY),
    b"ZADD": Command(_zadd, 3, ANY),
    b"ZREM": Command(_zrem, 2, ANY),
    b"ZSCORE": Command(_zscore, 2, 2, READS),
    b"ZCARD": Command(_zcard, 1, 1, READS),
    b"ZRANGE": Command(_zrange, 3, 4, READS),
}

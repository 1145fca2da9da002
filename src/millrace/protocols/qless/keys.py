"""Commands on keys: those under `ql:` are Qless's and can only be looked at, but for the patterns
that clients of reqless write; others are scratch.
"""

from itertools import islice
from typing import TYPE_CHECKING, Final

from millrace.engine.job import FOREVER
from millrace.engine.policy import SECOND
from millrace.protocols.errors import ClientError

from .commands import (
    ANY,
    MOST_REPLY,
    NOTHING,
    SYNTAX,
    TOO_LARGE,
    WRONG_TYPE,
    Answer,
    Command,
    decimal,
    integer,
    shown,
    wrong_count,
)
from .contract import WRITABLE
from .globs import matcher, pattern_of
from .resp import NO_LIST, OK, Map, Reply, Set, Simple, size_of

if TYPE_CHECKING:
    from .connection import QlessConnection

OURS: Final = b"ql:"
#: KEYS shows so many; whoever has more has no use for all of them.
MOST_SHOWN: Final = 100_000
BAD_TIMEOUT: Final = "ERR timeout is not a float or out of range"


def _kind(connection: "QlessConnection", key: bytes, now: int) -> str:
    if key.startswith(OURS):
        return connection.hub.virtual.kind(key)
    value = connection.hub.keyspace.get(key, now)
    if value is None:
        return ""
    return "list" if isinstance(value, list) else "hash"


def _is(connection: "QlessConnection", key: bytes, kind: str, now: int) -> bool:
    """Is there such a key? Refuse one of another kind."""
    found = _kind(connection, key, now)
    if found not in {"", kind}:
        raise ClientError(WRONG_TYPE)
    return bool(found)


def _writable(key: bytes, kind: str) -> bool:
    """Is it a key of Qless that can be written? Refuse one of another kind."""
    if key in WRITABLE and WRITABLE[key] != kind:
        raise ClientError(WRONG_TYPE)
    return key in WRITABLE


def _scratch(*keys: bytes) -> None:
    for key in keys:
        if key.startswith(OURS):
            raise ClientError(
                f"ERR '{shown(key)}' is kept by Qless: only its own commands can change it"
            )


def _span(have: int, first: bytes, last: bytes) -> slice:
    """From `first` to `last`, that one included; both count from the end if negative."""
    start, stop = integer(first), integer(last)
    start = max(0, start + have) if start < 0 else start
    stop = stop + have if stop < 0 else stop
    return slice(start, max(start, stop + 1))


# Any key


def _keys(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    matches = matcher(pattern_of(args[0]))
    found = [name for name in connection.hub.keyspace.names(now) if matches(name)]
    ours = (name for name in connection.hub.virtual.names() if matches(name))
    found += islice(ours, MOST_SHOWN + 1)
    if len(found) > MOST_SHOWN:
        raise ClientError(f"ERR more than {MOST_SHOWN} keys match")
    return list(found)


def _dbsize(connection: "QlessConnection", _args: list[bytes], now: int) -> Answer:
    return connection.hub.key_count(now)


def _exists(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    return sum(1 for key in args if _kind(connection, key, now))


def _type(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    return Simple(_kind(connection, args[0], now) or "none")


def _del(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    _scratch(*(key for key in args if key not in WRITABLE))
    return sum(_delete(connection, key, now) for key in args)


def _delete(connection: "QlessConnection", key: bytes, now: int) -> bool:
    if key in WRITABLE:
        return connection.hub.virtual.delete(key)
    keyspace = connection.hub.keyspace
    return keyspace.get(key, now) is not None and keyspace.delete(key, now)


def _ttl(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    """Seconds, -1 for a key that stays, -2 for none."""
    if not _kind(connection, args[0], now):
        return -2
    if args[0].startswith(OURS):
        return connection.hub.virtual.ttl(args[0], now)
    when = connection.hub.keyspace.expires(args[0])
    return -1 if when is None else (when - now + SECOND // 2) // SECOND


def _expire(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    seconds = integer(args[1])
    _scratch(args[0])
    if abs(seconds) > FOREVER // SECOND - now // SECOND - 1:
        raise ClientError("ERR invalid expire time in 'expire' command")
    return int(connection.hub.keyspace.expire(args[0], now + seconds * SECOND, now))


def _flush(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    if args and args[0].upper() not in {b"SYNC", b"ASYNC"}:
        raise ClientError(SYNTAX)
    connection.hub.flush(now)
    return OK


# Lists


def _rpush(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    return _push(connection, args[0], args[1:], now, left=False)


def _lpush(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    return _push(connection, args[0], args[1:], now, left=True)


def _push(
    connection: "QlessConnection", key: bytes, items: list[bytes], now: int, *, left: bool
) -> int:
    if _writable(key, "list"):
        return connection.hub.virtual.push(key, items, left=left)
    _scratch(key)
    return connection.hub.keyspace.push(key, items, now, left=left)


def _llen(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    if not _is(connection, args[0], "list", now):
        return 0
    if args[0].startswith(OURS):
        return connection.hub.virtual.length(args[0])
    return len(connection.hub.keyspace.list_at(args[0], now) or ())


def _lrange(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    integer(args[1]), integer(args[2])
    if not _is(connection, args[0], "list", now):
        return []
    if args[0].startswith(OURS):
        have = connection.hub.virtual.items(args[0])
    else:
        have = connection.hub.keyspace.list_at(args[0], now) or []
    return list(have[_span(len(have), args[1], args[2])])


def _brpop(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    """Take the last item of the first list that has one, or wait; 0 seconds are forever."""
    *keys, seconds = args
    timeout = decimal(seconds, BAD_TIMEOUT)
    if timeout < 0:
        raise ClientError("ERR timeout is negative")
    _scratch(*keys)
    for key in keys:
        item = connection.hub.keyspace.pop(key, now)
        if item is not None:
            return [key, item]
    if connection.transacting:
        return NO_LIST
    until = now + int(timeout * SECOND) if timeout else FOREVER
    connection.wait_for_item(keys, min(max(until, now + 1), FOREVER))
    return NOTHING


# Hashes


def _hset(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    if len(args) % 2 == 0:
        raise ClientError(wrong_count("hset"))
    fields = dict(zip(args[1::2], args[2::2], strict=True))
    if _writable(args[0], "hash"):
        return connection.hub.virtual.set_fields(args[0], fields)
    _scratch(args[0])
    return connection.hub.keyspace.set_fields(args[0], fields, now)


def _hash(connection: "QlessConnection", key: bytes, now: int) -> list[tuple[bytes, bytes]]:
    if not _is(connection, key, "hash", now):
        return []
    if key.startswith(OURS):
        return connection.hub.virtual.fields(key)
    return list((connection.hub.keyspace.hash_at(key, now) or {}).items())


def _hgetall(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    return Map(_hash(connection, args[0], now))


def _hmget(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    have = dict(_hash(connection, args[0], now))
    answer: list[Reply] = [have.get(field) for field in args[1:]]
    if size_of(answer) > MOST_REPLY:
        raise ClientError(TOO_LARGE)
    return answer


# Sets, of which only Qless has any


def _smembers(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    if not _is(connection, args[0], "set", now):
        return Set()
    return Set(connection.hub.virtual.members(args[0]))


def _zscore(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    if not _is(connection, args[0], "zset", now):
        return None
    return connection.hub.virtual.score(args[0], args[1])


def _zcard(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    if not _is(connection, args[0], "zset", now):
        return 0
    return connection.hub.virtual.length(args[0])


def _zrange(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    if len(args) == 4 and args[3].upper() != b"WITHSCORES":
        raise ClientError(SYNTAX)
    integer(args[1]), integer(args[2])
    if not _is(connection, args[0], "zset", now):
        return []
    have = connection.hub.virtual.scores(args[0])
    part = have[_span(len(have), args[1], args[2])]
    if len(args) == 3:
        return [member for member, _ in part]
    if connection.protocol == 3:
        return [[member, float(score)] for member, score in part]
    return [each for member, score in part for each in (member, float(score))]


COMMANDS: Final = {
    b"KEYS": Command(_keys, 1, 1),
    b"DBSIZE": Command(_dbsize),
    b"EXISTS": Command(_exists, 1, ANY),
    b"TYPE": Command(_type, 1, 1),
    b"DEL": Command(_del, 1, ANY),
    b"TTL": Command(_ttl, 1, 1),
    b"EXPIRE": Command(_expire, 2, 2),
    b"FLUSHDB": Command(_flush, 0, 1),
    b"FLUSHALL": Command(_flush, 0, 1),
    b"RPUSH": Command(_rpush, 2, ANY),
    b"LPUSH": Command(_lpush, 2, ANY),
    b"LLEN": Command(_llen, 1, 1),
    b"LRANGE": Command(_lrange, 3, 3),
    b"BRPOP": Command(_brpop, 2, ANY),
    b"HSET": Command(_hset, 3, ANY),
    b"HGETALL": Command(_hgetall, 1, 1),
    b"HMGET": Command(_hmget, 2, ANY),
    b"SMEMBERS": Command(_smembers, 1, 1),
    b"ZSCORE": Command(_zscore, 2, 2),
    b"ZCARD": Command(_zcard, 1, 1),
    b"ZRANGE": Command(_zrange, 3, 4),
}

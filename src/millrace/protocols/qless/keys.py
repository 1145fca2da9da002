"""Commands on keys of any type. key_values.py has the commands on their values."""

from collections.abc import Callable, Iterable
from itertools import chain
from typing import TYPE_CHECKING, Final

from millrace.engine.discarded import drain
from millrace.engine.job import FOREVER, SECOND
from millrace.protocols.errors import ClientError
from millrace.protocols.globs import check_pattern, matcher
from millrace.protocols.slices import filter_in_slices, free_in_slices

from .commands import (
    ANY,
    NEVER_WAITS,
    READ_ONLY,
    SYNTAX,
    Answer,
    Command,
    Slices,
    parse_integer,
)
from .key_access import QLESS_PREFIX, require_scratch_keys, scratch_name, type_of_key
from .resp import OK, Reply, Simple
from .writable_keys import writable_key_type

if TYPE_CHECKING:
    from .connection import QlessConnection

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


def _keys(connection: "QlessConnection", args: list[bytes], now: int) -> Slices:
    matches = matcher(check_pattern(args[0]))
    scratch = connection.hub.scratch.names(now, connection.scratch_prefix)
    found: list[Reply] = [name for name in scratch if matches(name)]
    cost = 0
    for name in connection.hub.redis_view.names():
        if name and matches(name):
            found.append(name)
            if len(found) > MAX_KEYS_LISTED:
                yield from free_in_slices(found)
                raise ClientError(f"ERR more than {MAX_KEYS_LISTED} keys match")
        cost += NAME_COST + (len(name) or EXAMINED_COST)
        if cost > SLICE_BYTES:
            cost = 0
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
    found = yield from filter_in_slices(
        chain(names, drain(job_keys)), lambda name: bool(matches(name))
    )
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
        return sum(1 for key in args if type_of_key(connection, key, now))
    return _count_in_slices(args, lambda key: bool(type_of_key(connection, key, now)))


def _type(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    return Simple(type_of_key(connection, args[0], now) or "none")


def _del(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    require_scratch_keys(
        *(key for key in args if key.startswith(QLESS_PREFIX) and not writable_key_type(key))
    )
    if connection.hub.rule is not None:
        for key in filter(writable_key_type, args):
            connection.hub.redis_view.writable.check(key)
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
    scratch, name = connection.hub.scratch, scratch_name(connection, key)
    return scratch.get(name, now) is not None and scratch.delete(name, now)


def _ttl(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    """Return the seconds to live, -1 if the key does not expire, -2 if it does not exist."""
    if not type_of_key(connection, args[0], now):
        return -2
    if args[0].startswith(QLESS_PREFIX):
        return connection.hub.redis_view.ttl(args[0], now)
    when = connection.hub.scratch.expiry_time(scratch_name(connection, args[0]))
    return -1 if when is None else (when - now + SECOND // 2) // SECOND


def _expire(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    seconds = parse_integer(args[1])
    require_scratch_keys(args[0])
    when = _expiry(seconds, now, "expire")
    return int(connection.hub.scratch.expire(scratch_name(connection, args[0]), when, now))


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


COMMANDS: Final = {
    b"KEYS": Command(_keys, 1, 1, READ_ONLY),
    b"DBSIZE": Command(_dbsize, 0, 0, READ_ONLY),
    b"EXISTS": Command(_exists, 1, ANY, READ_ONLY),
    b"TYPE": Command(_type, 1, 1, READ_ONLY),
    b"DEL": Command(_del, 1, ANY),
    b"TTL": Command(_ttl, 1, 1, READ_ONLY),
    b"EXPIRE": Command(_expire, 2, 2, NEVER_WAITS),
    b"FLUSHDB": Command(_flushdb, 0, 1),
    b"FLUSHALL": Command(_flushall, 0, 1),
    b"SCAN": Command(_scan, 1, 5, READ_ONLY),
}

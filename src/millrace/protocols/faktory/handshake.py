"""HELLO: the first command of a client, with its password and the worker that it belongs to."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from millrace.engine.job import SECOND
from millrace.engine.workers import TERMINATE
from millrace.protocols import go_json
from millrace.protocols.errors import BadJson
from millrace.protocols.logins import TooManyGuesses

from .hub import hash_matches
from .replies import OK_REPLY, error_reply, quote_input

if TYPE_CHECKING:
    from .connection import FaktoryConnection

#: Maximum size of a HELLO. Its content is kept while the client is connected, and a client without
#: the password can send it.
MAX_HELLO: Final = 1 << 18


class HelloData(NamedTuple):
    """The content of a HELLO."""

    wid: str
    hostname: str
    pid: int
    labels: list[str]
    rss_kb: int


def greet(connection: "FaktoryConnection", verb: bytes, argument: bytes, now: int) -> None:
    """Execute the first command of a client, which must be HELLO."""
    if verb != b"HELLO" or not argument.startswith(b"{"):
        connection.reply_and_close(
            error_reply(f"expected HELLO {{...}} first, got {quote_input(verb) or 'an empty line'}")
        )
        return
    if len(argument) > MAX_HELLO:
        connection.reply_and_close(error_reply(f"invalid HELLO: longer than {MAX_HELLO} bytes"))
        return
    try:
        known = frozenset({"hostname", "wid", "pid", "labels", "v", "pwdhash", "rss_kb"})
        fields, _ = go_json.split_members(go_json.repair_text(argument), known)
        hostname = go_json.read_string(fields.get("hostname"), "hostname")
        wid = go_json.read_string(fields.get("wid"), "wid")
        pid = go_json.read_integer(fields.get("pid"), "pid") or 0
        labels = go_json.read_strings(fields.get("labels"), "labels")
        version = go_json.read_integer(fields.get("v"), "v", 0, 255) or 0
        pwdhash = go_json.read_string(fields.get("pwdhash"), "pwdhash")
        rss_kb = go_json.read_integer(fields.get("rss_kb"), "rss_kb") or 0
    except BadJson as problem:
        connection.reply_and_close(error_reply(f"invalid HELLO: {problem}"))
        return
    hello = HelloData(wid, hostname, pid, labels, rss_kb)
    if connection.password:
        rounds = connection.hash_rounds if version >= 2 else 1  # old clients hash once
        connection.begin_long_command(_check_password(connection, hello, pwdhash, rounds, now))
    else:
        _welcome(connection, hello, now)


def _check_password(
    connection: "FaktoryConnection", hello: HelloData, pwdhash: str, rounds: int, now: int
) -> Iterator[None]:
    """Check the password in slices: a client without it can cause thousands of hash rounds."""
    logins, seconds = connection.hub.logins, now / SECOND
    try:
        logins.check(connection.address, seconds)
        admitted = yield from hash_matches(connection.password, pwdhash, rounds, connection.salt)
        logins.check(connection.address, seconds)  # again, because many clients can guess at once
    except TooManyGuesses as problem:
        connection.reply_and_close(error_reply(str(problem)))
        return
    if admitted:
        _welcome(connection, hello, now)
    else:
        if pwdhash:  # a client that sends no password is not guessing
            logins.count_wrong_password(connection.address, pwdhash, seconds)
        connection.reply_and_close(error_reply("Invalid password"))


def _welcome(connection: "FaktoryConnection", hello: HelloData, now: int) -> None:
    hub = connection.hub
    connection.reply_fixed(OK_REPLY)
    if hub.full:
        connection.reply_and_close(error_reply(f"too many connections: {hub.max_connections + 1}"))
        return
    connection.identified = True
    hub.connections.add(connection)
    if hello.wid:
        connection.worker = worker = hub.join(connection, hello.wid, now)
        worker.hostname, worker.pid, worker.labels = hello.hostname, hello.pid, hello.labels
        worker.rss_kb = hello.rss_kb
        if hub.stopping:
            hub.advance(worker, TERMINATE)

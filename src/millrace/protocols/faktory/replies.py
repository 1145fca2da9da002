"""Helpers for arguments and replies, shared by all Faktory commands."""

from typing import Final

from millrace.protocols.connection import FixedReply
from millrace.protocols.errors import ClientError

OK: Final = b"+OK\r\n"
OK_REPLY: Final = FixedReply(OK)
NULL_BULK: Final = b"$-1\r\n"
#: Maximum length of a client's text in an error.
MAX_ECHO: Final = 200
#: Maximum length of an error.
MAX_ERROR: Final = 1000
#: Maximum number of queues in one FETCH or QUEUE. A FETCH examines all of them in one step.
MAX_QUEUES: Final = 10_000
#: The maximum size of all their names.
MAX_QUEUES_BYTES: Final = 1 << 20


def encode_bulk(body: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(body), body)


def error_reply(text: str) -> bytes:
    """An error reply on one line."""
    flat = " ".join(text[:MAX_ERROR].splitlines())
    return b"-ERR %b\r\n" % flat.encode("utf-8", "replace")


def quote_input(data: bytes) -> str:
    """A client's input, shortened for an error message."""
    return data[:MAX_ECHO].decode("utf-8", "replace")


def require_argument(argument: bytes | None) -> bytes:
    """A required argument. The error is the same as in the original, which panics."""
    if argument is None:
        raise ClientError("internal error")
    return argument


def queue_names(data: bytes) -> list[str]:
    """The distinct queue names in a command, in order."""
    if len(data) > MAX_QUEUES_BYTES:
        raise ClientError(f"queue names too long: at most {MAX_QUEUES_BYTES} bytes")
    names = list(dict.fromkeys(decode_lossy(data).split()))
    if len(names) > MAX_QUEUES:
        raise ClientError(f"too many queues: at most {MAX_QUEUES}, not {len(names)}")
    return names


def decode_lossy(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def trim_or_unknown(text: str, max_bytes: int) -> str:
    """The trimmed text, cut to `max_bytes` bytes; "unknown" if it is empty."""
    text = text.strip()
    if len(text) * 4 > max_bytes:
        text = text.encode()[:max_bytes].decode("utf-8", "ignore")
    return text or "unknown"

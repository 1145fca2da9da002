"""Commands of each protocol as hostile clients use them: unfinished, in large numbers, too
large.
"""

import json
import struct
import uuid
from typing import Final

#: The start of a command that is far from complete.
BEGUN: Final = {
    "faktory": b'PUSH {"jid":"abuse-begun","jobtype":"x","args":["',
    "workq": b"add 61a444a0-6128-41c0-8078-cc757d3bd2d8 begun 60000 60000 1048576\r\n",
    "masenko": b'PUSH {"name":"begun","payload":"',
    "goqueue": b"ADD\0begun\0" + struct.pack("<III", 1, 60, 16 << 20),
    "qless": b"*3\r\n$4\r\nHSET\r\n$5\r\nbegun\r\n$60000000\r\n",
}
#: Short requests with large replies.
MUCH: Final = {
    "faktory": b"INFO\r\n",
    "workq": b"inspect queues 0 1000\r\n",
    "masenko": b"INFO\n",
    "goqueue": b"NOPE\0",
    "qless": b"KEYS *\r\n",
}


def qless(*words: object) -> bytes:
    parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(p), p) for p in parts)


def push(protocol: str, number: int, payload: bytes = b"", queue: str = "abuse") -> bytes:
    """A push with this payload, in the form of the protocol."""
    if protocol == "faktory":
        unit = {"jid": f"abuse-{number:08}", "jobtype": "x", "queue": queue, "args": []}
        line = json.dumps(unit, separators=(",", ":")).encode()
        return b"PUSH " + line.replace(b"[]", b'["%b"]' % payload) + b"\r\n"
    if protocol == "workq":
        jid = str(uuid.UUID(int=(4 << 76) | (2 << 62) | number))
        line = f"add {jid} {queue} 60000 60000000 {len(payload)}\r\n"
        return line.encode() + payload + b"\r\n"
    if protocol == "masenko":
        return b'PUSH {"name":"x","queue":"%b","payload":"%b"}\n' % (queue.encode(), payload)
    if protocol == "goqueue":
        return b"ADD\0%b\0" % queue.encode() + struct.pack("<III", 1, 60, len(payload)) + payload
    data = b'"%b"' % payload
    return qless("QLESS.PUT", 1, queue, f"abuse-{number:08}", "x", data, 1352375200, 0)


#: Number of line feeds in the reply to a push; Go Job Queue's reply has a length instead.
LINE_FEEDS: Final = {"faktory": 1, "workq": 1, "masenko": 1, "qless": 2}
ADDED: Final = 14


def replies(protocol: str, received: bytes) -> float:
    """The number of replies to pushes; partial replies count as fractions."""
    if protocol == "goqueue":
        return len(received) / ADDED
    return received.count(b"\n") / LINE_FEEDS[protocol]


#: The longest payload that the server accepts in a push, as written by `push`.
LIMITS: Final = {
    "workq": 1 << 20,
    "masenko": 65_535 - 2,  # the payload is JSON, and its quotes count
    "goqueue": 16 << 20,
}


def largest(protocol: str, max_line: int) -> int:
    """The payload size of the largest accepted push."""
    if protocol in LIMITS:
        return min(LIMITS[protocol], max_line)
    if protocol == "faktory":
        return max_line - len(push("faktory", 0)) + 1  # the limit is without the LF
    # All arguments of a request count; the quotes are data.
    words = len("QLESS.PUT") + 1 + len("abuse") + len("abuse-00000000") + 1 + 2 + 10 + 1
    return max_line - words

"""Recognition of HTTP and TLS clients on a port that speaks another protocol.

A web page can make every browser on this machine send a POST to any local port. The request line
and the headers are not commands, but the lines of the body can be. A connection whose first line
is an HTTP request line therefore gets an HTTP error and is closed before any line is executed.
"""

import re
from typing import Final

#: The first byte of a TLS handshake. No command of any protocol begins with it.
TLS_HANDSHAKE: Final = b"\x16"
#: The end of an HTTP request line. Only the last bytes of a line are searched.
_HTTP_VERSION: Final = re.compile(rb" HTTP/[0-9](?:\.[0-9])?\r?\Z")
_MAX_VERSION_BYTES: Final = 12
#: The beginning of an HTTP request line, for protocols without lines.
_HTTP_METHOD: Final = re.compile(rb"(?:GET|HEAD|POST|PUT|DELETE|CONNECT|OPTIONS|TRACE|PATCH|PRI) ")


def is_web_request(line: bytes) -> bool:
    """Whether a line, or the first bytes of one, comes from an HTTP or TLS client."""
    if line[:1] == TLS_HANDSHAKE:
        return True
    return _HTTP_VERSION.search(line, max(0, len(line) - _MAX_VERSION_BYTES)) is not None


def starts_web_request(data: bytes) -> bool:
    """Whether bytes that contain no lines begin like an HTTP request or a TLS handshake."""
    return data[:1] == TLS_HANDSHAKE or _HTTP_METHOD.match(data) is not None


def web_error(label: str) -> bytes:
    """The HTTP response that names the port's protocol."""
    article = "an" if label[0] in "AEIOU" else "a"
    body = b"This is %b %b port of Millrace. It does not serve HTTP or TLS.\n" % (
        article.encode(),
        label.encode(),
    )
    return (
        b"HTTP/1.1 400 Bad Request\r\n"
        b"Content-Type: text/plain; charset=utf-8\r\n"
        b"X-Content-Type-Options: nosniff\r\n"
        b"Content-Length: %d\r\n"
        b"Connection: close\r\n"
        b"\r\n"
        b"%b" % (len(body), body)
    )

r"""Readable and exact display of payloads.

JSON is split into tokens and joined again with line breaks: numbers are not converted to floats,
duplicate keys remain, and escapes are not decoded. Other payloads are displayed as text, or as a
hexadecimal dump. Control and format characters, which could alter the display of adjacent text,
are displayed as \u escapes.
"""

import re
import unicodedata
from typing import Final, Literal, NamedTuple

from markupsafe import Markup, escape

from millrace.records import GetJob, JobDetail

from .context import RequestContext
from .errors import HttpError

#: Maximum bytes displayed, as text and as a hexadecimal dump. Users can download the whole payload.
MAX_TEXT_BYTES: Final = 32_768
MAX_HEX_BYTES: Final = 4_096
#: Maximum depth of indentation. Deeper levels get no line breaks.
DEEPEST: Final = 60

_TOKEN: Final = re.compile(
    r'(?P<space>[ \t\n\r]+)|(?P<string>"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*")'
    r"|(?P<number>-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)"
    r"|(?P<word>true|false|null)|(?P<mark>[\[\]{}:,])"
)
#: An incomplete string at the end of truncated JSON, and the maximum length of other remains.
_BEGUN: Final = re.compile(r'"(?:[^"\\]|\\.)*\\?', re.DOTALL)
_REST: Final = 4
_COLOURED: Final = Markup('<span class="{}">{}</span>')
_CLOSING: Final = {"[": "]", "{": "}"}
#: Allowed characters; the joiners occur in some emoji.
_HARMLESS: Final = frozenset("\u200c\u200d\n\t")
_TRICKS: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


class PayloadView(NamedTuple):
    kind: Literal["nothing", "JSON", "text", "bytes"]
    html: Markup
    #: True if the display is truncated.
    cut: bool


class NotJson(ValueError):
    """The text is no JSON."""


def show(payload: bytes, size: int | None = None) -> PayloadView:
    """Format a payload. `size` is the full size if `payload` is only the first part."""
    cut = size is not None and size > len(payload)
    if not payload:
        return PayloadView("nothing", Markup(), cut)
    more = cut or len(payload) > MAX_TEXT_BYTES
    text = _text(payload[:MAX_TEXT_BYTES], cut=more)
    if text is None:
        return PayloadView(
            "bytes", escape(hexdump(payload[:MAX_HEX_BYTES])), cut or len(payload) > MAX_HEX_BYTES
        )
    try:
        return PayloadView("JSON", indented(text, cut=more), more)
    except NotJson:
        return PayloadView("text", escape(harmless(text)), more)


def indented(text: str, *, cut: bool = False) -> Markup:
    """Return JSON with line breaks, or raise NotJson. With `cut`, the text may be incomplete."""
    out: list[str] = []
    open_: list[str] = []  # open brackets
    expects = "value"
    for kind, piece in _pieces(text, cut=cut):
        if kind == "mark" and piece in "]}":
            empty = expects in {"value or end", "key or end"}
            if not open_ or _CLOSING[open_[-1]] != piece or not (empty or expects == "comma"):
                raise NotJson
            open_.pop()
            out.append(piece if empty else _line(len(open_)) + piece)
            expects = "comma" if open_ else "nothing"
        elif piece == ",":
            if expects != "comma":
                raise NotJson
            out.append("," + _line(len(open_)))
            expects = "key" if open_[-1] == "{" else "value"
        elif piece == ":":
            if expects != "colon":
                raise NotJson
            out.append(": ")
            expects = "value"
        else:
            expects = _put(out, open_, kind, piece, expects)
    if not cut and (open_ or expects != "nothing"):
        raise NotJson
    return Markup().join(out)


def _put(out: list[str], open_: list[str], kind: str, piece: str, expects: str) -> str:
    """Append a key, a value or an opening bracket. Return the kind of token expected next."""
    if expects in {"value or end", "key or end"}:
        out.append(_line(len(open_)))
    if expects in {"key", "key or end"}:
        if kind != "string":
            raise NotJson
        out.append(_COLOURED.format("key", harmless(piece)))
        return "colon"
    if expects not in {"value", "value or end"}:
        raise NotJson
    if kind == "mark":
        open_.append(piece)
        out.append(piece)
        return "key or end" if piece == "{" else "value or end"
    out.append(_COLOURED.format(kind, harmless(piece)))
    return "comma" if open_ else "nothing"


def _pieces(text: str, *, cut: bool) -> list[tuple[str, str]]:
    found = []
    place = 0
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            if cut and _BEGUN.fullmatch(text, place):
                found.append(("string", text[place:]))
            elif not cut or len(text) - place > _REST:
                raise NotJson
            break
        kind = match.lastgroup or ""
        if kind != "space":
            found.append((kind, match[0]))
        place = match.end()
    return found


def _line(depth: int) -> str:
    return "\n" + "  " * depth if depth <= DEEPEST else ""


def _text(payload: bytes, *, cut: bool) -> str | None:
    """Decode the payload, or return None if it is not text."""
    for off in range(4 if cut else 1):  # the last character may be truncated
        try:
            text = payload[: len(payload) - off].decode()
        except UnicodeDecodeError:
            continue
        is_text = all(c in "\t\n\r" or unicodedata.category(c) != "Cc" for c in text)
        return text if is_text else None
    return None


def harmless(text: str) -> str:
    r"""Replace control and format characters by \u escapes."""
    if text.isprintable():
        return text
    return "".join(
        c
        if c in _HARMLESS or unicodedata.category(c) not in _TRICKS
        else f"\\u{ord(c):04x}"
        if ord(c) < 0x10000
        else f"\\U{ord(c):08x}"
        for c in text
    )


def hexdump(payload: bytes) -> str:
    """`00000000  00 01 62 69 6e 61 72 79                           ..binary`"""
    return "\n".join(
        f"{at:08x}  {piece.hex(' '):<47}  "
        + "".join(chr(b) if 32 <= b < 127 else "." for b in piece)
        for at in range(0, len(payload), 16)
        for piece in (payload[at : at + 16],)
    )


def require_payload(detail: JobDetail) -> None:
    """Raise an HttpError if the payload is damaged."""
    if detail.payload_error:
        text = detail.payload_error
        raise HttpError(500, f"{text[:1].upper()}{text[1:]}. Run `millrace check` on the server.")


async def whole(context: RequestContext, detail: JobDetail) -> bytes:
    """Return a job's whole payload. The server sends a large payload in parts, so that it does not
    delay other requests.
    """
    require_payload(detail)
    found, job = bytearray(detail.job.payload), detail.job
    while len(found) < job.size:
        asked = GetJob(job.jid, job.seq, offset=len(found))
        piece = await context.ask(JobDetail, job=asked)
        require_payload(piece)
        if not piece.job.payload or piece.job.size != job.size:
            raise HttpError(409, "The payload changed. Try again.")
        found += piece.job.payload
    return bytes(found)

r"""Payloads as a person reads them, and exactly as they are.

JSON is taken apart into its tokens and put together again with line breaks: no number becomes a
float, no key goes because it is there twice, no escape is turned into its character. What is not
JSON is text, or bytes in hexadecimal digits. Characters that would play tricks with what stands
beside them are shown as \u escapes.
"""

import re
import unicodedata
from typing import Final, Literal, NamedTuple

from markupsafe import Markup, escape

from millrace.records import GetJob, JobDetail

from .doors import Refusal, Visit

#: So much of it is shown; the rest can be downloaded.
MOST: Final = 32_768
MOST_BYTES: Final = 4_096
#: Deeper levels stay on their line.
DEEPEST: Final = 60

_TOKEN: Final = re.compile(
    r'(?P<space>[ \t\n\r]+)|(?P<string>"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*")'
    r"|(?P<number>-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)"
    r"|(?P<word>true|false|null)|(?P<mark>[\[\]{}:,])"
)
#: What a cut may leave of a string, and of anything else.
_BEGUN: Final = re.compile(r'"(?:[^"\\]|\\.)*\\?', re.DOTALL)
_REST: Final = 4
_COLOURED: Final = Markup('<span class="{}">{}</span>')
_CLOSING: Final = {"[": "]", "{": "}"}
#: They join what belongs together, as in some emoji.
_HARMLESS: Final = frozenset("\u200c\u200d\n\t")
_TRICKS: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


class Shown(NamedTuple):
    kind: Literal["nothing", "JSON", "text", "bytes"]
    html: Markup
    #: Is there more than is shown?
    cut: bool


class NotJson(ValueError):
    """The text is no JSON."""


def show(payload: bytes, size: int | None = None) -> Shown:
    """`size`: how long it really is, if `payload` is only its beginning."""
    cut = size is not None and size > len(payload)
    if not payload:
        return Shown("nothing", Markup(), cut)
    more = cut or len(payload) > MOST
    text = _text(payload[:MOST], cut=more)
    if text is None:
        return Shown(
            "bytes", escape(hexdump(payload[:MOST_BYTES])), cut or len(payload) > MOST_BYTES
        )
    try:
        return Shown("JSON", indented(text, cut=more), more)
    except NotJson:
        return Shown("text", escape(harmless(text)), more)


def indented(text: str, *, cut: bool = False) -> Markup:
    """JSON with line breaks, or NotJson. `cut`: it need not come to its end."""
    out: list[str] = []
    open_: list[str] = []  # brackets that wait for their end
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
    """A value, a key, or what begins one; and what may follow."""
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
    """The bytes as text, unless they are something else."""
    for off in range(4 if cut else 1):  # the cut may go through a character
        try:
            text = payload[: len(payload) - off].decode()
        except UnicodeDecodeError:
            continue
        is_text = all(c in "\t\n\r" or unicodedata.category(c) != "Cc" for c in text)
        return text if is_text else None
    return None


def harmless(text: str) -> str:
    r"""With what could play tricks as \u escapes."""
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


async def whole(visit: Visit, detail: JobDetail) -> bytes:
    """All of a job's payload. The server tells of a large one in pieces, so that nobody waits."""
    found, job = bytearray(detail.payload), detail.job
    while len(found) < job.size:
        asked = GetJob(job.jid, job.seq, start=len(found))
        piece = await visit.ask(JobDetail, job=asked)
        if not piece.payload or piece.job.size != job.size:
            raise Refusal(409, "The payload changed. Try again.")
        found += piece.payload
    return bytes(found)

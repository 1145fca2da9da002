"""Payloads, and their forms for a worker of each protocol."""

import json
from base64 import b64encode
from dataclasses import dataclass

from speakers import Held


@dataclass(frozen=True)
class Sample:
    name: str
    payload: bytes
    json: bool = True
    #: The protocols that can push it.
    pushers: tuple[str, ...] = ("workq", "goqueue", "qless", "masenko", "http")
    #: The form of the JSON in Masenko: no spaces between its parts, and escaped HTML characters.
    #: None: unchanged.
    masenko: bytes | None = None
    #: The text, if it is not JSON; None: it is not text either.
    text: str | None = None


ALL = ("workq", "goqueue", "qless", "masenko", "faktory", "http")
#: Protocols that accept line breaks in a payload.
BLOCKS = ("workq", "goqueue", "qless", "http")
BYTES = ("workq", "goqueue", "http")


def array(name: str, payload: bytes, **more: bytes) -> Sample:
    return Sample(name, payload, pushers=ALL, **more)


def plain(name: str, text: str) -> Sample:
    return Sample(name, text.encode(), json=False, pushers=BYTES, text=text)


def raw(name: str, payload: bytes) -> Sample:
    return Sample(name, payload, json=False, pushers=BYTES)


SAMPLES = [
    array("array", b'["a",1,{"b":[]},null,true]'),
    array("empty array", b"[]"),
    array("spaces", b'[ 1 ,\t"a  b" ]', masenko=b'[1,"a  b"]'),
    array("huge numbers", b"[123456789012345678901234567890,1e400,-0,1.10,-0.0e-7]"),
    array("duplicate keys", b'[{"a":1,"a":2}]'),
    array("escapes", rb'["\u0000\n\/\ud83d\ude00\u00e9"]'),
    array("letters", '["żółw 😀"]'.encode()),
    array("HTML", b'["<&>"]', masenko=rb'["\u003c\u0026\u003e"]'),
    array("line separators", '["\u2028\u2029"]'.encode(), masenko=rb'["\u2028\u2029"]'),
    array("deep", b"[" * 500 + b"]" * 500),
    Sample("object", b'{"b":1,"a":[2]}'),
    Sample("string", b'"text"'),
    Sample("integer", b"7"),
    Sample("huge integer", b"123456789012345678901234567890"),
    Sample("huge number", b"1e400"),
    Sample("null", b"null"),
    Sample("false", b"false"),
    Sample("lone surrogate", rb'["\ud800"]', pushers=(*BYTES, "masenko")),
    Sample("very deep", b"[" * 5000 + b"]" * 5000, pushers=(*BYTES, "masenko")),
    Sample("line break", b'{\r\n"a":\n1}', pushers=BLOCKS, masenko=b'{"a":1}'),
    Sample("space around", b" [1]\n", pushers=BYTES, masenko=b"[1]"),
    plain("empty", ""),
    plain("space", " "),
    plain("words", "hello, world"),
    plain("words of many letters", 'żółw <&> \u2028 " \\ /'),
    plain("lines", "a\r\nb\n"),
    plain("NUL", "\0"),
    plain("no number", "NaN"),
    plain("hexadecimal", "0x10"),
    plain("two values", "1 2"),
    plain("unfinished", '{"a":'),
    plain("too many commas", "[1,]"),
    plain("a control character in a string", '"\x01"'),
    plain("a mark before JSON", "\ufeff[1]"),
    raw("no UTF-8", b"\xff\xfe\x00\r\n"),
    raw("JSON but for its UTF-8", b'["\xff"]'),
    raw("half a letter", "ż".encode()[:1]),
]  # fmt: skip


def assert_shown(protocol: str, sample: Sample, held: Held) -> None:
    """The design's table: a payload for a worker of that protocol."""
    if protocol in BYTES:
        assert (held.payload, held.encoding) == (sample.payload, "")
        return
    if sample.json:
        assert (held.payload, held.encoding) == (_as_json(protocol, sample), "")
        return
    text = sample.text if sample.text is not None else b64encode(sample.payload).decode()
    assert held.encoding == ("" if sample.text is not None else "base64")
    assert _string_of(protocol, held) == text


def _as_json(protocol: str, sample: Sample) -> bytes:
    if protocol == "masenko":
        return sample.payload if sample.masenko is None else sample.masenko
    if protocol == "qless":
        return sample.payload
    line = sample.payload.replace(b"\r", b" ").replace(b"\n", b" ").strip()
    return line if line.startswith(b"[") else b"[%b]" % line


def _string_of(protocol: str, held: Held) -> str:
    value = json.loads(held.payload)
    if protocol == "faktory":
        (value,) = value
    assert isinstance(value, str)
    return value

"""Payloads are shown exactly: no number, key or escape is lost."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.web.payload_view import MAX_TEXT_BYTES, NotJson, hexdump, indented, show


def plain(html: object) -> str:
    """The text that a browser shows."""
    text = re.sub(r"</?span[^>]*>", "", str(html))
    for name, character in (("lt", "<"), ("gt", ">"), ("#34", '"'), ("#39", "'"), ("amp", "&")):
        text = text.replace(f"&{name};", character)
    return text


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("12345678901234567890123", "12345678901234567890123"),
        ("1e400", "1e400"),
        ("-0.10", "-0.10"),
        ("[]", "[]"),
        ("{ }", "{}"),
        ('{"a":1,"a":2}', '{\n  "a": 1,\n  "a": 2\n}'),
        ('["\\u00fc", "ü", "\\/"]', '[\n  "\\u00fc",\n  "ü",\n  "\\/"\n]'),
        (
            '[[],{"b":[true,null]}]',
            '[\n  [],\n  {\n    "b": [\n      true,\n      null\n    ]\n  }\n]',
        ),
        ('"a\u202eb"', '"a\\u202eb"'),
    ],
)
def test_json_is_only_indented(given: str, shown: str) -> None:
    found = show(given.encode())
    assert found.kind == "JSON"
    assert plain(found.html) == shown


@pytest.mark.parametrize(
    "text",
    [
        "[1,]",
        "{1:2}",
        '{"a"}',
        "[1 2]",
        "01",
        "NaN",
        "{]",
        "[",
        "]",
        "1 2",
        "tru",
        "'a'",
        '"\t"',
        ",",
    ],
)
def test_invalid_json_is_text(text: str) -> None:
    found = show(text.encode())
    assert found.kind == "text"
    assert plain(found.html) == text


def test_markup_is_escaped() -> None:
    for payload in (b'{"<b>":"<script>"}', b"<script>"):
        assert "<script>" not in str(show(payload).html)
        assert "<b>" not in str(show(payload).html)


def test_bytes_are_dumped() -> None:
    found = show(b"\x00\x01binary")
    assert found.kind == "bytes"
    assert found.html == hexdump(b"\x00\x01binary")
    assert hexdump(bytes(17)).splitlines()[1].startswith("00000010  00 ")
    assert show(b"\xff\xfe").kind == "bytes"


def test_an_empty_payload() -> None:
    assert show(b"").kind == "nothing"


def test_large_payloads_are_truncated_at_any_position() -> None:
    payload = json.dumps([{"key": "wört", "n": [1.5e10, True]}] * 5000, ensure_ascii=False).encode()
    for size in range(MAX_TEXT_BYTES - 40, MAX_TEXT_BYTES + 1):
        found = show(payload[:size], len(payload))
        assert (found.kind, found.cut) == ("JSON", True)
    assert show(payload).cut


def test_deep_payloads_do_not_grow_without_limit() -> None:
    deep = b"[" * 8000 + b"]" * 8000
    found = show(deep)
    assert found.kind == "JSON"
    assert len(found.html) < 50_000


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(values, st.booleans())
def test_every_value_is_preserved(value: object, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    assert not ascii_only or json.loads(plain(indented(text))) == value


@given(st.text(alphabet='[]{}:,"\\ 1aé\n', max_size=12))
def test_json_is_recognized_like_in_python(text: str) -> None:
    try:
        json.loads(text)
        valid = True
    except ValueError:
        valid = False
    try:
        indented(text)
        accepted = True
    except NotJson:
        accepted = False
    assert accepted == valid


@given(st.binary(max_size=200))
def test_any_bytes_can_be_shown(payload: bytes) -> None:
    show(payload)
    show(payload, 10_000)

"""Payloads are shown as they are: no number, key or escape is lost."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.web.payload_view import MOST, NotJson, hexdump, indented, show


def plain(html: object) -> str:
    """What a browser shows."""
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
def test_json_is_indented_and_nothing_else(given: str, shown: str) -> None:
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
def test_what_is_no_json_is_text(text: str) -> None:
    found = show(text.encode())
    assert found.kind == "text"
    assert plain(found.html) == text


def test_markup_stays_text() -> None:
    for payload in (b'{"<b>":"<script>"}', b"<script>"):
        assert "<script>" not in str(show(payload).html)
        assert "<b>" not in str(show(payload).html)


def test_bytes_are_dumped() -> None:
    found = show(b"\x00\x01binary")
    assert found.kind == "bytes"
    assert found.html == hexdump(b"\x00\x01binary")
    assert hexdump(bytes(17)).splitlines()[1].startswith("00000010  00 ")
    assert show(b"\xff\xfe").kind == "bytes"


def test_nothing_is_nothing() -> None:
    assert show(b"").kind == "nothing"


def test_large_ones_are_cut_wherever_that_is() -> None:
    payload = json.dumps([{"key": "wört", "n": [1.5e10, True]}] * 5000, ensure_ascii=False).encode()
    for size in range(MOST - 40, MOST + 1):
        found = show(payload[:size], len(payload))
        assert (found.kind, found.cut) == ("JSON", True)
    assert show(payload).cut


def test_deep_ones_do_not_grow_without_bound() -> None:
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
def test_every_value_stays_what_it_is(value: object, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    assert not ascii_only or json.loads(plain(indented(text))) == value


@given(st.text(alphabet='[]{}:,"\\ 1aé\n', max_size=12))
def test_json_is_what_python_takes_for_it(text: str) -> None:
    try:
        json.loads(text)
        real = True
    except ValueError:
        real = False
    try:
        indented(text)
        ours = True
    except NotJson:
        ours = False
    assert ours == real


@given(st.binary(max_size=200))
def test_any_bytes_can_be_shown(payload: bytes) -> None:
    show(payload)
    show(payload, 10_000)

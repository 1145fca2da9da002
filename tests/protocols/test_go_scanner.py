"""JSON parsed as in Go, with Go's messages for invalid input."""

import contextlib
import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millrace.protocols import go_scanner
from millrace.protocols.errors import BadJson


def complaint(text: bytes) -> str:
    with pytest.raises(BadJson) as caught:
        go_scanner.top_level_values(text)
    return str(caught.value)


# Pieces


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        (b"{}", []),
        (b"[]", []),
        (b" \t\r\n{ \n} ", []),
        (b'{"a":1}', [b'"a"', b"1"]),
        (b'{ "a" : { "b" : [ 1 ] } , "a" : null }', [b'"a"', b'{ "b" : [ 1 ] }', b'"a"', b"null"]),
        (b'[1, "x", [[], {}], {"a":[]}]', [b"1", b'"x"', b"[[], {}]", b'{"a":[]}']),
        (b'"a\\"b"', [b'"a\\"b"']),
        (b" 5 ", [b"5"]),
        (b"true", [b"true"]),
        (b"false", [b"false"]),
        (b"null", [b"null"]),
        (b"-0", [b"-0"]),
        (b"-1.5e+400", [b"-1.5e+400"]),
        (b'"\\ud800\xff\\u00e9\\/"', [b'"\\ud800\xff\\u00e9\\/"']),
    ],
)
def test_the_pieces_of_a_value(text, pieces):
    assert go_scanner.top_level_values(text) == pieces


def test_ten_thousand_brackets_and_no_more():
    assert go_scanner.top_level_values(b"[" * 10_000 + b"]" * 10_000) == [
        b"[" * 9_999 + b"]" * 9_999
    ]
    assert complaint(b"[" * 10_001 + b"]" * 10_001) == "exceeded max depth"
    assert complaint(b'{"a":' * 10_001) == "exceeded max depth"


# Error messages


@pytest.mark.parametrize(
    "text",
    [b"", b" ", b"{", b"[", b'{"a"', b'{"a":', b'{"a":1', b'{"a":1,', b"[1", b"[1,", b'"', b'"a', b'{"a'],
)  # fmt: skip
def test_an_early_end(text):
    assert complaint(text) == "unexpected end of JSON input"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"x", "'x' looking for beginning of value"),
        (b"]", "']' looking for beginning of value"),
        (b"[,", "',' looking for beginning of value"),
        (b"[1,]", "']' looking for beginning of value"),
        (b'{"a":}', "'}' looking for beginning of value"),
        (b"NaN", "'N' looking for beginning of value"),
        (b"+1", "'+' looking for beginning of value"),
        (b".5", "'.' looking for beginning of value"),
        (b"\x0b1", r"'\v' looking for beginning of value"),
        (b"\xef\xbb\xbf{}", "'ï' looking for beginning of value"),
        (b"{1", "'1' looking for beginning of object key string"),
        (b'{"a":1,}', "'}' looking for beginning of object key string"),
        (b"{,", "',' looking for beginning of object key string"),
        (b"{'a':1}", r"'\'' looking for beginning of object key string"),
        (b'{"a" 1', "'1' after object key"),
        (b'{"a","b"', "',' after object key"),
        (b'{"a":1 "b"', "'\"' after object key:value pair"),
        (b'{"a":1]', "']' after object key:value pair"),
        (b'{"a":01', "'1' after object key:value pair"),
        (b"[1 2", "'2' after array element"),
        (b"[1}", "'}' after array element"),
        (b'["a":1]', "':' after array element"),
        (b"{} x", "'x' after top-level value"),
        (b"{}}", "'}' after top-level value"),
        (b"1 2", "'2' after top-level value"),
        (b"01", "'1' after top-level value"),
        (b"1.5.5", "'.' after top-level value"),
        (b"1e5e5", "'e' after top-level value"),
        (b"1x", "'x' after top-level value"),
        (b"nullx", "'x' after top-level value"),
        (b"null,", "',' after top-level value"),
        (b'"a\x01"', r"'\x01' in string literal"),
        (b'"a\tb"', r"'\t' in string literal"),
        (b'"a\x00', r"'\x00' in string literal"),
        (b'"\\x"', "'x' in string escape code"),
        (b'"\\', "' ' in string escape code"),
        (b'"\\u12g4"', "'g' in \\u hexadecimal character escape"),
        (b'"\\u', "' ' in \\u hexadecimal character escape"),
        (b'"\\u123"', "'\"' in \\u hexadecimal character escape"),
        (b"-", "' ' in numeric literal"),
        (b"-x", "'x' in numeric literal"),
        (b"[-]", "']' in numeric literal"),
        (b"1.", "' ' after decimal point in numeric literal"),
        (b"1.x", "'x' after decimal point in numeric literal"),
        (b"1.e5", "'e' after decimal point in numeric literal"),
        (b"1e", "' ' in exponent of numeric literal"),
        (b"1e+", "' ' in exponent of numeric literal"),
        (b"1Ex", "'x' in exponent of numeric literal"),
        (b"1.5e-}", "'}' in exponent of numeric literal"),
        (b"t", "' ' in literal true (expecting 'r')"),
        (b"tru", "' ' in literal true (expecting 'e')"),
        (b"trX", "'X' in literal true (expecting 'u')"),
        (b"fals3", "'3' in literal false (expecting 'e')"),
        (b"nil", "'i' in literal null (expecting 'u')"),
        (b"[\xff]", "'ÿ' looking for beginning of value"),
        (b"\x80", r"'\u0080' looking for beginning of value"),
        (b"\xa0", r"'\u00a0' looking for beginning of value"),
        (b"\x7f", r"'\x7f' looking for beginning of value"),
        (b"\\", r"'\\' looking for beginning of value"),
    ],
)
def test_an_invalid_character(text, message):
    assert complaint(text) == f"invalid character {message}"


DEEP = [
    (b"[[1,]]", "']' looking for beginning of value"),
    (b"[[,]]", "',' looking for beginning of value"),
    (b"[[1,,2]]", "',' looking for beginning of value"),
    (b"[[1,2,01,3]]", "'1' after array element"),
    (b"[[1,2,1.5.5,3]]", "'.' after array element"),
    (b'[[1,"a":1,2]]', "':' after array element"),
    (b"[[[],{},[ ],{ },x]]", "'x' looking for beginning of value"),
    (b"[[[],{},]]", "']' looking for beginning of value"),
    (b'[["a\\x",1]]', "'x' in string escape code"),
    (b'[["a",-,1]]', "',' in numeric literal"),
    (b'[{"a":1,}]', "'}' looking for beginning of object key string"),
    (b'[{"a":1,"b":2,3}]', "'3' looking for beginning of object key string"),
    (b'[{"a":"b":1,"c":2}]', "':' after object key:value pair"),
    (b'[{"a":{"b":"c":1,"d":2},"e":1}]', "':' after object key:value pair"),
    (b'[{"a":"b":1,2}]', "':' after object key:value pair"),
    (b'[{"a":1,"b",2}]', "',' after object key"),
    (b'[{"a":1,"b":2 "c":3}]', "'\"' after object key:value pair"),
    (b'[{"a":1,"b":2]', "']' after object key:value pair"),
]


@pytest.mark.parametrize(("text", "message"), DEEP)
@pytest.mark.parametrize("around", [b"%b", b'{"x":%b}', b"[1,2,%b]"])
def test_an_invalid_character_deep_inside(text, message, around):
    assert complaint(around % text) == f"invalid character {message}"


@pytest.mark.parametrize(
    "text", [b"[[1,", b"[[1,2", b'[{"a":1,', b'[{"a":1,"b"', b'[{"a":1,"b":', b"[[[],"]
)
def test_an_end_deep_inside(text):
    assert complaint(text) == "unexpected end of JSON input"


# Members


def test_members_in_any_case_with_duplicates():
    found = go_scanner.members(
        '{"ID":1,"id":2,"\\u0069D":3,"queue\u017f":4,"bloc\u212aed_by":5}'.encode()
    )
    assert found == [
        ("id", b"1"),
        ("id", b"2"),
        ("id", b"3"),
        ("queues", b"4"),
        ("blocked_by", b"5"),
    ]


def test_null_has_no_members_and_other_values_are_not_objects():
    assert go_scanner.members(b" null ") == []
    for text in (b"[]", b"1", b'"a"', b"true"):
        with pytest.raises(BadJson, match="not an object"):
            go_scanner.members(text)


@pytest.mark.parametrize(
    ("text", "kind"),
    [(b'"a"', "string"), (b"{}", "object"), (b"[]", "array"), (b"true", "bool"), (b"false", "bool"),
     (b"null", "null"), (b"1", "number"), (b"-1", "number")],
)  # fmt: skip
def test_the_go_name_of_a_kind(text, kind):
    assert go_scanner.go_type(text) == kind


# Text


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b'""', ""),
        (b'"plain \xc5\xbc"', "plain ż"),
        (rb'"\"\\\/\b\f\n\r\t"', '"\\/\b\f\n\r\t'),
        (rb'"\u00e9\ud83d\ude00"', "é😀"),
        (rb'"\ud800"', "\ufffd"),
        (rb'"\ude00\ud83d"', "\ufffd\ufffd"),
        (rb'"\ud800\u0041"', "\ufffdA"),
        (rb'"\\ud83d\ude00"', "\\ud83d\ufffd"),
        (b'"\xff"', "\ufffd"),
        (b'"\xe2\x82x"', "\ufffd\ufffdx"),  # Go: one for each byte
        (b'"\xed\xa0\x80"', "\ufffd\ufffd\ufffd"),
        (b'"\xf0\x9f\x98"', "\ufffd\ufffd\ufffd"),
        ('"\ufffd"'.encode(), "\ufffd"),
    ],
)
def test_strings(raw, text):
    assert go_scanner.decode_string(raw) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", '""'),
        ("plain ż <&>", '"plain ż <&>"'),
        ('a"b\\c', r'"a\"b\\c"'),
        ("\a\b\f\n\r\t\v", r'"\a\b\f\n\r\t\v"'),
        ("\x00\x1f\x7f", r'"\x00\x1f\x7f"'),
        ("\x80\xa0\u200b\u2028", r'"\u0080\u00a0\u200b\u2028"'),
        ("\U000e0001", r'"\U000e0001"'),
        ("😀\ufffd", '"😀\ufffd"'),
    ],
)
def test_strings_are_quoted_as_in_go(text, shown):
    assert go_scanner.quote_as_go(text) == shown


# In general


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(values, st.booleans(), st.sampled_from([None, 2]))
def test_json_written_by_python_is_parsed(value, ascii_only, indent):
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode(
        "utf-8", "surrogatepass"
    )
    found = go_scanner.top_level_values(text)
    if isinstance(value, dict):
        assert [go_scanner.decode_string(raw) for raw in found[::2]] == list(value)
        assert [json.loads(raw) for raw in found[1::2]] == list(value.values())
    elif isinstance(value, list):
        assert [json.loads(raw) for raw in found] == value
    elif isinstance(value, str):
        assert go_scanner.decode_string(found[0]) == value
    else:
        assert found == [text]


@given(st.text(alphabet='{}[]",:\\ue0123.-+ \ttrueflsn\x01é', max_size=12))
@example('{"a":1}')
@settings(max_examples=500)
def test_exactly_the_json_that_python_accepts_is_parsed(text):
    try:
        json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        assert complaint(text.encode())
    else:
        go_scanner.top_level_values(text.encode())


TOKENS = st.sampled_from(
    ["{", "}", "[", "]", ",", ":", '"a"', "1", "null", "{}", "[]", " ", '"a":1', "[1,", '{"a":']
)


@given(
    st.lists(TOKENS, max_size=10).map("".join),
    st.sampled_from(["%s", "[%s]", '[{"a":[%s]}]', "[[1,%s,{}]]"]),
)
@settings(max_examples=1000)
def test_random_tokens_deep_inside(text, around):
    test_exactly_the_json_that_python_accepts_is_parsed.hypothesis.inner_test(around % text)


@given(st.binary(max_size=30))
def test_any_bytes_are_parsed_or_refused(text):
    with contextlib.suppress(BadJson):
        assert all(piece in text for piece in go_scanner.top_level_values(text))

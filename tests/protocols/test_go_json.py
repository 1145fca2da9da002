"""JSON objects as Go's decoder reads them."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millrace.protocols import go_json
from millrace.protocols.errors import BadJson

MILLION = 1_000_000


# Text


@pytest.mark.parametrize("line", [b"", b"ascii", "é→🎉".encode(), b"\x00\x7f"])
def test_text(line):
    assert go_json.repair_text(line) == line


@pytest.mark.parametrize(
    ("line", "repaired"),
    [
        (b"\xff", "\ufffd"),
        (b"ab\x80", "ab\ufffd"),
        (b"\xc3", "\ufffd"),
        ("é".encode()[:1] + b"x", "\ufffdx"),
        (b"\xe2\x82!", "\ufffd\ufffd!"),  # as Go: one for each byte
        (b"\xed\xa0\x80", "\ufffd\ufffd\ufffd"),  # a surrogate, as CESU-8 has it
        (b"x\xc0\x80", "x\ufffd\ufffd"),  # a NUL, as Java has it
        (b"\xf4\x90\x80\x80", "\ufffd\ufffd\ufffd\ufffd"),  # beyond Unicode
    ],
)
def test_bytes_that_are_not_utf_8(line, repaired):
    assert go_json.repair_text(line) == repaired.encode()


@pytest.mark.parametrize(
    ("line", "canonical"),
    [
        (b'{"a" : [1.0, 1e3 ,\ttrue],\r"b":{}}', b'{"a":[1.0,1e3,true],"b":{}}'),
        (rb'"\u00e9\/ \" \\ \u000a\t"', '"é/ \\" \\\\ \\n\\t"'.encode()),
        (b'" <&> "', rb'" \u003c\u0026\u003e "'),
        (rb'"\u2028\u003C"', rb'"\u2028\u003c"'),
        (rb'"\ud83d\ude00 \ud800"', '"😀 \ufffd"'.encode()),
    ],
)
def test_canonical_json(line, canonical):
    assert go_json.to_go_json(line) == canonical


# Surrogates


@pytest.mark.parametrize(
    ("line", "repaired_text"),
    [
        (rb"\ud800", rb"\ufffd"),
        (rb"\uDC00", rb"\ufffd"),
        (rb"\ud83d\ude00", rb"\ud83d\ude00"),
        (rb"\uD83D\uDE00", rb"\uD83D\uDE00"),
        (rb"\ude00\ud83d", rb"\ufffd\ufffd"),
        (rb"\ud83d\ud83d\ude00", rb"\ufffd\ud83d\ude00"),
        (rb"\ud83dx", rb"\ufffdx"),
        (rb"\ud8zz", rb"\ud8zz"),  # no JSON, repaired or not
        (rb"\\ud800", rb"\\ud800"),
        (rb"\\\ud800", rb"\\\ufffd"),
        (rb"\ud83d\\ude00", rb"\ufffd\\ude00"),
        (rb"\u0041\n\"", rb"\u0041\n\""),
        (rb"\ud7ff\ue000", rb"\ud7ff\ue000"),
        (rb"\ude0J", rb"\ude0J"),  # without an escape, so it stays invalid
        (rb"\udfff"[:5], rb"\udfff"[:5]),
        (b"plain", b"plain"),
    ],
)
def test_repair(line, repaired_text):
    assert go_json.replace_surrogates(line) == repaired_text


@given(st.lists(st.sampled_from([*range(0xD7FE, 0xD803), *range(0xDBFE, 0xDC03), *range(0xDFFE, 0xE002), 0x41])))  # fmt: skip
@example([0xD83D, 0xDE00])
def test_repaired_text_always_decodes_and_keeps_every_pair(units):
    escaped = "".join(f"\\u{unit:04x}" for unit in units)
    repaired_text = go_json.replace_surrogates(escaped.encode()).decode()
    text = json.loads(f'"{repaired_text}"')
    text.encode()  # no surrogate is left
    known = json.loads(f'"{escaped}"')  # pairs are joined, lone surrogates stay
    assert text == "".join("\ufffd" if 0xD800 <= ord(c) < 0xE000 else c for c in known)


# Members


def test_members_are_returned_as_written():
    line = b' { "a" : 1.0 , "b":[ 1,2 ],"c":{"x":null}, "d":"\\u0041" } '
    assert go_json.members(line) == {"a": b"1.0", "b": b"[ 1,2 ]", "c": b'{"x":null}', "d": b'"\\u0041"'}  # fmt: skip


def test_the_last_member_of_a_name_wins():
    assert go_json.members(b'{"a":1,"a":2}') == {"a": b"2"}


@pytest.mark.parametrize("line", [b"", b"{", b'{"a"', b'{"a":1', b'{"a":[1'])
def test_members_of_half_an_object(line):
    with pytest.raises(BadJson, match="unexpected end of JSON input"):
        go_json.members(line)


@pytest.mark.parametrize(
    "line",
    [b"[]", b"nil", b"1", b'"x"', b"{}x", b"{'a':1}", b'{"a":01}', b'{"a":}', b'{"a":1,}', b"{a:1}", b'{"a":"\x01"}', b'{"a":nul}', b"\x00", b"\xef\xbb\xbf{}"],
)  # fmt: skip
def test_members_of_no_object(line):
    with pytest.raises(BadJson) as error:
        go_json.members(line)
    assert 0 < len(str(error.value)) < 200
    assert "`" not in str(error.value)


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
@pytest.mark.parametrize("depth", [20_000, MILLION])
def test_members_nested_too_deeply(opening, depth):
    with pytest.raises(BadJson, match=r"nested too deeply|exceeded max depth"):
        go_json.members(b'{"a":' + opening * depth)


@pytest.mark.parametrize("depth", [200, 2000, 9999])
def test_members_nested_as_deeply_as_go_reads(depth):
    nested = b"[" * depth + b"]" * depth
    assert go_json.members(b'{"a":' + nested + b"}") == {"a": nested}
    assert go_json.deep_elements(b"[" + nested + b",1]") == [nested, b"1"]


# Folding


def test_folded_matches_keys_in_any_case_and_drops_nulls():
    known = frozenset({"jid", "args"})
    assert go_json.split_members(b'{"JID":"x","Args":null,"Other":null,"oTHER":1}', known) == (
        {"jid": b'"x"'},
        {"Other": b"null", "oTHER": b"1"},
    )


def test_folded_the_last_of_several_spellings_wins():
    assert go_json.split_members(b'{"jid":1,"Jid":2}', frozenset({"jid"})) == ({"jid": b"2"}, {})


# Values


def test_string():
    assert go_json.read_string(None, "x") == ""
    assert go_json.read_string(b'"a\\u0041\\n"', "x") == "aA\n"


@pytest.mark.parametrize("raw", [b"1", b"[]", b"{}", b"true", b"null", b"1.5"])
def test_no_string(raw):
    with pytest.raises(BadJson, match="name must be a string"):
        go_json.read_string(raw, "name")


@pytest.mark.parametrize("number", [0, -1, 2**63 - 1, -(2**63)])
def test_integer(number):
    assert go_json.read_integer(str(number).encode(), "x") == number


def test_integer_absent():
    assert go_json.read_integer(None, "x") is None


@pytest.mark.parametrize("raw", [b"1.0", b"1e2", b"true", b'"1"', b"[]", b"{}", b"null"])
def test_no_integer(raw):
    with pytest.raises(BadJson, match="name must be an integer"):
        go_json.read_integer(raw, "name")


@pytest.mark.parametrize("raw", [b"%d" % 2**63, b"-%d" % (2**63 + 1), b"%d" % 2**64, b"1" * 100])
def test_integer_out_of_range(raw):
    with pytest.raises(BadJson, match="name is out of range"):
        go_json.read_integer(raw, "name")


@pytest.mark.parametrize("raw", [b"1" * 5000, b"-" + b"9" * 100_000, b"1e999999999"])
def test_integer_far_out_of_range(raw):
    with pytest.raises(BadJson):
        go_json.read_integer(raw, "name")


def test_strings():
    assert go_json.read_strings(None, "x") == []
    assert go_json.read_strings(b'[ "a", "" ]', "x") == ["a", ""]
    assert go_json.read_strings(b'["a",null]', "x") == ["a", ""]  # as Go: null has no effect


@pytest.mark.parametrize("raw", [b'"a"', b"[1]", b"[null,1]", b'["a",["b"]]', b"{}", b"1"])
def test_no_strings(raw):
    with pytest.raises(BadJson, match="name must be an array of strings"):
        go_json.read_strings(raw, "name")


@given(st.text())
def test_quote_is_json(text):
    assert json.loads(go_json.quote(text)) == text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), JSON, max_size=5))
def test_members_agree_with_the_standard_library(value):
    line = json.dumps(value).encode()
    assert {key: json.loads(raw) for key, raw in go_json.members(line).items()} == value


@given(st.binary(max_size=50))
def test_any_bytes_are_members_or_bad_json(line):
    try:
        line = go_json.repair_text(line)
        found = go_json.members(line)
    except BadJson:
        return
    assert (json.loads(line) or {}).keys() == found.keys()

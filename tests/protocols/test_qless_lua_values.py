"""Numbers and JSON as the scripts of Qless read and write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.protocols.qless import lua_values as lua
from millrace.protocols.qless.errors import ScriptError
from millrace.store import records


@pytest.mark.parametrize(
    ("word", "value"),
    [
        (b"5", 5),
        (b" 5 ", 5),
        (b"-5", -5),
        (b"+5", 5),
        (b"2.0", 2),
        (b"2.5", 2.5),
        (b".5", 0.5),
        (b"5.", 5),
        (b"1e3", 1000),
        (b"1E-1", 0.1),
        (b"0x10", 16),
        (b"-0xff", -255),
        (b"007", 7),
        (b"", None),
        (b" ", None),
        (b"x", None),
        (b"1x", None),
        (b"1 2", None),
        (b"0x", None),
        (b"inf", None),
        (b"nan", None),
        (b"1e999", None),
        (b"1_000", None),
        (b"\xd9\xa5", None),
        (None, None),
    ],
)
def test_tonumber(word: bytes | None, value: float | None) -> None:
    found = lua.tonumber(word)
    assert found == value
    assert type(found) is type(value)


@given(st.binary(max_size=20))
def test_tonumber_never_fails(word: bytes) -> None:
    value = lua.tonumber(word)
    assert value is None or isinstance(value, int | float)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0, b"0"),
        (-7, b"-7"),
        (2.5, b"2.5"),
        (2.0, b"2"),
        (94.0452018978107, b"94.045201897811"),
        (10**14, b"1e+14"),
        (12345678901234567, b"1.2345678901235e+16"),
    ],
)
def test_numbers_are_written_with_fourteen_digits(value: float, written: bytes) -> None:
    assert lua.format_number(value) == written


@pytest.mark.parametrize(
    ("microseconds", "written"),
    [
        (0, b"0"),
        (72_000_000, b"72"),
        (1_394_000_060_987_654, b"1394000060.9877"),
        (-500_000, b"-0.5"),
    ],
)
def test_times_are_written_in_seconds(microseconds: int, written: bytes) -> None:
    assert lua.format_seconds(microseconds) == written


@pytest.mark.parametrize(
    ("seconds", "microseconds"),
    [
        (5, 5_000_000),
        (0.25, 250_000),
        (10**30, 10**17),
        (-1e300, -(10**17)),
        (1394000060.987654, 1_394_000_060_987_654),
    ],
)
def test_times_are_limited_to_the_storable_range(seconds: float, microseconds: int) -> None:
    assert lua.to_microseconds(seconds) == microseconds


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "Expected value but found T_END at character 1"),
        (b"[}", "Expected value but found T_OBJ_END at character 2"),
        (b"{]", "Expected object key string but found T_ARR_END at character 2"),
        (b"{a:1}", "Expected object key string but found invalid token at character 2"),
        (b'{"a"}', "Expected colon but found T_OBJ_END at character 5"),
        (b'{"a":}', "Expected value but found T_OBJ_END at character 6"),
        (b'{"a":1 "b"', "Expected comma or object end but found T_STRING at character 8"),
        (b'{"a":1,}', "Expected object key string but found T_OBJ_END at character 8"),
        (b"[1", "Expected comma or array end but found T_END at character 3"),
        (b"[1,]", "Expected value but found T_ARR_END at character 4"),
        (b"[1 true", "Expected comma or array end but found T_BOOLEAN at character 4"),
        (b"{}}", "Expected the end but found T_OBJ_END at character 3"),
        (b"1 null", "Expected the end but found T_NULL at character 3"),
        (b"nope", "Expected value but found invalid token at character 1"),
        (b'"a', "Expected value but found unexpected end of string at character 3"),
        (b"[1, , 2]", "Expected value but found T_COMMA at character 5"),
        (b"[:]", "Expected value but found T_COLON at character 2"),
        (b"01", "Expected value but found invalid token at character 2"),
    ],
)
def test_the_cjson_message_for_invalid_json(data: bytes, complaint: str) -> None:
    with pytest.raises(ScriptError) as problem:
        lua.check_json(data)
    assert str(problem.value) == complaint
    with pytest.raises(ScriptError):
        lua.decode(data)


@given(st.binary(max_size=40) | st.text('[]{},:"1an ', max_size=20).map(str.encode))
def test_any_bytes_are_json_or_complained_about(data: bytes) -> None:
    try:
        assert lua.check_json(data) is data
    except ScriptError as problem:
        assert str(problem).startswith("Expected ")  # noqa: PT017


def test_long_invalid_text_is_refused_immediately() -> None:
    with pytest.raises(ScriptError, match="Expected value but found invalid token at character"):
        lua.check_json(b"[" * 1_000_000)


def test_a_missing_argument() -> None:
    with pytest.raises(ScriptError, match="bad argument #1 to 'decode'"):
        lua.check_json(None)


def test_lists() -> None:
    assert lua.decode_list(b"{}") == []
    assert lua.decode_list(b'["a",1]') == ["a", 1]
    assert lua.encode_strings([]) == b"{}"
    assert lua.encode_strings(["é"]) == '["é"]'.encode()
    assert lua.join_list([b"1", b"{}"]) == b"[1,{}]"


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"[18446744073709551615,-9223372036854775808]", [2**64 - 1, -(2**63)]),
        (b"[18446744073709551616]", [18446744073709551616.0]),
        (b"-9223372036854775809", -9223372036854775809.0),
        (b'["18446744073709551616"]', ["18446744073709551616"]),
        (b'{"\\"1":[1111111111111111111111.5e1]}', {'"1': [11111111111111111111115.0]}),
    ],
)
def test_numbers_beyond_64_bits_are_storable_floats(data: bytes, value: object) -> None:
    """Otherwise the change set of the whole turn could not be written."""
    assert lua.decode(data) == value
    assert repr(lua.decode(data)) == repr(value)
    records.encode(lua.decode(data))


def test_an_infinite_number_is_refused() -> None:
    with pytest.raises(ScriptError):
        lua.decode(b"[%b]" % (b"1" * 400))


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_too_deeply_nested_data_is_refused(opening: bytes) -> None:
    closing = b"]" if opening == b"[" else b"}"
    good = opening * lua.MAX_DEPTH + b"1" + closing * lua.MAX_DEPTH
    records.encode(lua.decode(good))
    assert lua.decode(b'["%b"]' % (b"[" * 2000)) == ["[" * 2000]
    with pytest.raises(ScriptError, match=r"^Found too many nested data structures \(501\)$"):
        lua.decode(opening + good + closing)

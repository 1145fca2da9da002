"""Payloads of other protocols' jobs as JSON; tests/conformance covers the view of workers."""

import json
from base64 import b64decode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.protocols.go_json import MAX_SLOW_PARSE_BYTES
from millrace.protocols.payloads import as_json, is_json

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@settings(deadline=None)
@given(JSON, st.sampled_from([None, 0, 3]))
def test_json_is_unchanged(value, indent):
    text = json.dumps(value, indent=indent).encode()
    assert as_json(text) == (text, False)


@settings(deadline=None)
@given(st.binary(max_size=50) | st.text(max_size=50).map(str.encode))
def test_other_payloads_can_be_decoded(payload):
    shown, in_base64 = as_json(payload)
    value = json.loads(shown)
    if in_base64:
        with pytest.raises(UnicodeDecodeError):
            payload.decode()
        assert b64decode(value, validate=True) == payload
    elif shown != payload:
        assert value == payload.decode()


@pytest.mark.parametrize(
    "text",
    [
        rb'"\ud8zz"',
        rb'"\ud8',
        rb'"\ud800" 1',
        rb'["\ud800",]',
        b"[" * 5000,
        b"[" * 5000 + b"]" * 5001,
        b"[" * 100_000 + b"]" * 100_000,
    ],
)
def test_invalid_json(text):
    assert not is_json(text)


def test_unusual_json_is_checked_up_to_a_size():
    deep = b"[" * 5000 + b"]" * 5000
    assert is_json(deep)
    assert not is_json(deep + b" " * MAX_SLOW_PARSE_BYTES)
    surrogate = rb'["\ud800"]' + b" " * MAX_SLOW_PARSE_BYTES
    assert is_json(surrogate)

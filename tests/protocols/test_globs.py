"""Redis glob patterns."""

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.protocols.errors import ClientError
from millrace.protocols.globs import MAX_PATTERN, check_pattern, linear_matcher, matcher


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        (b"", [b""], [b"a"]),
        (b"*", [b"", b"a", b"a\nb"], []),
        (b"**", [b"", b"a"], []),
        (b"ql:*", [b"ql:", b"ql:log"], [b"q", b"xql:log"]),
        (b"*log", [b"log", b"ql:log"], [b"logs"]),
        (b"h?llo", [b"hello", b"h\nllo"], [b"hllo", b"heello"]),
        (b"h*llo", [b"hllo", b"heeello"], [b"hell"]),
        (b"h[ae]llo", [b"hello", b"hallo"], [b"hillo", b"hllo"]),
        (b"h[^e]llo", [b"hallo"], [b"hello"]),
        (b"h[a-c]llo", [b"hallo", b"hbllo"], [b"hdllo", b"h-llo"]),
        (b"h[c-a]llo", [b"hbllo"], [b"hdllo"]),
        (b"[a-", [b"-", b"a"], [b"b"]),
        (b"a[b", [b"ab"], [b"a[b"]),
        (b"[]", [], [b"", b"]", b"[]"]),
        (b"[", [], [b"["]),
        (b"[^]", [b"a"], [b"", b"ab"]),
        (rb"[\]]", [b"]"], [b"\\"]),
        (rb"a\*b", [b"a*b"], [b"axb"]),
        (rb"\[a\]\?", [b"[a]?"], [b"a?"]),
        (b"a\\", [b"a\\"], [b"a"]),
        (b"a.b", [b"a.b"], [b"axb"]),
        (b"*a*b*", [b"ab", b"xaxbx", b"aab"], [b"ba", b"a"]),
        (b"*ab*b", [b"abb", b"abxb"], [b"ab"]),
        (b"a*a", [b"aa", b"aba"], [b"a"]),
        (b"\xff*", [b"\xff", b"\xff\x00"], [b"\xfe"]),
    ],
)
def test_patterns(pattern, yes, no):
    matches = matcher(pattern)
    assert [name for name in yes if not matches(name)] == []
    assert [name for name in no if matches(name)] == []


@given(
    st.text("ab*?", max_size=8).map(str.encode),
    st.text("ab", max_size=10).map(str.encode),
)
@settings(max_examples=500, deadline=None)
def test_patterns_equal_regular_expressions(pattern, name):
    plain = pattern.replace(b"*", b".*").replace(b"?", b".")
    expected = bool(re.fullmatch(plain, name))
    assert bool(matcher(pattern)(name)) == expected
    assert linear_matcher(pattern).matches(name) == expected


@pytest.mark.parametrize("pattern", [b"[ab]c*[^d]?*e", b"*?b[c-e]*", rb"a\*[]*", b"*[^a]"])
def test_both_matchers_agree(pattern):
    names = {b"", b"a", b"ac", b"bcxe", b"acdxe", b"xbdy", b"a*", b"abce", b"bcxxxe", b"xxbcyye"}
    for name in names:
        assert linear_matcher(pattern).matches(name) == bool(matcher(pattern)(name))


def test_a_long_name_takes_linear_time():
    pattern = b"*" + b"?" * 400 + b"b*"
    assert not matcher(pattern)(b"a" * 300_000)
    assert matcher(pattern)(b"a" * 300_000 + b"b")


def test_no_pattern_takes_long():
    started = time.process_time()
    assert not matcher(b"*a" * 400 + b"*b")(b"a" * 5000)
    assert not matcher(b"*?a" * 300 + b"*[bc]")(b"a" * 5000)
    assert time.process_time() - started < 2


def test_a_pattern_has_a_maximum_length():
    assert check_pattern(b"x" * MAX_PATTERN) == b"x" * MAX_PATTERN
    with pytest.raises(ClientError, match="ERR a pattern may have at most 1000 bytes"):
        check_pattern(b"x" * (MAX_PATTERN + 1))

"""The search syntax: parsing, errors, and writing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.admin.query_language import PROTOCOLS, STATES, QueryError, parse, quoted, write
from millrace.records import JobFilter


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", JobFilter()),
        ("   ", JobFilter()),
        ('""', JobFilter()),
        ("queue:mail", JobFilter(queue="mail")),
        (
            "queue:mail state:dead tag:x timeout",
            JobFilter(queue="mail", state="dead", tag="x", terms=["timeout"]),
        ),
        ('"two words" third', JobFilter(terms=["two words", "third"])),
        ('error:"connection refused"', JobFilter(error="connection refused")),
        (r'queue:"say \"hi\" \\ there"', JobFilter(queue='say "hi" \\ there')),
        (r'"a\nb"', JobFilter(terms=["a\\nb"])),
        ('kind:""', JobFilter(kind="")),
        ("kind:Mail::Send", JobFilter(kind="Mail::Send")),
        ("Mail::Send", JobFilter(terms=["Mail::Send"])),
        ("mail::send", JobFilter(terms=["mail::send"])),
        ("queue:a:b", JobFilter(queue="a:b")),
        ('it"s', JobFilter(terms=['it"s'])),
        ("jid:7", JobFilter(id="7")),
        ("class:A", JobFilter(kind="A")),
        ("state:FAILED", JobFilter(state="dead")),
        ("state:running", JobFilter(state="leased")),
        ("is:dead", JobFilter(state="dead")),
        ("protocol:Faktory", JobFilter(protocol="faktory")),
        ("protocol:go", JobFilter(protocol="goqueue")),
        ("is:retrying", JobFilter(state="scheduled", retrying=True)),
        ("state:retrying", JobFilter(state="scheduled", retrying=True)),
        ("state:scheduled not:retrying", JobFilter(state="scheduled", retrying=False)),
        ("is:tracked", JobFilter(tracked=True)),
        ("is:failing", JobFilter(failing=True)),
        ("not:tracked", JobFilter(tracked=False)),
        ("queue:a queue:a", JobFilter(queue="a")),
        ("group:a fingerprint:b worker:w", JobFilter(group="a", fingerprint="b", worker="w")),
    ],
)
def test_parsing(text: str, expected: JobFilter) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("quue:mail", 'Unknown search key "quue:". Did you mean "queue:"?'),
        ("http://example.org", 'put it in quotes: "http://example.org"'),
        ("state:ded", "Did you mean dead?"),
        ("state:failing", "failing is not a state. Did you mean is:failing?"),
        ("state:Tracked", "Did you mean is:tracked?"),
        ("protocol:amqp", "Use one of workq, masenko"),
        ("is:funny", "Unknown state funny"),
        ("not:dead", "Use one of retrying, failing, tracked"),
        ("queue:a queue:b", "given twice"),
        ("is:retrying state:dead", "A job that is dead is not retrying"),
        ("queue:", 'write queue:"" for an empty one'),
        ("queue: mail", "A value is missing after queue:"),
        ('"open', "not closed"),
        ('queue:"a"b', 'A space is missing after "a"'),
        ("x " * 21, "more than 20 text terms"),
        ("x" * 4001, "longer than 4,000"),
    ],
)
def test_errors(text: str, wrong: str) -> None:
    with pytest.raises(QueryError) as caught:
        parse(text)
    assert wrong in str(caught.value)


texts = st.text(max_size=30)
values = st.none() | texts
queries = st.builds(
    JobFilter,
    id=values,
    queue=values,
    kind=values,
    state=st.none() | st.sampled_from(STATES),
    protocol=st.none() | st.sampled_from(PROTOCOLS),
    tag=values,
    worker=values,
    group=values,
    fingerprint=values,
    error=values,
    tracked=st.none() | st.booleans(),
    failing=st.none() | st.booleans(),
    terms=st.lists(texts.filter(bool), max_size=5),
)


@given(queries, st.sampled_from([None, True, False]))
def test_a_written_query_parses_to_the_same_query(query: JobFilter, retrying: bool | None) -> None:
    query.retrying = retrying
    if retrying:
        query.state = "scheduled"
    assert parse(write(query)) == query


@given(st.text(max_size=60) | st.text('"\\: aqueueis', max_size=20))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        query = parse(text)
    except QueryError:
        return
    assert parse(write(query)) == query


@given(texts)
def test_a_value_in_a_link(value: str) -> None:
    assert parse(f"tag:{quoted(value)} state:dead").tag == value

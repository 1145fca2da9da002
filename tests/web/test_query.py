"""The words of the search: what they mean, what is wrong with them, and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.protocols.control.messages import Query
from millrace.web.query import PROTOCOLS, STATES, QueryError, parse, quoted, write


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("", Query()),
        ("   ", Query()),
        ('""', Query()),
        ("queue:mail", Query(queue="mail")),
        (
            "queue:mail state:dead tag:x timeout",
            Query(queue="mail", state="dead", tag="x", words=["timeout"]),
        ),
        ('"two words" third', Query(words=["two words", "third"])),
        ('error:"connection refused"', Query(error="connection refused")),
        (r'queue:"say \"hi\" \\ there"', Query(queue='say "hi" \\ there')),
        (r'"a\nb"', Query(words=["a\\nb"])),
        ('kind:""', Query(kind="")),
        ("kind:Mail::Send", Query(kind="Mail::Send")),
        ("Mail::Send", Query(words=["Mail::Send"])),
        ("mail::send", Query(words=["mail::send"])),
        ("queue:a:b", Query(queue="a:b")),
        ('it"s', Query(words=['it"s'])),
        ("jid:7", Query(id="7")),
        ("class:A", Query(kind="A")),
        ("state:FAILED", Query(state="dead")),
        ("state:running", Query(state="leased")),
        ("is:dead", Query(state="dead")),
        ("protocol:Faktory", Query(protocol="faktory")),
        ("protocol:go", Query(protocol="goqueue")),
        ("is:retrying", Query(state="scheduled", retrying=True)),
        ("state:retrying", Query(state="scheduled", retrying=True)),
        ("state:scheduled not:retrying", Query(state="scheduled", retrying=False)),
        ("is:tracked", Query(tracked=True)),
        ("is:failing", Query(failing=True)),
        ("not:tracked", Query(tracked=False)),
        ("queue:a queue:a", Query(queue="a")),
        ("group:a fingerprint:b worker:w", Query(group="a", fingerprint="b", worker="w")),
    ],
)
def test_what_is_meant(text: str, meant: Query) -> None:
    assert parse(text) == meant


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("quue:mail", "there is no key quue: did you mean queue:?"),
        ("http://example.org", 'put it in quotes: "http://example.org"'),
        ("state:ded", "did you mean dead?"),
        ("state:failing", "failing is no state: did you mean is:failing?"),
        ("state:Tracked", "did you mean is:tracked?"),
        ("protocol:amqp", "it is one of workq, masenko"),
        ("is:funny", "there is no state funny"),
        ("not:dead", "it is one of retrying, failing, tracked"),
        ("queue:a queue:b", "given twice"),
        ("is:retrying state:dead", "a job that is dead is not retrying"),
        ("queue:", 'an empty one is queue:""'),
        ("queue: mail", "nothing stands behind queue:"),
        ('"open', "not closed"),
        ('queue:"a"b', 'a space is missing behind "a"'),
        ("x " * 21, "more than 20 words"),
        ("x" * 4001, "longer than 4,000"),
    ],
)
def test_what_is_wrong(text: str, wrong: str) -> None:
    with pytest.raises(QueryError) as caught:
        parse(text)
    assert wrong in str(caught.value)


texts = st.text(max_size=30)
values = st.none() | texts
queries = st.builds(
    Query,
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
    words=st.lists(texts.filter(bool), max_size=5),
)


@given(queries, st.sampled_from([None, True, False]))
def test_what_is_written_means_the_same(query: Query, retrying: bool | None) -> None:
    query.retrying = retrying
    if retrying:
        query.state = "scheduled"
    assert parse(write(query)) == query


@given(st.text(max_size=60) | st.text('"\\: aqueueis', max_size=20))
def test_any_text_means_something_or_is_refused(text: str) -> None:
    try:
        query = parse(text)
    except QueryError:
        return
    assert parse(write(query)) == query


@given(texts)
def test_a_value_in_a_link(value: str) -> None:
    assert parse(f"tag:{quoted(value)} state:dead").tag == value

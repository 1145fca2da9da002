"""Tests of the conversation class: it must detect every kind of difference."""

import pytest
from conversation import START, Conversation, Step, World, assert_one_reply, bytewise, pipelined

from millrace.protocols.faktory.connection import FaktoryConnection


def test_a_wrong_reply_is_detected():
    talk = Conversation()
    with pytest.raises(AssertionError):
        talk.client().says(b"INFO\r\n").hears(b"+OK\r\n")


def test_an_unconsumed_reply_is_detected():
    talk = Conversation()
    talk.client().says(b"FLUSH\r\n")
    with pytest.raises(AssertionError):
        talk.close()


def test_a_reply_that_depends_on_segments_is_detected(monkeypatch):
    plain = FaktoryConnection.receive

    def only_whole_lines(self, data, now, most):
        return plain(self, data if data.endswith(b"\n") else data.upper(), now, most)

    talk = Conversation()
    talk.client().says(b"nonsense\r\n").hears_error("unknown command nonsense")
    monkeypatch.setattr(FaktoryConnection, "receive", only_whole_lines)
    with pytest.raises(AssertionError, match="byte by byte"):
        talk.close()


def test_a_reply_that_depends_on_pipelining_is_detected(monkeypatch):
    plain = FaktoryConnection.receive

    def only_one_line(self, data, now, most):
        return plain(self, data[: data.find(b"\n") + 1] or data, now, most)

    talk = Conversation()
    talk.client().says(b"FLUSH\r\n").hears_ok().says(b"FLUSH\r\n").hears_ok()
    monkeypatch.setattr(FaktoryConnection, "receive", only_one_line)
    with pytest.raises(AssertionError, match="pipelined"):
        talk.close()


def test_a_reply_that_waits_in_one_run_only_is_detected(monkeypatch):
    plain = FaktoryConnection.receive

    def waits_never(self, data, now, most):
        more = plain(self, data, now, most)
        for reply in self.replies:
            reply.must_wait = False
        return more

    talk = Conversation()
    talk.client().says(b"FLUSH\r\n").hears_ok()
    monkeypatch.setattr(FaktoryConnection, "receive", waits_never)
    with pytest.raises(AssertionError, match="waiting replies"):
        talk.close()


def test_byte_by_byte():
    steps = bytewise([Step("connects", 0), Step("says", 0, b"abc")])
    assert [step.data for step in steps] == [b"", b"a", b"b", b"c"]


def test_pipelining_joins_consecutive_inputs():
    said = [Step("says", 0, b"a"), Step("says", 0, b"b"), Step("says", 1, b"c"), Step("says", 0, b"d")]  # fmt: skip
    assert [(s.client, s.data) for s in pipelined(said)] == [(0, b"ab"), (1, b"c"), (0, b"d")]


def test_pipelining_extends_over_a_wait_but_over_no_other_time():
    talk = Conversation()
    client = talk.client()
    client.finds_nothing()
    talk.advance(1)
    client.says(b"FLUSH\r\n").hears_ok()
    said = [step.data for step in pipelined(talk._steps) if step.what == "says"]
    assert said == [b'HELLO {"v":2}\r\nFETCH\r\n', b"FLUSH\r\n"]
    talk.close()


@pytest.mark.sources_only("it replaces Hub.handle_alarm")
def test_the_clock_advances_only_on_request_and_stops_at_every_timer():
    world = World({})
    world.engine.set_alarm("a", START + 5)
    seen = []
    world.hub.handle_alarm = lambda key, now: seen.append((key, now))
    world.engine.set_alarm((world.hub, "b"), START + 7)
    world.engine.timers.cancel("a")
    world.advance(3)
    assert seen == []
    world.advance(100)
    assert seen == [("b", START + 7)]
    assert world.now == START + 103


@pytest.mark.parametrize(
    "reply",
    [b"+OK", b"+O\nK\r\n", b"-BAD x\r\n", b"$3\r\nab\r\n", b"$3\r\n1\n2\r\n", b":1\r\n", b"$1\r\n{\r\n"],
)  # fmt: skip
def test_a_malformed_reply_is_detected(reply):
    with pytest.raises((AssertionError, ValueError)):
        assert_one_reply(reply)

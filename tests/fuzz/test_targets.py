"""Every target with inputs from Hypothesis. `make fuzz` continues with coverage guidance."""

import pytest
import seeds
import strategies
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from targets import TARGETS

#: Targets that run complete streams, five times each.
STREAM_TARGETS = ("faktory", "workq", "masenko", "goqueue", "qless", "crossing")
_ANY_PACE = {"deadline": None, "suppress_health_check": list(HealthCheck)}


@pytest.mark.parametrize("name", STREAM_TARGETS)
@given(data=st.data())
@settings(max_examples=40, **_ANY_PACE)
def test_streams_keep_the_invariants(name: str, data: st.DataObject) -> None:
    TARGETS[name].check(data.draw(strategies.inputs(name)))


@pytest.mark.parametrize("name", [name for name in TARGETS if name not in STREAM_TARGETS])
@given(data=st.data())
@settings(max_examples=60, **_ANY_PACE)
def test_parsers_keep_the_invariants(name: str, data: st.DataObject) -> None:
    TARGETS[name].check(data.draw(strategies.inputs(name)))


@pytest.mark.parametrize("name", STREAM_TARGETS)
@pytest.mark.parametrize(
    "begin", [b"\x16", b"\x16\x03\x01", b"GET / HTTP/1.1\r\n", b"POST / HTTP/1.1\r\n"]
)
def test_web_clients_keep_the_invariants(name: str, begin: bytes) -> None:
    for choices in (b"\0\0\0\0", b"\1\1\1\1", b"\4\2\3\1", b"\0\0\0\0\0"):
        TARGETS[name].check(choices + begin + b"Host: x\r\n\r\nadd")


@pytest.mark.parametrize("name", TARGETS)
def test_documented_transcripts_keep_the_invariants(name: str) -> None:
    for seed in seeds.of(name):
        TARGETS[name].check(seed)

"""Every target with inputs that Hypothesis makes. `make fuzz` goes on where this ends."""

import pytest
import seeds
import strategies
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from targets import TARGETS

#: Those that play whole conversations, five times each.
TALKS = ("faktory", "workq", "masenko", "goqueue", "qless", "crossing")
_ANY_PACE = {"deadline": None, "suppress_health_check": list(HealthCheck)}


@pytest.mark.parametrize("name", TALKS)
@given(data=st.data())
@settings(max_examples=40, **_ANY_PACE)
def test_what_must_hold_of_a_conversation_holds(name: str, data: st.DataObject) -> None:
    TARGETS[name].check(data.draw(strategies.inputs(name)))


@pytest.mark.parametrize("name", [name for name in TARGETS if name not in TALKS])
@given(data=st.data())
@settings(max_examples=60, **_ANY_PACE)
def test_what_must_hold_of_a_parser_holds(name: str, data: st.DataObject) -> None:
    TARGETS[name].check(data.draw(strategies.inputs(name)))


@pytest.mark.parametrize("name", TARGETS)
def test_what_the_documents_say_holds(name: str) -> None:
    for seed in seeds.of(name):
        TARGETS[name].check(seed)

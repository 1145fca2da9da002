"""Every target with inputs that Hypothesis makes. `make fuzz` goes on where this ends."""

import pytest
import seeds
import strategies
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from targets import TARGETS

#: Those that play whole conversations take more time for each.
MANY, FEW = 300, 70


@pytest.mark.parametrize("name", TARGETS)
@given(data=st.data())
@settings(deadline=None, suppress_health_check=list(HealthCheck))
def test_what_must_hold_holds(name: str, data: st.DataObject) -> None:
    TARGETS[name].check(data.draw(strategies.inputs(name)))


@pytest.mark.parametrize("name", TARGETS)
def test_what_the_documents_say_holds(name: str) -> None:
    for seed in seeds.of(name):
        TARGETS[name].check(seed)

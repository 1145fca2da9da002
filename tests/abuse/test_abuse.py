"""The scenarios of `make abuse` at a small size, each against its own server.

The assertions hold on any machine: the control client never gets an error and rarely waits long,
the abuser has the expected counts, and memory stays within its bounds. `make abuse` checks the
slowdown of the client, on an otherwise idle machine.
"""

import pytest
from scenarios import SCENARIOS, Scenario, serving
from stage import play

#: A user notices a longer reply, even if the machine that runs the tests is busy.
LONG = 1.0


@pytest.mark.parametrize("scenario", [s for s in SCENARIOS if s.short], ids=lambda s: s.name)
def test_the_control_client_is_served(scenario: Scenario):
    more = {"MILLRACE_SERVER_MAX_CONNECTIONS": "1000"} if scenario.name == "stampede" else {}
    with serving(scenario, None, **more) as server:
        outcome = play(server, scenario.name, scenario.short, calm=0.4, harm=1.2)
        assert server.alive
        assert [r for r in server.log_records() if r["level"] == "error"] == []
    assert outcome.disturbed.quantile(0.95) < LONG, outcome.row()
    assert scenario.expected(outcome, scenario.short), outcome.met
    before, peak, _ = outcome.rss
    assert peak - before < scenario.growth, outcome.row()

"""The abuse of `make abuse` in small, each against a server of its own.

Asserted is what holds on any machine: the well-behaved client beside it was never refused and hardly
ever waited long, the abuser met with what it should, and memory stayed within bounds. How much
slower the client became is asserted by `make abuse`, on a machine that does nothing else.
"""

import pytest
from scenarios import SCENARIOS, Scenario, serving
from stage import play

#: A reply that takes longer is one that people notice, however busy the machine that runs tests.
LONG = 1.0


@pytest.mark.parametrize("scenario", [s for s in SCENARIOS if s.short], ids=lambda s: s.name)
def test_a_well_behaved_client_hardly_notices(scenario: Scenario):
    more = {"MILLRACE_SERVER_MAX_CONNECTIONS": "1000"} if scenario.name == "stampede" else {}
    with serving(scenario, None, **more) as server:
        outcome = play(server, scenario.name, scenario.short, calm=0.4, harm=1.2)
        assert server.alive
        assert [r for r in server.log_records() if r["level"] == "error"] == []
    assert outcome.disturbed.quantile(0.95) < LONG, outcome.row()
    assert scenario.expected(outcome, scenario.short), outcome.met
    before, peak, _ = outcome.rss
    assert peak - before < scenario.growth, outcome.row()

"""One hour of virtual soak; `make soak-workers` runs 24 hours."""

import pytest
from virtual_soak import Soak


@pytest.mark.parametrize("seed", range(1, 4))
def test_an_hour_of_faults_loses_no_job(seed: int) -> None:
    soak = Soak(seed, hours=1)
    soak.run()
    assert soak.pushed > 100
    assert soak.runs.total() > soak.pushed  # some attempts failed, expired or were repeated

"""A pair of protocols on one engine: see pairs.py."""

from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite("pairs", "samples", "house")

from pairs import Pair  # noqa: E402

from house import House  # noqa: E402 - its assertions shall explain themselves
from millrace.protocols.qless.consistency import check  # noqa: E402


@pytest.fixture
def house() -> Iterator[House]:
    """All protocols on one engine; after the test all indexes must match the jobs."""
    house = House()
    yield house
    report = check(house.listeners["qless"].hub.api.qless)
    assert report.problems == []


@pytest.fixture
def pair(request: pytest.FixtureRequest, house: House) -> Pair:
    pusher, worker = request.param
    return Pair(house, house.client(pusher, "pusher"), house.client(worker))

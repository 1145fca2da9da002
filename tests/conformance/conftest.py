"""A pair of protocols on one engine: see pairs.py."""

import pytest

pytest.register_assert_rewrite("pairs", "samples", "house")

from pairs import Pair  # noqa: E402

from house import House  # noqa: E402 - its assertions shall explain themselves


@pytest.fixture
def house() -> House:
    return House()


@pytest.fixture
def pair(request: pytest.FixtureRequest, house: House) -> Pair:
    pusher, worker = request.param
    return Pair(house, house.client(pusher, "pusher"), house.client(worker))

"""A pytest fixture: a server in memory for tests of an application.

pytest loads it where Millrace is installed.

    def test_welcome(millrace_testing):
        server = millrace_testing(app)
        register("ada@example.org")
        (outcome,) = server.run()
        assert outcome.failure is None
"""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from millrace.client import Millrace
    from millrace.client.testing import TestingServer


class StartTesting(Protocol):
    def __call__(self, app: "Millrace", *, run_immediately: bool = False) -> "TestingServer": ...


@pytest.fixture
def millrace_testing() -> Iterator[StartTesting]:
    """Call it with an application: until the end of the test, its jobs go to a server in memory."""
    with ExitStack() as stack:

        def start(app: "Millrace", *, run_immediately: bool = False) -> "TestingServer":
            return stack.enter_context(app.testing(run_immediately=run_immediately))

        yield start

"""Fixtures for the protocols' tests."""

from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite("conversation")

from conversation import Conversation  # noqa: E402 - its assertions shall explain themselves


@pytest.fixture
def talk() -> Iterator[Conversation]:
    """A conversation with a server without a password; at the end it is replayed twice."""
    conversation = Conversation()
    yield conversation
    conversation.close()

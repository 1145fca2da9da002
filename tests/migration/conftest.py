"""A real redis-server for the readers of Faktory and Qless."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "protocols")]

from redis_reference import SERVER, redis_server  # noqa: E402


@pytest.fixture
def real() -> Iterator[redis.Redis]:
    if SERVER is None:
        pytest.skip("no redis-server here; install the Debian package redis-server")
    with redis_server() as connection:
        yield connection


@pytest.fixture
def url(real: redis.Redis) -> str:
    return f"unix://{real.connection_pool.connection_kwargs['path']}"

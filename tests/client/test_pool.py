"""Connection pools after the loss of a connection."""

import asyncio
from collections.abc import Sequence

import pytest

from millrace.client.address import parse_address
from millrace.client.connection import AsyncConnection, Connection, ConnectionOptions
from millrace.client.errors import ConnectionLost
from millrace.client.exchange import run
from millrace.client.pool import AsyncConnectionPool, ConnectionPool
from millrace.client.wire import Reply

OPTIONS = ConnectionOptions(parse_address("tcp://127.0.0.1:1"))


class Scripted(Connection):
    """A connection that is lost with the first request, or that answers OK."""

    def __init__(self, *, lost: bool) -> None:
        super().__init__(OPTIONS)
        self.lost = lost
        self.closed = False

    @property
    def is_open(self) -> bool:
        return not self.closed

    def request_many(self, commands: Sequence[bytes]) -> list[Reply]:
        if self.lost:
            self.close()
            raise ConnectionLost("The server closed the connection.")
        return ["OK" for _ in commands]

    def close(self) -> None:
        self.closed = True


def test_a_restart_of_the_server_costs_one_attempt() -> None:
    """The server has closed all idle connections; only the first one must fail to notice it."""
    delays: list[float] = []
    pool = ConnectionPool(OPTIONS, retry_for=10)
    pool._sleep = delays.append
    pool._make = lambda _: Scripted(lost=False)
    stale = [Scripted(lost=True) for _ in range(5)]
    pool._idle.extend(stale)
    assert run(pool.requesting([b"PUSH {}\r\n"])) == ["OK"]
    assert len(delays) == 1
    assert all(connection.closed for connection in stale)


def test_the_last_error_is_raised_after_the_time_for_retries() -> None:
    pool = ConnectionPool(OPTIONS, retry_for=0)
    pool._make = lambda _: Scripted(lost=True)
    with pytest.raises(ConnectionLost):
        pool.request_many([b"PUSH {}\r\n"])


def test_a_new_event_loop_opens_new_connections() -> None:
    pool = AsyncConnectionPool(OPTIONS, retry_for=0)
    connection = AsyncConnection(OPTIONS)

    async def put_back() -> AsyncConnection:
        pool._take()
        pool._put_back(connection)
        return pool._take()

    async def take() -> AsyncConnection:
        return pool._take()

    assert asyncio.run(put_back()) is connection
    assert asyncio.run(take()) is not connection

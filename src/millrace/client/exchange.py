"""The SDK's logic without I/O, so that blocking and asyncio callers share one implementation.

An exchange is a generator. It yields commands that a transport sends together, receives their
replies, and returns its result.

An operation is one level below: a generator that yields calls. `run` makes each call; `run_async`
makes it and awaits the result. The generator receives the value, or the exception.
"""

from collections.abc import Awaitable, Callable, Generator, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from .wire import Reply

T = TypeVar("T")

Exchange = Generator[Sequence[bytes], list[Reply], T]
Operation = Generator[Callable[[], Any], Any, T]


class Transport(Protocol):
    """Sends commands and returns their replies; a refusal is a reply."""

    def request_many(self, commands: Sequence[bytes]) -> list[Reply]: ...

    def close(self) -> None: ...


class AsyncTransport(Protocol):
    """The same for asyncio."""

    async def request_many(self, commands: Sequence[bytes]) -> list[Reply]: ...

    async def close(self) -> None: ...


def exchange_over(
    exchange: Exchange[T],
    request_many: Callable[[Sequence[bytes]], list[Reply] | Awaitable[list[Reply]]],
) -> Operation[T]:
    """An exchange as an operation."""
    try:
        commands = next(exchange)
        while True:
            commands = exchange.send((yield partial(request_many, commands)))
    except StopIteration as end:
        result: T = end.value
        return result


def run(operation: Operation[T]) -> T:
    """Run an operation in this thread."""
    try:
        call = next(operation)
        while True:
            try:
                value = call()
            except BaseException as error:  # the operation decides
                call = operation.throw(error)
            else:
                call = operation.send(value)
    except StopIteration as end:
        result: T = end.value
        return result


async def run_async(operation: Operation[T]) -> T:
    """Run an operation in this event loop."""
    try:
        call = next(operation)
        while True:
            try:
                value = await call()
            except BaseException as error:  # the operation decides
                call = operation.throw(error)
            else:
                call = operation.send(value)
    except StopIteration as end:
        result: T = end.value
        return result

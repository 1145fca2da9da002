"""A user's module: every line must satisfy mypy --strict and pyright."""

import asyncio
from typing import assert_type

from millrace import JobHandle, Millrace, Task

app = Millrace()


@app.task
def plain(number: int) -> str:
    return str(number)


@app.task(queue="mail", retries=5, timeout=30)
def send(to: str, *, subject: str = "Hi") -> int:
    return len(to + subject)


@app.task(name="fetch")
async def fetch(url: str) -> bytes:
    return url.encode()


def use() -> None:
    assert_type(plain(7), str)
    assert_type(send("ada@example.org", subject="Hello"), int)
    handle: JobHandle[int] = send.push("ada@example.org")
    assert_type(handle.result(timeout=10), int)
    assert_type(handle.state(), str)
    assert_type(handle.cancel(), bool)
    urgent = send.options(priority=5, tags=["welcome"], depends_on=[handle])
    assert_type(urgent.push("bob@example.org", subject="Hi").result(), int)
    send.push_later("ada@example.org", delay=60)
    app.push_many(send.job(address) for address in ["a@example.org", "b@example.org"])
    assert_type(fetch.push("http://example.org").result(), bytes)


async def use_async() -> None:
    handle = await send.push_async("ada@example.org")
    assert_type(await handle.result_async(), int)
    assert_type(await fetch("http://example.org"), bytes)


def needs_a_task(task: Task[[int], str]) -> None:
    task.push(1)


needs_a_task(plain)
asyncio.run(use_async())

"""The no-op task of RQ, and its producer."""

import os

from redis import Redis
from rq import Queue

queue = Queue(connection=Redis.from_url(os.environ["REDIS_URL"]))


def noop() -> None:
    pass


def push_one() -> None:
    queue.enqueue(noop, result_ttl=0)


def push_many(count: int) -> None:
    for start in range(0, count, 1000):
        size = min(1000, count - start)
        queue.enqueue_many([Queue.prepare_data(noop, result_ttl=0) for _ in range(size)])

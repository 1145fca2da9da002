"""The no-op task of Dramatiq, and its producer."""

import os

import dramatiq
from dramatiq.brokers.redis import RedisBroker

dramatiq.set_broker(RedisBroker(url=os.environ["REDIS_URL"]))


@dramatiq.actor
def noop() -> None:
    pass


def push_one() -> None:
    noop.send()


def push_many(count: int) -> None:
    for _ in range(count):
        noop.send()

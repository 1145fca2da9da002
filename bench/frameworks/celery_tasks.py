"""The no-op task of Celery, and its producer."""

import os

from celery import Celery

app = Celery("bench", broker=os.environ["REDIS_URL"])
app.conf.task_ignore_result = True


@app.task(name="noop")
def noop() -> None:
    pass


def push_one() -> None:
    noop.delay()


def push_many(count: int) -> None:
    with app.producer_pool.acquire(block=True) as producer:  # one connection for all
        for _ in range(count):
            noop.apply_async(producer=producer)

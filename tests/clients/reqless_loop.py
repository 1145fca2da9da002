"""reqless's forking worker with a few jobs; what happens is printed, a line each.

usage: reqless_loop.py URL QUEUE NAME
"""

import os
import sys
import time

import reqless
from reqless.workers.forking import ForkingWorker


def say(*words: str) -> None:
    """One line in one write: jobs run in several processes that share the pipe."""
    os.write(1, " ".join(words).encode() + b"\n")


class Echo:
    @staticmethod
    def process(job: reqless.Job) -> None:
        say("echo", job.data)
        job.complete()


class Stumble:
    """Fails for good."""

    @staticmethod
    def process(job: reqless.Job) -> None:
        raise RuntimeError("stumbled")


class Step:
    """Goes on to the next queue once, and is retried there once."""

    @staticmethod
    def process(job: reqless.Job) -> None:
        if job.queue_name.endswith("-next"):
            if job.retries_left == job.original_retries:
                say("retry", job.jid)
                job.retry()
            else:
                say("done", job.jid)
                job.complete()
        else:
            say("step", job.jid)
            job.complete(job.queue_name + "-next")


class Slow:
    @staticmethod
    def process(job: reqless.Job) -> None:
        say("begin", job.jid)
        time.sleep(0.2)
        say("end", job.jid)
        job.complete()


def main(url: str, queue: str, name: str) -> None:
    client = reqless.Client(url, hostname=name)
    ForkingWorker([queue, queue + "-next"], client, interval=0.05, workers=2).run()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""reqless's forking worker with a few jobs; it prints one line per event.

usage: reqless_loop.py URL QUEUE NAME
"""

import os
import sys
import time

import reqless
from reqless.workers.forking import ForkingWorker


def print_line(*words: str) -> None:
    """One line in one write: jobs run in several processes that share the pipe."""
    os.write(1, " ".join(words).encode() + b"\n")


class Echo:
    @staticmethod
    def process(job: reqless.Job) -> None:
        print_line("echo", job.data)
        job.complete()


class Stumble:
    """Fails permanently."""

    @staticmethod
    def process(job: reqless.Job) -> None:
        raise RuntimeError("stumbled")


class Step:
    """Continues to the next queue once, and is retried there once."""

    @staticmethod
    def process(job: reqless.Job) -> None:
        if job.queue_name.endswith("-next"):
            if job.retries_left == job.original_retries:
                print_line("retry", job.jid)
                job.retry()
            else:
                print_line("done", job.jid)
                job.complete()
        else:
            print_line("step", job.jid)
            job.complete(job.queue_name + "-next")


class Slow:
    @staticmethod
    def process(job: reqless.Job) -> None:
        print_line("begin", job.jid)
        time.sleep(0.2)
        print_line("end", job.jid)
        job.complete()


def main(url: str, queue: str, name: str) -> None:
    client = reqless.Client(url, hostname=name)
    ForkingWorker([queue, queue + "-next"], client, interval=0.05, workers=2).run()


if __name__ == "__main__":
    main(*sys.argv[1:])

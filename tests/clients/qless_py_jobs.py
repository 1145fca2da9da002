"""Jobs for qless-py's own worker; they print one line per event.

qless-py-worker --path <this folder> --import qless_py_jobs --queue ...
"""

import json
import os
import time


def print_line(*words: str) -> None:
    """One line in one write: workers run in several processes that share the pipe."""
    os.write(1, " ".join(words).encode() + b"\n")


class Echo:
    """Prints its data."""

    @staticmethod
    def process(job):
        print_line("echo", json.dumps(job.data))
        job.complete()


class Stages:
    """Moves from one queue to the next; each has its own method."""

    @staticmethod
    def first(job):
        job.data["stages"] = ["first"]
        job.complete("second")

    @staticmethod
    def second(job):
        job.data["stages"].append("second")
        job.complete()
        print_line("stages", json.dumps(job.data["stages"]))


class Stumble:
    """Fails the first time by an error, the second time it succeeds."""

    @staticmethod
    def process(job):
        if len([stage for stage in job.history if stage["what"] == "popped"]) == 1:
            print_line("stumbles")
            raise ValueError("stumbled")
        job.complete()
        print_line("recovers")


class Again:
    """Retries until no attempt is left."""

    @staticmethod
    def process(job):
        left = job.retry(0, "group", "message")
        print_line("left", str(left))


class Long:
    """Works until it loses its lock; then the worker ends the whole process."""

    @staticmethod
    def process(job):
        print_line("works on", job.jid)
        while True:
            time.sleep(0.05)

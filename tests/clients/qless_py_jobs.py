"""Jobs for qless-py's own worker; what happens is printed, a line each.

qless-py-worker --path <this folder> --import qless_py_jobs --queue ...
"""

import json
import os
import time


def say(*words: str) -> None:
    """One line in one write: workers run in several processes that share the pipe."""
    os.write(1, " ".join(words).encode() + b"\n")


class Echo:
    """Says what it was given."""

    @staticmethod
    def process(job):
        say("echo", json.dumps(job.data))
        job.complete()


class Stages:
    """Goes from one queue to the next; each has a method of its own."""

    @staticmethod
    def first(job):
        job.data["stages"] = ["first"]
        job.complete("second")

    @staticmethod
    def second(job):
        job.data["stages"].append("second")
        job.complete()
        say("stages", json.dumps(job.data["stages"]))


class Stumble:
    """Fails the first time by an error, the second time it succeeds."""

    @staticmethod
    def process(job):
        if len([stage for stage in job.history if stage["what"] == "popped"]) == 1:
            say("stumbles")
            raise ValueError("stumbled")
        job.complete()
        say("recovers")


class Again:
    """Asks for another try until there is none left."""

    @staticmethod
    def process(job):
        left = job.retry(0, "group", "message")
        say("left", str(left))


class Long:
    """Works until somebody takes its lock away; then the worker gives up the whole process."""

    @staticmethod
    def process(job):
        say("works on", job.jid)
        while True:
            time.sleep(0.05)

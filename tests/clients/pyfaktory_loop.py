"""pyfaktory's worker loop with two jobs; it prints one line per event.

usage: pyfaktory_loop.py URL QUEUE WID
"""

import json
import logging
import os
import sys
from pathlib import Path

import pyfaktory


def print_line(*words: str) -> None:
    """One line in one write: jobs run in several processes that share the pipe."""
    os.write(1, " ".join(words).encode() + b"\n")


def echo(*args: object) -> None:
    print_line("echo", json.dumps(args))


def stumble(path: str) -> None:
    """Fail the first time, succeed the second."""
    if not Path(path).exists():
        Path(path).touch()
        print_line("stumbled")
        raise RuntimeError("stumbled")
    print_line("recovered")


def main(url: str, queue: str, wid: str) -> None:
    with pyfaktory.Client(url, role="consumer", worker_id=wid, beat_period=1) as client:
        consumer = pyfaktory.Consumer(client, queues=[queue], concurrency=2, grace_period=2)
        consumer.register("echo", echo)
        consumer.register("stumble", stumble)
        consumer.run()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="log: %(message)s")
    main(*sys.argv[1:])

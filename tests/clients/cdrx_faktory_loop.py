"""The worker loop of the `faktory` package with two jobs; it prints one line per event.

usage: cdrx_faktory_loop.py URL QUEUE WID
"""

import json
import logging
import os
import sys
from pathlib import Path

import faktory


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
    worker = faktory.Worker(url, queues=[queue], concurrency=2, worker_id=wid)
    worker.send_heartbeat_every = 0.2
    worker.register("echo", echo)
    worker.register("stumble", stumble)
    worker.run()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="log: %(message)s")
    main(*sys.argv[1:])

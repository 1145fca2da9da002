"""pyfaktory's worker loop with two jobs; what happens is printed, a line each.

usage: pyfaktory_loop.py URL QUEUE WID
"""

import json
import logging
import sys
from pathlib import Path

import pyfaktory


def echo(*args: object) -> None:
    print("echo", json.dumps(args), flush=True)


def stumble(path: str) -> None:
    """Fail the first time, succeed the second."""
    if not Path(path).exists():
        Path(path).touch()
        print("stumbled", flush=True)
        raise RuntimeError("stumbled")
    print("recovered", flush=True)


def main(url: str, queue: str, wid: str) -> None:
    with pyfaktory.Client(url, role="consumer", worker_id=wid, beat_period=1) as client:
        consumer = pyfaktory.Consumer(client, queues=[queue], concurrency=2, grace_period=2)
        consumer.register("echo", echo)
        consumer.register("stumble", stumble)
        consumer.run()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="log: %(message)s")
    main(*sys.argv[1:])

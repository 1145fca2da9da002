# /// script
# dependencies = ["pyfaktory"]
# ///
"""Works `greet` jobs until the server tells it to stop: faktory_worker.py [WORKER-ID]

The server is the one that FAKTORY_URL names, else tcp://localhost:7419.
"""

import logging
import sys

import pyfaktory

logging.basicConfig(level=logging.WARNING, format="%(message)s")
log = logging.getLogger("greet")
log.setLevel(logging.INFO)


def greet(name: str) -> None:
    if not name:
        raise ValueError("no name to greet")  # the job fails, and is tried again later
    log.info("Hello, %s!", name)


def main(worker_id: str) -> None:
    # A worker hears of `quiet` and `terminate` when it beats; 5 s is the least it may wait.
    with pyfaktory.Client(role="consumer", worker_id=worker_id, beat_period=5) as client:
        consumer = pyfaktory.Consumer(client, queues=["default"], concurrency=1)
        consumer.register("greet", greet)
        consumer.run()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "greeter-1")

# /// script
# dependencies = ["pyfaktory"]
# ///
"""Pushes one `greet` job per name: faktory_push.py NAME...

The server is the one that FAKTORY_URL names, else tcp://localhost:7419.
"""

import logging
import sys

import pyfaktory

logging.basicConfig(level=logging.WARNING, format="%(message)s")
log = logging.getLogger("greet")
log.setLevel(logging.INFO)


def main(names: list[str]) -> None:
    with pyfaktory.Client(role="producer") as client:
        producer = pyfaktory.Producer(client)
        for name in names:
            job = pyfaktory.Job(jobtype="greet", args=[name])
            producer.push(job)  # returns when the job is on the server's disk
            log.info("pushed %s: greet %r", job.jid, name)


if __name__ == "__main__":
    main(sys.argv[1:])

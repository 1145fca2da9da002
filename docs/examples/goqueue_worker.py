# /// script
# dependencies = ["millrace"]
# ///
"""Prints the jobs of a queue, one a line, until it is interrupted: goqueue_worker.py QUEUE

The server is on this machine, its port the one that MILLRACE_GOQUEUE_PORT names, else 11223.
"""

import logging
import os
import sys
import time

from millrace.client import AlreadyDeleted, ConnectionLost, GoJobQueue, ReservedJob, TimedOut

logging.basicConfig(level=logging.INFO, format="%(message)s")
log = logging.getLogger("worker")


def work(job: ReservedJob) -> None:
    log.info("job %d: %s", job.id, job.data.decode("utf-8", "replace"))


def work_all(jobs: GoJobQueue, queue: str) -> None:
    while (job := jobs.reserve(queue)) is not None:
        work(job)  # whatever it raises: the job comes back when its ttp is over
        try:
            jobs.delete(job)
        except AlreadyDeleted:
            log.warning("job %d took longer than its ttp, and another worker has done it", job.id)


def main(queue: str) -> None:
    port = int(os.environ.get("MILLRACE_GOQUEUE_PORT", "11223"))
    while True:
        try:
            with GoJobQueue(port=port) as jobs:
                work_all(jobs, queue)
        except (ConnectionLost, TimedOut) as error:
            log.warning("%s; trying again", error)
            time.sleep(1)


if __name__ == "__main__":
    main(sys.argv[1])

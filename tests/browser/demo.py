"""A server with sample data: jobs of all protocols in every state, workers, failures, dependencies,
tags, recurring and tracked jobs, and names with markup.
"""

import contextlib
import shutil
import uuid
from collections.abc import Iterator

import qless

from millrace.client.goqueue import GoJobQueue
from raw_faktory import RawFaktory
from raw_masenko import RawMasenko
from raw_workq import RawWorkq
from server_process import ServerProcess

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
#: A page that does not escape these texts runs them, and the browser reports it.
XSS = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'
XSS_QUEUE = 'queue/<b onmouseover="window.hacked=1">?#&"'
BACKTRACE = ["app/mailer.rb:42:in `deliver'", "app/job.rb:7:in `perform'", f"lib/{XSS}.rb:1"]


class World:
    """Holds connections, so that their leases stay."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.url = f"http://127.0.0.1:{server.ports['web']}"
        self.faktory = RawFaktory(server.ports["faktory"], wid="mailer-1")
        self.masenko = RawMasenko(server.ports["masenko"])
        self.workq = RawWorkq(server.ports["workq"])
        self.goqueue = GoJobQueue("127.0.0.1", server.ports["goqueue"]).connect()
        self.qless = qless.Client(f"redis://127.0.0.1:{server.ports['qless']}")

    def close(self) -> None:
        for each in (self.faktory, self.masenko, self.workq, self.goqueue):
            each.__exit__(None, None, None)

    def fill(self) -> None:
        self._fill_faktory()
        self._fill_qless()
        self._fill_other_protocols()

    def _fill_faktory(self) -> None:
        faktory = self.faktory
        for number in range(60):
            faktory.push(
                {
                    "jid": f"mail-{number:04}",
                    "jobtype": "SendMail",
                    "queue": "mail",
                    "args": [number, f"user{number}@example.org", {"big": 12345678901234567890123}],
                    "custom": {"locale": "de", "attempt": number},
                }
            )
        for number in range(8):
            faktory.push(
                {
                    "jid": f"later-{number:04}",
                    "jobtype": "Report",
                    "queue": "reports",
                    "args": [number],
                    "at": f"2099-01-0{number + 1}T00:00:00Z",
                }
            )
        faktory.push({"jid": XSS[:60], "jobtype": XSS[:60], "queue": "odd", "args": [XSS]})
        for number in range(6):
            retry = 25 if number % 2 else -1
            faktory.push(
                {
                    "jid": f"fails-{number:04}",
                    "jobtype": "Charge",
                    "queue": "billing",
                    "args": [number],
                    "retry": retry,
                }
            )
            assert faktory.fetch("billing")
            faktory.command(
                "FAIL",
                {
                    "jid": f"fails-{number:04}",
                    "errtype": "Timeout::Error" if number < 4 else XSS[:40],
                    "message": f"no answer from 10.0.0.{number} after {number * 10} ms {XSS}",
                    "backtrace": BACKTRACE,
                },
            )
        for _ in range(12):
            job = faktory.fetch("mail")
            assert job
            faktory.ack(job["jid"])
        faktory.fetch("mail")
        faktory.fetch("mail")

    def _fill_qless(self) -> None:
        imports = self.qless.queues["imports"]
        first = imports.put(
            "tasks.Fetch",
            {"url": "https://example.org"},
            jid="fetch-1",
            tags=["daily", XSS[:40]],
            priority=5,
        )
        imports.put(
            "tasks.Parse", {"of": "fetch-1"}, jid="parse-1", depends=[first], tags=["daily"]
        )
        for number in range(5):
            imports.put("tasks.Load", {"n": number}, jid=f"load-{number}", tags=["bulk"])
        self.qless.jobs["parse-1"].track()
        job = imports.pop()
        job.complete()
        failing = imports.pop()
        failing.fail("database-gone", "the database went away\n  at line 3")
        imports.pop()
        imports.recur(
            "tasks.Sweep", {"keep": 7}, interval=3600, offset=600, jid="sweep", tags=["cron"]
        )
        self.qless.queues[XSS_QUEUE].put(XSS[:60], {"text": XSS}, jid="odd/<i>?#&", tags=[XSS[:30]])
        self.qless.queues["slow"].put("tasks.Slow", {}, jid="slow-1", delay=86400)

    def _fill_other_protocols(self) -> None:
        first = self.masenko.push("resize", queue="images", payload={"file": "a.png"})
        self.masenko.push("publish", queue="images", blocked_by=[first])
        for number in range(7):
            self.masenko.push("resize", queue="images", payload={"n": number})
        self.masenko.fetch("images")
        for number in range(4):
            self.workq.add(
                str(uuid.UUID(int=number + 1)).encode(),
                "resize",
                b"\x00\x01binary",
                ttr=3_600_000,
                ttl=7_200_000,
            )
        self.workq.lease("resize")
        for number in range(3):
            self.goqueue.add("plain", f"plain text {number}".encode())


@contextlib.contextmanager
def filled(server: ServerProcess) -> Iterator[World]:
    world = World(server)
    try:
        world.fill()
        yield world
    finally:
        world.close()

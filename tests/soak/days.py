"""Several days of a server on a virtual clock: all five protocols, one engine, a real store.
Workers and producers with new names connect and disconnect. They leave behind leases, waits,
subscriptions and abandoned jobs, as real clients do.
"""

import json
import random
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from census import census

from house import Client, House
from millrace.engine import positions, statistics
from millrace.engine.states import READY
from millrace.protocols.faktory import work_unit
from millrace.protocols.masenko import tasks
from millrace.protocols.qless import options
from millrace.store import SqliteStore
from millrace.store.sqlite import generations
from scene import write_turn
from speakers import SPEAKERS, Held, Leased, Work
from wires import SECOND

QUEUES = ("mail", "video", "reports")
HOUR = 3600
DAY = 24 * HOUR


def request(*words: object) -> bytes:
    parts = [str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(p), p) for p in parts)


def lower_thresholds(setting: Callable[[object, str, int], None]) -> None:
    """Lower the thresholds of the store, which otherwise acts every 8 MiB or 30 days. In a few days
    a size below its threshold would look like unbounded growth.
    """
    setting(generations, "GENERATION_BYTES", 1 << 16)
    setting(generations, "GENERATION_JOBS", 500)
    setting(statistics, "KEPT_DAYS", 1)
    setting(statistics, "HISTORY_DAYS", 1)
    setting(options, "KEPT_DAYS", 1)


class Days(House):
    def __init__(self, seed: int, folder: Path) -> None:
        super().__init__(faktory={"dead_max": 50, "recover_lost_workers": True})
        self.engine.retention.dead_max = 50
        self.random = random.Random(seed)
        self.store = SqliteStore(folder, sync=False, outbox_max=1 << 20)
        self.store.load()
        self._number = 0
        take = self.engine.take_changes

        def write() -> object:
            batch = take()
            write_turn(batch, self.engine, self.store)
            return batch

        self.engine.take_changes = write  # type: ignore[method-assign,assignment]
        setting = self.new_client("qless")
        for name, value in (
            ("jobs-history-count", 50),
            ("jobs-history", HOUR),
            ("stats-history", 1),
        ):
            self._qless(setting, "QLESS.CONFIG", 0, "set", name, value)
        setting.hangs_up()

    def close(self) -> None:
        self.store.close()

    @property
    def seconds(self) -> int:
        return self.now // SECOND

    def new_client(self, protocol: str) -> Client:
        """A client with a new name."""
        self._number += 1
        self.clients.clear()  # disconnected clients
        return self.client(protocol, f"someone-{self._number}")

    def sizes(self) -> Counter[str]:
        """The sizes of all containers, without those that go up and down below a limit."""
        hubs = [listener.hub for listener in self.listeners.values()]
        found = census(self.engine, self.store, *hubs) | census(
            {"names": {"faktory": work_unit._valid_names, "masenko": tasks._valid_names}}
        )
        # A generation fills up to its limit and is then folded.
        for generation in ("Generations._new", "Generations._writing_back"):
            assert found.pop(generation, 0) <= generations.GENERATION_JOBS
        # The engine remembers the last times at which jobs entered a queue.
        ties = found.pop("TiedPositions._ties[]", 0)
        assert ties <= positions.MAX_TIES * found["TiedPositions._ties"]
        return found

    # Actions of clients

    def hour(self) -> None:
        for protocol in SPEAKERS:
            self._produce(protocol)
        for protocol in SPEAKERS:
            self._work(protocol)
        self._wait_on_empty_queues()
        self._use_qless()
        self.pass_time(HOUR)

    def _produce(self, protocol: str) -> None:
        client, dice = self.new_client(protocol), self.random
        can = client.speaker.can
        for number in range(4):
            later = dice.random() < 0.3 and "schedule" in can
            work = Work(
                id=str(uuid.UUID(int=dice.getrandbits(128), version=4)),
                queue=dice.choice(QUEUES),
                payload=json.dumps([self._number, "x" * dice.randrange(200)]).encode(),
                rank=dice.choice((0, 0, -3)),
                due=self.now + dice.randrange(2 * HOUR) * SECOND if later else 0,
                ttr=dice.choice((60, 600)),
                ttl=dice.choice((HOUR, 6 * HOUR)),
                retries=dice.choice((0, 1, 2)),
                dead_queue="reports" if dice.random() < 0.1 else "",
            )
            pushed = client.push(work)
            if number == 3 and "cancel" in can:
                client.asks("cancel", pushed)
        if dice.random() < 0.5:
            client.wire.end()
        client.hangs_up()

    def _work(self, protocol: str) -> None:
        client, dice = self.new_client(protocol), self.random
        for _ in range(6):
            held = self._lease(client, dice.choice(QUEUES))
            if held is None:
                continue
            what = dice.random()
            if what < 0.6:
                client.asks("complete", held)
            elif what < 0.8 and "fail" in client.speaker.can:
                client.asks("fail", held)
            elif what < 0.85 and "bury" in client.speaker.can:
                client.asks("bury", held)
            elif what < 0.9 and "renew" in client.speaker.can:
                client.asks("renew", held)
            # or it disconnects for good
        client.hangs_up()

    def _lease(self, client: Client, queue: str) -> Held | None:
        client.says(client.speaker.lease(queue, self.now))
        answers = client.hears()
        if not answers:
            self.pass_time(max(1.0, client.speaker.least_wait))
            answers = client.hears()
        answer = answers[0] if answers else None
        return answer.held if isinstance(answer, Leased) else None

    def _wait_on_empty_queues(self) -> None:
        """Wait on queues without jobs; some clients disconnect before their timeout."""
        for protocol, speaker in SPEAKERS.items():
            if "wait" not in speaker.can:
                continue
            for stays in (True, False):
                client = self.new_client(protocol)
                # Workq creates a queue for every name; another test covers the number of queues.
                queue = "nobody" if protocol == "workq" else f"nobody-{self._number}"
                client.says(client.speaker.lease(queue, self.now, 20))
                if stays:
                    self.pass_time(30)
                client.hangs_up()

    def _use_qless(self) -> None:
        client, name = self.new_client("qless"), f"thing-{self._number}"
        now = self.seconds
        self._qless(
            client, "QLESS.RECUR", 0, "on", "mail", name, "k", "{}", now, "interval", 600, 0
        )
        self._qless(client, "QLESS.PUT", 1, "video", f"{name}-job", "k", "{}", now, 0, "tags",
                    json.dumps([name, "all"]))  # fmt: skip
        self._qless(client, "QLESS.TRACK", 0, "track", f"{name}-job", now)
        self._qless(client, "QLESS.PEEK", 1, "mail", 10, now + 1)
        self._qless(client, "RPUSH", name, "item")
        self._qless(client, "EXPIRE", name, 60)
        self._qless(client, "WATCH", name)
        self._qless(client, "QLESS.TRACK", 0, "untrack", f"{name}-job", now)
        self._qless(client, "QLESS.RECUR", 0, "off", name)
        self._qless(client, "QLESS.CANCEL", 0, f"{name}-job")
        self._qless(client, "SUBSCRIBE", name)
        client.hangs_up()

    def _qless(self, client: Client, *words: object) -> bytes:
        before = len(client.wire.heard)
        client.says(request(*words))
        reply = bytes(client.wire.heard[before:])
        assert not reply.startswith(b"-"), (words, reply)
        return reply

    # Rest

    def rest(self) -> None:
        """Process all jobs until no job is left, and let all retention times expire."""
        self._delete_failed_jobs()
        for _ in range(40):
            for protocol in ("workq", "masenko", "faktory", "qless"):
                client = self.new_client(protocol)
                for queue in QUEUES:
                    while (held := self._lease(client, queue)) is not None:
                        client.asks("complete", held)
                client.hangs_up()
            self.pass_time(6 * HOUR)
            if not (
                any(queue.counts[READY] for queue in self.engine.queues.values())
                or self.engine.leased
                or self.engine.scheduled
            ):
                return
        raise AssertionError("the server does not become idle")

    def _delete_failed_jobs(self) -> None:
        """Delete failed Qless jobs, which the server keeps until a client deletes them, and read
        expired scratch keys, which it keeps until the next access.
        """
        client = self.new_client("qless")
        for job in list(self.engine.dead_untrimmed.values()):
            self._qless(client, "QLESS.CANCEL", 0, job.jid)
        self._qless(client, "DBSIZE")
        client.hangs_up()

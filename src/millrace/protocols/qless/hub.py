"""State shared by all Qless connections: engine, commands, scripts, subscriptions, scratch keys."""

from collections.abc import Iterator
from typing import Final

from millrace.engine.engine import Engine
from millrace.engine.job import Job
from millrace.engine.why import Reason
from millrace.protocols.connection import Hub
from millrace.protocols.errors import ClientError
from millrace.protocols.logins import LoginLimiter

from .contract import Api, Refused, Virtual
from .pubsub import PubSub
from .resp import Limits
from .scratch import ScratchKeys
from .script_catalog import Script

#: About three hundred builds of Qless exist.
MAX_SCRIPTS: Final = 1000
#: Limits of requests before AUTH.
STRANGERS: Final = Limits(10, 16_384, 65_536, "unauthenticated")


class QlessHub(Hub):
    protocol = "qless"
    label = "Qless"
    #: The commands of Qless, and its keys as in Redis.
    api: Api
    virtual: Virtual

    def __init__(
        self,
        engine: Engine,
        *,
        started_at: int,
        password: str = "",
        dialect: str = "spec",
        max_connections: int = 10_000,
        max_line: int = 64 << 20,
        max_arguments: int = 131_072,
        max_keys: int = 10_000,
        max_scratch: int = 16 << 20,
    ) -> None:
        super().__init__(engine, max_connections)
        self.started_at = started_at
        self.password = password
        #: "spec" or "original": the order of priorities in dialect A.
        self.dialect = dialect
        self.limits = Limits(max_arguments, max_line, max_line)
        self.strangers = STRANGERS
        #: Scripts that clients loaded, by SHA1; durable.
        self.scripts: dict[bytes, Script] = {}
        self.logins = LoginLimiter()
        self.pubsub = PubSub(self)
        self.scratch = ScratchKeys(max_keys, max_scratch)
        #: The command in progress is a pop: its reply waits only for earlier changes of its jobs.
        self.leased = False
        #: Counters since the start.
        self.received = 0
        #: Prefix of names in the database of the current command.
        self.prefix = ""

    def publish(self, channel: bytes, payload: bytes) -> int:
        """Publish a change to all subscribers, as soon as the change is durable."""
        return self.pubsub.publish(channel, payload, changes=True)

    def flush(self, now: int, scratch_prefix: bytes, *, everything: bool) -> Iterator[None]:
        """Remove the jobs that were pushed over Qless and the keys of the database in use, or of
        all databases. Scripts and jobs of other protocols remain.
        """
        if self.engine.halted:
            raise Refused
        if everything:
            self.scratch.clear()
        else:
            self.scratch.clear_database(scratch_prefix, now)
        yield from self.api.flush(now, everything=everything)

    def holds_back(self, job: Job, now: int) -> list[Reason]:
        return self.api.holds_back(job, now)

    def job_tagged(self, job: Job, now: int) -> None:
        self.api.job_tagged(job, now)

    def flush_server(self, now: int) -> None:
        """Remove all jobs of all protocols."""
        self.scratch.clear()
        self.api.flush_server(now)

    def key_count(self, now: int) -> int:
        """Return the approximate number of keys: scratch keys, and two for each job."""
        return len(self.scratch.names(now)) + 2 * len(self.engine.by_jid)

    def learn(self, sha: str, script: Script) -> None:
        """Accept calls of this script."""
        key = sha.encode()
        if key not in self.scripts and len(self.scripts) >= MAX_SCRIPTS:
            raise ClientError(f"ERR {MAX_SCRIPTS} scripts are loaded: SCRIPT FLUSH forgets them")
        self.api.learn(sha, script)
        self.scripts[key] = script

    def forget(self) -> None:
        """Reject calls of every script until it is loaded again."""
        if self.engine.halted:
            raise Refused
        self.api.forget()
        self.scripts.clear()

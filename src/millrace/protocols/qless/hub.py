"""State shared by all Qless connections: engine, commands, scripts, subscriptions, scratch keys."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Final

from millrace.engine.engine import Engine
from millrace.engine.queue_rules import QueueRule
from millrace.protocols.connection import Hub
from millrace.protocols.errors import ClientError
from millrace.protocols.logins import LoginLimiter
from millrace.protocols.registry import QLESS

from .errors import ChangeRefused
from .pubsub import PubSub
from .resp_requests import RequestLimits
from .scratch import ScratchKeys
from .script_catalog import Script
from .settings import QlessConfig
from .transactions import RunningTransactions

if TYPE_CHECKING:
    from .calls import QlessApi
    from .edits import MovedJobs
    from .job_replies import PoppedJobs
    from .redis_view import RedisView

#: Maximum number of loaded scripts. About three hundred builds of Qless exist.
MAX_SCRIPTS: Final = 1000
#: Limits on requests before AUTH.
UNAUTHENTICATED_LIMITS: Final = RequestLimits(10, 16_384, 65_536, "unauthenticated")


class QlessHub(Hub):
    code: ClassVar[int] = QLESS
    #: The commands of Qless, and its keys as in Redis.
    api: "QlessApi"
    redis_view: "RedisView"

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
        max_scratch_bytes: int = 16 << 20,
        rule: QueueRule | None = None,
    ) -> None:
        super().__init__(engine, max_connections, rule)
        self.started_at = started_at
        self.password = password
        #: "spec" or "original": the order of priorities in dialect A.
        self.dialect = dialect
        self.limits = RequestLimits(max_arguments, max_line, max_line)
        self.unauthenticated_limits = UNAUTHENTICATED_LIMITS
        self._scripts: dict[bytes, Script] = {}
        #: The number of reverts of the engine when `_scripts` was last compared with its settings.
        self._scripts_revert_count = engine.revert_count
        self.logins = LoginLimiter()
        self.pubsub = PubSub(self)
        self.scratch = ScratchKeys(max_keys, max_scratch_bytes)
        self.transactions = RunningTransactions(self)
        #: Whether the current command is a pop, whose reply waits only for earlier changes to its
        #: jobs.
        self.is_pop = False
        #: The jobs that the current command of a transaction has popped.
        self.popped: PoppedJobs | None = None
        #: The number of jobs that the current command of a transaction has moved.
        self.moved: MovedJobs | None = None
        #: Whether the last slice of a long command waits for a commit.
        self.awaits_commit = False
        #: Whether the answer of the last slice shows durable changes.
        self.is_durable = False
        #: The number of connections since the start.
        self.connection_count = 0
        #: Prefix of names in the database of the current command.
        self.prefix = ""

    def reload(self, settings: QlessConfig) -> None:
        self.password = settings.password

    def handle_alarm(self, name: str, now: int) -> None:
        self.transactions.advance(now)

    def wake(self, now: int) -> None:
        self.transactions.wake()

    def flush(self, now: int, scratch_prefix: bytes, *, all_databases: bool) -> Iterator[None]:
        """Remove the jobs that were pushed over Qless and the keys of the database in use, or of
        all databases. Scripts and jobs of other protocols remain.
        """
        if self.engine.unavailable_reason:
            raise ChangeRefused
        if all_databases:
            self.scratch.clear()
        else:
            self.scratch.clear_database(scratch_prefix, now)
        yield from self.api.flush(now, all_databases=all_databases)

    def queue_forgotten(self, name: str) -> None:
        if self.allows(name):
            self.api.forget_queue(name)

    def flush_server(self, now: int) -> None:
        """Remove all jobs of all protocols."""
        self.scratch.clear()
        self.api.flush_server(now)

    def key_count(self, now: int) -> int:
        """Return the approximate number of keys: scratch keys, and two for each job."""
        return len(self.scratch.names(now)) + 2 * len(self.engine.tables.by_jid)

    @property
    def scripts(self) -> dict[bytes, Script]:
        """Scripts that clients loaded, by SHA1. They are durable: a refused commit restores the
        scripts that SCRIPT FLUSH removed.
        """
        if self._scripts_revert_count != self.engine.revert_count:
            self._scripts_revert_count = self.engine.revert_count
            self._scripts.update(
                (sha.encode(), each) for sha, each in self.api.loaded_scripts().items()
            )
        return self._scripts

    def load_script(self, sha: str, script: Script) -> None:
        """Accept calls to this script."""
        key = sha.encode()
        if key not in self.scripts and len(self.scripts) >= MAX_SCRIPTS:
            raise ClientError(
                f"ERR at most {MAX_SCRIPTS} scripts can be loaded; SCRIPT FLUSH removes them"
            )
        self.api.load_script(sha, script)
        self.scripts[key] = script

    def flush_scripts(self) -> None:
        """Reject calls to any script until it is loaded again."""
        if self.engine.unavailable_reason:
            raise ChangeRefused
        self.api.flush_scripts()
        self.scripts.clear()

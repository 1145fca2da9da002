"""The options of Qless, which clients set with `config.set`."""

from typing import Any, Final

from millrace.engine.engine import Engine
from millrace.engine.errors import QueueRefused
from millrace.engine.statistics import KEPT_DAYS

from . import lua_values as lua
from .databases import DatabaseNames, database_of

#: The prefix of the settings of the engine that contain options.
CONFIG_PREFIX: Final = "qless/config/"
DEFAULTS: Final[dict[str, Any]] = {
    "application": "qless",
    "heartbeat": 60,
    "grace-period": 10,
    "stats-history": 30,
    "histogram-history": 7,
    "jobs-history-count": 50000,
    "jobs-history": 604800,
}
#: `<queue>-max-concurrency` is the maximum number of running jobs of a queue.
MAX_CONCURRENCY_SUFFIX: Final = "-max-concurrency"
#: Suffixes of the options of one queue, and the prefix of the option that the spec names
#: differently.
_QUEUE_OPTIONS: Final = ("-heartbeat", MAX_CONCURRENCY_SUFFIX, "-max-pop-retry")
_HEARTBEAT_PREFIX: Final = "heartbeat-"
#: Defaults of options that a list of all options omits.
UNLISTED_DEFAULTS: Final = {"max-worker-age": 86400, "max-job-history": 100}


def queue_of_option(option: str) -> str | None:
    """Return the queue of an option such as `<queue>-heartbeat`; None if it has none."""
    database = database_of(option)
    local = option.removeprefix(database)
    for ending in _QUEUE_OPTIONS:
        if local.endswith(ending):
            return database + local.removesuffix(ending)
    if local.startswith(_HEARTBEAT_PREFIX):
        return database + local.removeprefix(_HEARTBEAT_PREFIX)
    return None


class QlessOptions:
    """The options of all databases by their names in the engine, and the values read often."""

    def __init__(self, engine: Engine, names: DatabaseNames) -> None:
        self._engine = engine
        self._names = names
        self.config: dict[str, str] = {}
        self._cache_settings()

    def load(self) -> None:
        """Read the options from the settings of the engine."""
        self.config = self.stored()
        self._cache_settings()
        self._limit_queues()

    def allows(self, option: str) -> bool:
        """Return whether clients of the port may see an option: one for all queues, or for an
        allowed queue.
        """
        queue = queue_of_option(option)
        return queue is None or self._names.hub.allows(queue)

    def check(self, option: str) -> None:
        """Raise an error if the option belongs to a queue that the caller may not use."""
        queue = queue_of_option(option)
        if queue is not None:
            self._engine.check_queue(queue)

    def check_change(self, option: str) -> None:
        """Raise an error if the caller may not change the option. With a rule for queues, it may
        change only the options of individual queues.
        """
        self.check(option)
        if self._engine.caller.rule is not None and queue_of_option(option) is None:
            raise QueueRefused(
                "options of all queues cannot be changed on this port: it has a rule for queues"
            )

    def set(self, option: str, value: str | None) -> None:
        if value is None:
            self.config.pop(option, None)
        else:
            self.config[option] = value
        self._engine.set_setting(CONFIG_PREFIX + option, None if value is None else value.encode())
        self._cache_settings()
        if option.endswith(MAX_CONCURRENCY_SUFFIX):
            self._limit_queue(option)

    def _limit_queues(self) -> None:
        """Pass the maximum number of running jobs of each queue to the engine."""
        limits = self._engine.limits
        for queue in list(limits.concurrency):
            limits.set_concurrency(queue, 0)
        for option in self.config:
            if option.endswith(MAX_CONCURRENCY_SUFFIX):
                self._limit_queue(option)

    def _limit_queue(self, option: str) -> None:
        queue = option.removesuffix(MAX_CONCURRENCY_SUFFIX)
        self._engine.limits.set_concurrency(queue, self._numeric_option(option) or 0)

    def _cache_settings(self) -> None:
        """Cache the settings of database 0 that are read often."""
        #: Maximum number of entries in the history of a job.
        self.max_history = int(self._number("max-job-history"))
        #: Retention time and maximum number of completed jobs, for all databases.
        self.completed_retention = lua.to_microseconds(self._number("jobs-history"))
        self.max_completed = self._number("jobs-history-count")
        self._default_heartbeat = lua.to_microseconds(self._number("heartbeat"))
        self._engine.statistics.keep_days = max(KEPT_DAYS, int(self._number("stats-history")))

    def number(self, option: str, default: float = 0) -> float:
        """Return a numeric setting. A value that is not a number is ignored."""
        found = self._numeric_option(self._names.engine_name(option))
        return _default(option, default) if found is None else found

    def _number(self, option: str) -> float:
        found = self._numeric_option(option)
        return _default(option) if found is None else found

    def _numeric_option(self, option: str) -> float | None:
        value = self.config.get(option)
        return None if value is None else lua.tonumber(value.encode())

    def heartbeat(self, queue: str) -> int:
        """Return the lock duration of a queue. The spec and qless-core use different names for the
        option.
        """
        if not self.config:
            return self._default_heartbeat
        queue = self._names.client_name(queue)
        for option in (f"{queue}-heartbeat", f"heartbeat-{queue}"):
            found = self._numeric_option(self._names.engine_name(option))
            if found is not None:
                return lua.to_microseconds(found)
        return lua.to_microseconds(self.number("heartbeat"))

    def stored(self) -> dict[str, str]:
        """Return the options as the store has them."""
        settings, start = self._engine.settings, len(CONFIG_PREFIX)
        options = [key for key in settings if key.startswith(CONFIG_PREFIX)]
        return {key[start:]: settings[key].decode() for key in options}


def _default(option: str, default: float = 0) -> float:
    return float(DEFAULTS.get(option, UNLISTED_DEFAULTS.get(option, default)))

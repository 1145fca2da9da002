"""The messages that Qless publishes: the log, and the events of tracked jobs and workers."""

from typing import TYPE_CHECKING, Any, Final

from millrace.engine.engine import Engine
from millrace.engine.job import Job

from . import lua_values as lua
from .databases import DatabaseNames
from .names import encode_name

if TYPE_CHECKING:
    from .pubsub import PubSub

#: Events of tracked jobs that dialect A publishes on channels without a prefix.
_UNPREFIXED_EVENTS: Final = frozenset(
    {"put", "popped", "completed", "failed", "stalled", "canceled"}
) | {
    "track",
    "untrack",
}


class Publisher:
    """Publishes events of the queues that the port allows. Operators can change all jobs."""

    def __init__(self, engine: Engine, names: DatabaseNames, pubsub: "PubSub") -> None:
        self._engine = engine
        self._names = names
        self._pubsub = pubsub
        #: Whether the current command is of dialect A or of the spec. Its channels have no prefix.
        self.is_dialect_a = False

    @property
    def has_subscribers(self) -> bool:
        """Return whether any client has a subscription."""
        pubsub = self._pubsub
        return bool(pubsub.channels or pubsub.patterns)

    def publish(self, channel: str, message: bytes) -> None:
        if not self.has_subscribers:
            return
        pubsub, name = self._pubsub, encode_name(channel)
        pubsub.publish(b"ql:" + name, message, changes=True)
        if channel in _UNPREFIXED_EVENTS and (self.is_dialect_a or name in pubsub.channels):
            pubsub.publish(name, message, changes=True)

    def log(self, fields: dict[str, Any], worker: str = "") -> None:
        """Publish an event to the worker concerned, then to the log channel."""
        if self.has_subscribers:
            message = lua.encode_event(fields)
            if worker:
                self.publish(f"w:{worker}", message)
            self.publish("log", message)

    def lock_lost(self, job: Job) -> None:
        """Publish that a worker has lost its lock on a job."""
        if not self._names.hub.allows(job.queue):
            return
        fields = {
            "jid": self._names.client_name(job.jid),
            "event": "lock_lost",
            "worker": job.holder,
        }
        self.log(fields, job.holder)

    def failed(self, job: Job, worker: str, group: str, message: str) -> None:
        if not self._names.hub.allows(job.queue):
            return
        about = {"message": message, "jid": self._names.client_name(job.jid), "group": group}
        self.log({**about, "event": "failed", "worker": worker})

    def tracked(self, event: str, jid: str) -> None:
        """Publish an event of a job if it is tracked."""
        if jid in self._engine.annotations.tracked and self._is_shown(jid, unknown=True):
            self.publish(event, encode_name(self._names.client_name(jid)))

    def tracking(self, event: str, jid: str) -> None:
        """Publish that an operator has started or stopped tracking an id."""
        if self._is_shown(jid, unknown=False):
            self.publish(event, jid.encode())

    def _is_shown(self, jid: str, *, unknown: bool) -> bool:
        """Return whether the port allows the queue of a job. This is needed because an operator may
        have changed the job. Return `unknown` on a port with a rule if the job does not exist.
        """
        rule = self._names.hub.rule
        if rule is None:
            return True
        jobs = self._engine.find_all(jid)
        return bool(rule.visible(jobs)) if jobs else unknown

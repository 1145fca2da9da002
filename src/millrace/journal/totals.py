"""The columns of event version 3, computed for events of older versions.

Events of version 3 carry the totals of a lease or a job at its end. `LifetimeTotals` reads the
events of one server in their order and adds the same columns to older events.
"""

from dataclasses import dataclass
from typing import Any, Final

from . import schema

_END_STATES: Final = frozenset({"done", "dead", "gone"})
_FAILURES: Final = frozenset({"failed", "expired"})
_ERROR: Final = ("error_group", "error_message", "fingerprint")


@dataclass(slots=True)
class _Life:
    """The totals of one job up to now."""

    #: False if the push is not among the events: the totals are then unknown.
    complete: bool
    leases: int = 0
    failures: int = 0
    wait: int = 0
    run: int = 0
    renewals: int = 0
    first_leased_at: Any = None
    first_queue: str | None = None
    lease_wait: int | None = None
    holder: str | None = None
    error: tuple[Any, ...] | None = None
    fingerprint: str | None = None
    outcome: str | None = None
    ended_at: Any = None


class LifetimeTotals:
    """The totals of all jobs that are not gone."""

    def __init__(self) -> None:
        self._lives: dict[int, _Life] = {}

    def add(self, event: dict[str, Any]) -> None:
        """Count an event, and set its columns of version 3 if its version is older."""
        cause, before, state = event["type"], event["before"], event["state"]
        if cause == schema.FLUSHED:
            self._lives.clear()
            return
        life = self._lives.get(event["seq"])
        if life is None:
            life = self._lives[event["seq"]] = _Life(complete=cause == "pushed")
        old = event["version"] < 3
        if cause == "leased":
            self._lease(life, event)
        elif cause == "renewed":
            life.renewals += 1
        elif cause == "moved" and life.first_queue is None:
            life.first_queue = event["source"]
        if before == "leased" and state != "leased":
            self._end_lease(life, event, old)
        if event["fingerprint"] is not None and (cause in _FAILURES or cause == "doomed"):
            life.error = tuple(event[name] for name in _ERROR)
        if state in _END_STATES:
            if life.outcome is None:
                life.outcome, life.ended_at = cause, event["time"]
            if old:
                _set_totals(life, event)
        else:
            life.outcome = life.ended_at = None
        if state == "gone":
            del self._lives[event["seq"]]

    @staticmethod
    def _lease(life: _Life, event: dict[str, Any]) -> None:
        if not life.leases:
            life.first_leased_at = event["leased_at"]
        life.leases += 1
        life.lease_wait = event["wait_us"]
        life.wait += event["wait_us"] or 0
        life.renewals = 0
        life.holder = event["actor"]

    @staticmethod
    def _end_lease(life: _Life, event: dict[str, Any], old: bool) -> None:
        failed = event["type"] in _FAILURES
        if old:
            event["wait_us"] = life.lease_wait
            event["holder"] = life.holder
            event["renewals"] = life.renewals
        life.run += event["run_us"] or 0
        if failed:
            if old:
                event["repeat"] = life.fingerprint == event["fingerprint"]
            life.fingerprint = event["fingerprint"]
            life.failures += 1


def _set_totals(life: _Life, event: dict[str, Any]) -> None:
    if life.complete:
        event["leases"] = life.leases
        event["failures"] = life.failures
        event["wait_total_us"] = life.wait
        event["run_total_us"] = life.run
        event["first_leased_at"] = life.first_leased_at
    event["first_queue"] = life.first_queue or event["queue"]
    event["outcome"] = life.outcome
    event["ended_at"] = life.ended_at
    if event["fingerprint"] is None and life.error is not None:
        event.update(zip(_ERROR, life.error, strict=True))

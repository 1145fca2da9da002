"""The conditions under which the server refuses new jobs, such as a full disk. They are
independent.
"""

import logging

from millrace.engine.engine import Engine

log = logging.getLogger(__name__)

DISK_FULL = "disk full"


class PushGate:
    """While a cause is set, the protocols refuse new jobs; all other commands continue."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._causes: dict[str, str] = {}

    def add_cause(self, cause: str, reason: str) -> None:
        """Refuse new jobs. `reason` is sent to the clients."""
        if cause not in self._causes:
            log.error("New jobs are refused: %s. All other commands continue.", reason)
        self._causes[cause] = reason
        self._apply()

    def remove_cause(self, cause: str) -> None:
        """Remove a cause."""
        if self._causes.pop(cause, None) is None:
            return
        self._apply()
        if self._causes:
            reason = self._engine.push_refusal_reason
            log.info("Removed cause: %s. New jobs are still refused: %s.", cause, reason)
        else:
            log.info("New jobs are accepted again. Removed cause: %s.", cause)

    def _apply(self) -> None:
        self._engine.push_refusal_reason = next(iter(self._causes.values()), "")

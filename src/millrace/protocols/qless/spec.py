"""The rules of Qless jobs and leases, and the factories."""

import logging
from random import Random
from typing import Final

from millrace.engine.job import FOREVER, Job
from millrace.engine.policies import LeaseRights, RetryDecision, RetryPolicy
from millrace.engine.states import DEAD, READY
from millrace.protocols.spec import HubContext, ProtocolSpec

from .calls import QlessApi
from .connection import QlessConnection
from .hub import QlessHub
from .redo import RedoRecord, recorded_transactions
from .settings import QlessConfig
from .transactions import QueuedCommand, QueuedCommands, WorkStep

log = logging.getLogger(__name__)


class QlessPolicy(RetryPolicy):
    """A failed job is ready again immediately, up to `retries` times. Then it stays failed until a
    client acts.
    """

    dead_retention = FOREVER

    def after_failure(self, job: Job, now: int, random: Random) -> RetryDecision:
        return RetryDecision(DEAD if job.failures > job.retries else READY)


def make_hub(settings: QlessConfig, context: HubContext) -> QlessHub:
    hub = QlessHub(
        context.engine,
        started_at=context.started_at,
        password=settings.password,
        dialect=settings.dialect,
        max_connections=context.max_connections,
        rule=context.rule,
        max_line=context.max_line,
    )
    api = QlessApi(hub)
    if settings.port is not None or settings.socket:
        api.qless.refresh()  # at startup, so that the first command does not delay other clients
    for record in recorded_transactions(hub.engine):
        try:
            _resume(hub, record)
        except Exception:  # a bug must not make every start fail
            log.exception(
                "Could not complete a transaction that the last shutdown or crash interrupted."
            )
            record.end()
    return hub


def _resume(hub: QlessHub, record: RedoRecord) -> None:
    """Complete a transaction that a crash has interrupted, before the first client connects."""
    connection = QlessConnection(hub)
    hub.connections.discard(connection)
    commands = QlessConnection.commands
    queued = [QueuedCommand(commands[words[0].upper()], words) for words in record.commands]
    step = WorkStep(QueuedCommands(connection, queued, record, record.now).resume())
    hub.transactions.finish(hub.transactions.start(step, connection), hub.started_at)


#: Leases have no timer: they expire when a later command arrives, by the clock of its client.
SPEC: Final = ProtocolSpec(
    QlessPolicy(),
    LeaseRights(timed=False, exclusive=True),
    own_clock=True,
    make_hub=make_hub,
    make_connection=QlessConnection,
)

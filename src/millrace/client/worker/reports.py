"""Outcomes as commands to the server."""

from millrace.client import wire

from .execution import Outcome


def report_command(outcome: Outcome) -> bytes:
    """ACK for a success, FAIL for a failure."""
    failure = outcome.failure
    if failure is None:
        return wire.command("ACK", {"jid": outcome.job.id})
    body = {
        "jid": outcome.job.id,
        "errtype": failure.kind,
        "message": failure.message,
        "backtrace": list(failure.backtrace),
    }
    return wire.command("FAIL", body)

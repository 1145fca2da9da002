"""Outcomes as commands to the server."""

from typing import Final

from millrace.client import wire

from .execution import Outcome

#: Characters of results in one bulk acknowledgement.
ACK_SIZE_LIMIT: Final = 1 << 20


def report_groups(outcomes: list[Outcome], *, bulk: bool) -> list[tuple[bytes, list[Outcome]]]:
    """Commands, each with the outcomes that it reports. With `bulk`, an extension of Millrace
    servers, successes share commands.
    """
    groups: list[tuple[bytes, list[Outcome]]] = []
    successes: list[Outcome] = []
    size = 0
    for outcome in outcomes:
        if not bulk or outcome.failure is not None:
            groups.append((report_command(outcome), [outcome]))
            continue
        length = len(outcome.result or "")
        if successes and size + length > ACK_SIZE_LIMIT:
            groups.append((_ack_command(successes), successes))
            successes, size = [], 0
        successes.append(outcome)
        size += length
    if successes:
        groups.append((_ack_command(successes), successes))
    return groups


def _ack_command(outcomes: list[Outcome]) -> bytes:
    return wire.command("MILLRACE", {"ack": [_ack(outcome) for outcome in outcomes]})


def _ack(outcome: Outcome) -> dict[str, str]:
    ack = {"jid": outcome.job.id}
    if outcome.result is not None:
        ack["result"] = outcome.result  # an extension; a plain Faktory server ignores it
    return ack


def report_command(outcome: Outcome) -> bytes:
    """ACK for a success, FAIL for a failure."""
    failure = outcome.failure
    if failure is None:
        return wire.command("ACK", _ack(outcome))
    body = {
        "jid": outcome.job.id,
        "errtype": failure.kind,
        "message": failure.message,
        "backtrace": list(failure.backtrace),
    }
    return wire.command("FAIL", body)

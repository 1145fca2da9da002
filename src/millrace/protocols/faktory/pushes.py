"""PUSH of jobs that may have extensions or be duplicates, PUSH of large jobs, and PUSHB."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec

from millrace.engine.discarded import drain
from millrace.engine.job import SECOND, Job, NewJob
from millrace.engine.states import BLOCKED, READY, SCHEDULED
from millrace.protocols import go_json
from millrace.protocols.errors import BadJson, ClientError, PayloadDamaged

from . import extensions, work_unit
from .replies import MAX_ERROR, OK_REPLY, encode_bulk, error_reply, require_argument

if TYPE_CHECKING:
    from .connection import FaktoryConnection

#: Number of jobs that a PUSHB handles in one slice.
COMMAND_BATCH_SIZE: Final = 100
#: A push is compared with the oldest job and this many of the newest jobs with its jid.
MAX_DUPLICATES: Final = 16
#: An identical push within this time counts as a duplicate of the first one.
RESEND_PERIOD: Final = 60 * SECOND

_decode_list = msgspec.json.Decoder(list[msgspec.Raw] | None).decode


def push_large(connection: "FaktoryConnection", line: bytes, now: int) -> Iterator[None]:
    """PUSH of a large work unit, in slices."""
    if reason := connection.store_problem(pushes=True):
        connection.reply_error(connection.unavailable_reply(reason))
        return
    end = len(line) - line.endswith(b"\r")
    try:
        push = yield from work_unit.read_in_slices(line, len(b"PUSH "), end, now)
        connection.require_store(pushes=True)
        push_once(connection, push, now)
    except BadJson as mistake:
        connection.reply_error(error_reply(f"invalid JSON: {mistake}"))
    except ClientError as problem:
        connection.reply_error(error_reply(str(problem)))
    else:
        connection.reply_fixed(OK_REPLY)


def push_once(connection: "FaktoryConnection", push: NewJob, now: int) -> None:
    """Push, unless a client has sent the same work unit again after a read timeout.

    If a worker has fetched the earlier job, or if it is older than RESEND_PERIOD, the push is not a
    duplicate: clients may push the same work twice.
    """
    engine = connection.engine
    if engine.find(push.jid) is not None:
        for job in engine.find_all(push.jid, MAX_DUPLICATES):
            if (
                job.state in {READY, SCHEDULED, BLOCKED}
                and not job.attempt
                and now - job.created < RESEND_PERIOD
                and _is_same_unit(connection, job, push)
            ):
                connection.caller.wait()
                return
    if extensions.may_have_extensions(push):
        extensions.apply_extensions(push, engine)
    engine.push(push, now)


def _is_same_unit(connection: "FaktoryConnection", job: Job, push: NewJob) -> bool:
    try:
        return work_unit.is_same_unit(job, connection.engine.payload(job), push)
    except PayloadDamaged:
        return False


def push_bulk(connection: "FaktoryConnection", argument: bytes | None, now: int) -> None:
    line = go_json.repair_text(require_argument(argument))
    try:
        units = _decode_list(line) or []
    except msgspec.MsgspecError as problem:
        repaired = go_json.replace_surrogates(line)
        if repaired != line:
            push_bulk(connection, repaired, now)
            return
        raise ClientError(f"invalid JSON: {go_json.error_text(problem)}") from None
    except RecursionError:
        try:
            units = [msgspec.Raw(unit) for unit in go_json.deep_elements(line)]
        except BadJson as deep_problem:
            raise ClientError(f"invalid JSON: {deep_problem}") from None
    connection.begin_long_command(_push_in_slices(connection, units, now), len(line))


def _push_in_slices(
    connection: "FaktoryConnection", units: list[msgspec.Raw], now: int
) -> Iterator[None]:
    """Read all jobs, then push the valid ones, in slices."""
    failed: dict[str, str] = {}
    pushes: list[NewJob] = []
    try:
        for number, unit in enumerate(drain(units), 1):
            try:
                push = work_unit.read(bytes(unit), now)
                connection.engine.check_queues(push)
                pushes.append(push)
            except BadJson as wrong_type:  # a member of the wrong type fails the whole command
                connection.reply_error(error_reply(f"invalid JSON: {wrong_type}"))
                return
            except ClientError as problem:
                failed[work_unit.jid_of(bytes(unit))] = str(problem)[:MAX_ERROR]
            if number % COMMAND_BATCH_SIZE == 0:
                yield
        connection.require_store(pushes=True)
        reverts, count = connection.engine.revert_count, len(pushes)
        left = drain(pushes)
        for start in range(0, count, COMMAND_BATCH_SIZE):
            if start:
                yield
                connection.check_not_reverted(reverts)
            _push_some(connection, islice(left, COMMAND_BATCH_SIZE), failed, now)
    except ClientError as problem:
        connection.caller.wait()
        connection.reply_error(error_reply(str(problem)))
        return
    connection.caller.wait()
    connection.reply(encode_bulk(msgspec.json.encode(failed)))


def _push_some(
    connection: "FaktoryConnection", pushes: Iterable[NewJob], failed: dict[str, str], now: int
) -> None:
    """Push jobs, and add the refused ones to `failed` with the reason."""
    with connection.engine.hold_queues(now):
        for push in pushes:
            try:
                push_once(connection, push, now)
            except ClientError as problem:
                failed[push.jid] = str(problem)[:MAX_ERROR]

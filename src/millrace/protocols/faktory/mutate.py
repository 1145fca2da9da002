"""MUTATE: change the jobs of the scheduled, retries or dead set that match a filter."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from millrace.engine.discarded import drain
from millrace.engine.engine import Engine
from millrace.engine.job import Job
from millrace.engine.states import DEAD, SCHEDULED
from millrace.protocols import go_json
from millrace.protocols.errors import BadJson, ClientError, PayloadDamaged
from millrace.protocols.globs import Matcher, matcher
from millrace.protocols.payload_reads import read_ahead, release_payload

from . import work_unit

#: Jobs that are examined in one slice.
MUTATE_BATCH_SIZE: Final = 50
MAX_GLOB: Final = 4096
COMMANDS: Final = ("clear", "kill", "discard", "requeue")
TARGETS: Final = ("scheduled", "retries", "dead")


class Operation(NamedTuple):
    command: str
    target: str
    jids: list[str]
    #: Whether the JSON of a job matches the filter.
    matches: Matcher | None
    jobtype: str


def read(argument: bytes) -> Operation:
    try:
        argument = go_json.repair_text(argument)
        fields, _ = go_json.split_members(argument, frozenset({"cmd", "target", "filter"}))
        command = go_json.read_string(fields.get("cmd"), "cmd")
        target = go_json.read_string(fields.get("target"), "target")
        filters, _ = go_json.split_members(
            fields.get("filter", b"{}"), frozenset({"jids", "regexp", "jobtype"})
        )
        jids = go_json.read_strings(filters.get("jids"), "jids")
        glob = go_json.read_string(filters.get("regexp"), "regexp")
        jobtype = go_json.read_string(filters.get("jobtype"), "jobtype")
    except BadJson:
        raise ClientError("invalid format") from None
    if len(glob) > MAX_GLOB:
        raise ClientError("invalid format")
    if command not in COMMANDS:
        raise ClientError("unknown mutate operation")
    if target not in TARGETS:
        raise ClientError("invalid target for mutation command")
    if command == "clear":
        return Operation(command, target, [], None, "")
    matches = matcher(glob.encode("utf-8", "surrogatepass")) if glob else None
    return Operation(command, target, jids, matches, jobtype)


def carry_out(engine: Engine, operation: Operation, now: int) -> Iterator[None]:
    """Change every job that matches, in slices."""
    for number, job in enumerate(drain(_candidates(engine, operation)), 1):
        if operation.matches is not None:
            yield from read_ahead(engine, job)
        if engine.job(job.seq) is job and _matches(engine, job, operation):
            _change_job(engine, operation.command, job, now)
        release_payload(engine, job)
        if number % MUTATE_BATCH_SIZE == 0:
            yield


def _candidates(engine: Engine, operation: Operation) -> list[Job]:
    if operation.jids:
        return [job for jid in operation.jids for job in engine.find_all(jid)]
    tables = engine.tables
    return list((tables.dead if operation.target == "dead" else tables.scheduled).values())


def _matches(engine: Engine, job: Job, operation: Operation) -> bool:
    if job.state != (DEAD if operation.target == "dead" else SCHEDULED):
        return False
    if job.state == SCHEDULED and bool(job.failures) != (operation.target == "retries"):
        return False
    if operation.jids:
        return True
    if operation.jobtype and job.kind != operation.jobtype:
        return False
    if operation.matches is None:
        return True
    try:
        unit = work_unit.write(job, engine.payload(job))
    except PayloadDamaged:
        return False
    return bool(operation.matches(go_json.to_go_json(unit)))


def _change_job(engine: Engine, command: str, job: Job, now: int) -> None:
    if command == "requeue":
        engine.retry_now(job, now)
    elif command == "kill":
        engine.kill(job, now)
    else:
        engine.cancel(job, now)

"""MUTATE: change many jobs of the scheduled, retries or dead set at once."""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from millrace.engine.engine import Engine
from millrace.engine.job import Job
from millrace.engine.states import DEAD, SCHEDULED
from millrace.protocols import gojson
from millrace.protocols.errors import BadJson, ClientError

from . import workunit

#: So many jobs are looked at before others get their turn.
SLICE: Final = 200
COMMANDS: Final = ("clear", "kill", "discard", "requeue")
TARGETS: Final = ("scheduled", "retries", "dead")


class Operation(NamedTuple):
    command: str
    target: str
    jids: list[str]
    pattern: re.Pattern[str] | None
    jobtype: str


def read(argument: bytes) -> Operation:
    try:
        gojson.check_text(argument)
        mine, _ = gojson.folded(argument, frozenset({"cmd", "target", "filter"}))
        command = gojson.string(mine.get("cmd"), "cmd")
        target = gojson.string(mine.get("target"), "target")
        filters, _ = gojson.folded(
            mine.get("filter", b"{}"), frozenset({"jids", "regexp", "jobtype"})
        )
        jids = gojson.strings(filters.get("jids"), "jids")
        glob = gojson.string(filters.get("regexp"), "regexp")
        jobtype = gojson.string(filters.get("jobtype"), "jobtype")
    except BadJson:
        raise ClientError("invalid format") from None
    if command not in COMMANDS:
        raise ClientError("unknown mutate operation")
    if target not in TARGETS:
        raise ClientError("invalid target for mutation command")
    if command == "clear":
        return Operation(command, target, [], None, "")
    return Operation(command, target, jids, _glob(glob) if glob else None, jobtype)


def carry_out(engine: Engine, operation: Operation, now: int) -> Iterator[None]:
    """Do it to every job that matches, pausing now and then: sets can be large."""
    for number, job in enumerate(_candidates(engine, operation), 1):
        if engine.jobs.get(job.seq) is job and _matches(job, operation):
            _do(engine, operation.command, job, now)
        if number % SLICE == 0:
            yield


def _candidates(engine: Engine, operation: Operation) -> list[Job]:
    if operation.jids:
        return [job for jid in operation.jids for job in engine.find_all(jid)]
    return list((engine.dead if operation.target == "dead" else engine.scheduled).values())


def _matches(job: Job, operation: Operation) -> bool:
    if job.state != (DEAD if operation.target == "dead" else SCHEDULED):
        return False
    if job.state == SCHEDULED and bool(job.failures) != (operation.target == "retries"):
        return False
    if operation.jids:
        return True
    if operation.jobtype and job.kind != operation.jobtype:
        return False
    pattern = operation.pattern
    return pattern is None or pattern.fullmatch(workunit.write(job).decode()) is not None


def _do(engine: Engine, command: str, job: Job, now: int) -> None:
    if command == "requeue":
        engine.requeue(job, now)
    elif command == "kill":
        engine.kill(job, now)
    else:
        engine.cancel(job, now)


_GLOB: Final = re.compile(r"\\(.)|(\*+)|(\?)|\[(\^?)((?:\\.|[^\]\\])+)\]|(.)", re.DOTALL)


def _glob(text: str) -> re.Pattern[str]:
    """A Redis glob (`*`, `?`, `[a-z]`, `[^a]`, backslash) as a regular expression."""

    def part(match: re.Match[str]) -> str:
        escaped, star, question, negated, chars, plain = match.groups()
        if star:
            return ".*"
        if question:
            return "."
        if chars is not None:
            inside = re.sub(
                r"\\(.)|([\[\]^&~|])", lambda m: re.escape(m.group(1) or m.group(2)), chars
            )
            return f"[{negated}{inside}]"
        return re.escape(escaped or plain)

    try:
        return re.compile(_GLOB.sub(part, text), re.DOTALL)
    except re.error:
        raise ClientError("invalid format") from None

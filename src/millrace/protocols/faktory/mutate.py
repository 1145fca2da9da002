"""MUTATE: change the jobs of the scheduled, retries or dead set that match a filter."""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from millrace.engine.engine import Engine
from millrace.engine.job import Job
from millrace.engine.states import DEAD, SCHEDULED
from millrace.protocols import go_json
from millrace.protocols.errors import BadJson, ClientError

from . import work_unit

#: Jobs that are examined in one slice.
SLICE: Final = 200
MAX_GLOB: Final = 4096
COMMANDS: Final = ("clear", "kill", "discard", "requeue")
TARGETS: Final = ("scheduled", "retries", "dead")


class Operation(NamedTuple):
    command: str
    target: str
    jids: list[str]
    glob: "Glob | None"
    jobtype: str


def read(argument: bytes) -> Operation:
    try:
        argument = go_json.repair_text(argument)
        mine, _ = go_json.folded(argument, frozenset({"cmd", "target", "filter"}))
        command = go_json.string(mine.get("cmd"), "cmd")
        target = go_json.string(mine.get("target"), "target")
        filters, _ = go_json.folded(
            mine.get("filter", b"{}"), frozenset({"jids", "regexp", "jobtype"})
        )
        jids = go_json.strings(filters.get("jids"), "jids")
        glob = go_json.string(filters.get("regexp"), "regexp")
        jobtype = go_json.string(filters.get("jobtype"), "jobtype")
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
    return Operation(command, target, jids, Glob(glob) if glob else None, jobtype)


def carry_out(engine: Engine, operation: Operation, now: int) -> Iterator[None]:
    """Change every job that matches, in slices."""
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
    if operation.glob is None:
        return True
    return operation.glob.matches(go_json.canonical(work_unit.write(job)).decode())


def _do(engine: Engine, command: str, job: Job, now: int) -> None:
    if command == "requeue":
        engine.requeue(job, now)
    elif command == "kill":
        engine.kill(job, now)
    else:
        engine.cancel(job, now)


class Glob:
    """A Redis glob: `*`, `?`, `[a-z]`, `[^a]`, backslash.

    The parts between the stars are searched from left to right, each at its first occurrence. This
    finds every match in linear time, unlike a regular expression with several stars.
    """

    def __init__(self, text: str) -> None:
        parts: list[list[str]] = [[]]
        for match in _GLOB.finditer(text):
            if match.group("star"):
                parts.append([])
            else:
                parts[-1].append(_one(match))
        self._first, *inner = [re.compile("".join(part), re.DOTALL) for part in parts]
        self._last = inner.pop() if inner else None
        self._last_size = len(parts[-1])
        self._inner = inner

    def matches(self, text: str) -> bool:
        if self._last is None:
            return self._first.fullmatch(text) is not None
        found = self._first.match(text)
        for part in self._inner:
            if found is None:
                return False
            found = part.search(text, found.end())
        if found is None:
            return False
        start = len(text) - self._last_size
        return start >= found.end() and self._last.fullmatch(text, start) is not None


_GLOB: Final = re.compile(
    r"\\(?P<escaped>.)|(?P<star>\*+)|(?P<any>\?)|\[(?P<chars>(?:\\.|[^\]\\])+)\]|(?P<plain>.)",
    re.DOTALL,
)
_RANGE: Final = re.compile(r"(\\.|[^\\])-(\\.|[^\\])|(\\.|[^\\])", re.DOTALL)


def _one(match: re.Match[str]) -> str:
    """The regular expression for a part of a glob that matches one character."""
    if match.group("any"):
        return "."
    chars = match.group("chars")
    if chars is None:
        return re.escape(match.group("escaped") or match.group("plain"))
    negated = chars.startswith("^") and len(chars) > 1
    inside = ""
    for first, last, single in _RANGE.findall(chars[1:] if negated else chars):
        if single:
            inside += re.escape(single[-1])
        else:
            low, high = sorted((first[-1], last[-1]))
            inside += f"{re.escape(low)}-{re.escape(high)}"
    return f"[{'^' if negated else ''}{inside}]"

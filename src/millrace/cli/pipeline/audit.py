"""`millrace pipeline audit`."""

import sys
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console

from millrace.cli.options import lake_root
from millrace.cli.pipeline import answers
from millrace.cli.pipeline.answers import table
from millrace.cli.pipeline.live import look
from millrace.cli.pipeline.progress import StepProgress
from millrace.cli.pipeline.session import tables_session
from millrace.cli.ship import shipped
from millrace.config import Config
from millrace.journal.identity import identity
from millrace.pipeline.audit.results import Compared, Findings, Live
from millrace.pipeline.errors import PipelineError
from millrace.pipeline.lake import Lake, open_lake

#: Rows printed per problem. --json prints more; the tables contain all.
MAX_PRINTED: Final = 10

#: Description of each problem.
PROBLEMS: Final = {
    "illegal": "events with an invalid transition",
    "broken": "events whose state before differs from the state after the previous event",
    "ended_twice": "jobs that ended more than once",
    "leased_twice": "jobs that were leased while already leased",
    "after_gone": "jobs with events after their removal",
    "lost": "jobs missing on the server without an event that ended them",
    "unknown": "jobs on the server without events",
    "differs": "jobs whose state or queue on the server differs from their events",
}


def audit(config: Config, *, fail: bool, json: bool, thorough: bool, live: bool) -> int:
    """Return the exit code: 1 if there is a problem. Without `live`, audit only the lake."""
    known = _known(config, Lake(lake_root(config))) if live else None
    lake = Lake(lake_root(config)) if known is not None else open_lake(lake_root(config))
    from millrace.pipeline.audit import run as audit_run  # noqa: PLC0415 - loads Spark
    from millrace.pipeline.backlog import outstanding  # noqa: PLC0415

    with StepProgress(quiet=json) as steps:
        steps("start Spark", 0, 0)
        events = sum(outstanding(lake.root).position.values())
        with tables_session(config, events=events) as spark:
            findings = audit_run.run(spark, lake, known, thorough=thorough, progress=steps)
    if json:
        document = {"ok": findings.ok, **msgspec.to_builtins(findings)}
        sys.stdout.write(msgspec.json.encode(document).decode() + "\n")
    else:
        tell(findings, lake, answers.console())
    return 1 if fail and not findings.ok else 0


def _known(config: Config, lake: Lake) -> Live | None:
    """The data of the server, after its events are shipped to the lake."""
    known = look(config.server.data)
    if known is None:
        return None
    journal = shipped(config)
    if Path(journal.lake).resolve() != lake.root.resolve():
        raise PipelineError(
            f"The server on {config.server.data} ships to {journal.lake}, not to {lake.root}. "
            "Audit that lake, or audit this one with --no-live."
        )
    # A server reports its ID only after its first shipment.
    return known.live(journal.server or identity(config.server.data))


def tell(findings: Findings, lake: Lake, console: Console) -> None:
    """Print the numbers, the problems and suggestions."""
    _numbers(findings, console)
    _problems(findings, console)
    if findings.compared is not None:
        _compared(findings.compared, console)
    if not findings.servers:
        console.print("No events in the lake yet. Ship them with `millrace ship`.")
    elif findings.ok:
        console.print("No problems found.")
    else:
        console.print()
        for sentence in advice(findings, lake):
            console.print(sentence, soft_wrap=True)


def _numbers(findings: Findings, console: Console) -> None:
    rows = []
    for each in findings.servers:
        counts = (each.first_event, each.last_event, each.events, each.missing, each.duplicates)
        rows.append([each.server, *(f"{count:,}" for count in counts)])
    if rows:
        console.print(table("server, first event, last, events, missing, duplicates", rows, 1))
    for each in findings.servers:
        for gap in each.gaps[:MAX_PRINTED]:
            console.print(f"{each.server}: events {gap.first:,} to {gap.last:,} are missing")
    if findings.older:
        console.print(f"{findings.older:,} jobs are older than the first event in the lake")


def _problems(findings: Findings, console: Console) -> None:
    for problem, count in findings.problems.items():
        console.print(f"\n{count:,} {PROBLEMS.get(problem, problem)} ({problem}):")
        some = [each for each in findings.examples if each.problem == problem]
        rows = [
            (each.server, str(each.seq), each.jid, str(each.event_id), each.detail)
            for each in some[:MAX_PRINTED]
        ]
        console.print(table("server, job, id, event, problem", rows, 5, folded="problem"))


def _compared(compared: Compared, console: Console) -> None:
    console.print(
        f"\nCompared with server {compared.server} after its event {compared.event:,}: "
        f"{compared.jobs:,} jobs, {compared.queues:,} queues, the statistics of {compared.days:,} "
        f"queue days. {compared.differing:,} numbers differ.",
        soft_wrap=True,
    )
    for sentence in compared.left_out:
        console.print(sentence, soft_wrap=True)
    if not compared.differences:
        return
    rows = [
        (each.what, each.queue, each.day or "", each.live, each.lake)
        for each in compared.differences[:MAX_PRINTED]
    ]
    console.print(table("value, queue, day, server, lake", rows, 5))


def advice(findings: Findings, lake: Lake) -> list[str]:
    """Suggestions for the problems found."""
    sentences = []
    if any(each.missing for each in findings.servers):
        sentences.append(
            f"Events are missing. If files of {lake.root / 'events'} were removed, restore them "
            "from a backup. Events dropped by a full outbox cannot be recovered."
        )
    if any(each.duplicates for each in findings.servers):
        sentences.append(
            "Events are duplicated: another process has written to the table events. Restore the "
            "lake from one backup."
        )
    if findings.problems.keys() - {"lost", "unknown", "differs"}:
        sentences.append(
            "Events contradict each other. Fix missing or duplicate events first. If there are "
            "none, files of the lake were changed, or the server has a bug: please report it with "
            "the rows of the table audit_jobs."
        )
    compared = findings.compared
    if findings.problems.keys() & {"lost", "unknown", "differs"} or (
        compared and compared.differing
    ):
        sentences.append(
            "The server and the lake differ. Fix missing or duplicate events first. If the data "
            "folder is a restored copy, remove its file journal-id, so that the lake treats it as "
            "another server. Otherwise please report it."
        )
    return sentences

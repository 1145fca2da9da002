"""`millrace pipeline audit`."""

import sys
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console
from rich.table import Table

from millrace.cli.control import shown
from millrace.cli.pipeline.live import look
from millrace.cli.pipeline.progress import Steps
from millrace.cli.pipeline.starting import started
from millrace.cli.ship import shipped
from millrace.config import Config
from millrace.journal.identity import identity
from millrace.pipeline.errors import PipelineError
from millrace.pipeline.findings import Compared, Findings, Live
from millrace.pipeline.lake import Lake
from millrace.pipeline.run import outstanding

#: So many of each kind are printed; --json tells more, the tables all.
MOST_PRINTED: Final = 10

#: What each problem is, in words.
PROBLEMS: Final = {
    "illegal": "events that the state machine does not know",
    "broken": "events that found a job otherwise than the one before had left it",
    "ended_twice": "jobs that ended, and then ended again",
    "leased_twice": "jobs that were leased while somebody had them",
    "after_gone": "jobs to which something happened after they were gone",
    "lost": "jobs that the server does not have, though no event ended them",
    "unknown": "jobs that the server has, and of which no event tells",
    "differs": "jobs that the server has in another state or queue than their events say",
}


def audit(config: Config, *, fail: bool, json: bool, thorough: bool, live: bool) -> int:
    """The exit code: 1 if anything is wrong. Not `live`: only the lake is looked at."""
    lake = Lake(config.lake_path)
    known = _known(config, lake) if live else None
    from millrace.pipeline import audit as auditing  # noqa: PLC0415 - they load Spark
    from millrace.pipeline.ingest import ingest  # noqa: PLC0415

    with Steps(quiet=json) as steps:
        steps("start Spark", 0, 0)
        with started(config, events=outstanding(lake).events) as spark:
            ingest(spark, lake, steps)
            findings = auditing.run(spark, lake, known, thorough=thorough, progress=steps)
    if json:
        told = {"ok": findings.ok, **msgspec.to_builtins(findings)}
        sys.stdout.write(msgspec.json.encode(told).decode() + "\n")
    else:
        tell(findings, lake, Console(markup=False, highlight=False))
    return 1 if fail and not findings.ok else 0


def _known(config: Config, lake: Lake) -> Live | None:
    """What the server of the data folder knows, once all of that is in the lake."""
    known = look(config.server.data)
    if known is None:
        return None
    journal = shipped(config)
    if Path(journal.lake).resolve() != lake.root.resolve():
        raise PipelineError(
            f"the server on {config.server.data} ships to {journal.lake}, and not to {lake.root}. "
            "Audit that lake, or this one by itself with --no-live."
        )
    # A server that has shipped nothing since its start does not tell its id.
    return known.live(journal.server or identity(config.server.data))


def tell(findings: Findings, lake: Lake, console: Console) -> None:
    """For people: what is there, what is wrong with it, and what to do."""
    _numbers(findings, console)
    _problems(findings, console)
    if findings.compared is not None:
        _compared(findings.compared, console)
    if not findings.servers:
        console.print("There are no events in the lake yet. `millrace ship` brings them there.")
    elif findings.ok:
        console.print("Nothing is wrong.")
    else:
        console.print()
        for sentence in advice(findings, lake):
            console.print(sentence, soft_wrap=True)


def _numbers(findings: Findings, console: Console) -> None:
    table = Table("server", box=None, pad_edge=False)
    for column in ("first event", "last", "events", "missing", "doubled"):
        table.add_column(column, justify="right")
    for each in findings.servers:
        counts = (each.first_event, each.last_event, each.events, each.missing, each.duplicates)
        table.add_row(each.server, *(f"{count:,}" for count in counts))
    if findings.servers:
        console.print(table)
    for each in findings.servers:
        for gap in each.gaps[:MOST_PRINTED]:
            console.print(f"{each.server}: events {gap.first:,} to {gap.last:,} are missing")
    if findings.older:
        console.print(f"{findings.older:,} jobs are older than the first events in the lake")
    if findings.quarantined or findings.refused:
        console.print(
            f"{findings.quarantined:,} rows are in quarantine, {findings.refused:,} files refused"
        )


def _problems(findings: Findings, console: Console) -> None:
    for problem, count in findings.problems.items():
        console.print(f"\n{count:,} {PROBLEMS.get(problem, problem)} ({problem}):")
        table = Table("server", box=None, pad_edge=False)
        table.add_column("job", justify="right")
        table.add_column("id")
        table.add_column("event", justify="right")
        table.add_column("what is wrong", overflow="fold")
        some = [each for each in findings.told if each.problem == problem]
        for each in some[:MOST_PRINTED]:
            cells = (each.server, str(each.seq), each.jid, str(each.event_id), each.detail)
            table.add_row(*map(shown, cells))
        console.print(table)


def _compared(compared: Compared, console: Console) -> None:
    console.print(
        f"\nCompared with server {compared.server} after its event {compared.event:,}: "
        f"{compared.jobs:,} jobs, {compared.queues:,} queues, the statistics of {compared.days:,} "
        f"queues' days. {compared.differing:,} numbers differ.",
        soft_wrap=True,
    )
    for sentence in compared.left_out:
        console.print(sentence, soft_wrap=True)
    if not compared.differences:
        return
    table = Table("what", "queue", "day", "the server", "the lake", box=None, pad_edge=False)
    for each in compared.differences[:MOST_PRINTED]:
        cells = (each.what, each.queue, each.day or "", each.live, each.lake)
        table.add_row(*map(shown, cells))
    console.print(table)


def advice(findings: Findings, lake: Lake) -> list[str]:
    """What to do about what was found."""
    told = []
    if any(each.missing for each in findings.servers):
        told.append(
            f"Events are missing. If their files were moved out of {lake.landing}, put them back "
            "and run `millrace pipeline run`; rows in quarantine count as missing, and "
            "tables/quarantine says why they are there. Events that a full outbox dropped are gone."
        )
    if any(each.duplicates for each in findings.servers):
        told.append(
            "Events are there twice: files of tables/events_hot or tables/events were copied or "
            "restored. Restore the lake's tables and ops from one backup. If the landing folder "
            "still has every file (none was pruned), you may remove tables and ops instead and run "
            "`millrace pipeline run`: all of it is made anew from there."
        )
    if findings.problems.keys() - {"lost", "unknown", "differs"}:
        told.append(
            "Events contradict each other. If some are missing or doubled, mend that first. If "
            "not, files of the lake were changed, or the server has a defect: please report it, "
            "with the rows of tables/audit_jobs."
        )
    compared = findings.compared
    if findings.problems.keys() & {"lost", "unknown", "differs"} or (
        compared and compared.differing
    ):
        told.append(
            "The server and the lake do not agree. If events are missing or doubled, mend that "
            "first. If the data folder is a restored copy, remove its file journal-id, so that the "
            "lake takes it for another server. If neither is so, please report it."
        )
    return told

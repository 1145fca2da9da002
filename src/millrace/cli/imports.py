"""`millrace import`: jobs of another server."""

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from millrace.cli.operator_command import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_SKIPPED,
    EXIT_USAGE,
    Yes,
    confirm,
    fail,
)
from millrace.cli.options import ConfigFile, Data, Json, load_config
from millrace.cli.output import ProgressBar
from millrace.cli.tables import plural, print_json, print_table, printable

if TYPE_CHECKING:
    from millrace.cli.import_target import ImportTarget
    from millrace.migration.source import ImportSource, SkippedItem
    from millrace.records import ImportedJob

SOURCES: Final = ("faktory", "qless", "masenko", "workq")
#: Skipped items that are listed.
MAX_LISTED: Final = 10
#: Bytes of a job in a request besides its payload.
JOB_OVERHEAD: Final = 1000
PARTS: Final = (
    "reservations",
    "queues",
    "scheduled",
    "retries",
    "dependencies",
    "failures",
    "dead",
)


def import_command(
    kind: Annotated[
        str,
        typer.Argument(metavar="SERVER", help=f"Source: {', '.join(SOURCES)}.", show_default=False),
    ],
    location: Annotated[
        str,
        typer.Argument(
            metavar="LOCATION",
            help="URL of Redis (faktory, qless), or folder of the log files (masenko, workq).",
            show_default=False,
        ),
    ],
    data: Data = None,
    config: ConfigFile = None,
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what an import would do, and stop.")
    ] = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Import the jobs of a Faktory, Qless, Masenko or Workq server into a running server.

    Stop the producers and workers of the source first. The command reads the source, prints a
    summary and asks for confirmation. It never changes the source. All jobs become visible
    together; an interrupted import has no effect. A repeated import skips what an earlier one has
    imported.

    Reserved jobs become ready again. Completed jobs are not imported. Exit codes: 0 success, 1
    failure, 2 invalid command line, 3 some items were skipped, 130 interrupted.

    Examples:
    - `millrace import faktory redis://localhost:6379 --dry-run`
    - `millrace import faktory unix:///var/lib/faktory/db/redis.sock`
    - `millrace import qless redis://:secret@redis.example.com:6379/2 --yes`
    - `millrace import masenko /var/lib/masenko`
    - `millrace import workq /var/lib/workq --json --yes`

    """
    if kind not in SOURCES:
        raise typer.BadParameter(f"Use one of {', '.join(SOURCES)}.", param_hint="SERVER")
    folder = load_config(config, data).server.data
    raise typer.Exit(_run(kind, location, folder, dry_run=dry_run, yes=yes, json=json))


def _run(kind: str, location: str, folder: Path, *, dry_run: bool, yes: bool, json: bool) -> int:
    from millrace.cli.control import NotAnswered  # noqa: PLC0415 - loads the records
    from millrace.cli.import_target import ImportTarget  # noqa: PLC0415
    from millrace.migration.source import SourceError  # noqa: PLC0415

    try:
        with _open(kind, location) as source:
            target = ImportTarget(source.name, folder)
            before = _transfer(source, target, "check", "Reading")
            is_done = not before.total and not before.first
            if dry_run or is_done or not json:
                before.report(dry_run=True, json=json)
            if dry_run:
                return before.exit_code
            if is_done:
                target.complete()
                return before.exit_code
            if not confirm(f"Import {plural(before.total)}?", yes=yes):
                return EXIT_USAGE if not sys.stdin.isatty() else EXIT_FAILED
            summary = _import(source, target)
            summary.report(dry_run=False, json=json)
            return summary.exit_code
    except SourceError as error:
        return fail(str(error))
    except NotAnswered as error:
        return fail(str(error))
    except KeyboardInterrupt:
        return fail("Interrupted. Nothing was imported.", EXIT_INTERRUPTED)
    except Unreleased as error:
        return fail(str(error.__doc__), EXIT_INTERRUPTED)


def _import(source: "ImportSource", target: "ImportTarget") -> "Summary":
    target.begin()
    try:
        summary = _transfer(source, target, "stage", "Importing")
    except BaseException:
        target.discard()
        raise
    try:
        target.finish(summary.settings)
    except KeyboardInterrupt:
        raise Unreleased from None
    return summary


@contextlib.contextmanager
def _open(kind: str, location: str) -> "Iterator[ImportSource]":
    now = round(time.time() * 1_000_000)
    if kind in {"masenko", "workq"}:
        from millrace.migration.masenko import MasenkoSource  # noqa: PLC0415
        from millrace.migration.workq import WorkqSource  # noqa: PLC0415

        reader = MasenkoSource if kind == "masenko" else WorkqSource
        yield reader(Path(location), now)
        return
    from millrace.migration.faktory import FaktorySource  # noqa: PLC0415
    from millrace.migration.qless import QlessSource  # noqa: PLC0415
    from millrace.migration.redis import open_redis  # noqa: PLC0415

    with open_redis(location) as redis:
        yield FaktorySource(redis, now) if kind == "faktory" else QlessSource(redis, now)


class Unreleased(Exception):
    """Interrupted. Repeat the command to complete the import."""


class Summary:
    """The numbers of an import by part of the source, and the skipped items."""

    def __init__(self) -> None:
        self.new: Counter[str] = Counter()
        self.known = 0
        self.first = False
        self.skipped: list[SkippedItem] = []
        self.notes: list[SkippedItem] = []
        self.settings: Any = None

    @property
    def total(self) -> int:
        return self.new.total()

    @property
    def exit_code(self) -> int:
        return EXIT_SKIPPED if self.skipped else 0

    def report(self, *, dry_run: bool, json: bool) -> None:
        if json:
            items = [*self.skipped, *self.notes]
            print_json(
                {
                    "dry_run": dry_run,
                    "imported" if not dry_run else "new": self.total,
                    "parts": {part: self.new[part] for part in PARTS if self.new[part]},
                    "already_imported": self.known,
                    "skipped": len(self.skipped),
                    "items": [{"name": each.name, "reason": each.reason} for each in items],
                    "settings": self.setting_counts(),
                }
            )
            return
        heads = ("from", "jobs to import" if dry_run else "imported jobs")
        print_table(heads, [(part, self.new[part]) for part in PARTS if self.new[part]])
        counts = ", ".join(_counted(name, count) for name, count in self.setting_counts().items())
        sys.stdout.write(f"Settings: {counts or 'none'}.\n")
        if self.known:
            sys.stdout.write(f"Imported before: {plural(self.known)}.\n")
        _list(f"Skipped: {plural(len(self.skipped))}.", self.skipped)
        _list("Not imported:", self.notes)

    def setting_counts(self) -> dict[str, int]:
        found = self.settings
        counts = {
            "queues": len(found.queues),
            "paused queues": len(found.paused),
            "limits": len(found.limits),
            "tracked jobs": len(found.tracked),
            "recurring jobs": len(found.recurring),
            "options": len(found.qless_options),
            "days of statistics": len(found.days) + len(found.queue_days),
        }
        return {name: count for name, count in counts.items() if count}


def _counted(name: str, count: int) -> str:
    """`1 queue`, or `30 days of statistics`."""
    noun, _, rest = name.partition(" of ")
    return plural(count, noun.removesuffix("s")) + (f" of {rest}" if rest else "")


def _list(head: str, items: "list[SkippedItem]") -> None:
    if not items:
        return
    sys.stdout.write(f"{head}\n")
    for each in items[:MAX_LISTED]:
        sys.stdout.write(f"- {printable(each.name)}: {printable(each.reason)}\n")
    if len(items) > MAX_LISTED:
        sys.stdout.write(f"- {len(items) - MAX_LISTED:,} more; --json lists all.\n")


def _transfer(source: "ImportSource", target: "ImportTarget", step: str, label: str) -> Summary:
    """Read all jobs and send them to the server, in batches."""
    from millrace.migration.source import SkippedItem  # noqa: PLC0415
    from millrace.records import MAX_IMPORT_BATCH, MAX_IMPORT_BATCH_BYTES  # noqa: PLC0415

    summary, total, read, size = Summary(), source.count(), 0, 0
    parts: dict[str, str] = {}
    batch: list[ImportedJob] = []

    def receive() -> None:
        jobs, reply = target.receive()
        summary.first = reply.first
        others = {*reply.known, *reply.existing}
        summary.new.update(parts[job.jid] for job in jobs if job.jid not in others)
        summary.known += len(reply.known)
        reason = "A job with this ID exists."
        summary.skipped += (SkippedItem(jid, reason) for jid in reply.existing)

    with ProgressBar(label) as progress:
        for item in source.items():
            read += 1
            if isinstance(item, SkippedItem):
                summary.skipped.append(item)
                continue
            job = item.job
            if job.jid in parts:
                reason = "Another job of the source has the same ID."
                summary.skipped.append(SkippedItem(job.jid, reason))
                continue
            parts[job.jid] = item.part
            batch.append(job)
            size += len(job.payload) + JOB_OVERHEAD
            if len(batch) >= MAX_IMPORT_BATCH or size >= MAX_IMPORT_BATCH_BYTES:
                if target.is_full:
                    receive()
                target.send(step, batch)
                batch, size = [], 0
                progress(read, max(total, read))
        target.send(step, batch)
        while not target.is_idle:
            receive()
    target.close()
    summary.notes = source.notes()
    summary.settings = source.settings()
    return summary

"""`millrace check`."""

import gc
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from millrace.cli.options import ConfigFile, Data, Json, on_folder
from millrace.cli.output import ProgressBar

if TYPE_CHECKING:
    from millrace.store.store import CheckReport


def check_command(data: Data = None, config: ConfigFile = None, *, json: Json = False) -> None:
    """Verify a data folder and summarize its contents (read-only).

    Verifies the checksum of every row, the structure of the database, the sequence of turns and
    events, and the indexes. A server may run on the folder; the check then covers one committed
    state. Exits with status 1 and a suggestion if it finds a problem.

    Examples:
    - `millrace check --data /var/lib/millrace`
    - `millrace check --data /backups/monday --json | jq .jobs`

    """
    on_folder(config, data, lambda folder: check(folder, json=json))


def check(folder: Path, *, json: bool) -> int:
    """Return the exit code: 0 if the folder has no problem."""
    from millrace.store.errors import StoreError  # noqa: PLC0415 - only this command needs the store
    from millrace.store.folders import check_folder  # noqa: PLC0415
    from millrace.store.store import CheckReport  # noqa: PLC0415

    gc.disable()  # up to a million jobs are read, none of them part of a cycle
    try:
        with ProgressBar("reading") as progress:
            findings = check_folder(folder, progress)
    except StoreError as error:
        if json:
            sys.stdout.write(as_json(CheckReport(str(folder), problems=[str(error)])))
        else:
            sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(as_json(findings) if json else as_text(findings))
    if not json:
        for problem in findings.problems:
            sys.stderr.write(f"{problem}\n")
    return 1 if findings.problems else 0


def as_json(findings: "CheckReport") -> str:
    document = {"ok": not findings.problems, **msgspec.to_builtins(findings)}
    return msgspec.json.encode(document).decode() + "\n"


def as_text(findings: "CheckReport") -> str:
    lines = [f"data folder  {findings.folder}, {format_size(findings.bytes)}"]
    if findings.server:
        lines.append(
            f"server       running, process {findings.server}; checked one committed state"
        )
    if findings.summed:
        lines += content(findings)
    elif not findings.problems and not findings.format:
        lines.append("empty        no server has written to this folder")
    elif not findings.problems:
        lines.append(
            f"format       {findings.format}; a server of this version migrates it when it starts"
        )
    if findings.problems:
        lines.append("damaged      see below")
    else:
        verified = "checksums, structure and indexes" if findings.summed else "structure"
        lines.append(f"ok           {verified} verified")
    return "\n".join(lines) + "\n"


def content(findings: "CheckReport") -> list[str]:
    """The contents of a folder, one line per subject."""
    states = ", ".join(f"{count:,} {state}" for state, count in findings.jobs.items())
    paused = f", {findings.paused:,} paused" if findings.paused else ""
    return [
        f"last turn    {findings.turn:,}",
        f"jobs         {sum(findings.jobs.values()):,}" + (f": {states}" if states else ""),
        f"queues       {findings.queues:,}{paused}",
        f"events       {findings.events:,} not shipped",
    ]


def format_size(count: int) -> str:
    return f"{count / (1 << 20):,.1f} MiB"

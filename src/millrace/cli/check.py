"""`millrace check`: is a data folder whole, and what is in it?"""

import gc
import sys
from pathlib import Path

import msgspec

from millrace.cli.progress import Bar
from millrace.store.errors import StoreError
from millrace.store.examination import Findings, examine


def check(folder: Path, *, json: bool) -> int:
    """The exit code: 0 only if all is well."""
    gc.disable()  # a million jobs are read, and nothing of them is cyclic
    try:
        with Bar("reading") as progress:
            findings = examine(folder, progress)
    except StoreError as error:
        if json:
            sys.stdout.write(as_json(Findings(str(folder), problems=[str(error)])))
        else:
            sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(as_json(findings) if json else as_text(findings))
    if not json:
        for problem in findings.problems:
            sys.stderr.write(f"{problem}\n")
    return 1 if findings.problems else 0


def as_json(findings: Findings) -> str:
    told = {"ok": not findings.problems, **msgspec.to_builtins(findings)}
    return msgspec.json.encode(told).decode() + "\n"


def as_text(findings: Findings) -> str:
    lines = [f"data folder  {findings.folder}, {size(findings.bytes)}"]
    if findings.server:
        lines.append(f"server       process {findings.server}; this is of one moment of its work")
    if findings.summed:
        lines += content(findings)
    elif not findings.problems and not findings.format:
        lines.append("empty        no server has written anything to it yet")
    elif not findings.problems:
        lines.append(
            f"format       {findings.format}; it has no sums. They are added when a server of this "
            "version starts on it"
        )
    if findings.problems:
        lines.append("damaged      see below")
    else:
        looked_at = "sums, structure and indexes are" if findings.summed else "its structure is"
        lines.append(f"whole        {looked_at} as must be")
    return "\n".join(lines) + "\n"


def content(findings: Findings) -> list[str]:
    """What is in a folder, in lines."""
    states = ", ".join(f"{count:,} {state}" for state, count in findings.jobs.items())
    paused = f", {findings.paused:,} paused" if findings.paused else ""
    return [
        f"last turn    {findings.turn:,}",
        f"jobs         {sum(findings.jobs.values()):,}" + (f": {states}" if states else ""),
        f"queues       {findings.queues:,}{paused}",
        f"events       {findings.events:,} not shipped",
    ]


def size(count: int) -> str:
    return f"{count / (1 << 20):,.1f} MiB"

"""`millrace backup`: a copy of a data folder, from which a server can start."""

import gc
import sys
from pathlib import Path

from millrace.cli.check import content, size
from millrace.cli.progress import Bar
from millrace.store.backup import back_up
from millrace.store.errors import StoreError


def backup(folder: Path, target: Path) -> int:
    gc.disable()  # as in check
    try:
        with Bar("copying") as progress:
            findings = back_up(folder, target, progress)
    except StoreError as error:
        sys.stderr.write(f"no backup was made: {error}\n")
        return 1
    lines = [f"backup       {target}, {size(findings.bytes)}", *content(findings)]
    lines.append("whole        sums, structure and indexes are as must be")
    sys.stdout.write("\n".join(lines) + "\n")
    return 0

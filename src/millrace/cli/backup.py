"""`millrace backup`."""

import gc
import sys
from pathlib import Path
from typing import Annotated

import typer

from millrace.cli.check import as_json, content, format_size
from millrace.cli.options import ConfigFile, Data, Json, on_folder
from millrace.cli.output import ProgressBar


def backup_command(
    dest: Annotated[
        str, typer.Argument(metavar="DEST", help="A new or empty folder.", show_default=False)
    ],
    data: Data = None,
    config: ConfigFile = None,
    *,
    json: Json = False,
) -> None:
    """Back up a data folder. The server may keep running.

    The backup is one committed state. It is written next to DEST, verified as by `millrace check`,
    and then renamed to DEST, so a folder named DEST is always complete. To restore it, start a
    server on it or on a copy of it.

    Examples:
    - `millrace backup /backups/monday --data /var/lib/millrace`
    - `millrace backup /backups/monday --json | jq .bytes`
    - `millrace serve --data /backups/monday`: restore it

    """
    on_folder(config, data, lambda folder: backup(folder, Path(dest), json=json))


def backup(folder: Path, target: Path, *, json: bool = False) -> int:
    from millrace.store.errors import StoreError  # noqa: PLC0415 - only this command needs the store
    from millrace.store.folders import back_up  # noqa: PLC0415

    gc.disable()  # as in check
    try:
        with ProgressBar("copying") as progress:
            findings = back_up(folder, target, progress)
    except StoreError as error:
        sys.stderr.write(f"Backup failed: {error}\n")
        return 1
    if json:
        sys.stdout.write(as_json(findings))
        return 0
    lines = [f"backup       {target}, {format_size(findings.bytes)}", *content(findings)]
    lines.append("ok           checksums, structure and indexes verified")
    sys.stdout.write("\n".join(lines) + "\n")
    return 0

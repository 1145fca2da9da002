"""Maintenance of the derived tables after a run: checkpoints, clean-up of the log, vacuum.

A run replaces the files of the days that it touches. The replaced files remain for 7 days, so that
readers of an older snapshot find them. The version of the last run stays readable in any case.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from millrace.journal.maintenance import checkpoint, maintain_remote, vacuum, vacuum_is_due

from .delta import files
from .remote import discard, origin

if TYPE_CHECKING:
    from deltalake import DeltaTable


def maintain(root: Path, tables: "Mapping[str, DeltaTable]") -> None:
    """Do the work that is due, for tables at the versions of the last run."""
    if origin(root) is not None:
        for table in tables.values():
            maintain_remote(table)
        kept = [file.path for name in tables for file in files(tables[name], root, name)]
        discard(root, kept)
        return
    for name, table in tables.items():
        folder, version = root / name, table.version()
        checkpoint(table, folder)
        if vacuum_is_due(folder):
            vacuum(table, folder, keep_versions=[version])

"""Files of lakes of format 1, as earlier versions shipped them."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from millrace.journal.old_lake import FOLDER, Landed


def seal(lake: Path, table: pa.Table) -> Landed:
    """Write events of one server without gaps to the landing folder."""
    ids = table.column("event_id")
    landed = Landed(table.column("server")[0].as_py(), ids[0].as_py(), ids[-1].as_py())
    (lake / FOLDER).mkdir(parents=True, exist_ok=True)
    pq.write_table(table, lake / FOLDER / landed.name, compression="zstd")
    return landed

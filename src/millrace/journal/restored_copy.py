"""Detection of a data folder that was restored from an older copy.

The lake then has events with numbers that the folder will assign again. Events under such a number
would be taken for shipped and lost, so the folder continues under a new identity.
"""

import logging
from pathlib import Path

from .identity import known_identity, new_identity
from .location import LakeLocation
from .position import last_shipped

log = logging.getLogger(__name__)


def check_restored_copy(folder: Path, lake: LakeLocation, next_event: int) -> None:
    """Compare the lake with the store. Call it before the store writes event `next_event`.

    If the lake is ahead, the data folder gets a new identity.
    """
    server = known_identity(folder)
    if not server:
        return
    try:
        last = last_shipped(lake, server)
    except Exception as error:  # an object store raises no narrower class
        log.warning(
            "Cannot compare the lake %s with the data folder: %s. If the folder was restored from "
            "a backup, delete %s/journal-id before the next start.",
            lake, error, folder,
        )  # fmt: skip
        return
    if last < next_event:
        return
    log.warning(
        "The lake has events of server %s up to %d, but the data folder ends at %d: it was "
        "restored from an older copy. It continues as server %s.",
        server, last, next_event - 1, new_identity(folder),
    )  # fmt: skip

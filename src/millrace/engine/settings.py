"""Names of durable settings that belong to no component, and the settings that a flush removes."""

from typing import Final

from .annotations import TRACKED_PREFIX
from .cascades import CASCADE_PREFIX
from .limits import LIMIT_PREFIX
from .queues import FORGOTTEN_PREFIX
from .recurring import RECURRING_PREFIX
from .retention import RETENTION_SETTING
from .transactions import TRANSACTION_PREFIX

#: Settings of bulk loads have this prefix; see bulk_loads.py.
LOADS_PREFIX: Final = "loads/"
#: Totals of past days over all queues have this prefix.
DAYS_PREFIX: Final = "days/"
#: Idempotency keys of pushes have this prefix; see admin/idempotency.py.
IDEMPOTENCY_PREFIX: Final = "idempotency/"
#: Imports have this prefix; see imports.py.
IMPORTS_PREFIX: Final = "imports/"
#: A flush removes the settings with these prefixes.
FLUSHED_SETTINGS: Final = (
    LOADS_PREFIX,
    DAYS_PREFIX,
    TRACKED_PREFIX,
    LIMIT_PREFIX,
    RECURRING_PREFIX,
    IDEMPOTENCY_PREFIX,
    IMPORTS_PREFIX,
    RETENTION_SETTING,
    CASCADE_PREFIX,
    TRANSACTION_PREFIX,
    FORGOTTEN_PREFIX,
)

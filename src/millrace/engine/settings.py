"""Names of durable settings that belong to no component, and the settings that a flush removes."""

from typing import Final

from .annotations import TRACKED
from .cascades import CASCADE_PREFIX
from .limits import LIMIT_PREFIX
from .recurring import RECURRING_PREFIX
from .retention import RETENTION_SETTING
from .transactions import TRANSACTION_PREFIX

#: Settings of bulk loads have this prefix; see bulk_loads.py.
LOADS: Final = "loads/"
#: Totals of past days over all queues have this prefix.
DAYS: Final = "days/"
#: Idempotency keys of pushes have this prefix; see admin/idempotency.py.
IDEMPOTENCY: Final = "idempotency/"
#: Imports have this prefix; see imports.py.
IMPORTS: Final = "imports/"
#: A flush removes the settings with these prefixes.
FLUSHED_SETTINGS: Final = (
    LOADS,
    DAYS,
    TRACKED,
    LIMIT_PREFIX,
    RECURRING_PREFIX,
    IDEMPOTENCY,
    IMPORTS,
    RETENTION_SETTING,
    CASCADE_PREFIX,
    TRANSACTION_PREFIX,
)

"""How the lake stands: what it covers, when it was last brought up to date, and what checks of it
found.
"""

from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
import pyarrow.compute as pc

from millrace.pipeline import reading
from millrace.pipeline.lake import Lake
from millrace.pipeline.tables import AUDIT_JOBS, AUDIT_SEQ, QUEUE_DAY, THROUGHPUT_MINUTE

from .model import Check, Coverage

"""Definitions for both checks of a row: the check of the file's statistics and the check of the
row itself. Also the reasons for rejecting a row that depend on more than the row. This module
does not need Spark.
"""

from typing import Final

from millrace.journal import schema

#: Columns that hold a time, and columns that must not be negative.
TIMES: Final = tuple(field.name for field in schema.FIELDS if field.kind == "timestamp")
NEVER_NEGATIVE: Final = ("seq", "attempt", "wait_us", "run_us", "payload_bytes")

DUPLICATE: Final = "the event is there already"
CONFLICT: Final = "another event of that number is there already"
OUTSIDE: Final = "its number is not one of its file's"
STRANGER: Final = "it is of another server than its file"

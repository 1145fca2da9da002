"""What both looks at a row go by: the one at its file's statistics, and the one at the row itself.
And why a row is no event, where that takes more than the row to tell. Nothing here needs Spark.
"""

from typing import Final

from millrace.journal import schema

#: Columns that hold a time, and those that never hold less than 0.
TIMES: Final = tuple(field.name for field in schema.FIELDS if field.kind == "timestamp")
NEVER_NEGATIVE: Final = ("seq", "attempt", "wait_us", "run_us", "payload_bytes")

DUPLICATE: Final = "the event is there already"
CONFLICT: Final = "another event of that number is there already"
OUTSIDE: Final = "its number is not one of its file's"
STRANGER: Final = "it is of another server than its file"

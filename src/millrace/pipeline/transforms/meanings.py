"""Definitions of the counted conditions, identical to the live statistics of the server.

An expired lease that stays with its holder for a grace period counts as a retry and not as a
failure, because no work is lost yet. A job that dies without an attempt of its own (`doomed`)
counts as died and not as a failure.
"""

from pyspark.sql import Column
from pyspark.sql import functions as F

from millrace.journal.schema import FLUSHED


def is_type(*names: str) -> Column:
    return F.col("type") == names[0] if len(names) == 1 else F.col("type").isin(*names)


def is_flush() -> Column:
    return is_type(FLUSHED)


def is_completion() -> Column:
    """An attempt succeeded and completed the job or one step of it."""
    return is_type("completed", "advanced")


def is_failure() -> Column:
    """An attempt failed or timed out."""
    return is_type("failed", "expired") & (F.col("state") != "leased")


def is_death() -> Column:
    """A job failed permanently: it is dead, or it was discarded (for example with `retry: 0`)."""
    return is_type("failed", "expired", "doomed") & F.col("state").isin("dead", "gone")


def ends_lease() -> Column:
    return (F.col("before") == "leased") & (F.col("state") != "leased")


def is_ended(state: Column) -> Column:
    """A job in this state needs no further work."""
    return state.isin("done", "dead", "gone")


def count_of(condition: Column) -> Column:
    """Count the rows of a group that match; 0 if none does."""
    return F.count_if(condition)

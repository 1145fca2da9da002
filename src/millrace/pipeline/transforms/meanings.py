"""What is counted as what: one place, and the same as the server's live statistics count.

An expired lease that stays with its holder for a time of grace is a retry and no failure: nothing
has been lost yet. A job may also die without an attempt of its own (`doomed`): that is no failure,
but it died.
"""

from pyspark.sql import Column
from pyspark.sql import functions as F

from millrace.journal.schema import FLUSHED


def is_type(*names: str) -> Column:
    return F.col("type") == names[0] if len(names) == 1 else F.col("type").isin(*names)


def is_flush() -> Column:
    return is_type(FLUSHED)


def is_completion() -> Column:
    """An attempt succeeded: with it the job, or one step of it."""
    return is_type("completed", "advanced")


def is_failure() -> Column:
    """An attempt failed, or its time ran out."""
    return is_type("failed", "expired") & (F.col("state") != "leased")


def is_death() -> Column:
    """A job failed for good: it is dead, or it was discarded, as jobs with `retry: 0` are."""
    return is_type("failed", "expired", "doomed") & F.col("state").isin("dead", "gone")


def ends_lease() -> Column:
    return (F.col("before") == "leased") & (F.col("state") != "leased")


def is_ended(state: Column) -> Column:
    """Nothing more is to be done for a job in this state."""
    return state.isin("done", "dead", "gone")


def count_of(condition: Column) -> Column:
    """How many of a group; one without any counts 0."""
    return F.count_if(condition)

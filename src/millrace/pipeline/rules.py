"""Rules for rows. A row that breaks a rule is quarantined, with the text of the rule as the
reason.

Each rule is a condition that is true if the row is invalid, and is never null.
"""

from collections.abc import Iterable
from functools import reduce
from operator import or_
from typing import Final, NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as F

from millrace.journal import schema

from .reasons import NEVER_NEGATIVE, TIMES

#: The years 1 to 9999: the range of times that every reader of the tables supports.
_FIRST_TIME: Final = "0001-01-01T00:00:00Z"
_AFTER_TIME: Final = "+10000-01-01T00:00:00Z"


class Rule(NamedTuple):
    reason: str
    broken: Column


def rules() -> list[Rule]:
    """Return the rules that depend on one row only."""
    return [
        *(Rule(f"`{each.name}` is missing", _null(each.name)) for each in _required()),
        *unproved(),
        Rule("its number is less than 1", _true(F.col("event_id") < 1)),
        *(Rule(f"`{name}` is negative", _true(F.col(name) < 0)) for name in NEVER_NEGATIVE),
        *(Rule(f"`{name}` is beyond the years 1 to 9999", _beyond(name)) for name in TIMES),
    ]


def unproved() -> list[Rule]:
    """Return the rules that inspection.py cannot prove from the statistics of a file."""
    return [
        Rule("`type` is not known", _other_than("type", schema.TYPES)),
        Rule("`state` is not known", _other_than("state", schema.STATES)),
        Rule("`before` is not known", _other_than("before", schema.STATES)),
        Rule("`origin` is not known", _other_than("origin", schema.ORIGINS) & ~_flushed()),
        Rule("`actor` is not known", _other_than("actor", schema.ORIGINS)),
        Rule("the state before is missing", _null("before") & _true(F.col("version") > 1)),
        Rule("no such event leads from that state to this one", _illegal()),
    ]


def is_broken(broken: Iterable[Rule]) -> Column:
    """Return whether any of the rules is broken."""
    return reduce(or_, (rule.broken for rule in broken), F.lit(False))


def reasons(broken: Iterable[Rule]) -> Column:
    """Return the reasons of the broken rules."""
    told = F.array(*(F.when(rule.broken, F.lit(rule.reason)) for rule in broken))
    return F.array_compact(told)


def _required() -> list[schema.Field]:
    return [field for field in schema.FIELDS if field.required]


def _null(name: str) -> Column:
    return F.col(name).isNull()


def _true(condition: Column) -> Column:
    return F.coalesce(condition, F.lit(False))


def _other_than(name: str, known: Iterable[str]) -> Column:
    return _true(~F.col(name).isin(*known))


def _flushed() -> Column:
    return F.col("type").eqNullSafe(schema.FLUSHED)


def _illegal() -> Column:
    """A null previous state, in version 1, is valid because it may be any state."""
    moves = [*schema.LEGAL, (schema.FLUSHED, "gone", "gone")]
    move = F.concat("type", F.lit(">"), "before", F.lit(">"), "state")
    return _true(~move.isin(*sorted(">".join(each) for each in moves)))


def _beyond(name: str) -> Column:
    first, after = (F.lit(moment).cast("timestamp") for moment in (_FIRST_TIME, _AFTER_TIME))
    return _true((F.col(name) < first) | (F.col(name) >= after))

"""The server writes every change set that is not empty."""

import pytest

from millrace.engine.change_set import ChangeSet

#: `edits` counts entries of other fields, and `ended_leases` has the holders of ended leases; they
#: change nothing by themselves.
DESCRIPTIVE = {"edits", "ended_leases", "leases"}


def test_a_new_change_set_is_empty() -> None:
    assert not ChangeSet()


#: A compiled class has its attributes under another name.
FIELDS = getattr(ChangeSet, "__mypyc_attrs__", None) or ChangeSet.__slots__


@pytest.mark.parametrize("field", sorted(set(FIELDS) - DESCRIPTIVE))
def test_a_change_set_with_any_field_filled_is_not_empty(field: str) -> None:
    batch = ChangeSet()
    before = getattr(batch, field)
    if isinstance(before, dict):
        before["key"] = None
    elif isinstance(before, set):
        before.add("key")
    elif isinstance(before, list):
        before.append(())
    else:
        setattr(batch, field, True)
    assert batch

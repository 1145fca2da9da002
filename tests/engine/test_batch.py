"""An empty batch is the only one that the server does not write."""

import pytest

from millrace.engine.batch import Batch

#: `folded` counts events that the statistics already have; it changes nothing by itself.
DESCRIPTIVE = {"folded"}


def test_a_new_batch_is_empty() -> None:
    assert not Batch()


@pytest.mark.parametrize("field", sorted(set(Batch.__slots__) - DESCRIPTIVE))
def test_a_batch_with_any_field_filled_is_not_empty(field: str) -> None:
    batch = Batch()
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

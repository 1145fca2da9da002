"""The declarations of operator actions, and the page made from them."""

import msgspec
import pytest
from actions_page import PAGE, make_page

from millrace.admin.actions import FUNCTIONS
from millrace.records import (
    ACTION_BODIES,
    JOB_ACTIONS,
    QUEUE_ACTIONS,
    RECURRING_ACTIONS,
    WORKER_ACTIONS,
    ActionRequest,
    job_actions,
)


def test_every_job_action_has_a_function() -> None:
    assert list(FUNCTIONS) == list(JOB_ACTIONS)


@pytest.mark.parametrize("actions", [JOB_ACTIONS, QUEUE_ACTIONS, WORKER_ACTIONS, RECURRING_ACTIONS])
def test_a_declaration_is_complete(actions) -> None:
    operations = [action.operation for action in actions.values()]
    assert len(operations) == len(set(operations))
    for name, action in actions.items():
        assert name == action.name
        assert action.label[0].isupper()
        assert not action.effect.endswith(".")
        assert not action.warning or action.warning.endswith(".")
        assert "{target}" in action.title
        assert action.argument in ACTION_BODIES


def test_an_unknown_action_is_an_error() -> None:
    with pytest.raises(msgspec.ValidationError, match="Invalid enum value 'explode'"):
        msgspec.json.decode(b'{"action":"explode"}', type=ActionRequest)


def test_the_label_depends_on_the_state() -> None:
    assert [each.label for each in job_actions("scheduled") if each.name == "retry"] == ["Run now"]
    assert [each.label for each in job_actions("retrying") if each.name == "retry"] == ["Retry"]
    assert not [each for each in job_actions("ready") if each.name == "retry"]
    assert {"kill", "retry"} <= {each.name for each in job_actions("retrying", "dead")}


def test_cancel_is_not_offered_for_jobs_that_have_ended() -> None:
    def names(*states: str) -> set[str]:
        return {each.name for each in job_actions(*states)}

    assert {"cancel", "delete"} <= names("ready")
    assert {"cancel", "delete"} <= names("retrying", "dead")
    for state in ("done", "dead"):
        assert "delete" in names(state)
        assert "cancel" not in names(state)


def test_the_reference_matches_the_declarations() -> None:
    assert PAGE.read_text("utf-8") == make_page(), "run tests/records/actions_page.py"

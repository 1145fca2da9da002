"""The reference of operator actions, generated from their declarations.

Update the page with `.venv/bin/python tests/records/actions_page.py`.
"""

from pathlib import Path

from millrace.records import (
    JOB_ACTIONS,
    QUEUE_ACTIONS,
    RECURRING_ACTIONS,
    WORKER_ACTIONS,
    OperatorAction,
)
from millrace.records.actions import ALL_STATES

PAGE = Path(__file__).parents[2] / "docs/reference/actions.md"
INTRODUCTION = """\
# Operator actions

An operator action changes jobs, queues or workers. Each action has the same name in the HTTP API
(`POST /api/v1/jobs/{id}/retry`), in bulk requests (`POST /api/v1/actions`), on the command line and
in the audit log. Actions require the role `operate`. Pages ask for confirmation before actions with
a warning. This page is generated from the declarations in `millrace.records.actions`.
"""
TABLES = {
    "Jobs": JOB_ACTIONS,
    "Queues": QUEUE_ACTIONS,
    "Faktory workers": WORKER_ACTIONS,
    "Recurring jobs": RECURRING_ACTIONS,
}


def make_page() -> str:
    return INTRODUCTION + "".join(
        f"\n## {title}\n\n{_table(list(actions.values()))}" for title, actions in TABLES.items()
    )


def _table(actions: list[OperatorAction]) -> str:
    has_states = any(action.states for action in actions)
    rows = [["action", "button", "argument", *(["states"] * has_states), "effect", "warning"]]
    rows.append(["---"] * len(rows[0]))
    for action in actions:
        argument = f"`{action.argument}`" + " (optional)" * action.optional
        states = "any" if action.states == ALL_STATES else ", ".join(action.states)
        rows.append(
            [
                f"`{action.name}`",
                action.label,
                argument if action.argument else "",
                *([states] * has_states),
                action.effect,
                action.warning,
            ]
        )
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


if __name__ == "__main__":
    PAGE.write_text(make_page(), "utf-8")

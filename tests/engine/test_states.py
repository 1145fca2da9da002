"""The transition table: complete, consistent, and equal to the documentation."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import millrace.engine
from millrace.engine.states import (
    BLOCKED,
    DEAD,
    DONE,
    GONE,
    LEASED,
    LEGAL_TRANSITIONS,
    NEW,
    READY,
    SCHEDULED,
    STATE_NAMES,
    TRANSITIONS,
    diagram,
)
from scene import Scene

ENGINE = Path(millrace.engine.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "states.md"
STATES = (SCHEDULED, BLOCKED, READY, LEASED, DONE, DEAD, NEW, GONE)
KEPT = (SCHEDULED, BLOCKED, READY, LEASED, DONE, DEAD)


def moves() -> Iterator[tuple[str, int, int]]:
    for cause, table in TRANSITIONS.items():
        for before, afters in table.items():
            for after in afters:
                yield cause, before, after


def test_every_state_has_its_number_and_name():
    assert sorted(STATES) == list(range(len(STATE_NAMES)))
    assert STATE_NAMES[READY] == "ready"
    assert STATE_NAMES[DEAD] == "dead"


def test_the_table_has_known_states_and_no_duplicates():
    for cause, before, after in moves():
        assert before in STATES, cause
        assert after in STATES, cause
    assert len(set(moves())) == len(list(moves()))


def test_no_transition_enters_new_or_leaves_gone():
    assert {after for _, _, after in moves()}.isdisjoint({NEW})
    assert {before for _, before, _ in moves()}.isdisjoint({GONE})


def test_only_a_push_creates_a_job():
    assert {cause for cause, before, _ in moves() if before == NEW} == {"pushed"}


def test_every_state_can_be_reached():
    reached = {NEW}
    for _ in STATES:
        reached |= {after for _, before, after in moves() if before in reached}
    assert reached == set(STATES)


@pytest.mark.parametrize("state", KEPT, ids=lambda state: STATE_NAMES[state])
def test_every_state_has_an_exit(state):
    ways_out = {state}
    for _ in STATES:
        ways_out |= {after for _, before, after in moves() if before in ways_out}
    assert GONE in ways_out


@pytest.mark.parametrize("state", KEPT, ids=lambda state: STATE_NAMES[state])
def test_a_job_can_be_cancelled_in_every_state(state):
    assert TRANSITIONS["cancelled"][state] == (GONE,)


def test_only_a_leased_job_can_expire_be_released_or_be_renewed():
    for cause in ("expired", "released", "renewed"):
        assert list(TRANSITIONS[cause]) == [LEASED], cause


def test_only_jobs_that_can_still_run_complete_or_fail():
    for cause in ("completed", "failed"):
        assert set(TRANSITIONS[cause]) == {SCHEDULED, READY, LEASED}, cause


@pytest.mark.parametrize("state", KEPT, ids=lambda state: STATE_NAMES[state])
def test_a_job_can_expire_in_every_state(state):
    ended = "purged" if state in {DONE, DEAD} else "evicted"
    assert TRANSITIONS[ended][state] == (GONE,)


def test_the_folded_table_equals_the_table():
    listed = set(moves())
    for cause in TRANSITIONS:
        for before in STATES:
            for after in STATES:
                allowed = before * 8 + after in LEGAL_TRANSITIONS[cause]
                assert allowed == ((cause, before, after) in listed)


def test_an_illegal_change_is_refused():
    scene = Scene()
    job = scene.push()
    queue = scene.engine.queues["default"]
    with pytest.raises(AssertionError, match="expired does not lead"):
        scene.engine.transitions.apply(job, queue, "expired", DEAD, scene.now, 0)
    assert job.state == READY


def assigns_state(node: ast.AST) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    flat = [each for t in targets if t for each in (t.elts if isinstance(t, ast.Tuple) else [t])]
    return any(isinstance(t, ast.Attribute) and t.attr == "state" and named_job(t) for t in flat)


def named_job(target: ast.Attribute) -> bool:
    return isinstance(target.value, ast.Name) and target.value.id in {"job", "blocker", "oldest"}


def test_only_one_function_of_the_engine_assigns_the_state_of_a_job():
    found = [
        f"{path.stem}.{function.name}"
        for path in sorted(ENGINE.glob("*.py"))
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef) and any(map(assigns_state, ast.walk(function)))
    ]
    assert found == ["transitions.apply"]


def test_the_diagram_has_an_arrow_for_every_transition():
    lines = diagram().splitlines()
    assert lines[0] == "stateDiagram-v2"
    assert "    [*] --> ready: pushed" in lines
    assert "    leased --> [*]: completed, failed, expired, cancelled, evicted" in lines
    assert len(lines) - 1 == len({(before, after) for _, before, after in moves()})


def test_the_page_shows_the_current_diagram():
    shown = f"```mermaid\n{diagram()}```\n"
    assert shown in PAGE.read_text(), "paste the output of millrace.engine.states.diagram()"


def test_the_page_explains_every_state_and_every_cause():
    prose = PAGE.read_text().replace(diagram(), "")
    for name in (*STATE_NAMES[:6], *TRANSITIONS):
        assert f"`{name}`" in prose, name

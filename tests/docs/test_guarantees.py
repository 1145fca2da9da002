"""Every guarantee names a test, and every named test exists."""

import ast
import re

import pytest
from pages import ROOT

PAGE = ROOT / "docs" / "explanation" / "guarantees.md"
ROWS = [
    tuple(cell.strip() for cell in line.strip("| ").split(" | "))
    for line in PAGE.read_text("utf-8").splitlines()
    if line.startswith("| ") and not line.startswith(("| guarantee |", "|---"))
]
PROOF = re.compile(r"`(tests/[\w/.]+?)(?:::(\w+))?`")


def test_there_are_guarantees() -> None:
    assert len(ROWS) > 30


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:60])
def test_a_guarantee_names_existing_tests(row: tuple[str, ...]) -> None:
    guarantee, proofs = row
    assert guarantee.endswith("."), "a guarantee is a sentence"
    found = PROOF.findall(proofs)
    assert found, "a guarantee has a proof"
    for path, name in found:
        assert (ROOT / path).exists(), path
        assert not name or name in names_in(path), f"{path} has no {name}"


def names_in(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    return {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name.lower().startswith("test")
    }

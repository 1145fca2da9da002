"""The guides for users of another server have the same parts."""

import pytest
from pages import ROOT

GUIDES = sorted((ROOT / "docs" / "how-to").glob("switch-from-*.md"))


def test_there_is_a_guide_for_each_protocol() -> None:
    names = [guide.stem.removeprefix("switch-from-") for guide in GUIDES]
    assert names == ["faktory", "go-job-queue", "masenko", "qless", "workq"]


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_a_guide_has_its_parts(guide) -> None:
    lines = guide.read_text("utf-8").splitlines()
    headings = [line for line in lines if line.startswith("## ")]
    assert headings == ["## Steps", "## Unchanged", "## Improvements", "## Differences"]


def test_users_of_the_newer_lease_line_find_the_switch_first() -> None:
    page = (ROOT / "docs" / "how-to" / "switch-from-workq.md").read_text("utf-8")
    first = page.split("\n\n")[1]
    assert 'dialect = "original"' in first
    assert "MILLRACE_WORKQ_DIALECT=original" in first

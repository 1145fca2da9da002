"""The recordings in the documentation play without a script and without a network."""

import re
from xml.etree import ElementTree as ET

import pytest
from pages import ROOT

SVG = "{http://www.w3.org/2000/svg}"
PICTURES = ROOT / "docs" / "pictures"


@pytest.mark.parametrize("name", ["demo", "top", "worker"])
def test_a_recording_has_several_screens_and_only_its_own_contents(name: str) -> None:
    root = ET.parse(PICTURES / f"{name}.svg").getroot()
    assert {element.tag.removeprefix(SVG) for element in root.iter()} <= {
        "svg", "title", "style", "rect", "g", "text",
    }  # fmt: skip
    screens = root.findall(f"{SVG}g")
    assert len(screens) > 2
    style = root.findtext(f"{SVG}style")
    assert style is not None
    assert style.count("@keyframes") == len(screens)
    assert not re.search(r"url\(|@import|//", style)

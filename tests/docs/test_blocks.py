"""Blocks without commands are valid, too: settings are loaded, programs are compiled."""

import re
from pathlib import Path

import pytest
from pages import PAGES, Block, blocks

import millrace
import millrace.client
from millrace.config import load

ALL = [block for page in PAGES for block in blocks(page)]
#: tests/config/test_config.py tests the page of the configuration.
SETTINGS = [b for b in ALL if b.language == "toml" and b.page.name != "configuration.md"]
PROGRAMS = [b for b in ALL if b.language == "python" and b.directive == "not run"]
_IMPORT = re.compile(r"^from (millrace[\w.]*) import (.+)$", re.MULTILINE)
#: A file that settings name -> its contents.
FILES = {
    "password": "secret",
    "web-password": "secret",
    "web-tokens": "operate ops 0123456789abcdef",
    **dict.fromkeys(("cert.pem", "key.pem", "client-ca.pem"), "a certificate or key"),
}


def where(block: Block) -> str:
    return block.where


@pytest.mark.parametrize("block", SETTINGS, ids=where)
def test_settings_can_be_loaded(block: Block, tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text + "\n", "utf-8")
    text = block.text.replace("/etc/millrace/", f"{tmp_path}/").replace("/run/millrace/", "/run/")
    file = tmp_path / "millrace.toml"
    file.write_text(text, "utf-8")
    config = load({}, {}, file).config
    assert config != load({}, {"MILLRACE_CONFIG": ""}).config


@pytest.mark.parametrize("block", PROGRAMS, ids=where)
def test_a_program_that_is_not_run_can_be_compiled_and_imports_names_that_exist(
    block: Block,
) -> None:
    compile(block.text, block.where, "exec")
    modules = {"millrace": millrace, "millrace.client": millrace.client}
    for module, names in _IMPORT.findall(block.text):
        for name in names.split(","):
            assert hasattr(modules[module], name.strip().partition(" as ")[0]), name


def test_a_shell_block_is_run_or_has_a_reason() -> None:
    for block in ALL:
        if block.language in {"shell", "sh", "bash"}:
            assert block.directive == "not run", block.where
            assert block.value, block.where


def test_there_are_blocks_to_check() -> None:
    assert len(SETTINGS) > 5
    assert len(PROGRAMS) > 5

"""docs/reference/masenko.md: its conversations are run, and its lists are complete."""

import ast
from pathlib import Path

import conversations
import pytest
from pages import PAGES, ROOT, Block, blocks

from millrace.protocols.masenko.connection import COMMANDS
from server_process import running_server

PAGE = ROOT / "docs" / "reference" / "masenko.md"
BLOCKS = [block for page in PAGES for block in blocks(page) if block.language == "masenko"]
SOURCES = list((ROOT / "src" / "millrace" / "protocols" / "masenko").glob("*.py"))


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.where)
def test_a_conversation(block: Block, tmp_path: Path) -> None:
    settings = dict([block.value.split("=", 1)]) if block.directive == "server" else {}
    with running_server(tmp_path / "data", **settings) as server:
        conversations.hold(block.lines, server.ports["masenko"], greeted=False, newline=b"\n")


def test_a_wrong_conversation_fails(tmp_path: Path) -> None:
    lines = ["C: PING", "S: PONG"]
    with running_server(tmp_path / "data") as server:
        port = server.ports["masenko"]
        with pytest.raises(AssertionError, match=r"the server sent PONG \{\}"):
            conversations.hold(lines, port, greeted=False, newline=b"\n")


def test_the_page_has_a_conversation_for_every_command() -> None:
    turns = [turn for block in BLOCKS for turn in conversations.parse(block.lines)]
    actual = {turn.text.partition(" ")[0].encode() for turn in turns if turn.speaker == "C"}
    assert set(COMMANDS) | {b"DONE"} <= actual


def error_texts() -> set[str]:
    """The fixed parts of every error text in the sources."""
    found: set[str] = set()
    for source in SOURCES:
        for node in ast.walk(ast.parse(source.read_text("utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            name = (
                node.func.attr
                if isinstance(node.func, ast.Attribute)
                else getattr(node.func, "id", "")
            )
            if name in {"ClientError", "error_reply", "_fail", "_refuse_commit"} and node.args:
                found |= _fixed_parts(node.args[0])
    return found


def _fixed_parts(text: ast.expr) -> set[str]:
    pieces = text.values if isinstance(text, ast.JoinedStr) else [text]
    words = [p.value for p in pieces if isinstance(p, ast.Constant) and isinstance(p.value, str)]
    return {word.strip() for word in words if len(word.strip()) > 5}


def test_there_are_errors_to_list() -> None:
    assert {"task not acquired", "no heartbeat", "is not allowed in transaction."} <= error_texts()


@pytest.mark.parametrize("text", sorted(error_texts()))
def test_the_page_lists_every_error(text: str) -> None:
    assert text in PAGE.read_text("utf-8").partition("\n## Errors")[2]

"""The documentation matches the behaviour: every example is run, every link has a target."""

import ast
import re
import shutil
import sys
from pathlib import Path

import cli_page
import conversations
import pytest
import redis_cli
import stories
from pages import PAGES, ROOT, RUNNABLE, Block, anchors, blocks, blocks_in, links

from millrace.protocols.faktory.connection import COMMANDS as FAKTORY_COMMANDS
from millrace.protocols.qless.connection import QlessConnection
from millrace.protocols.qless.script_catalog import SPEC_COMMANDS
from millrace.protocols.workq.connection import COMMANDS as WORKQ_COMMANDS
from server_process import ServerProcess, running_server

DOCS = ROOT / "docs"
MILLRACE = Path(sys.executable).with_name("millrace")
#: Pages with separate tests of their examples: tests/server/test_config.py.
ELSEWHERE = {DOCS / "reference" / "configuration.md"}
STORY = {"run", "server", "file"}


def where(item: Block | Path) -> str:
    return item.where if isinstance(item, Block) else str(item.relative_to(ROOT))


CONVERSATIONS = [b for page in PAGES for b in blocks(page) if b.language == "faktory"]
REDIS_TRANSCRIPTS = [b for page in PAGES for b in blocks(page) if b.language == "redis"]
WORKQ_CONVERSATIONS = [b for page in PAGES for b in blocks(page) if b.language == "workq"]
TALES = [
    page
    for page in PAGES
    if any(b.directive in STORY and b.language in RUNNABLE for b in blocks(page))
]


# Conversations


@pytest.mark.parametrize("block", CONVERSATIONS, ids=where)
def test_a_conversation(block: Block, tmp_path: Path) -> None:
    settings = dict([block.value.split("=", 1)]) if block.directive == "server" else {}
    with running_server(tmp_path / "data", **settings) as server:
        password = settings.get("MILLRACE_FAKTORY_PASSWORD", "")
        conversations.hold(block.lines, server.port, password)


@pytest.mark.parametrize("block", WORKQ_CONVERSATIONS, ids=where)
def test_a_workq_conversation(block: Block, tmp_path: Path) -> None:
    settings = dict([block.value.split("=", 1)]) if block.directive == "server" else {}
    with running_server(tmp_path / "data", **settings) as server:
        conversations.hold(block.lines, server.ports["workq"], greeted=False)


@pytest.mark.parametrize("block", REDIS_TRANSCRIPTS, ids=where)
def test_a_transcript_of_redis_cli(block: Block, tmp_path: Path) -> None:
    if shutil.which(redis_cli.PROGRAM) is None:
        pytest.skip("no redis-cli here; install the Debian package redis-tools")
    settings = dict([block.value.split("=", 1)]) if block.directive == "server" else {}
    unauthenticated = "MILLRACE_QLESS_PASSWORD" in settings
    with running_server(tmp_path / "data", **settings) as server:
        redis_cli.hold(block.lines, server.ports["qless"], unauthenticated=unauthenticated)


@pytest.mark.parametrize(
    "lines",
    [
        ["> PING", "PANG"],
        ["> PING", "PONG", "PONG"],
        ["> PING"],
        ["> PING", "(nil)"],
        ["> QLESS.GET 0 missing", "{}"],
        ["> QLESS.GETCONFIG 0 heartbeat", "6"],
        ["> QLESS.GETCONFIG 0", '{"application":"other...'],
        ["PONG"],
    ],
)
def test_a_wrong_transcript_fails(server: ServerProcess, lines: list[str]) -> None:
    if shutil.which(redis_cli.PROGRAM) is None:
        pytest.skip("no redis-cli here; install the Debian package redis-tools")
    with pytest.raises(AssertionError):
        redis_cli.hold(lines, server.ports["qless"])


def test_the_qless_page_has_a_transcript_for_every_command() -> None:
    actual = {
        command.partition(" ")[0].removeprefix("QLESS.").lower()
        for block in REDIS_TRANSCRIPTS
        for command, _ in redis_cli.commands(block.lines)
    }
    assert actual >= SPEC_COMMANDS


def test_the_qless_page_names_every_command_of_redis_that_is_served() -> None:
    page = (DOCS / "reference" / "qless.md").read_text("utf-8")
    part = page.partition("## Commands of Redis\n")[2].partition("\n## ")[0]
    served = {name for name in QlessConnection.commands if not name.startswith(b"QLESS.")}
    assert {name.encode() for name in re.findall(r"`([A-Z]+)[` ]", part)} >= served


def test_the_workq_page_has_a_conversation_for_every_command() -> None:
    actual = {
        turn.text.partition(" ")[0].encode()
        for block in WORKQ_CONVERSATIONS
        for turn in conversations.parse(block.lines)
        if turn.speaker == "C"
    }
    assert set(WORKQ_COMMANDS) <= actual


def test_the_protocols_page_has_a_conversation_for_every_command() -> None:
    page = DOCS / "reference" / "faktory.md"
    actual = [
        turn.text.partition(" ")[0].encode()
        for block in blocks(page)
        if block.language == "faktory"
        for turn in conversations.parse(block.lines)
        if turn.speaker == "C"
    ]
    assert set(FAKTORY_COMMANDS) | {b"HELLO"} <= set(actual)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["C: FLUSH", "S: +DONE"], r"\+OK"),
        (["C: FLUSH", "S: +OK", "S: (closed)"], "timed out"),
        (["C: END", "S: +OK", "S: +OK"], r"\(closed\)"),
        (["C: BOGUS", "S: -ERR unknown command BOGU"], "unknown command BOGUS"),
        (["C: PUSHB []", "S: $3", "S: {}"], r"has \$3, but it is \$2"),
        (["C: PUSHB []", "S: $2", "S: []"], "{}"),
        (["C: FLUSH", "S: +OK", "?"], "not a line of a conversation"),
        (["S: +HI {}"], "HI"),
    ],
)
def test_a_wrong_conversation_fails(
    server: ServerProcess, lines: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if message == "timed out":  # the others fail at a reply, which a busy machine may delay
        monkeypatch.setattr(conversations, "TIMEOUT", 0.5)
    with pytest.raises((AssertionError, TimeoutError), match=message):
        conversations.hold(lines, server.port)


def test_output_that_the_page_does_not_show_fails(server: ServerProcess) -> None:
    greeting_unread = ["C2: FLUSH", "S2: +OK", "C: INFO", "S: $2", "S: {}"]
    with pytest.raises(AssertionError, match="the server sent"):
        conversations.hold(greeting_unread, server.port)


# Commands and programs


@pytest.mark.parametrize("page", TALES, ids=where)
def test_the_commands_and_programs_of(page: Path, tmp_path: Path) -> None:
    actual = {word for block in blocks(page) for word in block.text.split()}
    missing = [tool for tool in ("curl", "jq") if tool in actual and shutil.which(tool) is None]
    if missing:
        pytest.skip(f"install the Debian packages {' '.join(missing)}")
    with stories.story(tmp_path) as story:
        story.tell(blocks(page))


@pytest.mark.parametrize("page", [p for p in PAGES if p not in ELSEWHERE], ids=where)
def test_every_block_that_can_run_is_run_or_has_a_reason(page: Path) -> None:
    for block in blocks(page):
        if block.language in RUNNABLE:
            assert block.directive in STORY | {"not run"}, f"{block.where}: to be run, or not?"
            assert block.directive != "not run" or block.value, f"{block.where}: why not?"


@pytest.mark.parametrize(
    "text",
    [
        "<!-- run -->\n```console\n$ echo one\ntwo\n```\n",
        "<!-- run -->\n```console\n$ echo one; echo two\none\n```\n",
        "<!-- run -->\n```console\n$ true\none\n```\n",
        "<!-- run -->\n```python\nprint(1)\n```\n",
        "<!-- run -->\n```python\nprint(1)\n```\n\n<!-- output -->\n```text\n2\n```\n",
        "<!-- run: background -->\n```console\n$ echo one\ntwo\n```\n",
        "<!-- run: soon -->\n```console\n$ echo one\ntwo\n```\n",
        "<!-- server -->\n```console\n$ make run\nready to go\n```\n",
    ],
)
def test_a_wrong_page_fails(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = blocks_in(text, ROOT / "README.md")
    start = stories.Story._start

    def start_server(story: stories.Story, command: str, prints: list[str]) -> stories.Terminal:
        terminal = start(story, command, prints)
        if "background" in text or "soon" in text:
            monkeypatch.setattr(stories, "TIMEOUT", 2.0)
        return terminal

    if any(block.directive == "server" for block in page):
        monkeypatch.setattr(stories, "TIMEOUT", 2.0)
    else:  # the start has the usual time, because the machine may be busy
        monkeypatch.setattr(stories.Story, "_start", start_server)
    with pytest.raises(AssertionError), stories.story(tmp_path) as story:
        story.tell(page)


def test_the_two_commands_of_the_readme_exist() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for target in ("run", "test"):
        assert f"make {target}" in readme
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


# Links


def dead_links(page: Path) -> list[str]:
    dead = []
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(link)
    return dead


@pytest.mark.parametrize("page", PAGES, ids=where)
def test_links_have_targets(page: Path) -> None:
    assert dead_links(page) == []


def test_a_dead_link_fails(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One: `two`\n[a](page.md) [b](#one-two) [c](other.md) [d](page.md#three)\n"
        "[e](https://example.com) `[f](g.md)`\n\n```text\n[h](i.md)\n```\n",
        "utf-8",
    )
    assert dead_links(page) == ["other.md", "page.md#three"]


@pytest.mark.parametrize("page", [p for p in PAGES if DOCS in p.parents], ids=where)
def test_every_page_is_in_the_index(page: Path) -> None:
    index = DOCS / "README.md"
    listed = {(index.parent / link).resolve() for link in links(index)}
    assert page == index or page in listed


# The command line


def test_the_reference_of_the_command_line_is_generated_from_the_commands() -> None:
    page = (DOCS / "reference" / "cli.md").read_text("utf-8")
    assert page == cli_page.page(), cli_page.__doc__


# The errors of the protocol


def error_texts() -> set[str]:
    """The fixed parts of every error text in the sources of the Faktory protocol."""
    protocols = ROOT / "src" / "millrace" / "protocols"
    found: set[str] = set()
    for source in [*(protocols / "faktory").glob("*.py"), protocols / "go_json.py"]:
        for node in ast.walk(ast.parse(source.read_text("utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            if node.func.id in {"ClientError", "error_reply"} and node.args:
                found |= _fixed_parts(node.args[0])
    return found


def _fixed_parts(text: ast.expr) -> set[str]:
    pieces = text.values if isinstance(text, ast.JoinedStr) else [text]
    words = [p.value for p in pieces if isinstance(p, ast.Constant) and isinstance(p.value, str)]
    return {word.strip() for word in words if len(word.strip()) > 5}


def test_there_are_errors_to_list() -> None:
    assert {"Invalid password", "missing JID", "unknown worker"} <= error_texts()


@pytest.mark.parametrize("text", sorted(error_texts()))
def test_the_protocols_page_lists_every_error(text: str) -> None:
    page = (DOCS / "reference" / "faktory.md").read_text("utf-8")
    assert text in page.partition("\n## Errors")[2].replace("\\|", "|")

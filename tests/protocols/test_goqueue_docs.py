"""The conversations of docs/reference/goqueue.md, byte for byte, and its complete list of errors.

    C: ADD\\0 emails\\0 4:0 4:60 4:5 hello
    S: ADDED\\0 8:1

`C2:` and `S2:` are a second connection. `4:60` is a number with the given count of bytes, `"a b"`
contains a space, everything else is literal, and spaces in between are not sent.
"""

import ast
import re
from pathlib import Path

import pytest
from goqueue_conversation import Goqueue, GoqueueClient

from millrace.protocols import goqueue
from millrace.protocols.goqueue.connection import COMMANDS as GOQUEUE_COMMANDS

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "goqueue.md").read_text("utf-8")
BLOCKS = re.findall(r"^```goqueue\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)

_TURN = re.compile(r"([CS])(\d*): (.*)")
_LATER = re.compile(r"\((\d+) s later\)")
_FIELD = re.compile(r'"([^"]*)"|(\d):(\d+)(?= |$)|(\S+)')


def encoded(fields: str) -> bytes:
    parts = []
    for quoted, size, number, bare in _FIELD.findall(fields):
        if size:
            parts.append(int(number).to_bytes(int(size), "little"))
        else:
            parts.append((quoted or bare).replace("\\0", "\0").encode())
    return b"".join(parts)


def test_the_notation():
    assert encoded(r'ADD\0 \0 4:258 8:1 "a b\0" 4:x x4:1') == (
        b"ADD\0\0\x02\x01\0\0\x01\0\0\0\0\0\0\0a b\x004:xx4:1"
    )


def hold(block: str) -> None:
    with Goqueue() as talk:
        clients: dict[str, GoqueueClient] = {}
        for line in block.splitlines():
            if later := _LATER.fullmatch(line):
                talk.advance(int(later[1]))
                continue
            turn = _TURN.fullmatch(line)
            assert turn, f"not a line of a conversation: {line!r}"
            speaker, number, fields = turn.groups()
            if number not in clients:
                clients[number] = talk.connect()
            client = clients[number]
            if speaker == "C":
                client.says(encoded(fields))
            elif fields == "(closed)":
                client.hears_the_end()
            else:
                client.hears(encoded(fields))


@pytest.mark.parametrize("block", BLOCKS)
def test_a_conversation_of_the_page(block):
    hold(block)


@pytest.mark.parametrize(
    "block",
    [
        "C: CONNECT\\0\nS: NO\\0\n",
        "C: CONNECT\\0\n",
        "C: CONNECT\\0\nS: OK\\0\nS: (closed)\n",
        "C: RESERVE\\0 q\\0 4:2\n(1 s later)\nS: TIMEOUT\\0\n",
        "CONNECT\\0\n",
    ],
)
def test_a_wrong_conversation_fails(block):
    with pytest.raises(AssertionError):
        hold(block)


def test_every_command_has_a_conversation():
    said = re.findall(r"^C\d*: ([A-Z]+)", "".join(BLOCKS), re.MULTILINE)
    assert {name.encode() for name in said} >= set(GOQUEUE_COMMANDS)


def test_the_bytes_of_the_example_are_counted():
    sent, back = re.search(
        r"are (\d+) bytes from the client and (\d+) from the server", PAGE
    ).groups()
    command, reply = BLOCKS[0].splitlines()
    assert (len(encoded(command[3:])), len(encoded(reply[3:]))) == (int(sent), int(back))


def error_texts() -> set[str]:
    """The fixed parts of the error texts in the sources."""
    found: set[str] = set()
    for source in Path(goqueue.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(source.read_text("utf-8"))):
            match node:
                case ast.Call(ast.Name("ClientError" | "MalformedCommand" | "error_reply"), [text]):
                    parts = text.values if isinstance(text, ast.JoinedStr) else [text]
                    found |= {p.value for p in parts if isinstance(p, ast.Constant)}
    return {text.strip() for text in found if len(text.strip()) > 5}


def test_every_error_is_listed():
    errors = PAGE.partition("\n## Errors")[2]
    texts = error_texts()
    assert len(texts) >= 8
    assert [text for text in texts if text not in errors] == []

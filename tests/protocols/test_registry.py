"""The table of protocols, and a new protocol that consists of its package and one row."""

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import millrace
from millrace.config import section_types
from millrace.protocols.registry import (
    FAKTORY,
    GOQUEUE,
    HTTP,
    MASENKO,
    PROTOCOL_LABELS,
    PROTOCOL_NAMES,
    PROTOCOLS,
    QLESS,
    WORKQ,
)
from millrace.protocols.spec import load_spec, protocol_rules
from server_process import ServerProcess

HERE = Path(__file__).parent
ENGINE = Path(millrace.__file__).parent / "engine"
#: The program of a server with one more row in the table.
SERVE = """
import sys
sys.path.insert(0, {folder!r})
from millrace.protocols.registry import Protocol, add_protocol
add_protocol(Protocol(7, "tiny", "Tiny", "tiny"))
from millrace.cli import main
sys.exit(main())
"""


def test_codes_are_on_disk_and_do_not_change() -> None:
    assert (WORKQ, MASENKO, FAKTORY, QLESS, GOQUEUE, HTTP) == (1, 2, 3, 4, 5, 6)
    assert PROTOCOL_NAMES == ["", "workq", "masenko", "faktory", "qless", "goqueue", "http"]


def test_rows_are_unique_and_complete() -> None:
    assert len({row.code for row in PROTOCOLS}) == len(PROTOCOLS)
    assert len({row.label for row in PROTOCOLS}) == len(PROTOCOLS)
    assert {row.name: row.label for row in PROTOCOLS} == PROTOCOL_LABELS
    for row in PROTOCOLS:
        spec = load_spec(row)
        assert (spec.make_hub is not None) == row.listens
        assert (spec.make_connection is not None) == row.listens
        assert (row.name in section_types()) == row.listens


def test_the_rules_have_every_protocol() -> None:
    rules = protocol_rules()
    assert rules.policies.keys() == {row.code for row in PROTOCOLS}
    assert rules.bound_protocols == {MASENKO}
    assert rules.untimed_protocols == {MASENKO, QLESS}
    assert rules.exclusive_protocols == {MASENKO, QLESS, HTTP}
    assert rules.own_clock_protocols == rules.retaining_protocols == {QLESS}
    assert rules.keep_position_protocols == {GOQUEUE}


@pytest.mark.parametrize("path", sorted(ENGINE.rglob("*.py")), ids=lambda path: path.name)
def test_the_engine_names_no_protocol(path: Path) -> None:
    names = re.compile(r"faktory|workq|masenko|qless|goqueue|go job queue", re.IGNORECASE)
    keys_on_disk = re.compile(r'"qless/[a-z]+/"')
    assert names.findall(keys_on_disk.sub("", path.read_text())) == []


class TinyServer(ServerProcess):
    """A server whose table has the row of Tiny."""

    command = (sys.executable, "-c", SERVE.format(folder=str(HERE)))


def send_line(connection: socket.socket, line: bytes) -> bytes:
    connection.sendall(line + b"\n")
    reply = b""
    while not reply.endswith(b"\n"):
        reply += connection.recv(4096)
    return reply


def test_a_new_protocol_needs_its_package_and_one_row(tmp_path: Path) -> None:
    server = TinyServer(tmp_path / "data", MILLRACE_TINY_PORT="0")
    server.start()
    try:
        with socket.create_connection(("127.0.0.1", server.ports["tiny"]), 10) as client:
            assert send_line(client, b"put letters hello world") == b"put 1\n"
            assert send_line(client, b"put letters again") == b"put 2\n"
            assert send_line(client, b"get letters") == b"job 1 hello world\n"
            assert send_line(client, b"done 1") == b"done\n"
        server.kill()
        server.start()
        with socket.create_connection(("127.0.0.1", server.ports["tiny"]), 10) as client:
            assert send_line(client, b"get letters") == b"job 2 again\n"
            assert send_line(client, b"get letters") == b"nothing\n"
        with socket.create_connection(("127.0.0.1", server.ports["workq"]), 10) as client:
            reply = send_line(client, b"inspect queues 0 10\r")
        assert b"letters" in reply
    finally:
        server.stop()


def test_the_command_line_supports_the_new_protocol(tmp_path: Path) -> None:
    ran = subprocess.run(
        [*TinyServer.command, "config", "--tiny-port", "7001"],
        cwd=tmp_path,
        capture_output=True,
        check=True,
        text=True,
    )
    section = ran.stdout.split("[tiny]\n")[1].split("\n\n")[0]
    assert "port = 7001" in section
    assert "retries = 1" in section

"""The status of a real server, with and without a data folder."""

import os
import signal
import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millrace.admin.client import request
from millrace.admin.errors import AdminError
from millrace.config import HIDDEN
from server_process import ServerProcess, running_server

MEMORY = {"MILLRACE_SERVER_DURABILITY": "memory"}


def send_request(path: Path, **operation: Any) -> Any:
    try:
        *_, answer = request(path, operation)
    except AdminError as error:
        return {"error": str(error), "code": error.code}
    return msgspec.json.decode(answer)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The parent of the server's temporary folders."""
    made = tmp_path / "t"
    made.mkdir()
    return made


def test_a_server_reports_its_status(tmp_path: Path) -> None:
    secret = "do not tell 4711"
    with running_server(
        tmp_path / "data",
        MILLRACE_FAKTORY_PASSWORD=secret,
        MILLRACE_WEB_TOKENS="admin ann do-not-tell-this-4711",
        MILLRACE_QLESS_PORT="off",
    ) as server:
        control = tmp_path / "data" / "control"
        reported = send_request(control, server=True)
        text = msgspec.json.encode(reported).decode()
        assert "4711" not in text
        assert reported["pid"] == server.pid
        assert reported["data"] == str(tmp_path / "data")
        assert reported["lake"] == str(tmp_path / "data" / "lake")
        assert (reported["durability"], reported["tls"], reported["halted"]) == ("fsync", False, "")
        assert 0 < reported["store_bytes"] < reported["disk_size"]
        assert 0 < reported["disk_free"] <= reported["disk_size"]
        assert reported["memory_mb"] > 5
        settings = {each["key"]: each for each in reported["settings"]}
        assert settings["faktory.password"]["value"] == f'"{HIDDEN}"'
        assert settings["faktory.password"]["source"] == "MILLRACE_FAKTORY_PASSWORD"
        assert settings["faktory.password"]["reloadable"]
        assert settings["qless.port"]["value"] == '"off"'
        assert settings["server.durability"]["source"] == "default"
        ports = {row["name"]: row["port"] for row in reported["protocols"] if row["port"]}
        assert ports.items() <= server.ports.items()
        assert "qless" not in ports
        assert reported["qless"] == {}
        assert reported["pipeline"]["running"] is False


def test_a_reloaded_setting_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "millrace.toml"
    file.write_text("[server]\nmax_connections = 500\n")
    with running_server(tmp_path / "data", MILLRACE_CONFIG=str(file)) as server:
        control = tmp_path / "data" / "control"
        file.write_text("\n[server]\nmax_connections = 600\n")
        server.signal(signal.SIGHUP)
        for _ in range(1000):
            reported = {
                each["key"]: each for each in send_request(control, server=True)["settings"]
            }
            if reported["server.max_connections"]["value"] == "600":
                break
        assert reported["server.max_connections"]["value"] == "600"
        assert reported["server.max_connections"]["source"].endswith("millrace.toml:3")


def test_a_key_that_needs_a_restart_keeps_its_value(tmp_path: Path) -> None:
    """Status, API and a restarted web process report the values that the server uses."""
    file = tmp_path / "millrace.toml"
    file.write_text('[server]\ndurability = "os"\n[lake]\nship_every = "off"\n')
    with running_server(
        tmp_path / "data", MILLRACE_CONFIG=str(file), MILLRACE_LAKE_SHIP_EVERY=None
    ) as server:
        control = tmp_path / "data" / "control"
        file.write_text(
            '[server]\ndurability = "memory"\ndata = "elsewhere"\nmax_connections = 600\n'
            f'[lake]\npath = "{tmp_path}/other"\nship_every = "off"\n'
        )
        server.signal(signal.SIGHUP)
        for _ in range(1000):
            reported = send_request(control, server=True)
            settings = {each["key"]: each for each in reported["settings"]}
            if settings["server.max_connections"]["value"] == "600":
                break
        assert settings["server.max_connections"]["value"] == "600"
        assert settings["server.durability"]["value"] == '"os"'
        assert settings["server.durability"]["source"].endswith("millrace.toml:2")
        assert settings["lake.path"] | {"description": ""} == {
            "key": "lake.path",
            "value": '""',
            "source": "default",
            "description": "",
            "reloadable": False,
        }
        assert reported["durability"] == "os"
        assert reported["lake"] == str(tmp_path / "data" / "lake")
        messages = [record["message"] for record in server.log_records()]
        for key in ("server.durability", "lake.path"):
            assert f"{key} changed. Restart the server to apply the new value." in messages
        assert "Reloaded server.max_connections." in messages


def in_memory(tmp_path: Path, folder: Path) -> ServerProcess:
    return ServerProcess(tmp_path / "data", TMPDIR=str(folder), **MEMORY)


def test_a_server_without_a_data_folder_answers_all_requests(tmp_path: Path, folder: Path) -> None:
    server = in_memory(tmp_path, folder)
    try:
        server.start()
        (made,) = folder.iterdir()
        control = made / "control"
        reported = send_request(control, server=True)
        assert (reported["data"], reported["lake"], reported["store_bytes"]) == ("", "", 0)
        assert reported["durability"] == "memory"
        assert reported["pipeline"]["available"] is False
        for name in ("recurring", "tracked", "tags", "workers"):
            assert "error" not in send_request(control, **{name: {}}), name
        for name in ("limits", "faktory", "pipeline", "sizes", "overview"):
            assert "error" not in send_request(control, **{name: True}), name
        assert send_request(control, search={"query": {}})["jobs"] == []
        refused = send_request(control, run_pipeline={"by": "ann"})
        assert "durability" in refused["error"]
        assert server.stop() == 0
        assert list(folder.iterdir()) == []
    finally:
        server.close()
    assert not (tmp_path / "data").exists()


def test_a_server_without_a_data_folder_leaves_no_files_when_it_cannot_listen(
    tmp_path: Path, folder: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        server = in_memory(tmp_path, folder)
        try:
            server.spawn(MILLRACE_FAKTORY_PORT=port)
            assert server.wait() == 1
            assert os.listdir(folder) == []
        finally:
            server.close()

"""`millrace demo` pushes and runs jobs of every protocol, and cleans up."""

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from server_process import MILLRACE

PROTOCOLS = {"faktory", "workq", "masenko", "qless", "goqueue"}


def test_the_demo(tmp_path: Path) -> None:
    command = [MILLRACE, "demo", "--pipeline", "0", "--web-port", "0", "--rate", "40"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as demo:
        try:
            assert demo.stdout is not None
            address = demo.stdout.readline().split()[1]
            deadline = time.monotonic() + 60
            seen: set[str] = set()
            processed = 0
            while (seen != PROTOCOLS or processed < 50) and time.monotonic() < deadline:
                for protocol in PROTOCOLS - seen:
                    if get(address, f"/jobs?protocol={protocol}&limit=1")["jobs"]:
                        seen.add(protocol)
                processed = get(address, "/overview")["processed"]
            assert (seen, processed >= 50) == (PROTOCOLS, True)
            assert get(address, "/recurring")["count"] == 2
            assert [each["maximum"] for each in get(address, "/throttles")["throttles"]] == [2]
            demo.send_signal(signal.SIGINT)
            assert demo.wait(60) == 0
        finally:
            demo.kill()
    assert not list(tmp_path.glob("millrace-demo-*"))


def test_sigterm_stops_the_server_of_the_demo(tmp_path: Path) -> None:
    command = [MILLRACE, "demo", "--pipeline", "0", "--web-port", "0"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as demo:
        try:
            assert demo.stdout is not None
            address = demo.stdout.readline().split()[1]
            assert get(address, "/overview")
            demo.send_signal(signal.SIGTERM)
            assert demo.wait(60) == 0
        finally:
            demo.kill()
    with pytest.raises(urllib.error.URLError):
        get(address, "/overview")
    assert not list(tmp_path.glob("millrace-demo-*"))


def get(address: str, path: str) -> dict:
    with urllib.request.urlopen(f"{address}/api/v1{path}") as reply:
        return json.load(reply)

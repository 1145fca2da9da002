"""The web process: its start, its end, and the settings and secrets that it receives."""

import asyncio
import base64
import contextlib
import http.client
import json
import os
import signal
import socket
import ssl
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from certificates import Certificates
from millrace.server import web_process
from millrace.server.sockets import open_port
from raw_faktory import RawFaktory
from server_process import DidNotStartError, ServerProcess, running_server, server_process

PASSWORD = "a password of the pages"
READ, ADMIN = "read-0123456789abcdef", "admin-0123456789abcdef"
SECRETS = {
    "MILLRACE_WEB_PASSWORD": PASSWORD,
    "MILLRACE_WEB_TOKENS": f"read looker {READ}, admin chief {ADMIN}",
}
MEMORY = {"MILLRACE_SERVER_DURABILITY": "memory"}


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: str


def send_request(
    server: ServerProcess,
    method: str,
    path: str,
    body: str | None = None,
    host: str = "127.0.0.1",
    tls: ssl.SSLContext | None = None,
    **headers: str,
) -> Answer:
    port = server.ports["web"]
    if tls is None:
        caller = http.client.HTTPConnection(host, port, timeout=20)
    else:
        caller = http.client.HTTPSConnection(host, port, timeout=20, context=tls)
    with contextlib.closing(caller):
        caller.request(method, path, body, {k.replace("_", "-"): v for k, v in headers.items()})
        answer = caller.getresponse()
        found = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, found, answer.read().decode())


def log_in(server: ServerProcess, secret: str, **more: Any) -> str:
    """Return the session cookie."""
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = send_request(
        server, "POST", "/login", f"password={secret.replace(' ', '+')}", **form, **more
    )
    assert answer.status == 303
    return answer.headers["set-cookie"]


def is_allowed(server: ServerProcess, **more: Any) -> bool:
    """Whether a request with these headers shows jobs."""
    return send_request(server, "GET", "/jobs", **more).status == 200


def children(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except FileNotFoundError:
        return []
    return [int(pid_text) for pid_text in text.split()]


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def until(true: Any, seconds: float = 15.0) -> None:
    """Poll a condition of another process."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "the condition was not reached"
        time.sleep(0.02)


def listen(server: ServerProcess, **headers: str) -> socket.socket:
    """Connect to the live stream and read its first event."""
    listener = socket.create_connection(("127.0.0.1", server.ports["web"]), 20)
    lines = [
        f"{name}: {value}"
        for name, value in ({"Host": "localhost", "Connection": "close"} | headers).items()
    ]
    listener.sendall("\r\n".join(["GET /live HTTP/1.1", *lines, "", ""]).encode())
    assert b"200 OK" in listener.recv(4096)
    return listener


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[ServerProcess]:
    with running_server(tmp_path / "data", **SECRETS) as server:
        yield server


# Start


def test_the_process_starts_with_the_first_request(server: ServerProcess):
    assert children(server.pid) == []
    assert send_request(server, "GET", "/static/base.css").status == 200
    (child,) = children(server.pid)
    assert send_request(server, "GET", "/static/base.css").status == 200
    assert children(server.pid) == [child]


def test_concurrent_first_requests_are_served(server: ServerProcess):
    callers = []
    for _ in range(300):
        caller = socket.create_connection(("127.0.0.1", server.ports["web"]), 20)
        caller.sendall(b"GET /static/base.css HTTP/1.0\r\n\r\n")
        callers.append(caller)
    for caller in callers:
        with caller, caller.makefile("rb") as stream:
            assert b" 200 " in stream.readline()
    assert len(children(server.pid)) == 1


def test_a_port_that_is_taken_stops_the_server_with_a_reason(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with server_process(tmp_path / "data", MILLRACE_WEB_PORT=port) as server:
            with pytest.raises(DidNotStartError):
                server.start()
            assert server.returncode == 1
            (line,) = [r["message"] for r in server.log_records() if r["level"] == "error"]
        assert "Cannot listen on 127.0.0.1" in line
        assert port in line


def test_the_web_port_can_be_disabled(tmp_path: Path):
    with running_server(tmp_path / "data", MILLRACE_WEB_PORT="off") as server:
        assert "web" not in server.ports
        server.signal(signal.SIGHUP)
        with RawFaktory(server.port) as client:
            client.info()
        assert server.stop() == 0


@pytest.mark.parametrize("host", ["::1", "localhost", "127.0.0.2"])
def test_the_web_port_uses_the_configured_host(tmp_path: Path, host: str):
    with running_server(tmp_path / "data", MILLRACE_SERVER_HOST=host) as server:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        for address in {str(each[4][0]) for each in found}:
            assert send_request(server, "GET", "/static/base.css", host=address).status == 200


def test_a_server_without_a_store_has_pages_and_logins(tmp_path: Path):
    with running_server(tmp_path / "data", **MEMORY, **SECRETS) as server:
        cookie = log_in(server, PASSWORD)
        assert is_allowed(server, cookie=cookie)
        assert not (tmp_path / "data").exists()
        assert server.stop() == 0


# End


def test_the_next_request_restarts_an_ended_process(server: ServerProcess):
    assert send_request(server, "GET", "/static/base.css").status == 200
    for _ in range(2):
        (child,) = children(server.pid)
        os.kill(child, signal.SIGKILL)
        until(lambda child=child: has_ended(child))
        assert send_request(server, "GET", "/static/base.css").status == 200
        assert children(server.pid) != [child]
    with RawFaktory(server.port) as client:
        client.info()
    ends = [r["message"] for r in server.log_records() if "Web process exited" in r["message"]]
    assert ends == ["Web process exited with status -9; it restarts on the next connection."] * 2


def test_a_stopping_server_ends_the_process_despite_listeners(server: ServerProcess):
    listeners = [listen(server) for _ in range(50)]
    idle = [socket.create_connection(("127.0.0.1", server.ports["web"]), 20) for _ in range(50)]
    (child,) = children(server.pid)
    began = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - began < 3
    assert has_ended(child)
    for each in listeners + idle:
        each.close()
    assert not [r for r in server.log_records() if r["level"] == "error"]


def test_a_killed_server_leaves_no_process(server: ServerProcess):
    with listen(server):
        (child,) = children(server.pid)
        server.kill()
        until(lambda: has_ended(child))


def test_a_stopped_process_does_not_keep_the_port_of_a_killed_server(tmp_path: Path):
    """A process that is stopped or is still importing modules does not read its input, so it cannot
    notice the end.
    """
    with server_process(tmp_path / "data") as server:
        server.start()
        assert send_request(server, "GET", "/static/base.css").status == 200
        (child,) = children(server.pid)
        os.kill(child, signal.SIGSTOP)
        port = str(server.ports["web"])
        server.kill()
        server.start(MILLRACE_WEB_PORT=port)
        assert has_ended(child)


def test_a_process_that_is_starting_ends_with_a_killed_server(tmp_path: Path):
    with server_process(tmp_path / "data") as server:
        server.start()
        port = server.ports["web"]
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", port), 20):
                until(lambda: children(server.pid))
                (child,) = children(server.pid)
                server.kill()
            server.start(MILLRACE_WEB_PORT=str(port))
            assert has_ended(child)


def test_a_process_that_does_not_stop_is_killed(server: ServerProcess):
    assert send_request(server, "GET", "/static/base.css").status == 200
    (child,) = children(server.pid)
    os.kill(child, signal.SIGSTOP)
    began = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - began < web_process.STOP_TIMEOUT + 2
    assert has_ended(child)


def test_logins_survive_a_restart_of_the_server(guarded: ServerProcess):
    cookie = log_in(guarded, PASSWORD)
    guarded.restart()
    assert is_allowed(guarded, cookie=cookie)
    key = guarded.data / "web.key"
    assert key.stat().st_mode & 0o777 == 0o600


def test_a_failing_process_is_restarted_with_increasing_pauses(monkeypatch: pytest.MonkeyPatch):
    command = [sys.executable, "-c", "raise SystemExit(7)"]
    monkeypatch.setattr(web_process, "web_command", lambda: command)
    monkeypatch.setattr(web_process, "MIN_RESTART_PAUSE", 0.01)
    pauses: list[float] = []

    async def hold() -> None:
        sockets = open_port("127.0.0.1", 0, "web")
        port = sockets[0].getsockname()[1]
        opened = web_process.WebProcess(sockets, dict)
        restart_later, enough = opened._restart_later, asyncio.Event()

        def noted() -> None:
            pauses.append(opened._pause)
            if len(pauses) == 4:
                enough.set()
            restart_later()

        opened._restart_later = noted  # type: ignore[method-assign]
        opened.start()
        opened.start()
        with socket.create_connection(("127.0.0.1", port)):
            await asyncio.wait_for(enough.wait(), 20)
        await opened.stop()
        await opened.stop()

    asyncio.run(hold())
    first = pauses[0]
    assert pauses[:4] == [first, 2 * first, 4 * first, 8 * first]


@pytest.fixture
def broken(tmp_path: Path) -> dict[str, str]:
    """Variables of a server whose web process cannot start."""
    (tmp_path / "starlette.py").write_text("raise ImportError('starlette is damaged')", "utf-8")
    return {"PYTHONPATH": str(tmp_path)}


def test_requests_fail_fast_if_the_process_cannot_start(tmp_path: Path, broken: dict[str, str]):
    with running_server(tmp_path / "data", **broken) as server:
        for _ in range(3):
            answer = send_request(server, "GET", "/api/v1/queues")
            assert (answer.status, answer.headers["retry-after"]) == (503, "30")
            assert "See the log" in answer.body
        posted = send_request(server, "POST", "/api/v1/jobs", "x" * 100_000)
        assert posted.status == 503
        with RawFaktory(server.port) as client:
            client.info()
        assert server.stop() == 0
        messages = [r["message"] for r in server.log_records()]
    assert "web: ImportError: starlette is damaged" in messages
    assert "Web process exited with status 1 again; requests get status 503 for 2 s." in messages


def test_a_process_that_cannot_start_closes_connections_with_tls(
    tmp_path: Path, broken: dict[str, str], certificates: Certificates
):
    context = ssl.create_default_context(cafile=str(certificates.ca))
    with running_server(tmp_path / "data", **broken, **certificates.environment) as server:
        with pytest.raises((http.client.HTTPException, OSError)) as failed:
            send_request(server, "GET", "/", tls=context)
        assert not isinstance(failed.value, TimeoutError)


def test_many_refused_connections_are_closed(tmp_path: Path, broken: dict[str, str]):
    with running_server(tmp_path / "data", **broken) as server:
        address = ("127.0.0.1", server.ports["web"])
        clients = [socket.create_connection(address, 20) for _ in range(300)]
        for client in clients:
            with client:
                assert client.recv(12) in {b"HTTP/1.1 503", b""}
        assert server.stop() == 0


# Configuration


def test_reloaded_settings_reach_the_process(tmp_path: Path):
    secret = tmp_path / "password"
    secret.write_text("first password", "utf-8")
    config = tmp_path / "millrace.toml"

    def written(more: str) -> None:
        config.write_text(f'[web]\npassword = "{secret}"\n{more}', "utf-8")

    written(f'tokens = ["operate worker {ADMIN}"]')
    with running_server(tmp_path / "data", MILLRACE_CONFIG=str(config)) as server:
        cookie = log_in(server, "first password")
        token = {"authorization": f"Bearer {ADMIN}"}
        pause = ("POST", "/api/v1/queues/mail/pause", "{}")
        typed = token | {"content_type": "application/json"}
        assert is_allowed(server, cookie=cookie)
        assert send_request(server, *pause, **typed).status != 403
        stream = listen(server, Cookie=cookie.partition(";")[0])

        secret.write_text("second password", "utf-8")
        written(f'tokens = ["operate worker {ADMIN}"]\nread_only = true')
        server.signal(signal.SIGHUP)
        until(lambda: not is_allowed(server, cookie=cookie))
        with stream:
            until(lambda: not stream.recv(65_536))  # this client must also log in again
        assert is_allowed(server, **token)
        assert send_request(server, *pause, **typed).status == 403
        assert is_allowed(server, cookie=log_in(server, "second password"))

        written("")
        server.signal(signal.SIGHUP)
        until(lambda: not is_allowed(server, **token))
        messages = {r["message"] for r in server.log_records()}
        assert {
            "Reloaded web.password.",
            "Reloaded web.tokens.",
            "Reloaded web.read_only.",
        } <= messages


def test_secrets_are_not_readable(guarded: ServerProcess):
    cookie = log_in(guarded, PASSWORD).partition(";")[0].partition("=")[2]
    wrong = "nearly-the-password"
    basic = base64.b64encode(f"x:{wrong}".encode()).decode()
    send_request(guarded, "GET", "/", authorization=f"Bearer {wrong}")
    send_request(guarded, "GET", "/", authorization=f"Basic {basic}")
    send_request(guarded, "GET", "/nowhere", authorization=f"Bearer {ADMIN}", cookie=f"x={cookie}")
    shown = []
    for path in ("configuration", "server", "audit", "api/v1/configuration", "api/v1/audit"):
        answer = send_request(guarded, "GET", f"/{path}", authorization=f"Bearer {ADMIN}")
        assert answer.status == 200
        shown.append(answer.body)
    (child,) = children(guarded.pid)
    shown += [Path(f"/proc/{child}/{name}").read_text() for name in ("cmdline", "environ")]
    shown += [Path(f"/proc/{guarded.pid}/cmdline").read_text()]
    guarded.signal(signal.SIGHUP)
    guarded.stop()
    shown.append(guarded.stderr)
    kept = [path for path in guarded.data.rglob("*") if path.is_file()]
    shown += [path.read_bytes().decode("latin-1") for path in kept]
    for secret in (PASSWORD, READ, ADMIN, wrong, basic, cookie):
        assert [text[:200] for text in shown if secret in text] == []


def test_no_other_child_inherits_a_secret(tmp_path: Path):
    faktory = {"MILLRACE_FAKTORY_PASSWORD": "of the workers", "FAKTORY_PASSWORD": "of the workers"}
    settings = SECRETS | faktory | {"MILLRACE_LAKE_SHIP_EVERY": "100ms", "HOME": "/tmp/here"}
    with running_server(tmp_path / "data", **settings) as server:
        with RawFaktory(server.port, password="of the workers") as client:
            client.push({"jid": "inherits-1", "jobtype": "x", "args": []})
        found: list[str] = []

        def command(process: int) -> str:
            return Path(f"/proc/{process}/cmdline").read_text()

        def seen() -> bool:
            for child in children(server.pid):
                with contextlib.suppress(OSError):
                    # Between fork and exec a child is a copy of the server.
                    if command(child) not in {"", command(server.pid)}:
                        found.append(Path(f"/proc/{child}/environ").read_text())
            return any("MILLRACE_LAKE_SHIP_EVERY" in text for text in found)

        until(seen)
        for text in found:
            for secret in (PASSWORD, READ, ADMIN, "of the workers"):
                assert secret not in text


def test_logins_are_in_the_audit_log(guarded: ServerProcess):
    log_in(guarded, PASSWORD)
    cookie = log_in(guarded, ADMIN)
    send_request(guarded, "GET", "/", authorization="Bearer not-the-right-one")
    send_request(guarded, "POST", "/logout", cookie=cookie)

    def noted() -> list[tuple[str, str]]:
        answer = send_request(guarded, "GET", "/api/v1/audit", authorization=f"Bearer {ADMIN}")
        entries = next(v for v in json.loads(answer.body).values() if isinstance(v, list))
        return [(entry["action"], entry["by"]) for entry in entries]

    until(lambda: len(noted()) == 4)
    assert sorted(noted()) == [
        ("login", "chief from 127.0.0.1"),
        ("login", "password from 127.0.0.1"),
        ("login refused", "127.0.0.1"),
        ("logout", "chief from 127.0.0.1"),
    ]
    logged = [each for each in guarded.log_records() if each["message"] == "audit"]
    assert sorted((each["did"], each["by"]) for each in logged) == sorted(noted())


# TLS


def test_with_tls_only_https_is_served(tmp_path: Path, certificates: Certificates):
    context = ssl.create_default_context(cafile=str(certificates.ca))
    with running_server(tmp_path / "data", **SECRETS, **certificates.environment) as server:
        cookie = log_in(server, PASSWORD, tls=context)
        assert "; Secure" in cookie
        assert is_allowed(server, tls=context, cookie=cookie)
        with pytest.raises((http.client.HTTPException, OSError)):
            send_request(server, "GET", "/login")
        assert send_request(server, "GET", "/static/base.css", tls=context).status == 200
        assert not [r for r in server.log_records() if r["level"] in {"error", "warning"}]


def test_a_process_that_does_not_read_blocks_no_client(guarded: ServerProcess):
    assert is_allowed(guarded, authorization=f"Bearer {ADMIN}")
    (child,) = children(guarded.pid)
    os.kill(child, signal.SIGSTOP)
    for _ in range(400):  # more than the buffer of a pipe
        guarded.signal(signal.SIGHUP)
        time.sleep(0.002)  # otherwise several signals are merged
    with RawFaktory(guarded.port) as client:
        client.info()
    until(lambda: has_ended(child))
    assert is_allowed(guarded, authorization=f"Bearer {ADMIN}")

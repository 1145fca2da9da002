"""A page of another site sends requests to the ports of the protocols: no command is executed."""

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext

from raw_faktory import RawFaktory
from raw_masenko import RawMasenko
from raw_workq import RawWorkq
from server_process import ServerProcess, running_server

UID = "6ba7b810-9dad-41d1-80b4-000000000001"
#: The bodies that the page sends to every port: commands of Workq and Masenko, and of other
#: protocols.
BODY = (
    "PING\n"
    'FETCH {"queues":["default"],"timeout":"1s"}\n'
    'ACK {"id":1}\n'
    'PUSH {"name":"from-a-page"}\n'
    f"add {UID} from-a-page 1000 60000 1\r\nx\r\n"
    "lease default 1000\r\n"
    'HELLO {"v":2}\r\nFLUSH\r\n'
    "FLUSHALL\r\n"
    "ADD\0from-a-page\0\0\0\0\0\0\0\0\0\x01\0\0\0x"
)
SEND = """
async ([ports, body]) => {
    for (const port of ports) {
        const url = `http://127.0.0.1:${port}/`;
        await fetch(url, {method: "POST", mode: "no-cors", body}).catch(() => null);
        await fetch(url, {mode: "no-cors"}).catch(() => null);
    }
}
"""


class _Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<title>another site</title>")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def other_site() -> Iterator[str]:
    site = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Page)
    threading.Thread(target=site.serve_forever, daemon=True).start()
    yield f"http://localhost:{site.server_port}/"
    site.shutdown()
    site.server_close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with running_server(tmp_path / "data") as running:
        yield running


def test_a_page_of_another_site_executes_no_command(server, other_site, context: BrowserContext):
    with RawFaktory(server.port) as faktory:
        job = {"jid": "victim-1", "jobtype": "t", "args": []}
        assert faktory.command("PUSH", job) == "OK"
    page = context.new_page()
    page.goto(other_site)
    ports = [server.ports[name] for name in ("faktory", "workq", "masenko", "goqueue", "qless")]
    page.evaluate(SEND, [ports, BODY])
    context.watched.complaints.clear()  # the page receives failed requests
    with RawFaktory(server.port, wid="worker") as faktory:
        info = json.loads(faktory.command("INFO"))["faktory"]
        assert info["queues"] == {"default": 1}
        assert (info["total_processed"], info["total_enqueued"]) == (0, 1)
        assert json.loads(faktory.command("FETCH default"))["jid"] == "victim-1"
    with RawMasenko(server.ports["masenko"]) as masenko:
        assert set(masenko.queues()) == {"default"}
    with RawWorkq(server.ports["workq"]) as workq:
        workq.send(b"inspect job " + UID.encode() + b"\r\n")
        assert workq.line() == b"-NOT-FOUND"


def test_the_address_bar_shows_the_protocol_of_the_port(server, context: BrowserContext):
    page = context.new_page()
    for name, label in (("masenko", "Masenko"), ("workq", "Workq"), ("qless", "Qless")):
        page.goto(f"http://127.0.0.1:{server.ports[name]}/")
        assert f"This is a {label} port of Millrace." in page.content()
    context.watched.complaints.clear()

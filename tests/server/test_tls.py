"""TLS: reload of certificates, and client certificates."""

import shutil
import signal
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from test_server import eventually

from certificates import Certificates, make_certificates
from server_process import ServerProcess, running_server


def peer_certificate(port: int) -> bytes:
    """The certificate that the server sends."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with (
        socket.create_connection(("127.0.0.1", port), 10) as plain,
        context.wrap_socket(plain) as connection,
    ):
        return connection.getpeercert(binary_form=True) or b""


def der(certificates: Certificates) -> bytes:
    return ssl.PEM_cert_to_DER_cert(certificates.cert.read_text())


def replace(old: Certificates, new: Certificates) -> None:
    shutil.copy(new.key, old.key)
    shutil.copy(new.cert, old.cert)


@pytest.fixture
def pairs(tmp_path: Path) -> tuple[Certificates, Certificates]:
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    return make_certificates(tmp_path / "old"), make_certificates(tmp_path / "new")


def by_signal(server: ServerProcess) -> None:
    server.signal(signal.SIGHUP)


def by_file_change(server: ServerProcess) -> None:
    """The server checks the files by itself."""


@pytest.mark.parametrize("notify", [by_signal, by_file_change])
def test_a_new_certificate_is_used_without_a_restart(
    tmp_path: Path,
    pairs: tuple[Certificates, Certificates],
    notify: Callable[[ServerProcess], None],
) -> None:
    old, new = pairs
    with running_server(tmp_path / "data", **old.environment) as server:
        for name in ("faktory", "workq", "web"):
            assert peer_certificate(server.ports[name]) == der(old)
        previous, current = der(old), der(new)
        assert previous != current
        replace(old, new)
        notify(server)
        for name in ("faktory", "workq", "web"):
            eventually(lambda name=name: peer_certificate(server.ports[name]) == current, 20)


def test_invalid_files_leave_the_previous_certificate_in_use(
    tmp_path: Path, pairs: tuple[Certificates, Certificates]
) -> None:
    old, new = pairs
    previous = der(old)
    with running_server(tmp_path / "data", **old.environment) as server:
        shutil.copy(new.key, old.key)  # of another pair
        server.signal(signal.SIGHUP)
        eventually(lambda: "Cannot reload the TLS files" in server.stderr)
        assert peer_certificate(server.port) == previous
        shutil.copy(new.cert, old.cert)
        server.signal(signal.SIGHUP)
        eventually(lambda: peer_certificate(server.port) == der(new))


def test_with_client_ca_every_port_requires_a_client_certificate(
    tmp_path: Path, pairs: tuple[Certificates, Certificates]
) -> None:
    own, other = pairs
    environment = own.environment | {"MILLRACE_TLS_CLIENT_CA": str(own.ca)}
    with running_server(tmp_path / "data", **environment) as server:
        for port in server.ports.values():
            assert not is_accepted(port, own, client=None)
            assert not is_accepted(port, own, client=other)
            assert is_accepted(port, own, client=own)


def is_accepted(port: int, own: Certificates, client: Certificates | None) -> bool:
    """Whether the connection is still open after the handshake. TLS 1.2 reports a missing
    certificate within the handshake.
    """
    context = ssl.create_default_context(cafile=str(own.ca))
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    if client is not None:
        context.load_cert_chain(client.cert, client.key)
    with socket.create_connection(("127.0.0.1", port), 10) as plain:
        try:
            context.wrap_socket(plain, server_hostname="localhost").close()
        except (ssl.SSLError, ConnectionError):
            return False
    return True

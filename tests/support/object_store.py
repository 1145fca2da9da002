"""An object store for tests: the S3 server of moto, in a process of its own."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import boto3
import pytest


@contextmanager
def object_store() -> Iterator[str]:
    """The address of a store. `deltalake` holds the lock of the interpreter during some requests,
    so the store is a separate process.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            _wait_for(port)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()


def _wait_for(port: int) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), 5).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    pytest.fail("moto does not listen")


def new_lake(endpoint: str, monkeypatch: pytest.MonkeyPatch, name: str) -> str:
    """The URI of a lake in a new bucket, with the variables that `deltalake` reads."""
    settings = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
    }
    for variable, value in settings.items():
        monkeypatch.setenv(variable, value)
    bucket = name.replace("_", "-").lower()[:60]
    boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1").create_bucket(Bucket=bucket)
    return f"s3://{bucket}/lake"

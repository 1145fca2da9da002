"""The container image and the systemd unit, as far as they can be checked without running them."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from millrace.config import keys
from server_process import running_server

DEPLOY = Path(__file__).parents[1] / "deploy"
MILLRACE = Path(sys.executable).with_name("millrace")
#: The value that `systemd-analyze security` calls OK is below 4.
MAX_EXPOSURE = 2.5


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile as pairs of instruction and arguments."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Dockerfile").read_text("utf-8"), flags=re.M)
    lines = text.replace("\\\n", " ").splitlines()
    return [tuple(line.split(None, 1)) for line in lines if line.strip()]


def image_environment() -> dict[str, str]:
    (values,) = [value for name, value in instructions() if name == "ENV"]
    return dict(word.split("=", 1) for word in shlex.split(values))


def test_the_image_runs_without_privileges_and_has_a_health_check() -> None:
    names = [name for name, _ in instructions()]
    assert names[0] == "FROM"
    assert ("USER", "millrace") in instructions()
    assert names.index("USER") > max(i for i, name in enumerate(names) if name in {"RUN", "COPY"})
    assert ("VOLUME", "/data") in instructions()
    assert names.count("HEALTHCHECK") == names.count("ENTRYPOINT") == names.count("CMD") == 1


def test_the_image_sets_variables_that_exist() -> None:
    known = {key.variable for key in keys().values()}
    assert set(image_environment()) <= known


def test_the_server_of_the_image_is_healthy(tmp_path: Path) -> None:
    """The image's settings, with free ports and another data folder."""
    (health,) = [value for name, value in instructions() if name == "HEALTHCHECK"]
    command = re.findall(r'"([^"]+)"', health.partition("CMD")[2])
    assert command[0] == "millrace"
    settings = image_environment() | {
        "MILLRACE_FAKTORY_PASSWORD": "change-me",
        "MILLRACE_SERVER_DATA": str(tmp_path / "data"),
    }
    with running_server(tmp_path / "data", **settings) as server:
        assert set(server.ports) == {"faktory", "web"}
        environment = {"PATH": "/usr/bin:/bin", "MILLRACE_SERVER_DATA": str(tmp_path / "data")}
        ran = [str(MILLRACE), *command[1:]]
        assert subprocess.run(ran, env=environment, capture_output=True).returncode == 0
    assert subprocess.run(ran, env=environment, capture_output=True).returncode != 0


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    text = (DEPLOY / "millrace.service").read_text("utf-8")
    unit = tmp_path / "millrace.service"
    account = text.replace("=millrace\n", "=daemon\n", 1)  # an account that every system has
    unit.write_text(account.replace("/opt/millrace/bin/millrace", str(MILLRACE)), "utf-8")
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True
    )
    assert (verified.returncode, verified.stderr) == (0, "")
    security = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--no-pager", unit],
        capture_output=True, text=True,
    )  # fmt: skip
    level = re.search(r"exposure level for millrace.service: (\d+\.\d+)", security.stdout)
    assert level is not None, security.stderr
    assert float(level[1]) <= MAX_EXPOSURE

"""The `millrace` command: what it prints, what it exits with, and what it says to a server."""

import contextlib
import json
import os
import socket
import ssl
import subprocess
import sys
import textwrap
import threading
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, Self

import pytest

from certificates import Certificates
from millrace import __version__
from millrace.cli import main, workers
from millrace.cli.serve import flags, plain_flags
from millrace.config import Config, LoadedConfig, keys, load

MILLRACE = Path(sys.executable).with_name("millrace")


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("MILLRACE_") or name == "FAKTORY_PASSWORD":
            monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")


class Ran(NamedTuple):
    code: int
    out: str
    err: str


Millrace = Callable[..., Ran]


@pytest.fixture
def millrace(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Millrace:
    """Runs the command in this process, as the installed script does."""

    def run(*arguments: str) -> Ran:
        monkeypatch.setattr(sys, "argv", ["millrace", *arguments])
        with pytest.raises(SystemExit) as left:
            sys.exit(main())
        out, err = capsys.readouterr()
        return Ran(left.value.code or 0, out, err)  # type: ignore[arg-type]

    return run


# serve


class Served(NamedTuple):
    loaded: LoadedConfig
    reload: Callable[[], LoadedConfig]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Served]:
    """What `serve` handed to the server, which itself is replaced by one that exits with 7."""
    calls: list[Served] = []

    def run(loaded: LoadedConfig, reload: Callable[[], LoadedConfig]) -> int:
        calls.append(Served(loaded, reload))
        return 7

    start = ModuleType("millrace.server.start")
    start.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "millrace.server.start", start)
    return calls


def test_serve_runs_the_server_and_exits_with_its_code(millrace: Millrace, served: list[Served]):
    ran = millrace("serve", "--data", "here", "--faktory-port=0")
    assert ran == Ran(7, "", "")
    ((loaded, _),) = served
    assert loaded.config.server.data == Path("here")
    assert loaded.config.faktory.port == 0
    assert loaded.sources["server.data"] == "--data"


def test_serve_hands_over_how_to_read_everything_again(
    millrace: Millrace, served: list[Served], monkeypatch: pytest.MonkeyPatch
):
    millrace("serve", "--data", "here")
    Path("millrace.toml").write_text("server.log_level = 'debug'\nserver.data = 'there'", "utf-8")
    monkeypatch.setenv("MILLRACE_FAKTORY_PASSWORD", "new")
    ((_, reload),) = served
    again = reload().config
    assert (again.server.log_level, again.faktory.password) == ("debug", "new")
    assert again.server.data == Path("here")  # flags stay on top


@pytest.mark.parametrize("arguments", [["--config", "other.toml"], ["--config=other.toml"]])
def test_serve_reads_the_file_it_is_given(
    millrace: Millrace, served: list[Served], arguments: list[str]
):
    Path("other.toml").write_text("faktory.port = 1", "utf-8")
    millrace("serve", *arguments)
    assert served[0].loaded.config.faktory.port == 1


def test_serve_with_a_wrong_configuration_says_all_that_is_wrong(
    millrace: Millrace, served: list[Served], monkeypatch: pytest.MonkeyPatch
):
    Path("millrace.toml").write_text("[faktory]\nprot = 7419\n", "utf-8")
    monkeypatch.setenv("MILLRACE_SERVER_DURABILITY", "maybe")
    assert millrace("serve", "--faktory-port", "seven") == Ran(
        2,
        "",
        textwrap.dedent("""\
            millrace.toml:2: faktory.prot: unknown key, did you mean faktory.port?
            MILLRACE_SERVER_DURABILITY: server.durability: expected one of "fsync", "os", "memory", got "maybe"
            --faktory-port: faktory.port: expected a port 0-65535 or "off", got "seven"
            """),
    )
    assert served == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["-h"],
        ["--dat", "x"],
        ["--data"],
        ["--data", "--host"],
        ["x"],
        ["--", "x"],
        ["-x=1"],
    ],
)
def test_what_needs_explaining_is_left_to_typer(arguments: list[str]):
    assert plain_flags(arguments) is None


def test_the_plain_form_and_typer_understand_the_same_flags(
    millrace: Millrace, served: list[Served], monkeypatch: pytest.MonkeyPatch
):
    values = {"--config": "empty.toml", "--durability": "os", "--log-level": "debug"}
    arguments = []
    Path("empty.toml").touch()
    for flag in flags():
        arguments += [flag.name, values.get(flag.name, "0" if "port" in flag.name else "localhost")]
    assert plain_flags(arguments) == dict(zip(arguments[::2], arguments[1::2], strict=True))
    millrace("serve", *arguments)
    monkeypatch.setattr("millrace.cli.serve.plain_flags", lambda arguments: None)
    assert millrace("serve", *arguments).code == 7
    plain, typed = served
    assert plain.loaded == typed.loaded
    given = {source for source in typed.loaded.sources.values() if source != "default"}
    assert given == {flag.name for flag in flags() if flag.key}


def test_serve_help_names_every_flag_and_says_why_there_is_none_for_passwords(millrace: Millrace):
    ran = millrace("serve", "--help")
    assert ran.code == 0
    for flag in flags():
        assert flag.name in ran.out
    assert {flag.name for flag in flags()} == {
        "--config",
        "--host",
        "--data",
        "--durability",
        "--log-level",
        "--lake-path",
        *(f"--{key.section}-port" for key in keys().values() if key.name == "port"),
    }
    assert "millrace serve --data /var/lib/millrace" in ran.out
    assert "Passwords have no flag" in ran.out


def test_a_mistyped_flag_or_command_comes_with_a_suggestion(millrace: Millrace):
    ran = millrace("serve", "--dat", "x")
    assert (ran.code, ran.out) == (2, "")
    assert "--data" in ran.err
    ran = millrace("srve")
    assert (ran.code, ran.out) == (2, "")
    assert "'serve'" in ran.err


def modules_after(program: str) -> set[str]:
    """The modules that a fresh interpreter has after `program`."""
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program) + "\nprint(*sys.modules)"],
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    return set(ran.stdout.split())


def test_serve_starts_without_the_slow_modules_that_other_commands_use():
    """A server listens within 0.3 s; typer alone would take a quarter of that."""
    modules = modules_after("""
        import sys, types
        start = sys.modules["millrace.server.start"] = types.ModuleType("start")
        start.run = lambda loaded, reload: 0
        from millrace.cli import main
        sys.argv = ["millrace", "serve", "--data", "x", "--faktory-port", "0"]
        assert main() == 0
        """)
    assert "millrace.config" in modules
    slow = {"argparse", "asyncio", "difflib", "hashlib", "rich", "ssl", "tomllib", "typer"}
    assert modules & slow == set()


def test_the_installed_command_is_this_one():
    ran = subprocess.run([MILLRACE, "--version"], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (0, f"millrace {__version__}\n")


# config


def test_config_shows_every_value_with_its_source(
    millrace: Millrace, monkeypatch: pytest.MonkeyPatch
):
    Path("millrace.toml").write_text("[server]\nmax_line = 65536\n", "utf-8")
    monkeypatch.setenv("MILLRACE_SERVER_STOP_GRACE", "90")
    code, out, err = millrace("config", "--faktory-port", "off")
    assert (code, err) == (0, "")
    assert out.startswith(
        textwrap.dedent("""\
            [server]
            host = "127.0.0.1"                # default
            data = "data"                     # default
            durability = "fsync"              # default
            log_level = "info"                # default
            max_connections = 10000           # default
            max_line = "64KiB"                # millrace.toml:2
            max_output = "64MiB"              # default
            max_buffered = "256MiB"           # default
            max_memory = "auto"               # default
            stop_grace = "90s"                # MILLRACE_SERVER_STOP_GRACE

            [faktory]
            port = "off"                      # --faktory-port
            socket = ""                       # default
            socket_mode = "0600"              # default
            password = ""                     # default
            dead_max = 100000                 # default
            recover_lost_workers = false      # default
            allow_unauthenticated = false     # default

            """)
    )
    rest = out.partition("[faktory]\n")[2].partition("\n\n")[2]
    assert all(line.endswith("  # default") for line in rest.splitlines() if "=" in line)
    sections = tomllib.loads(out).items()
    assert [f"{name}.{key}" for name, table in sections for key in table] == list(keys())
    assert out.endswith('\nmaster = ""                       # default\n')


def test_what_config_shows_is_a_file_that_says_the_same(millrace: Millrace):
    ran = millrace("config", "--data", 'o"d\\d\té', "--host", "::1", "--faktory-port", "off")
    shown = Path("shown.toml")
    shown.write_text(ran.out, "utf-8")
    assert (
        load({}, {}, shown).config
        == load(
            {"server.data": 'o"d\\d\té', "server.host": "::1", "faktory.port": "off"}, {}
        ).config
    )


def test_config_hides_passwords(millrace: Millrace, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FAKTORY_PASSWORD", "s3cret")
    toml, as_json = millrace("config").out, millrace("config", "--json").out
    assert '# password = "********"           # FAKTORY_PASSWORD\n' in toml
    # Taken as a file, it does not set the password to asterisks.
    assert "password" not in tomllib.loads(toml)["faktory"]
    assert json.loads(as_json)["faktory"]["password"] == {
        "value": "********",
        "source": "FAKTORY_PASSWORD",
    }
    assert "s3cret" not in toml + as_json


def test_config_as_json(millrace: Millrace):
    shown = json.loads(millrace("config", "--json", "--faktory-port", "off").out)
    assert list(shown) == list(Config.__struct_fields__)
    assert shown["server"]["max_line"] == {"value": 67108864, "source": "default"}
    assert shown["server"]["stop_grace"] == {"value": 30.0, "source": "default"}
    assert shown["server"]["data"] == {"value": "data", "source": "default"}
    assert shown["faktory"]["port"] == {"value": None, "source": "--faktory-port"}


def test_config_with_mistakes_says_what_serve_would_say(millrace: Millrace):
    ran = millrace("config", "--durability", "maybe")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("--durability: server.durability: expected one of ")


# version


def test_version(millrace: Millrace):
    assert millrace("--version") == Ran(0, f"millrace {__version__}\n", "")
    assert millrace("version").out.startswith(f"millrace {__version__} (Python 3.")


def test_every_command_explains_itself(millrace: Millrace):
    commands = [["serve"], ["config"], ["faktory", "quiet"], ["faktory", "terminate"]]
    for command in commands:
        ran = millrace(*command, "--help")
        assert ran.code == 0
        assert f"millrace {' '.join(command)} " in ran.out.split("Examples:")[1]


# faktory quiet, faktory terminate


class FakeServer:
    """Serves one connection by a script of what the server sends ("S") and must be sent ("C")."""

    def __init__(self, *script: tuple[str, bytes], context: ssl.SSLContext | None = None) -> None:
        self.script = script
        self.context = context
        self.heard: list[bytes] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = str(self.listener.getsockname()[1])
        self.thread = threading.Thread(target=self.serve)

    def serve(self) -> None:
        connection, _ = self.listener.accept()
        connection.settimeout(10)
        with contextlib.suppress(OSError), connection:
            if self.context is not None:
                connection = self.context.wrap_socket(connection, server_side=True)
            with connection, connection.makefile("rb") as lines:
                for side, line in self.script:
                    if side == "S":
                        connection.sendall(line)
                    else:
                        self.heard.append(lines.readline())

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.thread.join(10)
        self.listener.close()
        assert not self.thread.is_alive()


def hello(pwdhash: str = "") -> bytes:
    fields = f'"v":2,"hostname":{json.dumps(socket.gethostname())},"pid":{os.getpid()}'
    if pwdhash:
        fields += f',"pwdhash":"{pwdhash}"'
    return f"HELLO {{{fields}}}\r\n".encode()


def conversation(order: bytes, reply: bytes = b"+OK\r\n") -> list[tuple[str, bytes]]:
    return [
        ("S", b'+HI {"v":2}\r\n'),
        ("C", hello()),
        ("S", b"+OK\r\n"),
        ("C", order),
        ("S", reply),
        ("C", b"END\r\n"),
    ]


def said_by_client(script: list[tuple[str, bytes]]) -> list[bytes]:
    return [line for side, line in script if side == "C"]


@pytest.mark.parametrize(
    ("command", "wid", "order", "told"),
    [
        (
            "quiet",
            "4qpc2443vpvai",
            b"WORKER QUIET 4qpc2443vpvai\r\n",
            "Worker 4qpc2443vpvai will stop fetching at its next heartbeat, usually within 15 s.\n",
        ),
        (
            "terminate",
            "4qpc2443vpvai",
            b"WORKER TERMINATE 4qpc2443vpvai\r\n",
            (
                "Worker 4qpc2443vpvai will exit within 30 s of its next heartbeat. "
                "Unfinished jobs are retried.\n"
            ),
        ),
        (
            "quiet",
            "all",
            b"WORKER QUIET *\r\n",
            "Every worker will stop fetching at its next heartbeat, usually within 15 s.\n",
        ),
    ],
)
def test_an_order_to_a_worker(millrace: Millrace, command: str, wid: str, order: bytes, told: str):
    script = conversation(order)
    with FakeServer(*script) as server:
        assert millrace("faktory", command, wid, "--port", server.port) == Ran(0, told, "")
    assert server.heard == said_by_client(script)


def test_the_server_is_found_by_its_configuration(millrace: Millrace):
    script = conversation(b"WORKER QUIET w1\r\n")
    with FakeServer(*script) as server:
        # A server that listens everywhere is asked on this machine.
        Path("theirs.toml").write_text(
            f"server.host = '0.0.0.0'\nfaktory.port = {server.port}\n", "utf-8"
        )
        assert millrace("faktory", "quiet", "w1", "--config", "theirs.toml").code == 0
    assert server.heard == said_by_client(script)


def test_a_password_is_proven_but_not_sent(millrace: Millrace, monkeypatch: pytest.MonkeyPatch):
    pwdhash = "6d877f8e5544b1f2598768f817413ab8a357afffa924dedae99eb91472d4ec30"
    assert workers.password_hash("foobar", "55104dc76695721d", 1545) == pwdhash
    monkeypatch.setenv("MILLRACE_FAKTORY_PASSWORD", "foobar")
    script = conversation(b"WORKER QUIET w1\r\n")
    script[0] = ("S", b'+HI {"v":2,"i":1545,"s":"55104dc76695721d"}\r\n')
    with FakeServer(*script) as server:
        assert millrace("faktory", "quiet", "w1", "--port", server.port).code == 0
    assert server.heard == [hello(pwdhash), b"WORKER QUIET w1\r\n", b"END\r\n"]


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (
            conversation(b"", b"-ERR unknown worker w1\r\n")[:5],
            "The server at 127.0.0.1:{port} refused the signal: unknown worker w1\n",
        ),
        (
            [("S", b'+HI {"v":2}\r\n'), ("C", b""), ("S", b"-ERR Invalid password\r\n")],
            "The server at 127.0.0.1:{port} refused the signal: Invalid password\n",
        ),
        (
            [("S", b'+HI {"v":2,"i":4000,"s":"0"}\r\n')],
            (
                "The server at 127.0.0.1:{port} requires a password. Set faktory.password in the "
                "configuration file, or MILLRACE_FAKTORY_PASSWORD.\n"
            ),
        ),
        (
            [("S", b"SSH-2.0-OpenSSH_9.2\r\n")],
            "No Faktory server at 127.0.0.1:{port}: it sent SSH-2.0-OpenSSH_9.2\n",
        ),
        (
            [("S", b"\x1b[2J\r\n")],
            "No Faktory server at 127.0.0.1:{port}: it sent '\\x1b[2J'\n",
        ),
        (
            [],
            (
                "Cannot connect to a Faktory server at 127.0.0.1:{port}: the server closed the "
                "connection. Check that it is running, or set --host, --port and --tls.\n"
            ),
        ),
    ],
)
def test_why_an_order_failed(millrace: Millrace, script: list[tuple[str, bytes]], told: str):
    with FakeServer(*script) as server:
        ran = millrace("faktory", "quiet", "w1", "--port", server.port)
    assert ran == Ran(1, "", told.format(port=server.port))


@pytest.mark.parametrize("rounds", [b"0", b"-1", b"9999999999"])
def test_a_server_cannot_ask_for_the_password_itself_nor_for_endless_work(
    millrace: Millrace, monkeypatch: pytest.MonkeyPatch, rounds: bytes
):
    monkeypatch.setenv("MILLRACE_FAKTORY_PASSWORD", "foobar")
    greeting = b'+HI {"v":2,"i":' + rounds + b',"s":"0"}\r\n'
    with FakeServer(("S", greeting), ("C", b"")) as server:
        ran = millrace("faktory", "quiet", "w1", "--port", server.port)
    assert ran.code == 1
    assert "No Faktory server at" in ran.err
    assert server.heard == [b""]


def test_no_server_there(millrace: Millrace):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert millrace("faktory", "terminate", "w1", "--port", str(port)) == Ran(
        1,
        "",
        f"Cannot connect to a Faktory server at 127.0.0.1:{port}: Connection refused. Check that it "
        "is running, or set --host, --port and --tls.\n",
    )


def test_a_server_that_says_nothing(millrace: Millrace, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(workers, "STEP_TIMEOUT", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        ran = millrace("faktory", "quiet", "w1", "--port", port)
    assert ran.code == 1
    assert "no answer" in ran.err


@pytest.mark.parametrize(
    ("port", "told"),
    [
        ("off", "The configured Faktory port is off. Pass the port with --port.\n"),
        (
            "0",
            (
                "The configured Faktory port is 0 (the server prints its port at startup). "
                "Pass the port with --port.\n"
            ),
        ),
    ],
)
def test_a_port_that_the_configuration_does_not_know(
    millrace: Millrace, monkeypatch: pytest.MonkeyPatch, port: str, told: str
):
    monkeypatch.setenv("MILLRACE_FAKTORY_PORT", port)
    assert millrace("faktory", "quiet", "w1") == Ran(1, "", told)


@pytest.mark.parametrize("wid", ["", "w1\r\nFLUSH", "w\0"])
def test_a_worker_id_cannot_smuggle_in_another_command(millrace: Millrace, wid: str):
    assert millrace("faktory", "quiet", wid) == Ran(
        1, "", "A worker ID must be one line of text.\n"
    )


def test_a_wrong_configuration_is_told_before_anything_is_sent(
    millrace: Millrace, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MILLRACE_FAKTORY_PORT", "seven")
    ran = millrace("faktory", "quiet", "w1")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("MILLRACE_FAKTORY_PORT: faktory.port: expected a port")


# ... over TLS


@pytest.fixture
def tls_context(certificates: Certificates) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.cert, certificates.key)
    return context


@pytest.fixture
def beyond_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes 127.0.0.1 for some other machine."""
    monkeypatch.setattr(workers, "is_loopback", lambda host: False)


def target(server: FakeServer, certificate: str = "") -> workers.Target:
    return workers.Target("127.0.0.1", int(server.port), "", tls=True, certificate=certificate)


def test_tls_on_loopback_needs_no_known_certificate(
    millrace: Millrace, tls_context: ssl.SSLContext
):
    script = conversation(b"WORKER QUIET w1\r\n")
    with FakeServer(*script, context=tls_context) as server:
        ran = millrace("faktory", "quiet", "w1", "--port", server.port, "--tls")
    assert ran.code == 0, ran.err
    assert server.heard == said_by_client(script)


def test_tls_is_used_where_the_configuration_has_it(certificates: Certificates):
    environ = {"MILLRACE_TLS_CERT": str(certificates.cert)}
    config = load({}, environ, listening=False).config
    assert workers.target(config, host=None, port=None, tls=False).tls
    assert not workers.target(Config(), host=None, port=None, tls=False).tls


@pytest.mark.usefixtures("beyond_loopback")
def test_tls_elsewhere_refuses_an_unknown_certificate(tls_context: ssl.SSLContext):
    with (
        FakeServer(("S", b""), context=tls_context) as server,
        pytest.raises(workers.SignalFailed, match="certificate verify failed"),
    ):
        workers.send_signal(target(server), "QUIET", "w1")


@pytest.mark.usefixtures("beyond_loopback")
@pytest.mark.parametrize("trusted", ["ca", "cert"])
def test_tls_elsewhere_trusts_the_configured_certificate_or_its_authority(
    tls_context: ssl.SSLContext, certificates: Certificates, trusted: str
):
    script = conversation(b"WORKER QUIET w1\r\n")
    with FakeServer(*script, context=tls_context) as server:
        certificate = str(getattr(certificates, trusted))
        workers.send_signal(target(server, certificate=certificate), "QUIET", "w1")
    assert server.heard == said_by_client(script)


def test_a_certificate_that_cannot_be_read():
    server = workers.Target("queue.example.com", 7419, "", tls=True, certificate="missing.pem")
    with pytest.raises(workers.SignalFailed, match=r"tls\.cert: cannot load missing\.pem: "):
        workers.send_signal(server, "QUIET", "w1")


def test_addresses_are_shown_as_they_are_written():
    assert str(workers.Target("::1", 7419, "", tls=False, certificate="")) == "[::1]:7419"


@pytest.mark.parametrize("command", ["enqueue", "drain", "loads"])
def test_without_the_extra_spark_it_is_said_how_to_get_it(command: str):
    """In a process of its own, whose Python finds no pyspark."""
    (Path("pyspark.py")).write_text("raise ModuleNotFoundError('no pyspark', name='pyspark')")
    flags = {"enqueue": ["--from", "x"], "drain": ["--to", "x"]}.get(command, [])
    program = "import sys; from millrace.cli import main; sys.exit(main())"
    ran = subprocess.run(
        [sys.executable, "-c", program, "pipeline", command, *flags],
        env={"PYTHONPATH": os.getcwd(), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    told = 'This command requires pyspark. Install it with: pip install "millrace[spark]"\n'
    assert (ran.returncode, ran.stderr) == (1, told)


def test_a_lake_that_cannot_be_one_is_told_in_one_line(millrace: Millrace):
    Path("file").write_text("")
    ran = millrace("pipeline", "run", "--lake", "file")
    assert ran.code == 1
    assert ran.err.count("\n") == 1
    assert "file" in ran.err

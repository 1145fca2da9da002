"""The `millrace` command: its output, its exit codes, and its requests to a server."""

import contextlib
import inspect
import json
import os
import re
import socket
import ssl
import sys
import textwrap
import threading
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, Self

import pytest
from typer.main import get_command

from certificates import Certificates
from millrace import __version__
from millrace.cli import main, pipeline, serve, workers
from millrace.cli.app import app
from millrace.cli.serve import flags, plain_flags
from millrace.config import Config, LoadedConfig, keys, load, section_types


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
    """Run the command in this process, as the installed script does."""

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
    json: bool


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Served]:
    """The arguments of the server, which is replaced by a function that exits with 7."""
    calls: list[Served] = []

    def run(loaded: LoadedConfig, reload: Callable[[], LoadedConfig], *, json: bool) -> int:
        calls.append(Served(loaded, reload, json))
        return 7

    start = ModuleType("millrace.server.start")
    start.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "millrace.server.start", start)
    return calls


def test_serve_runs_the_server_and_exits_with_its_code(millrace: Millrace, served: list[Served]):
    ran = millrace("serve", "--data", "here", "--faktory-port=0")
    assert ran == Ran(7, "", "")
    ((loaded, _, json),) = served
    assert not json
    assert loaded.config.server.data == Path("here")
    assert loaded.config.faktory.port == 0
    assert loaded.sources["server.data"] == "--data"


def test_serve_passes_a_function_that_reloads_the_configuration(
    millrace: Millrace, served: list[Served], monkeypatch: pytest.MonkeyPatch
):
    millrace("serve", "--data", "here")
    Path("millrace.toml").write_text("server.log_level = 'debug'\nserver.data = 'there'", "utf-8")
    monkeypatch.setenv("MILLRACE_FAKTORY_PASSWORD", "new")
    ((_, reload, _),) = served
    again = reload().config
    assert (again.server.log_level, again.faktory.password) == ("debug", "new")
    assert again.server.data == Path("here")  # flags keep their priority


@pytest.mark.parametrize("typer", [False, True])
def test_serve_prints_json_on_request(
    millrace: Millrace, served: list[Served], monkeypatch: pytest.MonkeyPatch, typer: bool
):
    if typer:
        monkeypatch.setattr(serve, "plain_flags", lambda _: None)
    millrace("serve", "--json", "--data", "here")
    assert served[0].json
    assert served[0].loaded.config.server.data == Path("here")


@pytest.mark.parametrize("arguments", [["--config", "other.toml"], ["--config=other.toml"]])
def test_serve_reads_the_given_file(millrace: Millrace, served: list[Served], arguments: list[str]):
    Path("other.toml").write_text("faktory.port = 1", "utf-8")
    millrace("serve", *arguments)
    assert served[0].loaded.config.faktory.port == 1


def test_serve_reports_all_problems_of_the_configuration(
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
def test_uncommon_arguments_are_parsed_by_typer(arguments: list[str]):
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


def test_serve_help_names_every_flag_and_no_password_flag(millrace: Millrace):
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


def test_a_mistyped_flag_or_command_has_a_suggestion(millrace: Millrace):
    ran = millrace("serve", "--dat", "x")
    assert (ran.code, ran.out) == (2, "")
    assert "--data" in ran.err
    ran = millrace("srve")
    assert (ran.code, ran.out) == (2, "")
    assert "'serve'" in ran.err


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
            max_inline_payload = "4KiB"       # default
            forget_queues = "168h"            # default
            stop_grace = "90s"                # MILLRACE_SERVER_STOP_GRACE

            [faktory]
            port = "off"                      # --faktory-port
            socket = ""                       # default
            socket_mode = "0600"              # default
            queues = []                       # default
            password = ""                     # default
            dead_max = 100000                 # default
            recover_lost_workers = false      # default
            allow_unauthenticated = false     # default

            """)
    )
    other_sections = out.partition("[faktory]\n")[2].partition("\n\n")[2]
    assert all(line.endswith("  # default") for line in other_sections.splitlines() if "=" in line)
    sections = tomllib.loads(out).items()
    assert [f"{name}.{key}" for name, table in sections for key in table] == list(keys())
    assert out.endswith('\nobjectives = ""                   # default\n')


def test_the_output_of_config_is_an_equivalent_file(millrace: Millrace):
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
    # As a file, the output does not set the password to asterisks.
    assert "password" not in tomllib.loads(toml)["faktory"]
    assert json.loads(as_json)["faktory"]["password"] == {
        "value": "********",
        "source": "FAKTORY_PASSWORD",
    }
    assert "s3cret" not in toml + as_json


def test_config_as_json(millrace: Millrace):
    shown = json.loads(millrace("config", "--json", "--faktory-port", "off").out)
    assert list(shown) == list(section_types())
    assert shown["server"]["max_line"] == {"value": 67108864, "source": "default"}
    assert shown["server"]["stop_grace"] == {"value": 30.0, "source": "default"}
    assert shown["server"]["data"] == {"value": "data", "source": "default"}
    assert shown["faktory"]["port"] == {"value": None, "source": "--faktory-port"}


def test_config_reports_the_same_problems_as_serve(millrace: Millrace):
    ran = millrace("config", "--durability", "maybe")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("--durability: server.durability: expected one of ")


# every command


def commands(group: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    group = group or get_command(app)
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


@pytest.mark.parametrize(("name", "command"), list(commands()))
def test_every_command_prints_json_and_has_examples(name: str, command: Any):
    assert "--json" in {option for each in command.params for option in each.opts}
    _, _, examples = (command.help or "").partition("Example")
    assert f"- `millrace {name}" in examples


def test_the_examples_have_only_known_options():
    for name, command in commands():
        options = {
            option for each in command.params for option in (*each.opts, *each.secondary_opts)
        }
        for line in re.findall(rf"`millrace {name}( [^`|]*)?", command.help or ""):
            words = line.partition(" -- ")[0].split()
            used = {word.partition("=")[0] for word in words if word.startswith("--")}
            assert used <= options, (name, line)


def test_the_help_shows_a_type_only_for_options_with_a_value(millrace: Millrace):
    for command in ([], ["kill"], ["pipeline", "audit"], ["faktory", "quiet"]):
        ran = millrace(*command, "--help")
        assert "--help" in ran.out
        assert "bool" not in ran.out
    assert re.search(r"--delay +<float", millrace("push", "--help").out)


# version


def test_version(millrace: Millrace):
    assert millrace("--version") == Ran(0, f"millrace {__version__}\n", "")
    assert millrace("version").out.startswith(f"millrace {__version__} (Python 3.")


def test_every_command_has_a_help_text(millrace: Millrace):
    commands = [["serve"], ["config"], ["faktory", "quiet"], ["faktory", "terminate"]]
    for command in commands:
        ran = millrace(*command, "--help")
        assert ran.code == 0
        assert f"millrace {' '.join(command)} " in ran.out.split("Examples:")[1]


# faktory quiet, faktory terminate


class FakeServer:
    """Serves one connection by a script of lines that the server sends ("S") and expects ("C")."""

    def __init__(self, *script: tuple[str, bytes], context: ssl.SSLContext | None = None) -> None:
        self.script = script
        self.context = context
        self.received: list[bytes] = []
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
                        self.received.append(lines.readline())

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


def lines_of_client(script: list[tuple[str, bytes]]) -> list[bytes]:
    return [line for side, line in script if side == "C"]


@pytest.mark.parametrize(
    ("command", "wid", "order", "expected_error"),
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
def test_an_order_to_a_worker(
    millrace: Millrace, command: str, wid: str, order: bytes, expected_error: str
):
    script = conversation(order)
    with FakeServer(*script) as server:
        assert millrace("faktory", command, wid, "--port", server.port) == Ran(
            0, expected_error, ""
        )
    assert server.received == lines_of_client(script)


def test_the_server_is_found_by_its_configuration(millrace: Millrace):
    script = conversation(b"WORKER QUIET w1\r\n")
    with FakeServer(*script) as server:
        # The command connects to a server with a wildcard address on this machine.
        Path("theirs.toml").write_text(
            f"server.host = '0.0.0.0'\nfaktory.port = {server.port}\n", "utf-8"
        )
        assert millrace("faktory", "quiet", "w1", "--config", "theirs.toml").code == 0
    assert server.received == lines_of_client(script)


def test_a_password_is_hashed_and_not_sent(millrace: Millrace, monkeypatch: pytest.MonkeyPatch):
    pwdhash = "6d877f8e5544b1f2598768f817413ab8a357afffa924dedae99eb91472d4ec30"
    assert workers.password_hash("foobar", "55104dc76695721d", 1545) == pwdhash
    monkeypatch.setenv("MILLRACE_FAKTORY_PASSWORD", "foobar")
    script = conversation(b"WORKER QUIET w1\r\n")
    script[0] = ("S", b'+HI {"v":2,"i":1545,"s":"55104dc76695721d"}\r\n')
    with FakeServer(*script) as server:
        assert millrace("faktory", "quiet", "w1", "--port", server.port).code == 0
    assert server.received == [hello(pwdhash), b"WORKER QUIET w1\r\n", b"END\r\n"]


@pytest.mark.parametrize(
    ("script", "expected_error"),
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
def test_the_error_of_a_failed_order(
    millrace: Millrace, script: list[tuple[str, bytes]], expected_error: str
):
    with FakeServer(*script) as server:
        ran = millrace("faktory", "quiet", "w1", "--port", server.port)
    assert ran == Ran(1, "", expected_error.format(port=server.port))


@pytest.mark.parametrize("rounds", [b"0", b"-1", b"9999999999"])
def test_a_server_cannot_request_the_plain_password_or_excessive_rounds(
    millrace: Millrace, monkeypatch: pytest.MonkeyPatch, rounds: bytes
):
    monkeypatch.setenv("MILLRACE_FAKTORY_PASSWORD", "foobar")
    greeting = b'+HI {"v":2,"i":' + rounds + b',"s":"0"}\r\n'
    with FakeServer(("S", greeting), ("C", b"")) as server:
        ran = millrace("faktory", "quiet", "w1", "--port", server.port)
    assert ran.code == 1
    assert "No Faktory server at" in ran.err
    assert server.received == [b""]


def test_no_server_listens(millrace: Millrace):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert millrace("faktory", "terminate", "w1", "--port", str(port)) == Ran(
        1,
        "",
        f"Cannot connect to a Faktory server at 127.0.0.1:{port}: Connection refused. Check that it "
        "is running, or set --host, --port and --tls.\n",
    )


def test_a_silent_server(millrace: Millrace, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(workers, "STEP_TIMEOUT", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        ran = millrace("faktory", "quiet", "w1", "--port", port)
    assert ran.code == 1
    assert "no answer" in ran.err


@pytest.mark.parametrize(
    ("port", "expected_error"),
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
def test_an_unknown_port(
    millrace: Millrace, monkeypatch: pytest.MonkeyPatch, port: str, expected_error: str
):
    monkeypatch.setenv("MILLRACE_FAKTORY_PORT", port)
    assert millrace("faktory", "quiet", "w1") == Ran(1, "", expected_error)


@pytest.mark.parametrize("wid", ["", "w1\r\nFLUSH", "w\0"])
def test_a_worker_id_cannot_inject_a_command(millrace: Millrace, wid: str):
    assert millrace("faktory", "quiet", wid) == Ran(
        1, "", "A worker ID must be one line of text.\n"
    )


def test_an_invalid_configuration_is_reported_before_a_request(
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
    """Treat 127.0.0.1 as another machine."""
    monkeypatch.setattr(workers, "is_loopback", lambda host: False)


def target(server: FakeServer, certificate: str = "") -> workers.Target:
    return workers.Target("127.0.0.1", int(server.port), "", tls=True, certificate=certificate)


def test_tls_on_loopback_accepts_an_unknown_certificate(
    millrace: Millrace, tls_context: ssl.SSLContext
):
    script = conversation(b"WORKER QUIET w1\r\n")
    with FakeServer(*script, context=tls_context) as server:
        ran = millrace("faktory", "quiet", "w1", "--port", server.port, "--tls")
    assert ran.code == 0, ran.err
    assert server.received == lines_of_client(script)


def test_tls_is_used_if_it_is_configured(certificates: Certificates):
    environ = {"MILLRACE_TLS_CERT": str(certificates.cert)}
    config = load({}, environ, listening=False).config
    assert workers.target(config, host=None, port=None, tls=False).tls
    assert not workers.target(Config(), host=None, port=None, tls=False).tls


@pytest.mark.usefixtures("beyond_loopback")
def test_tls_beyond_loopback_refuses_an_unknown_certificate(tls_context: ssl.SSLContext):
    with (
        FakeServer(("S", b""), context=tls_context) as server,
        pytest.raises(workers.SignalFailed, match="certificate verify failed"),
    ):
        workers.send_signal(target(server), "QUIET", "w1")


@pytest.mark.usefixtures("beyond_loopback")
@pytest.mark.parametrize("trusted", ["ca", "cert"])
def test_tls_beyond_loopback_trusts_the_configured_certificate_or_its_authority(
    tls_context: ssl.SSLContext, certificates: Certificates, trusted: str
):
    script = conversation(b"WORKER QUIET w1\r\n")
    with FakeServer(*script, context=tls_context) as server:
        certificate = str(getattr(certificates, trusted))
        workers.send_signal(target(server, certificate=certificate), "QUIET", "w1")
    assert server.received == lines_of_client(script)


def test_a_certificate_that_cannot_be_read():
    server = workers.Target("queue.example.com", 7419, "", tls=True, certificate="missing.pem")
    with pytest.raises(workers.SignalFailed, match=r"tls\.cert: cannot load missing\.pem: "):
        workers.send_signal(server, "QUIET", "w1")


def test_ipv6_addresses_have_brackets():
    assert str(workers.Target("::1", 7419, "", tls=False, certificate="")) == "[::1]:7419"


def test_an_invalid_lake_is_reported_in_one_line(millrace: Millrace):
    Path("file").write_text("")
    ran = millrace("pipeline", "run", "--lake", "file")
    assert ran.code == 1
    assert ran.err.count("\n") == 1
    assert "file" in ran.err


def test_a_pipeline_command_passes_what_its_target_takes() -> None:
    targets = 0
    for command in pipeline.app.registered_commands:
        names = inspect.getclosurevars(command.callback).nonlocals
        if names["target"]:
            taken = inspect.signature(pipeline._loaded(names["target"])).parameters
            passed = {*inspect.signature(command.callback).parameters} - {*names["shared"]}
            passed |= {"config"} if names["shared"] else set()
            assert passed == {*taken}, command.name
            targets += 1
    assert targets > 5

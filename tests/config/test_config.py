"""The configuration: defaults, file, environment, flags, and the errors in them."""

import textwrap
from pathlib import Path

import msgspec
import pytest
from configuration_page import PAGE, reference_table
from rich.pretty import pretty_repr

from millrace.cli.remote import TOKEN
from millrace.cli.worker import CHILD_VARIABLE
from millrace.client.address import VARIABLES as CLIENT_VARIABLES
from millrace.compiled import PURE_VARIABLE
from millrace.config import (
    HIDDEN,
    Config,
    ConfigError,
    LoadedConfig,
    apply_reload,
    changed_keys,
    is_loopback,
    keys,
    load,
    parse_duration,
    parse_size,
    secret_variables,
    section_types,
    toml_duration,
    toml_size,
    value_of,
)
from millrace.config.sources import OTHER_VARIABLES
from millrace.config.values import parse_tokens
from millrace.protocols.faktory.settings import FaktoryConfig

MIB = 1024 * 1024
PROTOCOLS = [key.section for key in keys().values() if key.name == "port"]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(text: str, path: str = "millrace.toml") -> Path:
    file = Path(path)
    file.write_text(textwrap.dedent(text).lstrip("\n"), encoding="utf-8")
    return file


def loaded(env: dict[str, str] | None = None, **flags: str) -> LoadedConfig:
    return load({name.replace("__", "."): text for name, text in flags.items()}, env or {})


def config(env: dict[str, str] | None = None, **flags: str) -> Config:
    return loaded(env, **flags).config


def problems(
    env: dict[str, str] | None = None, path: Path | None = None, **flags: str
) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load({name.replace("__", "."): text for name, text in flags.items()}, env or {}, path)
    assert str(caught.value) == "\n".join(caught.value.problems)
    return caught.value.problems


def only(*served: str) -> dict[str, str]:
    """The variables that disable all other protocols."""
    return {f"MILLRACE_{name}_PORT".upper(): "off" for name in PROTOCOLS if name not in served}


# Sources of values


def test_without_any_source_the_defaults_apply():
    found = loaded()
    assert found.config == Config()
    assert set(found.sources.values()) == {"default"}
    server = found.config.server
    assert (server.host, server.data, server.durability) == ("127.0.0.1", Path("./data"), "fsync")
    assert (server.log_level, server.max_connections, server.stop_grace) == ("info", 10_000, 30.0)
    assert (server.max_line, server.max_output) == (64 * MIB, 64 * MIB)
    assert server.max_buffered == 256 * MIB
    faktory = found.config.faktory
    assert (faktory.port, faktory.password, faktory.dead_max) == (7419, "", 100_000)
    assert (faktory.recover_lost_workers, faktory.allow_unauthenticated) == (False, False)
    workq = found.config.workq
    assert (workq.port, workq.dialect, workq.allow_unauthenticated) == (9922, "spec", False)
    masenko = found.config.masenko
    assert (masenko.port, masenko.heartbeat, masenko.dialect) == (12345, 45.0, "spec")
    assert (masenko.max_line, masenko.allow_unauthenticated) == (8 * MIB, False)
    goqueue = found.config.goqueue
    assert (goqueue.port, goqueue.max_data, goqueue.max_deliveries) == (11223, 16 * MIB, 0)
    assert goqueue.allow_unauthenticated is False
    qless = found.config.qless
    assert (qless.port, qless.password, qless.dialect) == (6380, "", "spec")
    assert qless.allow_unauthenticated is False
    assert (found.config.tls.cert, found.config.tls.key) == ("", "")
    assert found.config.journal.outbox_max == 256 * MIB


def test_the_environment_overrides_the_file_and_flags_override_both():
    write("""
        [server]
        data = "file"
        log_level = "debug"
        [faktory]
        port = 1
        """)
    environ = {"MILLRACE_FAKTORY_PORT": "2", "MILLRACE_SERVER_DATA": "environment"}
    found = loaded(environ, faktory__port="3")
    assert found.config.server.log_level == "debug"
    assert found.config.server.data == Path("environment")
    assert found.config.faktory.port == 3
    assert found.sources["server.host"] == "default"
    assert found.sources["server.log_level"] == "millrace.toml:3"
    assert found.sources["server.data"] == "MILLRACE_SERVER_DATA"
    assert found.sources["faktory.port"] == "--faktory-port"


def test_which_file_is_read():
    write("server.data = 'here'")
    write("server.data = 'variable'", "other.toml")
    flag = write("server.data = 'flag'", "third.toml")
    environ = {"MILLRACE_CONFIG": "other.toml"}
    assert load({}, {}).config.server.data == Path("here")
    assert load({}, environ).config.server.data == Path("variable")
    assert load({}, environ, flag).config.server.data == Path("flag")
    assert load({}, environ, flag).sources["server.data"] == "third.toml:1"


def test_every_key_can_be_set_in_the_file_and_by_its_variable():
    # Each key has the text of its default as the value.
    for key in keys().values():
        written = key.value_type.write(key.default)
        write(f"[{key.section}]\n{key.name} = {written}")
        assert loaded().sources[key.dotted_name] == "millrace.toml:2"
        Path("millrace.toml").unlink()
        found = loaded({key.variable: written.strip('"')})
        assert found.sources[key.dotted_name] == key.variable
        assert found.config == Config()


@pytest.mark.parametrize(
    ("text", "seconds", "shown"),
    [("off", 0.0, '"off"'), ("OFF", 0.0, '"off"'), ("0", 0.0, '"off"'), ("15m", 900.0, '"15m"')],
)
def test_a_period_can_be_off(text: str, seconds: float, shown: str):
    config = load({"pipeline.every": text}, {}).config
    assert config.pipeline.every == seconds
    assert keys()["pipeline.every"].value_type.write(seconds) == shown


def test_the_lake_is_in_the_data_folder_unless_set_otherwise():
    assert load({"server.data": "there"}, {}).config.lake_path == Path("there/lake")
    assert load({"lake.path": "/lakes/one"}, {}).config.lake_path == Path("/lakes/one")
    assert load({"lake.path": "s3://bucket/lake"}, {}).config.lake_uri == "s3://bucket/lake"


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("text", "port"), [("0", 0), ("65535", 65535), ("off", None), ("OFF", None)]
)
def test_a_port_is_a_number_or_off(protocol: str, text: str, port: int | None):
    found = config({f"MILLRACE_{protocol}_PORT".upper(): text})
    assert value_of(found, f"{protocol}.port") == port


def test_no_two_protocols_have_the_same_port():
    assert len({keys()[f"{name}.port"].default for name in PROTOCOLS}) == len(PROTOCOLS)


@pytest.mark.parametrize("text", ["true", "1", "yes", "On"])
def test_a_switch_that_the_environment_turns_on(text: str):
    found = config({"MILLRACE_FAKTORY_RECOVER_LOST_WORKERS": text})
    assert found.faktory.recover_lost_workers is True


@pytest.mark.parametrize("text", ["false", "0", "no", "OFF"])
def test_a_switch_that_the_environment_turns_off(text: str):
    write("faktory.recover_lost_workers = true")
    found = config({"MILLRACE_FAKTORY_RECOVER_LOST_WORKERS": text})
    assert found.faktory.recover_lost_workers is False


def test_choices_are_read_in_any_case():
    assert config({"MILLRACE_SERVER_LOG_LEVEL": "DEBUG"}).server.log_level == "debug"


def test_limits_accept_their_documented_minimum():
    write("""
        [masenko]
        heartbeat = "100ms"
        max_line = "4KiB"
        [goqueue]
        max_data = 4096
        max_deliveries = 1
        """)
    found = config()
    assert (found.masenko.heartbeat, found.masenko.max_line) == (0.1, 4096)
    assert (found.goqueue.max_data, found.goqueue.max_deliveries) == (4096, 1)


# Sizes and durations


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (0, 0),
        (65536, 65536),
        ("65536", 65536),
        ("10B", 10),
        ("1KB", 1000),
        ("1KiB", 1024),
        ("64MiB", 64 * MIB),
        ("64 mib", 64 * MIB),
        ("1GB", 10**9),
        ("2GiB", 2 << 30),
        ("1TiB", 1 << 40),
    ],
)
def test_sizes(value: object, size: int):
    assert parse_size(value) == size


@pytest.mark.parametrize(
    "value",
    [
        "",
        "x",
        "-1",
        -1,
        "64M",
        "64iB",
        "1.5GB",
        1.5,
        True,
        None,
        "MiB",
        "9" * 5000,
        1 << 62,
        "\u0661",
    ],
)
def test_an_invalid_size(value: object):
    with pytest.raises(ValueError, match='expected a size such as 65536, "64MiB" or "1GB", got '):
        parse_size(value)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (0, 0.0),
        (2, 2.0),
        (1.5, 1.5),
        ("30", 30.0),
        ("30s", 30.0),
        ("1.5s", 1.5),
        ("500ms", 0.5),
        ("2m", 120.0),
        ("1h", 3600.0),
        ("1d", 86400.0),
        (" 3 s ", 3.0),
    ],
)
def test_durations(value: object, seconds: float):
    assert parse_duration(value) == seconds
    assert isinstance(parse_duration(value), float)


@pytest.mark.parametrize(
    "value",
    ["", "s", "-1s", -1, "1w", True, None, float("nan"), float("inf"), "1e3", 10**400, "9" * 400],
)
def test_an_invalid_duration(value: object):
    with pytest.raises(ValueError, match=r"expected a duration such as 1.5 \(seconds\), "):
        parse_duration(value)


def test_written_sizes_and_durations_can_be_parsed():
    for size, text in ((0, "0"), (1000, "1000"), (1024, '"1KiB"'), (3 << 30, '"3GiB"')):
        assert toml_size(size) == text
        assert parse_size(text.strip('"')) == size
    for seconds, text in ((0.0, "0.0"), (0.25, '"250ms"'), (90.0, '"90s"'), (7200.0, '"2h"')):
        assert toml_duration(seconds) == text
        assert parse_duration(text.strip('"')) == seconds


# Passwords


def test_a_password_can_be_in_a_file(tmp_path: Path):
    secret = write("s3cret\n", "password")
    found = loaded({"MILLRACE_FAKTORY_PASSWORD": str(tmp_path / secret)})
    assert found.config.faktory.password == "s3cret"
    source = f"MILLRACE_FAKTORY_PASSWORD (file {tmp_path / secret})"
    assert found.sources["faktory.password"] == source


def test_a_password_file_must_exist_and_have_content(tmp_path: Path):
    missing, empty = tmp_path / "missing", tmp_path / write("\n", "empty")
    write(f"faktory.password = '{missing}'")
    where = "millrace.toml:1: faktory.password"
    reason = f"cannot read the password file {missing}: No such file or directory"
    assert problems() == [f"{where}: {reason}"]
    write(f"faktory.password = '{empty}'")
    assert problems() == [f"{where}: the password file {empty} is empty"]
    (tmp_path / "binary").write_bytes(b"\xff")
    write(f"faktory.password = '{tmp_path}/binary'")
    assert problems()[0].endswith("binary: it is not UTF-8 text")


def test_the_original_variable_ranks_above_the_file_and_below_millrace_variables():
    write("faktory.password = 'file'")
    assert config({"FAKTORY_PASSWORD": "theirs"}).faktory.password == "theirs"
    both = {"FAKTORY_PASSWORD": "theirs", "MILLRACE_FAKTORY_PASSWORD": "ours"}
    assert config(both).faktory.password == "ours"
    # Set but empty is unset, as in the original.
    assert config({"FAKTORY_PASSWORD": ""}).faktory.password == "file"


def test_no_representation_of_a_configuration_shows_its_password():
    found = Config(faktory=FaktoryConfig(password="s3cret"))
    for shown in (repr(found), str(found), f"{found.faktory}", pretty_repr(found)):
        assert "s3cret" not in shown
        assert HIDDEN in shown
    assert "password=''" in repr(Config())


def test_a_password_of_the_wrong_type_is_not_shown():
    write("faktory.password = 12345")
    (problem,) = problems()
    assert problem.startswith("millrace.toml:1: faktory.password: expected a quoted string")
    assert "12345" not in problem


# Problems and their positions


def test_all_problems_are_reported_together_with_their_sources():
    write("""
        # our queue server
        [server]
        durability = "sometimes"
        max_connections = 0

        [faktory]
        port = "seven"
        """)
    environ = {"MILLRACE_FAKTORY_DEAD_MAX": "few", "MILLRACE_SERVER_MAX_LINE": "1KiB"}
    assert problems(environ, faktory__port="70000") == [
        'millrace.toml:3: server.durability: expected one of "fsync", "os", "memory", got "sometimes"',
        "millrace.toml:4: server.max_connections: expected a whole number of at least 1, got 0",
        'millrace.toml:7: faktory.port: expected a port 0-65535 or "off", got "seven"',
        'MILLRACE_FAKTORY_DEAD_MAX: faktory.dead_max: expected a whole number of at least 0, got "few"',
        'MILLRACE_SERVER_MAX_LINE: server.max_line: expected a size of at least "4KiB", got "1KiB"',
        '--faktory-port: faktory.port: expected a port 0-65535 or "off", got "70000"',
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("faktory.port = true", 'a port 0-65535 or "off", got true'),
        ("faktory.port = -1", 'a port 0-65535 or "off", got -1'),
        ("faktory.port = 7419.0", 'a port 0-65535 or "off", got 7419.0'),
        ("faktory.port = [1, 2]", 'a port 0-65535 or "off", got a list'),
        ("faktory.port = {}", 'a port 0-65535 or "off", got a table'),
        ("faktory.recover_lost_workers = 1", "true or false, got 1"),
        ("faktory.dead_max = 'many'", 'a whole number of at least 0, got "many"'),
        ("faktory.dead_max = 9999999999999999999", "a whole number of at least 0, got 99999"),
        ("server.host = ''", 'a host name or address to listen on, got ""'),
        ("server.host = 'a b'", 'a host name or address to listen on, got "a b"'),
        ("server.data = ''", 'a path, got ""'),
        ("server.data = 7", "a path, got 7"),
        ("server.data = 1979-05-27", "a path, got 1979-05-27"),
        ("server.log_level = 'loud'", 'one of "debug", "info", "warning", "error", got "loud"'),
        ("tls.cert = 1", "a path, got 1"),
        ("workq.socket_mode = 660", 'permissions in quotes such as "0660", got 660'),
        ("workq.socket_mode = '0999'", 'permissions in quotes such as "0660", got "0999"'),
        ("masenko.heartbeat = '99ms'", 'a duration of at least "100ms", got "99ms"'),
        ("masenko.heartbeat = 0", 'a duration of at least "100ms", got 0'),
        ("masenko.heartbeat = 'often'", 'a duration such as 1.5 (seconds), "500ms", "30s", "2m"'),
        ("masenko.max_line = '4KB'", 'a size of at least "4KiB", got "4KB"'),
        ("goqueue.max_data = 4095", 'a size of at least "4KiB", got 4095'),
        ("goqueue.max_deliveries = -1", "a whole number of at least 0, got -1"),
        ("goqueue.max_deliveries = 'three'", 'a whole number of at least 0, got "three"'),
        (f"server.log_level = '{'x' * 99}'", f'"error", got "{"x" * 76}...'),
    ],
)
def test_a_problem_names_the_expected_value(line: str, expected: str):
    write(line)
    (problem,) = problems()
    dotted_name = line.split(" ", 1)[0]
    assert problem.startswith(f"millrace.toml:1: {dotted_name}: expected ")
    assert expected in problem


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[faktory]\n\n# port = 1\nport = 'x'", 4),
        ("faktory.port = 'x'", 1),
        ("\nfaktory . port = 'x'", 2),
        ("[ faktory ] # here\n\"port\" = 'x'", 2),
        ("['faktory']\n'port'='x'", 2),
        ("\n\nfaktory = { dead_max = 1, port = 'x' }", 3),
        ("[server]\ndata = '''\n[faktory]\nport = 1\n'''\n[faktory]\nport = 'x'", 7),
        ('[server]\ndata = """\\\n  a\\\n  """\n[faktory]\nport = "x"', 6),
        ("[faktory]\r\n\r\nport = 'x'\r\n", 3),
        ("[server]\nhost = 'localhost'\n[faktory]\nport = 'x'\n[tls]\ncert = ''", 4),
        ("[faktory]\nport = [\n  1,\n  2,\n]", 2),
    ],
)
def test_a_problem_names_the_line_of_the_key(text: str, line: int):
    Path("millrace.toml").write_bytes(text.encode())
    (problem,) = problems()
    assert problem.startswith(f"millrace.toml:{line}: faktory.port: expected a port")


def test_unknown_keys_and_sections_have_a_suggestion():
    write("""
        host = "localhost"
        nonsense = 1
        [faktory]
        prot = 7419
        max_line = 5
        [tls]
        colour = "red"
        [factory]
        port = 7419
        [zebra]
        [[journal]]
        """)
    sections = [f"[{section}]" for section in section_types()]
    assert problems() == [
        "millrace.toml:1: host: unknown key, did you mean server.host?",
        "millrace.toml:2: nonsense: unknown key, keys belong in sections such as [server]",
        "millrace.toml:4: faktory.prot: unknown key, did you mean faktory.port?",
        "millrace.toml:5: faktory.max_line: unknown key, did you mean server.max_line?",
        "millrace.toml:7: tls.colour: unknown key, [tls] has cert, key, client_ca",
        "millrace.toml:8: [factory]: unknown section, did you mean [faktory]?",
        f"millrace.toml:10: [zebra]: unknown section, known sections are {', '.join(sections)}",
        "millrace.toml:11: journal: expected a section [journal], got a list",
    ]


def test_an_unknown_variable_is_an_error():
    environ = {"MILLRACE_FAKTORY_PROT": "1", "MILLRACE_ZEBRA": "1", "MILLRACEX": "1", "HOME": "/"}
    assert problems(environ) == [
        "MILLRACE_FAKTORY_PROT: unknown variable, did you mean MILLRACE_FAKTORY_PORT?",
        "MILLRACE_ZEBRA: unknown variable, `millrace config` shows the keys",
    ]


def test_variables_of_clients_and_commands_are_not_configuration():
    names = {CLIENT_VARIABLES[0], TOKEN, CHILD_VARIABLE, PURE_VARIABLE}
    assert names == OTHER_VARIABLES
    assert config(dict.fromkeys(names, "tcp://127.0.0.1:7419")) == Config()


def test_kubernetes_variables_of_a_service_named_millrace_are_ignored():
    environ = {
        "MILLRACE_SERVICE_HOST": "10.0.0.1",
        "MILLRACE_SERVICE_PORT": "7419",
        "MILLRACE_SERVICE_PORT_FAKTORY": "7419",
        "MILLRACE_PORT": "tcp://10.0.0.1:7419",
        "MILLRACE_PORT_7419_TCP": "tcp://10.0.0.1:7419",
        "MILLRACE_PORT_7419_TCP_ADDR": "10.0.0.1",
        "MILLRACE_FAKTORY_PORT": "tcp://10.0.0.2:7419",
    }
    assert config(environ) == Config()
    # Without the variables that only Kubernetes sets, the same name is a mistake.
    assert problems({"MILLRACE_SERVICE_HOST": "10.0.0.1"}) == [
        "MILLRACE_SERVICE_HOST: unknown variable, did you mean MILLRACE_SERVER_HOST?"
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"[server]\nhost\n", "millrace.toml:2: not valid TOML: Expected '=' after a key"),
        (b"[server]\nhost = 'a", 'millrace.toml:2: not valid TOML: Expected "\'"'),
        (b"[server]\n\n[server]\n", "millrace.toml:3: not valid TOML: Cannot declare"),
        (b"a = 1\nb = [1,\n2\n", "millrace.toml:3: not valid TOML: Unclosed array"),
        (b"# caf\xe9\n", "millrace.toml:1: not valid TOML: not UTF-8 text"),
        (b"a = " + b"[" * 5000, "millrace.toml: not valid TOML: "),
    ],
)
def test_a_file_that_is_not_toml(text: bytes, problem: str):
    Path("millrace.toml").write_bytes(text)
    (found,) = problems()
    assert found.startswith(problem)


def test_a_file_that_is_not_toml_does_not_hide_other_problems():
    write("]")
    found = problems({"MILLRACE_FAKTORY_PORT": "x", "MILLRACE_SERVER_HOST": "0.0.0.0"})
    # The file could have contained the password, so that rule is not checked.
    assert [problem.split(":")[0] for problem in found] == [
        "millrace.toml",
        "MILLRACE_FAKTORY_PORT",
    ]


def test_a_named_file_must_exist():
    missing = "cannot read missing.toml: No such file or directory"
    assert problems(path=Path("missing.toml")) == [f"--config: {missing}"]
    assert problems({"MILLRACE_CONFIG": "missing.toml"}) == [f"MILLRACE_CONFIG: {missing}"]


# Rules for several keys


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_no_password(host: str):
    assert is_loopback(host)
    assert config(server__host=host).server.host == host


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "192.168.1.1", "example.com", "::ffff:127.0.0.1"]
)
@pytest.mark.parametrize("protocol", ["faktory", "qless"])
def test_beyond_loopback_a_protocol_needs_a_password(host: str, protocol: str):
    assert not is_loopback(host)
    alone, section = only(protocol), f"MILLRACE_{protocol.upper()}"
    (problem,) = problems(alone, server__host=host)
    assert problem == (
        f'--host: server.host: "{host}" is reachable from other machines and {protocol} has no '
        f"password: set {protocol}.password (or {section}_PASSWORD), or set "
        f"{protocol}.allow_unauthenticated = true to allow access without a password, or listen on "
        "127.0.0.1"
    )
    for enough in (
        {f"{section}_PASSWORD": "x"},
        {f"{section}_ALLOW_UNAUTHENTICATED": "true"},
        {f"{section}_PORT": "off"},
    ):
        assert config({**alone, **enough}, server__host=host).server.host == host


@pytest.mark.parametrize("protocol", ["workq", "masenko", "goqueue"])
def test_beyond_loopback_a_protocol_without_passwords_must_be_allowed(protocol: str):
    alone = only(protocol)
    (problem,) = problems(alone, server__host="0.0.0.0")
    assert problem == (
        f'--host: server.host: "0.0.0.0" is reachable from other machines and {protocol} has no '
        f"password: set {protocol}.allow_unauthenticated = true to allow access without a "
        "password, or listen on 127.0.0.1"
    )
    allowed = {f"MILLRACE_{protocol}_ALLOW_UNAUTHENTICATED".upper(): "true"}
    for enough in ({**alone, **allowed}, only()):
        assert config(enough, server__host="0.0.0.0").server.host == "0.0.0.0"


def test_beyond_loopback_every_protocol_that_is_served_is_named():
    reported = problems(server__host="0.0.0.0")
    named = [problem.partition(" has no password")[0].split()[-1] for problem in reported]
    assert named == PROTOCOLS


@pytest.mark.parametrize("protocol", ["workq", "masenko", "qless"])
@pytest.mark.parametrize("dialect", ["spec", "original"])
def test_dialects(protocol: str, dialect: str):
    dotted_name, variable = f"{protocol}.dialect", f"MILLRACE_{protocol}_DIALECT".upper()
    assert value_of(config({variable: dialect}), dotted_name) == dialect
    assert problems({variable: "both"}) == [
        f'{variable}: {dotted_name}: expected one of "spec", "original", got "both"'
    ]


def test_rules_for_listeners_do_not_apply_to_clients():
    environ = {"MILLRACE_SERVER_HOST": "queue.example.com", "MILLRACE_TLS_CERT": "missing.pem"}
    reported = [problem.split(":")[0] for problem in problems(environ)]
    assert set(reported) == environ.keys()
    assert load({}, environ, listening=False).config.server.host == "queue.example.com"


def test_problems_of_several_keys_are_reported_unless_they_follow_from_others():
    host = {"MILLRACE_SERVER_HOST": "0.0.0.0", **only("faktory")}
    environ = {**host, "MILLRACE_TLS_KEY": "missing.pem"}
    reported = problems({**environ, "MILLRACE_FAKTORY_DEAD_MAX": "x"})
    sources = [problem.split(":")[0] for problem in reported]
    assert (
        sources == ["MILLRACE_FAKTORY_DEAD_MAX", "MILLRACE_SERVER_HOST"] + ["MILLRACE_TLS_KEY"] * 2
    )
    # An invalid port is not reported as open.
    reported = problems({**host, "MILLRACE_FAKTORY_PORT": "x"})
    assert [problem.split(":")[0] for problem in reported] == ["MILLRACE_FAKTORY_PORT"]


def test_tls_needs_both_files_to_be_readable(tmp_path: Path):
    write("[tls]\ncert = 'cert.pem'")
    assert problems() == [
        "millrace.toml:2: tls.cert: expected tls.key too: TLS requires both",
        "millrace.toml:2: tls.cert: cannot read cert.pem: No such file or directory",
    ]
    write("[tls]\ncert = 'cert.pem'\nkey = '.'")
    assert problems() == [
        "millrace.toml:2: tls.cert: cannot read cert.pem: No such file or directory",
        "millrace.toml:3: tls.key: cannot read .: Is a directory",
    ]
    write("", "cert.pem")
    write("", "key.pem")
    write("[tls]\ncert = 'cert.pem'\nkey = 'key.pem'")
    assert config().tls.key == "key.pem"


def test_client_certificates_require_tls_and_authenticate_every_port():
    write("", "ca.pem")
    environ = {"MILLRACE_TLS_CLIENT_CA": "ca.pem"}
    assert problems(environ) == [
        "MILLRACE_TLS_CLIENT_CA: tls.client_ca: expected tls.cert too: TLS requires both"
    ]
    write("", "cert.pem")
    write("", "key.pem")
    environ |= {"MILLRACE_TLS_CERT": "cert.pem", "MILLRACE_TLS_KEY": "key.pem"}
    assert config(environ, server__host="0.0.0.0").tls.client_ca == "ca.pem"


def test_the_largest_job_must_fit_into_the_output_limit():
    message = (
        'server.max_line: expected max_output ("64MiB") to be at least max_line ("128MiB"), '
        "because a reply can contain the largest job"
    )
    assert problems({"MILLRACE_SERVER_MAX_LINE": "128MiB"}) == [
        f"MILLRACE_SERVER_MAX_LINE: {message}"
    ]
    (problem,) = problems({"MILLRACE_SERVER_MAX_OUTPUT": "1MiB"})
    assert problem.startswith("MILLRACE_SERVER_MAX_OUTPUT: server.max_output: expected max_output")


def test_the_limit_of_one_connection_must_not_exceed_the_total_limit():
    message = (
        'server.max_buffered: expected max_buffered ("1MiB") to be at least max_output ("64MiB"), '
        "because it applies to all connections together"
    )
    assert problems({"MILLRACE_SERVER_MAX_BUFFERED": "1MiB"}) == [
        f"MILLRACE_SERVER_MAX_BUFFERED: {message}"
    ]
    (problem,) = problems({"MILLRACE_SERVER_MAX_OUTPUT": "1GiB"})
    assert problem.startswith("MILLRACE_SERVER_MAX_OUTPUT: server.max_output: expected max_buffer")


# Reloading


def test_changes_names_the_keys_that_differ():
    old = config()
    assert changed_keys(old, config()) == []
    new = config({"MILLRACE_FAKTORY_PASSWORD": "x", "MILLRACE_SERVER_LOG_LEVEL": "error"})
    assert changed_keys(old, new) == ["server.log_level", "faktory.password"]
    assert value_of(new, "faktory.password") == "x"


def test_reloadable_keys_are_declared_with_the_key():
    reloadable = {key.dotted_name for key in keys().values() if key.doc.reload}
    assert {"faktory.password", "server.log_level", "web.tokens"} <= reloadable
    assert reloadable.isdisjoint({"server.data", "server.durability", "lake.path", "faktory.port"})


def test_a_reload_applies_reloadable_keys_only():
    old = loaded({"MILLRACE_SERVER_DURABILITY": "os"})
    new = loaded({"MILLRACE_SERVER_DURABILITY": "memory", "MILLRACE_SERVER_LOG_LEVEL": "error"})
    effective = apply_reload(old, new)
    assert (effective.config.server.durability, effective.config.server.log_level) == (
        "os",
        "error",
    )
    assert effective.sources["server.durability"] == "MILLRACE_SERVER_DURABILITY"
    assert effective.sources["server.log_level"] == "MILLRACE_SERVER_LOG_LEVEL"


def test_a_configuration_is_immutable_and_has_no_unknown_keys():
    with pytest.raises(AttributeError):
        config().faktory.port = 1  # type: ignore[misc]
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"prot": 1}, FaktoryConfig)


# Imports and documentation


@pytest.mark.parametrize("section", section_types())
def test_the_reference_documents_every_key_as_declared(section: str):
    page = PAGE.read_text("utf-8")
    part = page.split(f"\n## [{section}]\n")[1].split("\n## ")[0]
    assert reference_table(section) in part, "run tests/config/configuration_page.py"


def test_the_references_example_is_a_valid_file(tmp_path: Path):
    example = PAGE.read_text("utf-8").split("```toml\n")[1].split("```")[0]
    for name in ("cert.pem", "key.pem", "password", "qless-password"):
        (tmp_path / name).write_text("x", "utf-8")
        example = example.replace(f"/etc/millrace/{name}", str(tmp_path / name))
    write(example)
    assert config().server.host != Config().server.host


# Tokens

READ, OPERATE = "read looker 0123456789abcdef", "operate oncall fedcba9876543210"


def tokens_of(text: str) -> list[tuple[str, str]]:
    found = parse_tokens(config({"MILLRACE_WEB_TOKENS": text}).web.tokens)
    return [(token.role, token.name) for token in found]


@pytest.mark.parametrize(
    "text",
    [
        f"{READ},{OPERATE}",
        f" {READ} , {OPERATE} ,",
        f"{READ}\n{OPERATE}\n",
        READ.replace(" ", "\t") + ",\n" + OPERATE,
    ],
)
def test_tokens_are_separated_by_commas_or_lines(text: str):
    assert tokens_of(text) == [("read", "looker"), ("operate", "oncall")]


def test_tokens_can_be_a_list_or_a_file(tmp_path: Path):
    write(f'[web]\ntokens = ["{READ}", "{OPERATE}"]')
    assert len(parse_tokens(config().web.tokens)) == 2
    path = tmp_path / "tokens"
    path.write_text(f"{READ}\n{OPERATE}\n", "utf-8")
    assert len(parse_tokens(config({"MILLRACE_WEB_TOKENS": str(path)}).web.tokens)) == 2
    path.write_text(f"{READ}\nadmin short\n", "utf-8")
    (problem,) = problems({"MILLRACE_WEB_TOKENS": str(path)})
    assert "token 2: expected a role" in problem


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "read looker tooshort",
            "token 1: expected a role (read, operate, admin), a name and a secret",
        ),
        ("root looker 0123456789abcdef", "token 1: expected a role"),
        ("read 0123456789abcdef", "token 1: expected a role"),
        ("read a/b 0123456789abcdef", "token 1: expected a role"),
        (f"{READ}, admin looker fedcba9876543210", "token 2: the name looker is used twice"),
        (f"{READ}, admin chief 0123456789abcdef", "token 2 (chief): the secret is used twice"),
        ("admin password 0123456789abcdef", "token 1: the name password is reserved"),
        ("admin anybody 0123456789abcdef", "token 1: the name anybody is reserved"),
        (",".join(f"read r{n} {n:016}" for n in range(65)), "expected at most 64 tokens, not 65"),
    ],
)
def test_invalid_tokens(text: str, problem: str):
    (reported,) = problems({"MILLRACE_WEB_TOKENS": text})
    assert problem in reported
    assert "0123456789abcdef" not in reported


def test_a_list_of_tokens_contains_only_strings():
    write("[web]\ntokens = [1, 2]")
    (problem,) = problems()
    assert "expected a quoted string" in problem


def test_beyond_loopback_the_pages_need_a_secret():
    beyond = only("web") | {"MILLRACE_SERVER_HOST": "0.0.0.0"}
    (problem,) = problems(beyond)
    assert "web has no password" in problem
    for way in (
        {"MILLRACE_WEB_PASSWORD": "x"},
        {"MILLRACE_WEB_TOKENS": READ},
        {"MILLRACE_FAKTORY_PASSWORD": "x"},
        {"MILLRACE_WEB_ALLOW_UNAUTHENTICATED": "true"},
    ):
        assert config(beyond | way).web.port == 7420


def test_secret_variables_are_passwords_and_tokens():
    assert secret_variables() == {
        "FAKTORY_PASSWORD",
        "MILLRACE_FAKTORY_PASSWORD",
        "MILLRACE_QLESS_PASSWORD",
        "MILLRACE_WEB_PASSWORD",
        "MILLRACE_WEB_TOKENS",
    }


@pytest.mark.parametrize("value", ['["mail", "signup*"]', '"mail signup*"'])
def test_rules_for_queues_are_a_list_or_text(value: str):
    write(f"[masenko]\nqueues = {value}")
    assert config().masenko.queues == ("mail", "signup*")
    assert config({"MILLRACE_MASENKO_QUEUES": ""}).masenko.queues == ()


@pytest.mark.parametrize("value", ["5", "[5]", '[""]', "true"])
def test_invalid_rules_for_queues(value: str):
    write(f"[masenko]\nqueues = {value}")
    with pytest.raises(ConfigError, match="a list of queue names"):
        config()

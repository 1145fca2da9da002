"""The log: lines for terminals, and JSON lines for programs."""

import io
import json
import logging
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from millrace.server import logs

log = logging.getLogger("millrace.test")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def restored_root_logger(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def setup_json(level: str = "info") -> io.StringIO:
    stream = io.StringIO()
    logs.setup(level, stream)
    return stream


def setup_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal without colours."""
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    logs.setup("info", stream)
    return stream


# JSON lines


def test_a_line_is_a_json_object_with_time_level_message_and_the_fields():
    stream = setup_json()
    before = datetime.now(UTC).replace(microsecond=0)
    log.info("pushed %d jobs", 3, extra={"fields": {"queue": "default", "bytes": 12}})
    (line,) = stream.getvalue().splitlines()
    record = json.loads(line)
    assert list(record) == ["time", "level", "message", "queue", "bytes"]
    assert record["level"] == "info"
    assert record["message"] == "pushed 3 jobs"
    assert (record["queue"], record["bytes"]) == ("default", 12)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", record["time"])
    assert before <= datetime.fromisoformat(record["time"]) <= datetime.now(UTC)


def test_an_exception_is_one_line():
    stream = setup_json()
    try:
        raise KeyError("gone")  # noqa: TRY301
    except KeyError:
        log.exception("cannot continue")
    (line,) = stream.getvalue().splitlines()
    record = json.loads(line)
    assert (record["level"], record["message"]) == ("error", "cannot continue")
    assert record["exception"].startswith("Traceback (most recent call last):\n")
    assert record["exception"].endswith("\nKeyError: 'gone'")


def test_fields_do_not_replace_the_standard_keys():
    stream = setup_json()
    log.info("mine", extra={"fields": {"message": "theirs", "level": "x", "time": 0}})
    record = json.loads(stream.getvalue())
    assert (record["message"], record["level"]) == ("mine", "info")
    assert record["time"] != 0


@pytest.mark.parametrize("value", ["caf\udce9", {1: "\udce9"}, 1 << 80, object, "a\nb\x1b[2J"])
def test_a_line_with_any_value_is_logged(value: object, capsys: pytest.CaptureFixture[str]):
    stream = setup_json()
    log.warning("strange", extra={"fields": {"value": value}})
    (line,) = stream.getvalue().splitlines()
    record = json.loads(line)
    assert (record["level"], record["message"]) == ("warning", "strange")
    assert record["value"]
    assert "\x1b" not in line
    assert capsys.readouterr().err == ""


# Lines for people


def test_a_line_for_people(monkeypatch: pytest.MonkeyPatch):
    stream = setup_terminal(monkeypatch)
    log.info("worker gone", extra={"fields": {"wid": "w1", "host": "", "reason": "read timeout"}})
    log.warning("disk is filling up")
    first, second = stream.getvalue().splitlines()
    assert re.fullmatch(
        r"\d\d:\d\d:\d\d info    worker gone wid=w1 host='' reason='read timeout'", first
    )
    assert re.fullmatch(r"\d\d:\d\d:\d\d warning disk is filling up", second)


def test_an_exception_follows_its_line_indented(monkeypatch: pytest.MonkeyPatch):
    stream = setup_terminal(monkeypatch)
    try:
        raise KeyError("gone")  # noqa: TRY301
    except KeyError:
        log.exception("cannot continue")
    lines = stream.getvalue().splitlines()
    assert lines[0].endswith("error   cannot continue")
    assert lines[1] == "    Traceback (most recent call last):"
    assert lines[-1] == "    KeyError: 'gone'"


def test_a_client_cannot_write_on_the_operators_terminal(monkeypatch: pytest.MonkeyPatch):
    stream = setup_terminal(monkeypatch)
    log.info("hello from \x1b[2J%s", "a\nb", extra={"fields": {"wid": "x\x07\r\ny"}})
    (line,) = stream.getvalue().splitlines()
    assert line.endswith(r"hello from \x1b[2Ja\nb wid='x\x07\r\ny'")


def test_terminals_have_colours_unless_disabled(monkeypatch: pytest.MonkeyPatch):
    def written(**env: str) -> str:
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        stream = Terminal()
        logs.setup("info", stream)
        log.error("broken")
        return stream.getvalue()

    assert "\x1b[1;31merror" in written()
    assert "\x1b[1;31merror" in written(NO_COLOR="")  # empty counts as not set
    assert "\x1b" not in written(TERM="dumb")
    assert "\x1b" not in written(TERM="xterm", NO_COLOR="1")


# Levels


def test_lines_below_the_level_are_omitted_until_it_changes():
    stream = setup_json("warning")
    log.info("one")
    log.warning("two")
    logs.set_level("debug")
    log.debug("three")
    assert [json.loads(line)["message"] for line in stream.getvalue().splitlines()] == [
        "two",
        "three",
    ]


def test_levels_of_other_libraries_are_mapped():
    stream = setup_json("debug")
    logging.getLogger().setLevel(1)
    for level in (5, 15, 25, 35, logging.CRITICAL):
        log.log(level, "x")
    levels = [json.loads(line)["level"] for line in stream.getvalue().splitlines()]
    assert levels == ["debug", "debug", "info", "warning", "error"]


def test_setup_replaces_earlier_handlers():
    first, second = setup_json(), setup_json()
    log.info("once")
    assert first.getvalue() == ""
    assert len(second.getvalue().splitlines()) == 1


def test_the_log_is_written_to_stderr(capsys: pytest.CaptureFixture[str]):
    logs.setup("info")
    assert logging.getLogger().handlers[0].stream is sys.stderr  # type: ignore[attr-defined]
    log.info("here")
    out, err = capsys.readouterr()
    assert out == ""
    assert json.loads(err)["message"] == "here"

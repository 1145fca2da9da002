"""`millrace pipeline state`: its times and its output."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from typer.testing import CliRunner

from millrace.cli.app import app
from millrace.cli.pipeline.state import parse_time
from millrace.pipeline.errors import PipelineError

NOW = datetime(2026, 11, 16, 12, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("now", NOW),
        ("-2h", NOW - timedelta(hours=2)),
        ("-1.5m", NOW - timedelta(seconds=90)),
        ("-3w", NOW - timedelta(days=21)),
        ("-99999999d", datetime.min.replace(tzinfo=UTC)),
        ("2026-11-16", datetime(2026, 11, 16, tzinfo=UTC)),
        ("2026-11-16T12:30:15.5", datetime(2026, 11, 16, 12, 30, 15, 500_000, tzinfo=UTC)),
        ("2026-11-16 12:30Z", NOW),
        ("2026-11-16T13:30+01:00", NOW),
    ],
)
def test_a_time_is_parsed(text, meant):
    assert parse_time(text, NOW) == meant
    assert parse_time(text, NOW.astimezone(timezone(timedelta(hours=5)))) == meant


@pytest.mark.parametrize("text", ["", "yesterday", "2h", "-2", "-2y", "12:30", "2026-13-01"])
def test_an_invalid_time_is_an_error(text):
    with pytest.raises(PipelineError, match="Invalid time"):
        parse_time(text, NOW)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--at", "noon"], "Invalid time 'noon'"),
        (["--state", "asleep"], "Unknown state 'asleep'. States: ready, scheduled"),
        ([], "No lake at"),
    ],
)
def test_errors_are_reported_before_spark_starts(tmp_path, arguments, message):
    data = ["--data", str(tmp_path)]
    result = CliRunner().invoke(app, ["pipeline", "state", *data, *arguments])
    assert result.exit_code == 1
    assert message in result.stderr

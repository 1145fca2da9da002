"""`/metrics`: the series for Prometheus, and their use in the dashboard and the page."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as read_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families
from reference_tables import METRICS_PAGE, metric_table
from scripted_app import READER, get, scripted_app

from millrace.records import GetMetrics, Histogram, Metrics, PortStatus
from millrace.web.metrics import MAX_METRIC_QUEUES, MetricsCollector

DOCS = Path(__file__).parents[2] / "docs"
SECOND = 1_000_000
NOW = 1_790_000_000 * SECOND
HOSTILE = 'a"b\\c\nd{e="f"} 7 <script>\u202e\u00fc'


def histogram() -> Histogram:
    return Histogram(bounds=[0.001024, 1.048576], counts=[1, 3], count=4, sum=9.5)


def numbers(**more: Any) -> Metrics:
    usual: dict[str, Any] = {
        "now": NOW,
        "started_at": NOW - 60 * SECOND,
        "pushed": 10,
        "completed": 6,
        "failed": 2,
        "queues": {"mail": [1, 0, 4, 2, 0, 1], "": [0, 0, 3, 0, 0, 0]},
        "queues_count": 7,
        "paused": 1,
        "retrying": 1,
        "protocols": [PortStatus("faktory", 7419, 3, 2, 100, 5)],
        "waits": histogram(),
        "runs": histogram(),
        "commits": histogram(),
        "lag": histogram(),
        "waiters": 4,
        "workers": 3,
        "store_bytes": 4096,
        "outbox_bytes": 512,
        "outbox_events": 8,
        "shipping_lag": 1.5,
        "shipped_files": 9,
        "dropped_events": 0,
        "memory_bytes": 1 << 25,
        "halted": False,
        "oldest": {"mail": NOW - 90 * SECOND, "": NOW + SECOND},
        "disk_free": 1000,
        "disk_size": 2000,
        "original": {
            "masenko_clients_total": {"": 3},
            "masenko_requests_total": {"PING": 5, "PUSH": 0},
            "masenko_responses_total": {"OK": 4},
        },
    }
    return Metrics(**usual | more)


def scraped(**more: Any) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    answer = get(scripted_app(metrics=numbers(**more)), "/metrics")
    assert answer.status == 200
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def names() -> set[str]:
    return {name for name, _ in scraped()}


def test_all_series():
    found = scraped()
    assert found["millrace_jobs", (("queue", "mail"), ("state", "ready"))] == 4
    assert found["millrace_jobs", (("queue", ""), ("state", "ready"))] == 3
    assert found["millrace_queue_oldest_seconds", (("queue", "mail"),)] == 90
    assert found["millrace_queue_oldest_seconds", (("queue", ""),)] == 0
    assert found["millrace_pushed_total", ()] == 10
    assert found["millrace_commands_total", (("protocol", "faktory"),)] == 100
    assert found["millrace_errors_total", (("protocol", "faktory"),)] == 5
    assert found["millrace_job_wait_seconds_bucket", (("le", "1.048576"),)] == 3
    assert found["millrace_job_wait_seconds_bucket", (("le", "+Inf"),)] == 4
    assert found["millrace_job_wait_seconds_count", ()] == 4
    assert found["millrace_job_wait_seconds_sum", ()] == 9.5
    assert found["millrace_start_time_seconds", ()] == NOW / SECOND - 60
    assert found["millrace_halted", ()] == 0
    assert scraped(halted=True)["millrace_halted", ()] == 1
    assert found["millrace_pushes_refused", ()] == 0
    assert scraped(pushes_refused=True)["millrace_pushes_refused", ()] == 1


def test_the_series_of_masenko():
    found = scraped()
    assert found["masenko_clients_total", ()] == 3
    assert found["masenko_requests_total", (("verb", "PING"),)] == 5
    assert found["masenko_responses_total", (("verb", "OK"),)] == 4
    kinds = {"ready": 4, "delayed": 1, "to_ack": 2}
    for kind, count in kinds.items():
        assert found["masenko_tasks_total", (("kind", kind), ("queue", "mail"))] == count
    without = scraped(original={})
    assert not [name for name, _ in without if name.startswith("masenko")]


def test_a_hostile_name_is_escaped():
    found = scraped(queues={HOSTILE: [0, 0, 5, 0, 0, 0]}, oldest={HOSTILE: NOW})
    assert found["millrace_jobs", (("queue", HOSTILE), ("state", "ready"))] == 5
    assert {labels for name, labels in found if name == "millrace_queue_oldest_seconds"} == {
        (("queue", HOSTILE),)
    }


@pytest.mark.parametrize("name", ["(others)", "others", "+Inf", " "])
def test_no_queue_name_collides_with_the_sum_of_other_queues(name):
    answer = get(scripted_app(metrics=numbers(queues={name: [0] * 6, "": [1] * 6})), "/metrics")
    series_lines = [line.rpartition(" ")[0] for line in answer.text.splitlines() if line[0] != "#"]
    series = [line for line in series_lines if line.startswith("millrace_jobs{")]
    assert len(series) == len(set(series)) == 12


def test_a_limited_number_of_queues_is_requested():
    room = scripted_app(metrics=numbers())
    get(room, "/metrics")
    assert room.control.asked == [("metrics", GetMetrics(MAX_METRIC_QUEUES))]


def test_openmetrics_on_request():
    encode, kind = choose_encoder("application/openmetrics-text; version=1.0.0")
    assert kind.startswith("application/openmetrics-text")
    families = {
        family.name for family in read_openmetrics(encode(MetricsCollector(numbers())).decode())
    }
    assert "millrace_pushed" in families


@pytest.mark.parametrize(("secret", "status"), [("", 401), ("wrong", 401), (READER.secret, 200)])
def test_the_required_role(secret, status):
    room = scripted_app({"tokens": [READER]}, metrics=numbers())
    assert get(room, "/metrics", secret).status == status


# The dashboard and the reference


def series_in(text: str) -> set[str]:
    return set(re.findall(r"\b(?:millrace|masenko)_[a-z_]+", text))


def expressions(part: Any) -> list[str]:
    """All queries of the dashboard."""
    if isinstance(part, list):
        return [found for each in part for found in expressions(each)]
    if not isinstance(part, dict):
        return []
    queries = [part[key] for key in ("expr", "definition") if isinstance(part.get(key), str)]
    return queries + [found for each in part.values() for found in expressions(each)]


def test_the_dashboard_uses_existing_series():
    dashboard = json.loads((DOCS / "grafana.json").read_text("utf-8"))
    asked = set().union(*map(series_in, expressions(dashboard)))
    assert len(asked) > 20
    assert asked - names() == set()


def test_the_dashboard_is_complete():
    dashboard = json.loads((DOCS / "grafana.json").read_text("utf-8"))
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    rows = [panel["title"] for panel in panels if panel["type"] == "row"]
    assert rows[1:] == ["Throughput", "Backlog", "Latency", "Errors", "Store and shipping"]
    variables = [each["name"] for each in dashboard["templating"]["list"]]
    assert variables == ["datasource", "instance"]
    taken = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "${datasource}"
            assert all(
                target["expr"].count("(") == target["expr"].count(")")
                for target in panel["targets"]
            )


def families() -> list[Metric]:
    return list(MetricsCollector(numbers()).collect())


def test_the_reference_of_the_metrics_is_generated():
    page = METRICS_PAGE.read_text("utf-8")
    assert metric_table(families()) in page, "run tests/web/reference_tables.py"
    assert series_in(page) <= names() | {
        re.sub(r"_(bucket|count|sum)$", "", name) for name in names()
    }

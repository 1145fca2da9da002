"""Data model of a prediction and of its JSON form."""

from datetime import datetime
from typing import Final

import msgspec

VERSION: Final = 1


class QueueOutcome(msgspec.Struct, kw_only=True, frozen=True):
    """Waits and runs are in seconds; waits are null without leases."""

    queue: str
    started: int
    failures: int
    #: Number of jobs that are ready at the end.
    unserved: int
    busy: float
    wait_p50: float | None
    wait_p95: float | None
    wait_p99: float | None
    wait_max: float | None
    peak_backlog: int


class ScenarioOutcome(msgspec.Struct, kw_only=True, frozen=True):
    name: str
    #: Number of jobs that the workers can hold at once.
    workers: int
    total: QueueOutcome
    queues: list[QueueOutcome]
    #: Backlog of all queues, at the times of `Prediction.at`.
    backlog: list[int]


class Prediction(msgspec.Struct, kw_only=True, frozen=True):
    """The recorded period, its replay without changes, and the scenarios."""

    version: int
    run: int
    made_at: datetime
    first: datetime
    last: datetime
    queue: str | None
    at: list[datetime]
    recorded: ScenarioOutcome
    replay: ScenarioOutcome
    #: Relative difference between the replay and the recording, the error of the method.
    error_p50: float | None
    error_p95: float | None
    scenarios: list[ScenarioOutcome]

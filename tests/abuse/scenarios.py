"""All abuse scenarios: the server's settings, the size, and the expected result."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from stage import Outcome

from server_process import ServerProcess, running_server

MEMORY_DISK = Path("/dev/shm")


def always(_: Outcome, __: int) -> bool:
    return True


@dataclass(frozen=True)
class Scenario:
    name: str
    #: The size in `make abuse`, and in `make test`.
    full: int
    short: int
    #: The expected counts of the abuser, given its size.
    expected: Callable[[Outcome, int], bool]
    #: Maximum growth of the server's memory in MiB, without the pushed jobs that remain.
    growth: float
    settings: dict[str, str] = field(default_factory=dict)
    #: If the machine and not the server limits the rate, the ratio is printed but not checked.
    judged: bool = True
    why: str = ""


def all_answered(outcome: Outcome, size: int) -> bool:
    return bool(outcome.met) and all(count % size == 0 for count in outcome.met.values())


LARGE_PAYLOADS_NOTE = (
    "64 MiB are read, parsed and written in one turn; lower server.max_line to avoid this delay"
)

SCENARIOS = (
    Scenario("slow_senders", 5000, 400, lambda o, size: o.met["open"] == size, 64),
    Scenario("never_readers", 500, 50, always, 128),
    Scenario("connects", 20_000, 1000, lambda o, size: o.met["connected"] <= size, 32),
    Scenario(
        "stampede",
        12_000,
        1500,
        lambda o, size: o.met["open"] < size and o.met["refused"] > 0,
        64,
    ),
    Scenario("pipeliners", 10_000, 1000, all_answered, 1000),
    Scenario(
        "large_payloads",
        1 << 20,
        1 << 20,
        always,
        512,
        {"MILLRACE_SERVER_MAX_LINE": "1MiB", "MILLRACE_GOQUEUE_MAX_DATA": "1MiB"},
    ),
    Scenario(
        "large_payloads",
        64 << 20,
        0,
        always,
        2000,
        judged=False,
        why=LARGE_PAYLOADS_NOTE,
    ),
    Scenario(
        "unfinished",
        40,
        8,
        lambda o, size: o.met["open"] * 16 <= 64 and o.met["cut"] == size - o.met["open"] > 0,
        160,
        {
            "MILLRACE_SERVER_MAX_LINE": "17MiB",
            "MILLRACE_SERVER_MAX_OUTPUT": "17MiB",
            "MILLRACE_SERVER_MAX_BUFFERED": "64MiB",
        },
    ),
    Scenario("noise", 20_000, 300, always, 32),
    Scenario("waiters", 5000, 300, lambda o, _: o.met["served"] == o.met["pushed"] > 0, 64),
    Scenario("many_queues", 10_000, 500, lambda o, _: o.met["made"] == o.met["asked"] > 0, 128),
    Scenario("slow_browsers", 3000, 300, lambda o, _: o.met["served"] == 1, 32),
    Scenario("browsers", 8, 4, lambda o, _: o.met["200"] > 0 and not o.met.get("503"), 32),
    Scenario("tags", 1000, 200, lambda o, _: o.met["put"] > 0, 1500),
)


@contextlib.contextmanager
def serving(scenario: Scenario, folder: Path | None, **more: str) -> Iterator[ServerProcess]:
    """A server for a scenario. The measurement concerns how the server divides its time among
    clients and not the disk, which other processes may use. The data is therefore in memory if
    possible.
    """
    if folder is None and MEMORY_DISK.is_dir():
        folder = MEMORY_DISK
    with (
        tempfile.TemporaryDirectory(prefix="millrace-abuse-", dir=folder) as data,
        running_server(Path(data) / "data", **(scenario.settings | more)) as server,
    ):
        yield server

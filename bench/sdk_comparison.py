"""Throughput and memory of the Python SDK, Celery, RQ and Dramatiq with no-op tasks.

Each framework gets a queue with JOBS jobs and a worker with WORKERS slots. The rate covers the
middle of the run, without start-up and the last jobs. The broker of the other frameworks is a
redis-server that does not write to disk, their fastest setting; Millrace syncs every acknowledged
command. `--redis-always` gives Redis the same durability.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from redis import Redis

import machine
from millrace import Millrace
from servers import CLOCK_TICKS, Running, die_with_parent, running, scratch
from servers import choose as choose_servers

TASKS = Path(__file__).parent / "frameworks"
HERE = Path(sys.executable).parent
#: The range of jobs over which the rate is measured.
MEASURED = (0.1, 0.9)
POLL_SECONDS = 0.01
WAIT_TIMEOUT = 240.0

Remaining = Callable[[], int]


@dataclass(frozen=True)
class Framework:
    """One line of the table. `worker` has `{workers}` in place of the number of slots."""

    name: str
    module: str
    worker: str
    #: A slow worker gets fewer jobs, a fast one more.
    part: float = 1.0

    @property
    def is_millrace(self) -> bool:
        return self.module == "millrace_tasks"


@dataclass
class Figures:
    name: str
    jobs_per_second: float
    worker_cpu_us: float  # per job, all processes of the worker
    server_cpu_us: float  # per job, Millrace or redis-server
    memory_mb: float  # proportional set size of the worker's processes, per slot
    push_per_second: float  # one client, one job at a time
    push_together_per_second: float  # 32 threads of one client, each one job at a time
    push_many_per_second: float
    completed: int  # all jobs of the run, as the broker counts them


MILLRACE = "millrace worker millrace_tasks:app -c {workers} --prefetch 8 --log-level warning"
CELERY = "celery -A celery_tasks worker -c {workers} -l ERROR --without-gossip --without-mingle"
FRAMEWORKS = (
    Framework("millrace threads", "millrace_tasks", MILLRACE, part=4),
    Framework("millrace processes", "millrace_tasks", f"{MILLRACE} --mode processes", part=4),
    Framework("celery threads", "celery_tasks", f"{CELERY} --pool threads"),
    Framework("celery prefork", "celery_tasks", f"{CELERY} --pool prefork"),
    Framework(
        "rq simple",
        "rq_tasks",
        "rq worker-pool -n {workers} -w rq.worker.SimpleWorker -l ERROR --url {redis}",
    ),
    Framework(
        "rq fork",
        "rq_tasks",
        "rq worker-pool -n {workers} -w rq.worker.Worker -l ERROR --url {redis}",
        part=0.05,
    ),
    Framework("dramatiq threads", "dramatiq_tasks", "dramatiq dramatiq_tasks -p 1 -t {workers}"),
    Framework("dramatiq processes", "dramatiq_tasks", "dramatiq dramatiq_tasks -p {workers} -t 1"),
)


def main() -> int:
    options = arguments()
    programs = Path(options.venv).absolute() / "bin"
    chosen = [f for f in FRAMEWORKS if f.name.startswith(options.only)]
    others = [framework.name for framework in chosen if not framework.is_millrace]
    if others and not (programs / "celery").exists():
        print(f"{options.venv} has no {others[0]}: run `make bench-sdk`", file=sys.stderr)
        return 1
    best: dict[str, Figures] = {}
    with scratch(options.dir) as folder:
        facts = machine.describe(folder)
        print("\n".join(f"{name:12} {value}" for name, value in facts.items()))
        for _ in range(options.repeat):
            for framework in chosen:
                figures = measure(framework, programs, folder, options)
                print(row(figures), flush=True)
                known = best.get(framework.name)
                if known is None or figures.jobs_per_second > known.jobs_per_second:
                    best[framework.name] = figures
    print(table(list(best.values()), options.workers))
    if options.json:
        Path(options.json).write_text(
            json.dumps({"machine": facts, "figures": [asdict(f) for f in best.values()]}, indent=2)
        )
    return 0


def measure(
    framework: Framework, programs: Path, folder: Path, options: argparse.Namespace
) -> Figures:
    redis = "redis-always" if options.redis_always else "redis-memory"
    (server,) = choose_servers("millrace-fsync" if framework.is_millrace else redis)
    place = folder / framework.name.replace(" ", "-")
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    python = HERE if framework.is_millrace else programs
    with running(server, place, {"MILLRACE_WEB_PORT": "off"}) as broker:
        url = f"redis://127.0.0.1:{broker.port}/0"
        env = os.environ | {
            "MILLRACE_URL": f"tcp://127.0.0.1:{broker.port}",
            "REDIS_URL": url,
            "PYTHONPATH": str(TASKS),
            "PATH": f"{python}:{os.environ['PATH']}",
        }
        pushes, jobs = options.pushes, int(options.jobs * framework.part)
        pushed = pushes / produce(framework, python, "one", pushes, env)
        together = pushes / produce(framework, python, "threads", pushes, env)
        bulk = jobs / produce(framework, python, "many", jobs, env)
        remaining = counter(framework, broker)
        command = framework.worker.format(workers=options.workers, redis=url)
        with worker(command, env, place) as process:
            total = remaining()
            rate, worker_cpu, server_cpu, memory = drain(remaining, total, process, broker)
    return Figures(
        framework.name,
        rate,
        worker_cpu,
        server_cpu,
        memory / options.workers,
        pushed,
        together,
        bulk,
        total,
    )


def produce(
    framework: Framework, python: Path, form: str, count: int, env: dict[str, str]
) -> float:
    command = [python / "python", TASKS / "produce.py", framework.module, form, str(count)]
    shown = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    return float(shown.stdout)


@contextlib.contextmanager
def worker(command: str, env: dict[str, str], place: Path) -> Iterator[int]:
    """Run a worker in its own session; yield its process ID."""
    with (place / "worker.log").open("wb") as log:
        process = subprocess.Popen(
            command.split(),
            env=env,
            cwd=place,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - there are no threads here
        )
    try:
        yield process.pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def counter(framework: Framework, broker: Running) -> Remaining:
    """A function that returns the number of jobs that are not completed."""
    if framework.is_millrace:
        app = Millrace(f"tcp://127.0.0.1:{broker.port}")
        total = app.info()["faktory"]["total_enqueued"]
        return lambda: int(total - app.info()["faktory"]["total_processed"])
    client: Redis[bytes] = Redis(port=broker.port)
    lists, sets, hashes, sorted_sets = {
        "celery_tasks": (["celery"], [], ["unacked"], []),
        "rq_tasks": (["rq:queue:default"], [], [], ["rq:wip:default"]),
        "dramatiq_tasks": (["dramatiq:default"], ["dramatiq:__acks__.*.default"], [], []),
    }[framework.module]

    def remaining() -> int:
        found = [client.llen(key) for key in lists] + [client.hlen(key) for key in hashes]
        found += [client.zcard(key) for key in sorted_sets]
        found += [client.scard(key) for pattern in sets for key in client.scan_iter(pattern)]
        return sum(found)

    return remaining


def drain(
    remaining: Remaining, total: int, pid: int, broker: Running
) -> tuple[float, float, float, float]:
    """Wait until no job is left. Return jobs per second, the CPU microseconds per job of the
    worker and of the server, and the memory of the worker in megabytes.
    """
    deadline = time.monotonic() + WAIT_TIMEOUT
    begin = end = (0.0, 0, 0.0, 0.0)
    memory = 0.0
    left = total
    while left or not end[0]:
        left, now = remaining(), time.perf_counter()
        done = total - left
        point = (now, done, cpu_seconds(pid), broker.cpu_seconds())
        if not begin[0] and done >= MEASURED[0] * total:
            begin = point
        elif begin[0] and not end[0] and done >= MEASURED[1] * total:
            end, memory = point, memory_mb(pid)
        if time.monotonic() > deadline:
            raise SystemExit(f"{left} of {total} jobs are left after {WAIT_TIMEOUT:g} s")
        time.sleep(POLL_SECONDS)
    seconds, jobs, used, served = (after - before for before, after in zip(begin, end, strict=True))
    return jobs / seconds, 1e6 * used / jobs, 1e6 * served / jobs, memory


def processes(leader: int) -> Iterator[Path]:
    """The processes of the worker's session."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError, IndexError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == leader:
                    yield entry


def cpu_seconds(leader: int) -> float:
    """User and system time of the session, including that of children that ended."""
    ticks = 0
    for process in processes(leader):
        with contextlib.suppress(OSError):
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return ticks / CLOCK_TICKS


def memory_mb(leader: int) -> float:
    kilobytes = 0
    for process in processes(leader):
        with contextlib.suppress(OSError):
            for line in (process / "smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    kilobytes += int(line.split()[1])
    return kilobytes / 1024


HEAD = (
    "",
    "jobs/s",
    "worker CPU µs/job",
    "server CPU µs/job",
    "MB/worker",
    "push/s",
    "push/s, 32 threads",
    "bulk push/s",
)


def row(figures: Figures) -> str:
    name, *numbers, _ = asdict(figures).values()
    return f"| {name} | {' | '.join(f'{number:,.0f}' for number in numbers)} |"


def table(rows: list[Figures], workers: int) -> str:
    lines = [
        "",
        f"{workers} workers",
        "",
        f"| {' | '.join(HEAD)} |",
        f"|---|{'--:|' * (len(HEAD) - 1)}",
    ]
    return "\n".join(lines + [row(figures) for figures in rows])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000, help="jobs per run")
    parser.add_argument("--pushes", type=int, default=1_000, help="single pushes per run")
    parser.add_argument("--workers", type=int, default=4, help="threads or processes per worker")
    parser.add_argument("--repeat", type=int, default=2, help="runs per framework; the best counts")
    parser.add_argument("--only", default="", help="start of the names of the frameworks to run")
    parser.add_argument("--redis-always", action="store_true", help="Redis syncs every command")
    parser.add_argument(
        "--venv", default=".bench/venv", help="environment with the other frameworks"
    )
    parser.add_argument("--dir", default="", help="parent of the data folder")
    parser.add_argument("--json", default="", help="write the figures to this file")
    return parser.parse_args()


if __name__ == "__main__":
    machine.stop_on_sigterm()
    sys.exit(main())

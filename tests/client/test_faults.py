"""SDK workers behind a proxy that refuses, delays and cuts connections, while the server is killed.

No job is lost, and the server accepts the end of each job once.
"""

import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from fault_proxy import FaultProxy

from millrace import Millrace
from millrace.client import Worker, WorkerOptions
from millrace.journal import tail
from server_process import running_server

JOBS = 120
KILLS = 2
#: A bound for a machine under load; the test ends as soon as the jobs have ended.
WAIT = 120.0


def ends(folder: Path) -> Counter[str]:
    """The number of completions of each job in the journal."""
    events = tail.read_page(folder, 1, 100_000).events
    return Counter(each.jid for each in events if each.type == "completed")


@pytest.mark.parametrize("seed", [1, 2])
def test_no_job_is_lost_and_none_ends_twice(tmp_path: Path, seed: int) -> None:
    with running_server(tmp_path / "data") as server:
        proxy = FaultProxy(server.port, seed)
        app = Millrace(f"tcp://127.0.0.1:{proxy.port}", retry_for=WAIT)
        ran: Counter[int] = Counter()

        @app.task(name="count", queue="numbers", retries=0)
        def count(number: int) -> int:
            ran[number] += 1
            return number

        with Millrace(f"tcp://127.0.0.1:{server.port}") as direct:
            ids = [job.id for job in direct.push_many(count.job(n) for n in range(JOBS))]
        worker = Worker(
            app, WorkerOptions(queues=("numbers",), concurrency=4, heartbeat_interval=0.2)
        )
        thread = threading.Thread(target=worker.run, kwargs={"handle_signals": False})
        thread.start()
        deadline = time.monotonic() + WAIT
        try:
            for kill in range(1, KILLS + 1):
                while len(ends(server.data)) < kill * JOBS // (KILLS + 2):
                    assert time.monotonic() < deadline, (ends(server.data), proxy.faults)
                    time.sleep(0.02)
                server.kill()
                server.restart()
                proxy.server_port = server.port
            while len(ends(server.data)) < JOBS:
                assert time.monotonic() < deadline, (len(ends(server.data)), proxy.faults)
                time.sleep(0.02)
        finally:
            proxy.faulty = False
            worker.stop()
            thread.join(WAIT)
            proxy.close()
        assert not thread.is_alive()
        assert ends(server.data) == Counter(ids)
        assert set(ran) == set(range(JOBS))
        assert min(proxy.faults.values()) > 0, proxy.faults

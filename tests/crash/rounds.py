"""Kills a server at random times and checks after each restart that it kept its promises.

One round: start the server on the data folder of the last kill (sometimes killing it during that
start, too), compare its counts with the ledger, run clients against it, kill it. Every few rounds,
and at the end, all jobs are taken out and compared one by one. ledger.py describes the promises,
traffic.py the clients.

    .venv/bin/python tests/crash/rounds.py --rounds 1000
"""

import argparse
import contextlib
import math
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from audit import drain, total
from ledger import Ledger, ViolationError
from traffic import Traffic

from raw_faktory import RawFaktory, RefusedError, line
from server_process import DidNotStartError, ServerProcess, server_process

# The endings of a round with their weights.
ENDINGS = {
    "killed after a while": 12,
    "killed at a reply": 6,
    "killed while stopping": 2,
    "killed around a FLUSH": 1,
}
KILL_DURING_START = 0.25
DRAIN = 0.12


@dataclass(slots=True)
class Tally:
    rounds: int = 0
    kills: int = 0
    kills_during_start: int = 0
    drains: int = 0
    slowest_start: float = 0.0


class Run:
    """A server, its data folder, and the knowledge of the clients of all rounds."""

    def __init__(self, server: ServerProcess, seed: int) -> None:
        self.seed = seed
        self.ledger = Ledger()
        self.tally = Tally()
        self._server = server
        self._start_seconds = 0.5

    def round(self, number: int) -> None:
        rng = random.Random(f"{self.seed}/{number}")
        ending = rng.choices(list(ENDINGS), list(ENDINGS.values()))[0]
        if self.tally.rounds and rng.random() < KILL_DURING_START:
            self._kill_during_start(rng)
        self._start()
        with RawFaktory(self._server.port, wid="auditor") as auditor:
            self.ledger.check_total(total(auditor.info()))
            if rng.random() < DRAIN or ending == "killed around a FLUSH":
                self._drain(auditor)
        if ending == "killed around a FLUSH":
            self._flush(rng)
        else:
            self._work(ending, rng)
        self.tally.rounds += 1

    def finish(self) -> None:
        """Take out all jobs, and check that none of them exists after a clean stop."""
        self._start()
        with RawFaktory(self._server.port, wid="auditor") as auditor:
            self.ledger.check_total(total(auditor.info()))
            self._drain(auditor)
        code = self._server.stop()
        if code != 0:
            raise ViolationError(f"the server exited with {code} on SIGTERM")
        self._start()
        with RawFaktory(self._server.port, wid="auditor") as auditor:
            self._drain(auditor)

    # The steps of a round

    def _start(self) -> None:
        self.ledger.life += 1
        self._server.start()
        self._start_seconds = self._server.start_seconds
        self.tally.slowest_start = max(self.tally.slowest_start, self._start_seconds)

    def _kill_during_start(self, rng: random.Random) -> None:
        for _ in range(rng.randint(1, 3)):
            self._server.spawn()
            time.sleep(rng.uniform(0.0, 1.1 * self._start_seconds))
            self._kill()
            self.tally.kills_during_start += 1

    def _drain(self, auditor: RawFaktory) -> None:
        drain(auditor, self.ledger)
        self.tally.drains += 1

    def _work(self, ending: str, rng: random.Random) -> None:
        last_reply = round(_log_uniform(rng, 1, 3000)) if ending == "killed at a reply" else 0

        def on_reply(number: int) -> None:
            if number == last_reply:
                self._server.signal(signal.SIGKILL)

        traffic = Traffic(self._server.port, self.ledger, rng, on_reply)
        traffic.start()
        try:
            if last_reply:
                self._wait_for_exit(2.0)
            else:
                time.sleep(_log_uniform(rng, 0.002, 0.4))
            if ending == "killed while stopping":
                traffic.stopping = True
                self._stop_and_kill(rng)
        finally:
            self._kill()
            traffic.join()

    def _stop_and_kill(self, rng: random.Random) -> None:
        self._server.signal(signal.SIGTERM)
        self._wait_for_exit(rng.uniform(0.0, 1.3))
        if self._server.returncode not in {None, 0}:
            raise ViolationError(f"the server exited with {self._server.returncode} on SIGTERM")

    def _flush(self, rng: random.Random) -> None:
        """On a drained server: after a crash either all of the jobs exist or none of them."""
        with RawFaktory(self._server.port) as connection:
            units = [
                self.ledger.pushing(f"{self.ledger.life:06d}-flush-{n:06d}", 25)
                for n in range(rng.randint(1, 300))
            ]
            for unit in units:
                connection.send(line("PUSH", unit))
            for unit in units:
                assert connection.reply() == "OK"
                self.ledger.pushed(unit["jid"])
            connection.send(line("FLUSH"))
            acknowledged = rng.random() < 0.5 and connection.reply() == "OK"
            if not acknowledged:
                time.sleep(_log_uniform(rng, 0.0001, 0.02))
        self._kill()
        if acknowledged:
            self.ledger.flushed()
            return
        self._start()
        with RawFaktory(self._server.port) as connection:
            left = total(connection.info())
        if left not in {0, len(units)}:
            raise ViolationError(f"a FLUSH of {len(units)} jobs left {left} of them")
        if not left:
            self.ledger.flushed()
        self._kill()

    def _kill(self) -> None:
        """SIGKILL. It is a violation if the server had already ended."""
        code = self._server.returncode
        self._server.kill()
        self.tally.kills += 1
        if code not in {None, 0, -signal.SIGKILL}:
            raise ViolationError(f"the server ended by itself, with {code}")

    def _wait_for_exit(self, seconds: float) -> None:
        with contextlib.suppress(AssertionError):
            self._server.wait(seconds)


def _log_uniform(rng: random.Random, low: float, high: float) -> float:
    return math.exp(rng.uniform(math.log(low), math.log(high)))


@contextlib.contextmanager
def _evidence(run: Run, server: ServerProcess, replay: str) -> Iterator[None]:
    """Keep the files of a violation, and print their path."""
    try:
        yield
    except (ViolationError, RefusedError, DidNotStartError, AssertionError) as error:
        server.kill()
        folder = server.data.parent
        run.ledger.dump(folder / "ledger.jsonl")
        (folder / "stderr.log").write_text(server.stderr, encoding="utf-8")
        raise ViolationError(
            f"round {run.tally.rounds + 1}, life {run.ledger.life}: {error}\n"
            f"The data folder, stderr.log and ledger.jsonl are in {folder}\n"
            f"To try the same again: {replay}"
        ) from error


def crash_test(
    rounds: int,
    seed: int,
    folder: Path,
    *,
    durability: str = "fsync",
    progress: Callable[[Tally], None] = lambda _: None,
) -> Run:
    """Raises ViolationError with all details at the first violation."""
    replay = f"tests/crash/rounds.py --rounds {rounds} --seed {seed} --durability {durability}"
    with server_process(folder / "data", MILLRACE_SERVER_DURABILITY=durability) as server:
        run = Run(server, seed)
        with _evidence(run, server, replay):
            for number in range(rounds):
                run.round(number)
                progress(run.tally)
            run.finish()
    return run


def _lines(rounds: int) -> Callable[[Tally], None]:
    def progress(tally: Tally) -> None:
        if tally.rounds % 50 == 0 or tally.rounds == rounds:
            print(f"crash: {tally.rounds} of {rounds} rounds, {tally.kills} kills", flush=True)

    return progress


@contextlib.contextmanager
def _progress(rounds: int) -> Iterator[Callable[[Tally], None]]:
    if not sys.stdout.isatty():
        yield _lines(rounds)
        return
    from rich.progress import Progress

    with Progress() as bar:
        task = bar.add_task("crash", total=rounds)
        yield lambda tally: bar.update(task, completed=tally.rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=None, help="any number; default: a new one")
    parser.add_argument("--durability", choices=("fsync", "os", "memory"), default="fsync")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = Path(tempfile.mkdtemp(prefix="millrace-crash-"))
    print(f"crash: {options.rounds} rounds, seed {seed}, in {folder}", flush=True)
    started = time.monotonic()
    try:
        with _progress(options.rounds) as progress:
            run = crash_test(
                options.rounds, seed, folder, durability=options.durability, progress=progress
            )
    except ViolationError as violation:
        sys.exit(f"crash: BROKEN in {violation}")
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    shutil.rmtree(folder)
    tally, ledger = run.tally, run.ledger
    print(
        f"crash: {tally.rounds} rounds in {time.monotonic() - started:.0f} s, seed {seed}: "
        f"{ledger.acknowledged_pushes:,} pushes and {ledger.acknowledged_acks:,} completions "
        f"acknowledged, {tally.kills:,} kills ({tally.kills_during_start} of them during a start), "
        f"{tally.drains} full comparisons; slowest start {tally.slowest_start:.2f} s, "
        f"data folder {size / 2**20:.0f} MiB. No acknowledged command was lost, no completed job was leased again."
    )


if __name__ == "__main__":
    main()

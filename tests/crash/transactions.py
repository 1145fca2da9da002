"""Masenko clients that make all changes in transactions, and the possible states after a crash.

A client has its own queues and sends its changes over one connection, one after another: a PUSH, an
ACK, or an ATOMIC with some of both. After a crash the state therefore equals the state after some
whole number of changes: at least the acknowledged ones, at most the sent ones. Half of a
transaction, a lost task or a repeated task is none of these states.
"""

import itertools
import json
import random
import threading
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ledger import ViolationError

from raw_masenko import RawMasenko

BACKLOG = 120  # number of open tasks at which a client stops pushing
NOT_HELD = 4_294_967_294  # an id that is not leased


@dataclass(frozen=True, slots=True)
class Task:
    client: str
    number: int  # counted by its client
    queue: str
    blockers: frozenset[int]  # by number

    @property
    def text(self) -> str:
        """Mostly small, and derived from the number."""
        draw = zlib.crc32(f"{self.client}/{self.number}".encode())
        return "x" * (draw % 200 if draw % 23 else draw % 60_000)

    @property
    def payload(self) -> dict[str, Any]:
        return {"client": self.client, "number": self.number, "text": self.text}


@dataclass(slots=True)
class Change:
    pushed: list[Task] = field(default_factory=list)
    done: list[int] = field(default_factory=list)
    refused: bool = False  # it contains an invalid command, so that none of it may be executed

    def after(self, tasks: dict[int, Task]) -> dict[int, Task]:
        """The tasks after this change."""
        if self.refused:
            return tasks
        left = tasks | {task.number: task for task in self.pushed}
        return {number: task for number, task in left.items() if number not in self.done}


class Book:
    """The changes that one client sent, and the number of acknowledged ones."""

    def __init__(self, client: str) -> None:
        self.client = client
        self.queues = (f"{client}-a", f"{client}-b")
        self.held: dict[int, int] = {}  # number to id
        self.ids: dict[int, int] = {}  # number to id, of all assigned ids
        self.pushes_sent = 0
        self._count = itertools.count(1)
        self._states: list[dict[int, Task]] = [
            {}
        ]  # the acknowledged state, then the states after each sent change

    @property
    def acknowledged(self) -> dict[int, Task]:
        return self._states[0]

    @property
    def sent(self) -> dict[int, Task]:
        return self._states[-1]

    def new_task(self, queue: str, blockers: Iterable[int] = ()) -> Task:
        return Task(self.client, next(self._count), queue, frozenset(blockers))

    # Recorded by the client

    def sending(self, change: Change) -> None:
        self.pushes_sent += len(change.pushed)
        self._states.append(change.after(self.sent))
        for number in change.done:
            self.held.pop(number, None)

    def replied(self, change: Change, reply: bytes) -> None:
        """The reply to the oldest unanswered change."""
        verb, _, rest = reply.partition(b" ")
        if change.refused != (verb == b"ERR") or verb not in {b"OK", b"ERR"}:
            raise ViolationError(f"{change} was answered {reply!r}")
        del self._states[0]
        if change.refused:
            return
        received = json.loads(rest)
        ids = [received["id"]] if "id" in received else received.get("ids", [])
        if len(ids) != len(change.pushed):
            raise ViolationError(f"{len(change.pushed)} tasks were pushed, their ids are {ids}")
        self.ids |= {task.number: number for task, number in zip(change.pushed, ids, strict=True)}

    def handed_out(self, reply: bytes) -> int:
        """A FETCH returned a task while no change was unanswered. Returns its number."""
        if not reply.startswith(b"OK "):
            raise ViolationError(f"FETCH was answered {reply!r}")
        received = json.loads(reply[3:])
        number = received["payload"]["number"]
        task = self.acknowledged.get(number)
        if task is None or number in self.held:
            raise ViolationError(f"unexpected lease of {_short(received)}")
        if task.blockers & self.acknowledged.keys():
            raise ViolationError(f"{task} was leased before its blockers")
        expected = {"queue": task.queue, "name": f"task-{number}", "payload": task.payload}
        if {name: received.get(name) for name in expected} != expected or "failures" in received:
            raise ViolationError(f"{task} was leased as {_short(received)}")
        if self.ids.setdefault(number, received["id"]) != received["id"]:
            raise ViolationError(
                f"{task} had the id {self.ids[number]}, but was leased as {received['id']}"
            )
        self.held[number] = received["id"]
        return number

    # Conclusions

    def ready(self, queue: str) -> list[int]:
        """The tasks of a queue that are neither leased nor blocked."""
        tasks = self.acknowledged
        return [
            number
            for number, task in tasks.items()
            if task.queue == queue and not task.blockers & tasks.keys() and number not in self.held
        ]

    def settle(self, found: list[int]) -> None:
        """After a crash: find the matching possible state."""
        self.held.clear()
        for state in self._states:
            if len(found) == len(state) and state.keys() == set(found):
                self._states = [state]
                return
        lost = sorted(self.acknowledged.keys() - set(found))
        unexpected = sorted(set(found) - self.acknowledged.keys())
        raise ViolationError(
            f"{self.client} has {len(found)} tasks, which is none of the {len(self._states)} states "
            f"that it can be in. Of the acknowledged tasks {lost} are lost, {unexpected} are more"
        )


class Books:
    """The books of all clients, over all lives of the server."""

    def __init__(self, clients: int) -> None:
        self.life = 1  # number of server starts
        self.books = [Book(f"client-{n}") for n in range(clients)]
        self._floor = 0  # ids up to here were assigned before this life

    def candidate_ids(self) -> list[int]:
        """All ids that a task may have: acknowledged ones, and ids of unanswered pushes."""
        received = {
            book.ids[number]
            for book in self.books
            for number in book.acknowledged | book.sent
            if number in book.ids
        }
        most = sum(book.pushes_sent for book in self.books)  # each takes at most one id
        return sorted(received | set(range(self._floor + 1, most + 1)))

    def settle(self, found: dict[int, dict[str, Any]]) -> None:
        """`found` contains the payloads of all tasks by id."""
        for book in self.books:
            mine = {n: what["number"] for n, what in found.items() if what["client"] == book.client}
            book.settle(list(mine.values()))
            for number, task in mine.items():
                if book.ids.setdefault(task, number) != number:
                    raise ViolationError(f"{book.client}'s {task} has another id now: {number}")
        received = [number for book in self.books for number in book.ids.values()]
        if len(received) != len(set(received)):
            raise ViolationError("an id was given out twice")
        self._floor = max(received, default=0)

    def dump(self, path: Path) -> None:
        with path.open("w", encoding="utf-8") as file:
            for book in self.books:
                for number, task in sorted((book.acknowledged | book.sent).items()):
                    entry = {"client": book.client, "task": number, "id": book.ids.get(number)}
                    entry |= {"queue": task.queue, "blockers": sorted(task.blockers)}
                    file.write(json.dumps(entry) + "\n")


class Clients:
    """One thread and one connection for each book, until the server dies."""

    def __init__(
        self, port: int, books: Books, rng: random.Random, on_reply: Callable[[int], None]
    ) -> None:
        self._port = port
        self._on_reply = on_reply
        self._count = itertools.count(1)
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._run, args=(book, random.Random(rng.random())))
            for book in books.books
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        """The server has ended: wait for the clients, and raise the first violation that one
        found.
        """
        self._over.set()
        for thread in self._threads:
            thread.join()
        if self._error is not None:
            raise self._error

    def _run(self, book: Book, rng: random.Random) -> None:
        try:
            with RawMasenko(self._port) as wire:
                while not self._over.is_set():
                    self._fetch(wire, book, rng.choice((0, 1, 2, 5, 12)))
                    self._change(wire, book, rng)
        except OSError:
            pass  # killed, as expected
        except BaseException as error:
            self._error = self._error or error

    def _fetch(self, wire: RawMasenko, book: Book, most: int) -> None:
        wire.send(fetch(*book.queues) * most)
        for reply in [wire.line() for _ in range(most)]:
            self._on_reply(next(self._count))
            if reply != b"EMPTY {}":
                book.handed_out(reply)

    def _change(self, wire: RawMasenko, book: Book, rng: random.Random) -> None:
        """Send some changes together, sometimes in two pieces with a pause."""
        changes, written = [], b""
        for _ in range(rng.choice((1, 1, 1, 2, 5))):
            change, commands = self._draw(book, rng)
            book.sending(change)
            changes.append(change)
            written += commands
        middle = rng.randrange(len(written)) if rng.random() < 0.3 else 0
        if middle:
            wire.send(written[:middle])
            self._over.wait(rng.uniform(0.0, 0.003))
        wire.send(written[middle:])
        for change in changes:
            book.replied(change, wire.line())
            self._on_reply(next(self._count))

    def _draw(self, book: Book, rng: random.Random) -> tuple[Change, bytes]:
        """A change, and its encoding."""
        change = Change(refused=rng.random() < 0.05)
        if book.held and not change.refused:
            change.done = rng.sample(sorted(book.held), rng.randint(0, min(4, len(book.held))))
        commands = []
        room = len(book.sent) < BACKLOG or not change.done
        for _ in range(rng.randint(1, 6) if room else 0):
            earlier = [task.number for task in change.pushed]
            blockers = set(rng.sample(earlier, rng.randint(0, min(3, len(earlier)))))
            known = [n for n in book.sent if n in book.ids and n not in change.done]
            absolute = {rng.choice(known)} if known and rng.random() < 0.2 else set()
            task = book.new_task(rng.choice(book.queues), blockers | absolute)
            positions = [earlier.index(number) - len(earlier) for number in sorted(blockers)]
            commands.append(push(task, positions + [book.ids[number] for number in absolute]))
            change.pushed.append(task)
        for number in change.done:  # the position must not affect relative references
            commands.insert(rng.randint(0, len(commands)), ack(book.held[number]))
        if len(commands) == 1 and not change.refused and rng.random() < 0.5:
            return change, commands[0]
        if change.refused:
            commands.insert(rng.randint(0, len(commands)), ack(NOT_HELD))
        return change, atomic(*commands)


# Encoding


def fetch(*queues: str) -> bytes:
    return _line("FETCH", {"queues": queues, "timeout": "1ms"})


def ack(number: int) -> bytes:
    return _line("ACK", {"id": number})


def push(task: Task, blocked_by: list[int] | None = None) -> bytes:
    fields = {"name": f"task-{task.number}", "queue": task.queue, "payload": task.payload}
    return _line("PUSH", fields | ({"blocked_by": blocked_by} if blocked_by else {}))


def atomic(*commands: bytes) -> bytes:
    return b"ATOMIC\n" + b"".join(commands) + b"DONE\n"


def _line(verb: str, fields: dict[str, Any]) -> bytes:
    return f"{verb} {json.dumps(fields, separators=(',', ':'))}\n".encode()


def _short(received: object) -> str:
    return str(received)[:300]
